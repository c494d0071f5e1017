"""Runs of three algorithms, each with other settings that all can have: what they do is seen in files.

tests/agents/test_what_is_learned.py trains each algorithm in one process.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import tfagents_system
from tests.abilities.support import SMALL, Project, column, rows, sets

pytestmark = pytest.mark.slow

HORIZON = 6

PARAMS = f"""
import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tfagents_system.train_params_base import TrainParamsBase


class Lever(gymnasium.Env):
    '''Each step pays between 0 and 1, most at -1 of -2 to 6 or for the last choice.

    Of discrete actions every other episode, which observes 1, terminates with its first step.
    '''

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, is_discrete):
        self.is_discrete = is_discrete
        box = gymnasium.spaces.Box(-2.0, 6.0, (1,))
        self.action_space = gymnasium.spaces.Discrete(3, start=5) if is_discrete else box

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.ends = self.is_discrete and self.np_random.random() < 0.5
        return np.full(1, 1.0 if self.ends else -1.0, np.float32), {{}}

    def step(self, action):
        assert self.action_space.contains(action), action
        reward = (action - 5) / 2.0 if self.is_discrete else 1.0 - abs(float(action[0]) + 1.0) / 7.0
        return np.full(1, 1.0 if self.ends else -1.0, np.float32), float(reward), bool(self.ends), False, {{}}


class TrainParams(TrainParamsBase):
    {SMALL}
    num_iter = 6
    updates_per_iter = 50
    batch_size = 32
    num_eval_episodes = 2
    eval_period_iters = 6
    critic_learning_rate = actor_learning_rate = 0.01
    target_update_tau = 0.1
    sac_log_alpha = -3.0
    discount = 0.5

    def env_ctor(self, *args, seed=None, **kwargs):
        is_discrete, lanes = self.env_config["is_discrete"], self.env_config["lanes"]
        if lanes:
            return SyncVectorEnv([lambda: Lever(is_discrete)] * lanes, autoreset_mode=AutoresetMode.SAME_STEP)
        return Lever(is_discrete)

    def __init__(self, env_config):
        super().__init__(env_config)
        if env_config["is_discrete"]:
            self.potential = lambda observation: 0.25 * float(observation[0] > 0.0)
