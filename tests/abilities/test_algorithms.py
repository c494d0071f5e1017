"""Each algorithm trains (DroQ as REDQ), each with other settings that all can have: what they do is seen in files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tfagents_system
from tests.abilities.support import SMALL, Project, column, rows, sac, sets

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

    def __init__(self, kind):
        self.kind = kind
        self.action_space = dict(
            box=gymnasium.spaces.Box(-2.0, 6.0, (1,)),
            discrete=gymnasium.spaces.Discrete(3, start=5),
            multi_discrete=gymnasium.spaces.MultiDiscrete([2, 3]),
            multi_binary=gymnasium.spaces.MultiBinary(2),
        )[kind]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.ends = self.kind == "discrete" and self.np_random.random() < 0.5
        return np.full(1, 1.0 if self.ends else -1.0, np.float32), {{}}

    def step(self, action):
        assert self.action_space.contains(action), action
        reward = {{
            "box": lambda: 1.0 - abs(float(action[0]) + 1.0) / 7.0,
            "discrete": lambda: (action - 5) / 2.0,
            "multi_discrete": lambda: (action[0] + action[1]) / 3.0,
            "multi_binary": lambda: action.sum() / 2.0,
        }}[self.kind]()
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
        kind, lanes = self.env_config["kind"], self.env_config["lanes"]
        if lanes:
            return SyncVectorEnv([lambda: Lever(kind)] * lanes, autoreset_mode=AutoresetMode[self.env_config["mode"]])
        return Lever(kind)

    def __init__(self, env_config):
        super().__init__(env_config)
        if env_config["kind"] == "discrete":
            self.potential = lambda observation: 0.25 * float(observation[0] > 0.0)
"""


class Trained:
    """A run of one algorithm.

    Attributes:
      run: Its directory.
      output: What the start printed.
    """

    def __init__(self, folder: Path, algorithm: str, *settings: str, kind: str = "box", **variables: object) -> None:
        config = {"horizon": HORIZON, "kind": kind, "lanes": 0, "mode": "SAME_STEP"}
        project = Project(folder, PARAMS, config, algorithm, **variables)
        self.output = project.train(*sets(f"algorithm={algorithm}", *settings))
        self.run = project.run
        self.trainer, self.worker = project.role("trainer"), project.role("worker_0")

    def action(self, checkpoint: str = "latest") -> np.ndarray:
        policy = tfagents_system.load_run(self.run).policy(checkpoint)
        return np.asarray(policy(np.full(1, -1.0, np.float32)))

    def learned(self) -> bool:
        returns = column(self.run, "eval_return")
        return returns[-1] > returns[0] + 0.3


def test_sac_with_a_memory_and_schedules(tmp_path: Path) -> None:
    still = {"points": [[0, 0.01], [3, 1e-30]], "by": "iterations", "interpolation": "step"}
    settings: tuple[str, ...] = ("recurrent.burn_in=1", "recurrent.sequence_length=3", "action_history=1")
    settings += ("normalize_rewards=true", f"actor_learning_rate={json.dumps(still)}", "checkpoint_period_iters=2")
    settings += ("updates_per_iter=20", "normalize_observations=true", "max_policy_lag=0")
    sac_run = Trained(tmp_path, "sac", *settings)
    assert sac_run.trainer["train_step"] == 120 and sac_run.worker["inference"] == "numpy"
    assert set(column(sac_run.run, "train/policy_lag")) == {0.0}
    assert column(sac_run.run, "schedule/actor_learning_rate")[-1] == pytest.approx(1e-30)
    assert all(0 < scale < 10 for scale in column(sac_run.run, "reward_scale"))
    names = [f"policy_checkpoint_{updates:010d}" for updates in (40, 80, 120)]
    observation = {"observation": np.full(1, -1.0, np.float32), "action_history": np.zeros(1, np.float32)}
    run = tfagents_system.load_run(sac_run.run)
    actions = [float(run.policy(name)(observation)[0]) for name in names]
    assert actions[0] != actions[1], "it moves while its rate is 0.01"
    assert actions[1] == pytest.approx(actions[2], abs=0.02), "and then only with the statistics of observations"


def test_redq_in_vector_environments_with_an_exact_ratio_and_adamw(tmp_path: Path) -> None:
    settings: tuple[str, ...] = ("config.lanes=3", "env_steps_per_iter=20", "updates_per_env_step=2.5", "num_critics=3")
    settings += ('critic_optimizer={"name": "adamw", "weight_decay": 0.01, "global_clipnorm": 10}',)
    settings += ('alpha_optimizer={"name": "sgd", "momentum": 0.5}', "actor_optimizer.beta_1=0.8")
    redq = Trained(tmp_path, "redq", *settings, "gradient_clipping=5", "eval_period_iters=3", "actor_update_period=1")
    assert redq.trainer["train_step"] == int(2.5 * 20 * 6)
    assert column(redq.run, "env_steps")[-1] - 20 * 6 >= 2 * HORIZON, "the random steps have no updates"
    assert set(column(redq.run, "eval/episode_length")) == {HORIZON}
    assert redq.learned(), rows(redq.run)
    resolved = json.loads((redq.run / "run.json").read_text())["attributes"]
    assert resolved["critic_optimizer"]["weight_decay"] == 0.01 and resolved["actor_optimizer"]["beta_1"] == 0.8


