"""The columns of metrics.csv, with what they mean. docs/reference/metrics.md is made from them."""

from __future__ import annotations

from collections.abc import Mapping

# In every file, in this order.
ALWAYS: Mapping[str, str] = {
    "train_step": "updates so far",
    "iteration": "the iteration",
    "env_steps": "environment steps so far, of all workers together, random ones included",
    "wall_time_s": "seconds that the run has been trained for, over all starts",
    "train_return": "undiscounted return of training episodes, which explore: mean since the row before",
    "train_success": "share of training episodes that the environment calls a success",
    "eval_return": "undiscounted return of the greedy policy: mean over the evaluation's episodes",
    "eval_return_std": "standard deviation of that over the episodes",
    "eval_episodes": "episodes of the evaluation",
    "eval_success": "share of them that the environment calls a success",
    "critic_loss": "loss of the critics, summed over them: mean over updates",
    "actor_loss": "loss of the actor",
    "alpha_loss": "loss of the entropy coefficient; none while alpha is fixed",
    "alpha": "the entropy coefficient",
    "q_mean": "the critics' mean value over the minibatches: far beyond the returns, the critics overestimate",
    "updates_per_s": "updates per second since the row before",
    "env_steps_per_s": "environment steps per second since the row before",
}

# Where a run has what they are about.
FURTHER: Mapping[str, str] = {
    "curriculum/<name>": "value of a parameter of the curriculum (docs/how_to/iterations.md)",
    "train/episode_length": "steps of training episodes: mean",
    "eval/episode_length": "steps of the evaluation's episodes: mean",
    "train/policy_lag": "most iterations by which the policy of a training episode was behind",
    "policy_age_updates": "with `asynchronous`: how many updates old a policy is when the steps that it took arrive",
    "eval_left_out": "with `asynchronous` or SAC_EVAL_WORKERS: evaluations since the row before that were due, but "
    "skipped because one took too long",
    "reward_scale": "with `normalize_rewards`: the divisor of rewards; losses and `q_mean` are of divided rewards",
    "grad_norm": "with discrete actions: norm of the gradients before clipping",
    "validation/<loss>": "the loss on held-out episodes (docs/explanations/experience.md)",
    "schedule/<attribute>": "in rows of training: value of an attribute that is a schedule (docs/how_to/iterations.md)",
    "network_resets": "how often networks were drawn anew within the run",
    "train/<name>": "mean over training episodes of your environment's `info[\"log/<name>\"]`; an observer's result",
    "eval/<name>": "the same of the evaluation's episodes",
    "train/late_steps": "in real time (docs/tutorials/real_robot.md): steps whose action was late, summed over workers",
    "train/step_ms_p99": "in real time: 99th percentile of the milliseconds from one action to the next",
    "train/inference_ms_p99": "in real time: 99th percentile of the milliseconds between two steps",
    "train/dropped_steps": "in real time: steps that were dropped because the replay server did not take them",
}