"""


class Trained:
    """A run of one algorithm.

    Attributes:
      run: Its directory.
      output: What the start printed.
    """

    def __init__(self, folder: Path, algorithm: str, *settings: str, is_discrete: bool = False) -> None:
        config = {"horizon": HORIZON, "is_discrete": is_discrete, "lanes": 0}
        project = Project(folder, PARAMS, config, algorithm)
        self.output = project.train(*sets(f"algorithm={algorithm}", *settings))
        self.run = project.run
        self.trainer, self.worker = project.role("trainer"), project.role("worker_0")


def test_sac_with_a_memory_schedules_and_an_exact_ratio_until_it_is_good_enough(tmp_path: Path) -> None:
    still = {"points": [[0, 0.01], [3, 1e-30]], "by": "iterations", "interpolation": "step"}
    settings: tuple[str, ...] = ("recurrent.burn_in=0", "recurrent.sequence_length=3", "action_history=1")
    settings += ("normalize_rewards=true", f"actor_learning_rate={json.dumps(still)}", "checkpoint_period_iters=2")
    settings += ("env_steps_per_iter=20", "updates_per_env_step=1.25", "max_policy_lag=0", "num_iter=100")
    settings += ("normalize_observations=true", 'alpha_optimizer={"name": "sgd", "momentum": 0.5}')
    settings += ("eval_period_iters=2", 'stop_when={"eval_return": 0, "evaluations": 3}')
    sac_run = Trained(tmp_path, "sac", *settings)
    iterations = sac_run.trainer["iteration"]
    assert 5 <= iterations <= 7 and "3 evaluations" in sac_run.output
    assert sac_run.trainer["train_step"] == 1.25 * 20 * iterations and sac_run.worker["inference"] == "numpy"
    assert column(sac_run.run, "env_steps")[-1] - 20 * iterations >= 2 * HORIZON, "the random steps have no updates"
    assert set(column(sac_run.run, "train/policy_lag")) == {0.0}
    assert column(sac_run.run, "schedule/actor_learning_rate")[-1] == pytest.approx(1e-30)
    assert all(0 < scale < 10 for scale in column(sac_run.run, "reward_scale"))
    names = [f"policy_checkpoint_{updates:010d}" for updates in (50, 100, 25 * iterations)]
    observation = {"observation": np.full(1, -1.0, np.float32), "action_history": np.zeros(1, np.float32)}
    run = tfagents_system.load_run(sac_run.run)
    actions = [float(run.policy(name)(observation)[0]) for name in names]
    assert actions[0] != actions[1], "it moves while its rate is 0.01"
    assert actions[1] == pytest.approx(actions[2], abs=0.02), "and then only with the statistics of observations"


def test_crossq_asynchronously_in_vector_environments_with_adamw_and_networks_drawn_anew(tmp_path: Path) -> None:
    settings: tuple[str, ...] = ("asynchronous=true", "updates_per_env_step=1", "min_updates_per_env_step=0.5")
    settings += ("publish_period_updates=10", "policy_refresh_steps=2", "env_steps_per_iter=20", "num_iter=5")
    settings += ("learn_entropy_coef=false", "sac_log_alpha=-2", "reset_period_updates=40", "config.lanes=3")
    settings += ('critic_optimizer={"name": "adamw", "weight_decay": 0.01, "global_clipnorm": 10}',)
    settings += ("gradient_clipping=5", "actor_optimizer.beta_1=0.8", "eval_period_iters=5")
    crossq = Trained(tmp_path, "crossq", *settings, "matmul_precision=auto", "actor_fc_layer_params=[9]")
    assert crossq.trainer["train_step"] == 100
    steps = column(crossq.run, "env_steps")[-1] - 2 * HORIZON
    assert 100 <= steps <= 2 * 100 / 0.5 + 200, "workers are held back"
    assert column(crossq.run, "policy_age_updates"), rows(crossq.run)
    assert set(column(crossq.run, "eval/episode_length")) == {HORIZON}
    assert column(crossq.run, "alpha")[-1] == pytest.approx(np.exp(-2.0), rel=1e-5)
    assert not column(crossq.run, "alpha_loss")
    assert column(crossq.run, "network_resets")[-1] == 2
    assert crossq.trainer["update"].startswith("fused"), "with bfloat16 where the CPU has it"
    resolved = json.loads((crossq.run / "run.json").read_text())["attributes"]
    assert resolved["critic_optimizer"]["weight_decay"] == 0.01 and resolved["actor_optimizer"]["beta_1"] == 0.8
    (checkpoint, *_) = (crossq.run / "policies" / "checkpoints").glob("*/variables/variables.index")
    shapes = tf.train.load_checkpoint(str(checkpoint.with_suffix(""))).get_variable_to_shape_map()
    assert [1, 9] in shapes.values(), "the layer has the units that were set"


def test_dqn_with_priorities_potential_and_values_of_terminations_and_time_limits(tmp_path: Path) -> None:
    greedy = {"points": [[0, 1.0], [40, 0.1]], "interpolation": "exponential", "by": "env_steps"}
    settings: tuple[str, ...] = ("priority_exponent=1.0", "priority_beta=0")
    settings += (f"exploration_epsilon={json.dumps(greedy)}",)
    settings += ("keep_best_episodes=400", "updates_per_iter=100", "num_train_episodes_per_iter=10", "double_q=true")
    dqn = Trained(tmp_path, "dqn", *settings, is_discrete=True)
    epsilons = column(dqn.run, "schedule/exploration_epsilon")
    assert epsilons[-1] == pytest.approx(0.1) and 0.1 < epsilons[0] <= 1.0
    values: dict[int, list[float]] = {1: [], HORIZON: []}
    for path in (dqn.run / "episodes").glob("*.npz"):
        with np.load(path) as episode:
            about = json.loads(str(episode["about"]))
            if "q_values" in episode.files and about["iteration"] >= 5:
                best = episode["q_values"].max(axis=1)
                assert np.array_equal(episode["action_was_greedy"], episode["actions"] == episode["q_values"].argmax(1))
                values[len(best)].append(float(best[0]))
    # 1 for each step discounted by 0.5: the time limit cuts no value, the termination does; less the potential.
    assert np.mean(values[HORIZON]) == pytest.approx(2.0, abs=0.3), values
    assert np.mean(values[1]) == pytest.approx(1.0 - 0.25, abs=0.3), values
