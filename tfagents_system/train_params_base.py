"""TrainParamsBase: every hyperparameter and every hook that a user may override.

A user writes one file with `class TrainParams(TrainParamsBase)`, fills out `env_ctor`, and changes what should differ:

    class TrainParams(TrainParamsBase):
        discount = 0.98

        def env_ctor(self, *args, seed=None, **kwargs):
            return gymnasium.make("Pendulum-v1", **kwargs)

Attributes may be set on the class, as above, or in `__init__` after `super().__init__(env_config)`.
This module imports neither TensorFlow nor Reverb: the defaults that need them import them when they are called.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfagents_system.settings.early_end import Logged

EnvArgsKwargs = tuple[tuple[Any, ...], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class ParamsSource:
    """What TrainParams were loaded from, so that another process can load the same.

    Attributes:
      path: The file.
      origin: Where it was copied from; None: it is the original.
      env_config, compute_config: What the constructor got, and what was filled in.
      attributes: What was overridden.
    """

    path: Path
    origin: Path | None
    env_config: dict[str, Any]
    compute_config: dict[str, Any]
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)


class TrainParamsBase(abc.ABC):
    """Hyperparameters of SAC and the hooks that build its parts.

    "Total" and "per worker" say how a count is shared: 10 episodes in total with 4 workers are 3, 3, 2 and 2.

    Args:
      env_config: The dictionary read from SAC_CONFIG. Its key `horizon` is the maximum number of steps of an episode.
      compute_config: What the run may use: `num_collect_workers`, `collect_worker_cpus`, `train_cpus`, `reverb_cpus`
        and `seed`. A constructor with this argument gets it, otherwise it is filled in after the constructor. Empty
        where a policy is only played: ask it by `get`.
    """

    algorithm: str = "sac"
    """`sac`, `redq`, `droq`, `tqc` or `crossq`: docs/algorithms.md. Of attributes that are None here the algorithm's
    paper has the value."""

    # What all algorithms share: SAC (Haarnoja et al., arXiv 1812.05905).
    discount: float = 0.99
    """gamma, per environment step, in [0, 1]."""
    critic_learning_rate: float = 3e-4
    """Learning rate of the critics; where a schedule of `critic_optimizer` begins."""
    actor_learning_rate: float = 3e-4
    """Learning rate of the actor; where a schedule of `actor_optimizer` begins."""
    alpha_learning_rate: float = 3e-4
    """Learning rate of log(alpha), of the entropy coefficient; where a schedule of `alpha_optimizer` begins."""
    target_update_tau: float = 0.005
    """Weight of the critic in each soft update of its target: target <- (1 - tau) * target + tau * critic."""
    target_update_period: int = 1
    """Updates between two soft updates of the target critics."""
    gradient_clipping: float | None = None
    """Maximum norm of each variable's gradient, of critics, actor and log(alpha) alike; None does not clip.
    `global_clipnorm` of an optimizer is one for all variables of its part together."""
    learn_entropy_coef: bool = True
    """True: alpha, the entropy coefficient, is tuned. False: it stays exp(sac_log_alpha)."""
    sac_log_alpha: float = 0.0
    """log(alpha) before the first update."""
    target_entropy: float | None = None
    """Entropy that alpha is tuned towards, in nats of the action scaled to [-1, 1]; None is -dim(action)."""
    train_batch_size: int = 256
    """Samples in one minibatch: transitions, or sequences where `recurrent`."""
    share_log_pi: bool = True
    """True: the loss of alpha takes log pi from the actor's loss, as in the paper's algorithm. False: the actor is
    evaluated once more after its step, as TF-Agents does; 4 to 20 % slower, by CPUs."""
    matmul_precision: str = "float32"
    """`float32`, or `bfloat16`: hidden layers are multiplied in bfloat16 by the trainer where its CPU does that faster
    (AMX, AVX512-BF16); elsewhere it says so and goes on in float32. Weights, optimizers and losses stay float32."""

    # What the other algorithms have beside that.
    num_critics: int | None = None
    """N, the critics of the ensemble. None: redq 10, tqc 5, droq and crossq 2."""
    num_target_critics: int | None = None
    """M, where `redq` or `droq`: the minimum is over M of the N critics, drawn anew in each update. None: 2."""
    actor_update_period: int | None = None
    """Actor and alpha step in every so many updates, the critics in each. None: crossq 3, tqc 1;
    redq and droq `updates_per_env_step` (rounded, at least 1), so that the actor steps once for each step of the
    environment; 1 where `num_steps_per_iter` says how many updates there are."""
    num_quantiles: int = 25
    """Quantiles of each critic, where `tqc`."""
    num_dropped_quantiles: int = 2
    """Largest quantiles that the target leaves out, where `tqc`; per critic, dropped from those of all together."""

    # Networks.
    actor_fc_layer_params: Sequence[int] = (256, 256)
    """Units of the actor's hidden layers (behind the LSTM where `recurrent`)."""
    critic_joint_fc_layer_params: Sequence[int] = (256, 256)
    """Units of each critic's hidden layers, over observation and action together."""
    recurrent: bool = False
    """Actor and critics with an LSTM, trained on sequences."""
    recurrent_sequence_length: int = 20
    """Transitions in one training sequence, where `recurrent`; of episodes that are shorter, all that there are."""
    recurrent_lstm_units: int = 64
    """Units of the LSTM of actor and critics, where `recurrent`."""
    preprocessing_combiner: Any = None
    """A Keras layer that turns the observations into one tensor `[B, n]`, or a function of no arguments that returns
    one. Merging layers (Concatenate, Add) get the list of leaves, all others the nest as the environment gives it.
    None concatenates all leaves, flattened; images are encoded before that (`image_encoder_filters`), other integers of
    8 bits divided by 255."""
    network: str = "mlp"
    """`mlp`: plain layers. `simba`: normalised observations and residual blocks (Lee et al., arXiv 2410.09754), whose
    width is the first entry of the layer sizes and whose number is how many entries there are. The paper has
    `actor_fc_layer_params = (128,)` and `critic_joint_fc_layer_params = (512, 512)`."""
    critic_layer_norm: bool | None = None
    """Layer normalisation before each activation of the critics. None: where `algorithm` is `droq`."""
    critic_dropout: float | None = None
    """Rate of the dropout behind each hidden layer's product in the critics, always on. None: DroQ's 0.01 where
    `algorithm` is `droq`, else 0."""
    batch_renormalization: bool | None = None
    """Batch renormalisation in front of the first and behind each hidden layer of actor and critics (Ioffe, arXiv
    1702.03275). None: where `algorithm` is `crossq`."""
    batch_renormalization_warmup_steps: int = 100_000
    """Updates with plain batch normalisation before that, as CrossQ has them."""

    # Images and histories.
    frame_stack: int = 1
    """Frames of an image (uint8, `[height, width, channels]`) that networks see at once, along the channel axis, the
    oldest first. Each is stored once."""
    image_encoder_filters: Sequence[int] = (32, 32, 32, 32)
    """Filters of the convolutions (3 x 3, the first with stride 2) that the default actor and critics share, as in
    DrQ-v2 (Yarats et al., arXiv 2107.09645). `()`: images are flattened, as those are that are too small for them."""
    image_encoder_features: int = 50
    """Units that actor and critics each make of the encoder's features, with layer normalisation and tanh."""
    image_augmentation_pixels: int | None = None
    """Largest random shift of images in minibatches; 0 shifts none. None: 4 where images are encoded."""
    action_history: int = 0
    """Actions before the current one that are part of the observation, in [-1, 1], oldest first, zeros before an
    episode's start: for systems that act with a delay."""

    # Optimizers: docs/algorithms.md has their settings.
    critic_optimizer: Mapping[str, Any] = {}
    """Of the critics, such as `{"name": "adamw", "weight_decay": 0.01, "schedule": "cosine"}`; {} is Adam."""
    actor_optimizer: Mapping[str, Any] = {}
    """Of the actor; {} is Adam."""
    alpha_optimizer: Mapping[str, Any] = {}
    """Of log(alpha); {} is Adam."""

    # Normalisation.
    normalize_observations: bool = False
    """Observations reach the networks with mean 0 and variance 1, by running statistics of the experience that is
    learned from, clipped to [-10, 10]; pixels (uint8) are left alone. Always on where `network` is `simba`."""
    normalize_rewards: bool = False
    """Rewards (with `n_step` > 1: their sums over n steps) are divided by the running standard deviation of the
    discounted return, and clipped to [-10, 10], before they are learned from. Can't be switched within a run."""

    # The iteration: collect, push, draw, update, publish.
    num_iter: int = 1000
    """Iterations of the whole run."""
    num_steps_per_iter: int = 1000
    """Updates of an iteration, each on one minibatch."""
    n_train_episodes_per_iter: int = 1
    """Episodes that each worker collects in an iteration (per worker)."""
    n_buffer_init_episodes: int = 10
    """Episodes collected with uniformly random actions before the first iteration, once in a run (total)."""
    n_episodes_in_buffer: int = 1000
    """Capacity of the replay buffer in episodes of full length: n_episodes_in_buffer * horizon steps."""
    asynchronous: bool = False
    """False: lock-step iterations, pipelined, with at most `max_policy_lag` iterations of policy lag. True: workers
    never wait; updates are held back by `max_updates_per_env_step` instead."""
    max_policy_lag: int = 1
    """Iterations that the policy may be behind which collects in lock-step. 1: an iteration is collected while the one
    before it is trained on. 0: with the newest policy always, and the trainer waits meanwhile."""
    max_updates_per_env_step: float = 1.0
    """Updates allowed for each step collected after the first random episodes, where `asynchronous`."""

    # Experience: what is drawn, and how much of it.
    updates_per_env_step: float | None = None
    """Updates-to-data ratio: after each iteration floor(updates_per_env_step * steps) updates have been done, of all
    steps after the first random episodes, however long episodes are; `num_steps_per_iter` is not used then. None: as
    many as `num_steps_per_iter` says."""
    n_step: int = 1
    """Steps of a transition: rewards of so many steps are summed up, discounted, before the critic's value counts."""
    recurrent_burn_in: int = 0
    """Transitions before each training sequence that only bring the LSTMs into their state, where `recurrent`."""
    validation_share: float = 0.0
    """Share of each worker's episodes, in [0, 0.5], that is never trained on: the losses on them are logged beside the
    others, as `validation/critic_loss` and so on."""

    # Periods, in iterations.
    n_eval_episodes: int = 10
    """Episodes of one evaluation with the greedy policy (total)."""
    eval_period_itrs: int = 10
    """Iterations between two evaluations; the policy before the first and after the last is always evaluated."""
    log_period_itrs: int = 1
    """Iterations between two rows of metrics."""
    checkpoint_period_itrs: int = 50
    """Iterations between two checkpoints of agent, optimizers, counters and policy."""
    best_metric: str = "return"
    """`return`: the best policy is that of the highest mean return of an evaluation. `success`: of the highest success
    rate, and of the highest return among equal ones. It starts anew when the task of evaluations changes (a curriculum
    with `apply_to_eval`)."""

    # The end of a run before `num_iter`.
    stop_when: Mapping[str, float] | None = None
    """Ends the run as its normal end does, such as `{"eval_success": 0.95, "evaluations": 3}`: so many evaluations in a
    row (without that key: one) with at least this `eval_success` or `eval_return` or both; or
    `{"no_improvement_env_steps": 200_000}`: none was better, by `best_metric`, for so many environment steps. Only
    evaluations count that have the last values of a curriculum with `apply_to_eval`. None never does."""
    max_hours: float | None = None
    """Hours that a run is trained for, all of its starts together; it ends with the iteration. None: no limit."""

    _source: ParamsSource | None = None

    def __init__(self, env_config: Mapping[str, Any], compute_config: Mapping[str, Any] | None = None) -> None:
        self.env_config: dict[str, Any] = dict(env_config)
        self.compute_config: dict[str, Any] = dict(compute_config or {})

    @property
    def horizon(self) -> int:
        """Maximum steps of an episode; an episode that reaches it is truncated, not terminated."""
        return int(self.env_config["horizon"])

    # Environments.

    @abc.abstractmethod
    def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
        """Builds one environment.

        Args:
          *args: The tuple of `collect_env_args_kwargs` or `eval_env_args_kwargs`.
          seed: Differs between workers, between collecting and evaluating, and between two starts of a worker.
          **kwargs: The dictionary of the same two hooks.

        Returns:
          A TF-Agents PyEnvironment, or a Gymnasium or gym environment as it is.
        """

    def collect_env_args_kwargs(self, id: int = 0) -> EnvArgsKwargs:
        """Arguments of `env_ctor` for a collect environment; an override may take no arguments.

        Args:
          id: Number of the worker, from 0; with several environments a worker, worker * SAC_ENVS_PER_WORKER + index.
        """
        del id
        return (), {}

    def eval_env_args_kwargs(self, id: int = 0, collect_env: Any = None) -> EnvArgsKwargs:
        """Arguments of `env_ctor` for an evaluation environment; an override may take no arguments.

        Args:
          id: As of the collect environment beside it.
          collect_env: What `env_ctor` returned for the collect environment beside it.
        """
        del id, collect_env
        return (), {}

    # Networks and agent.

    def actor_ctor(self, observation_spec: Any, action_spec: Any) -> Any:
        """Builds the actor: a TF-Agents network from observations to action distributions within `action_spec`."""
        from tfagents_system.agents import networks

        return networks.build_actor(self, observation_spec, action_spec)

    def critic_ctor(self, observation_spec: Any, action_spec: Any) -> Any:
        """Builds one critic: a TF-Agents network from (observation, action) to Q-values `[B]` (`[B, T]` recurrent).

        Where `algorithm` is `tqc`: to quantiles, with an axis of `num_quantiles` behind these.
        """
        from tfagents_system.agents import algorithms, networks

        return networks.build_critic(self, observation_spec, action_spec, algorithms.num_critic_outputs(self))

    def agent_ctor(self, time_step_spec: Any, action_spec: Any, train_step: Any) -> Any:
        """Builds the TFAgent that is trained.

        Args:
          time_step_spec: TimeStep of TensorSpecs, without batch dimension.
          action_spec: BoundedTensorSpec, or a nest of them, with bounds -1 and 1: environments' own bounds are scaled.
          train_step: int64 scalar variable, which the agent counts up by one in each update.
        """
        from tfagents_system.agents import algorithms

        return algorithms.build_agent(self, time_step_spec, action_spec, train_step)

    def callbacks_ctor(self) -> Sequence[Callable[[Logged], str | bool | None]]:
        """Callbacks in the trainer, called after each block of updates, each evaluation and each checkpoint.

        They decide from what is logged alone, so that a start after a kill decides the same. A text (or True) ends the
        run after its iteration as its normal end does, and is told as the reason. One that raises ends the run as bad
        input does, with everything saved.
        """
        return ()

    def expert_policy_ctor(self) -> Callable[[Any], Any] | None:
        """What a worker of kind `expert` acts with, where SAC_EXPERT_POLICY names no saved policy.

        Returns:
          A function from an observation (a nest of arrays, unbatched) to an action in the environment's own units.
        """
        return None

    # Observers: called in each worker with every Trajectory (unbatched numpy arrays), as TF-Agents' drivers do.

    def train_observers_ctor(self) -> Sequence[Callable[[Any], None]]:
        """Observers of collected steps. Those with `name` and `result()` (PyMetrics) are logged as `train/<name>`."""
        return ()

    def eval_observers_ctor(self) -> Sequence[Callable[[Any], None]]:
        """Observers of evaluation steps; those with `name` and `result()` are logged as `eval/<name>`."""
        return ()