def test_tqc_as_simba_asynchronously(tmp_path: Path) -> None:
    settings: tuple[str, ...] = ("asynchronous=true", "updates_per_env_step=1", "min_updates_per_env_step=0.5")
    settings += ("publish_period_updates=10", "policy_refresh_steps=2", "env_steps_per_iter=20", "network=simba")
    tqc = Trained(tmp_path, "tqc", *settings)
    assert tqc.trainer["train_step"] == 120
    steps = column(tqc.run, "env_steps")[-1] - 2 * HORIZON
    assert 120 <= steps <= 2 * 120 / 0.5 + 200, "workers are held back"
    assert column(tqc.run, "policy_age_updates"), rows(tqc.run)


def test_crossq_with_a_fixed_alpha_and_networks_drawn_anew(tmp_path: Path) -> None:
    settings = ("learn_entropy_coef=false", "sac_log_alpha=-2", "reset_period_updates=40", "updates_per_iter=20")
    crossq = Trained(tmp_path, "crossq", *settings, "matmul_precision=auto", "actor_fc_layer_params=[9]", "num_iter=5")
    assert column(crossq.run, "alpha") == pytest.approx([np.exp(-2.0)] * 5, rel=1e-5)
    assert not column(crossq.run, "alpha_loss")
    assert column(crossq.run, "network_resets")[-1] == 2
    assert crossq.trainer["update"].startswith("fused"), "with bfloat16 where the CPU has it"
    sac("export", crossq.run, "--checkpoint", "latest", "--out", tmp_path / "exported")
    with np.load(tmp_path / "exported" / "policy.npz") as policy:
        assert (1, 9) in {policy[name].shape for name in policy.files}, "the layer has the units that were set"


def test_dqn_with_priorities_potential_and_values_of_terminations_and_time_limits(tmp_path: Path) -> None:
    greedy = {"points": [[0, 1.0], [40, 0.1]], "interpolation": "exponential", "by": "env_steps"}
    settings: tuple[str, ...] = ("priority_exponent=1.0", "priority_beta=0")
    settings += (f"exploration_epsilon={json.dumps(greedy)}",)
    settings += ("keep_best_episodes=400", "updates_per_iter=100", "num_train_episodes_per_iter=10", "double_q=true")
    dqn = Trained(tmp_path, "dqn", *settings, kind="discrete")
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


def test_iqn_with_a_table_of_actions_and_mini_races_and_two_environments_a_worker(tmp_path: Path) -> None:
    table = [[6.0], [3.0], [-1.0]]
    settings: tuple[str, ...] = (
        f"action_table={table}",
        "mini_race.steps=3",
        "mini_race.oversampling=[0, 0]",
        "discount=1.0",
        "n_step=2",
        "boltzmann_epsilon=0.1",
    )
    settings += ("iqn.num_quantiles=4", "exploration_epsilon=0.3", "keep_best_episodes=50")
    iqn = Trained(tmp_path, "iqn", *settings, "num_train_episodes_per_iter=2", ENVS_PER_WORKER=2)
    assert iqn.action() == pytest.approx([-1.0]), "the best row"
    values = []
    for path in (iqn.run / "episodes").glob("*.npz"):
        with np.load(path) as episode:
            if "q_values" in episode.files and json.loads(str(episode["about"]))["iteration"] >= 5:
                values.append(float(episode["q_values"].max(axis=1)[0]))
    assert np.mean(values) == pytest.approx(3.0, abs=0.7), "three steps of a reward of 1, of six"


@pytest.mark.parametrize("kind", ["multi_discrete"])
def test_sac_discrete_ends_when_it_is_good_enough(tmp_path: Path, kind: str) -> None:
    settings = ("num_iter=100", "eval_period_iters=1", 'stop_when={"eval_return": 5.9}', "target_entropy=0.3")
    learner = Trained(tmp_path, "sac_discrete", *settings, kind=kind)
    returns = column(learner.run, "eval_return")
    reached = next(number for number, value in enumerate(returns) if value >= 5.9)
    # The evaluation that met it may be followed by those of policies that were on their way.
    assert reached <= learner.trainer["iteration"] <= reached + 2 < 100 and "eval_return" in learner.output
