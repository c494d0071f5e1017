"""Every algorithm learns what is known to be right, in a few seconds; an update that is wrong in one place does not.

tests/support/learner.py has the learner: environments, segments, the ring, draws and updates of the toolkit, in this
process. Targets and losses are compared with NumPy in test_variant_losses.py and test_value_learners.py: here is what
they come to together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.support.learner import Learner
from tfagents_system.agents import algorithms

pytestmark = pytest.mark.slow

UPDATES = 400
CONTINUOUS: dict[str, dict[str, Any]] = {
    "sac": {},
    "redq": {"algorithm": "redq", "num_critics": 3, "actor_update_period": 1},
    "tqc": {"algorithm": "tqc", "num_critics": 2},
    "crossq": {"algorithm": "crossq", "actor_update_period": 1, "batch_renormalization": {"warmup_steps": 150}},
    "sac with categories": {"critic_head": "categorical"},
    "xqc": {"algorithm": "xqc", "actor_update_period": 1},
    "flash_sac": {
        "algorithm": "flash_sac",
        "actor_update_period": 1,
        "actor_fc_layer_params": (32,),  # One block.
        "critic_joint_fc_layer_params": (32,),
    },
}
CATEGORICAL = list(CONTINUOUS.values())[-3:]
DISCRETE: dict[str, dict[str, Any]] = {
    "dqn": {"algorithm": "dqn"},
    "iqn": {"algorithm": "iqn", "value_head_units": 32, "iqn": {"huber_kappa": 1.0}},
    "sac_discrete": {"algorithm": "sac_discrete"},
}


def falling(updates: int) -> dict[str, Any]:
    """A rate that falls to almost nothing: what is measured is where it ends, not how it is shaken."""
    return {"points": [[0, 5e-3], [updates // 2, 2e-3], [9 * updates // 10, 1e-4]], "by": "train_steps"}


class Distracted(gymnasium.Env):
    """One step. Observations say nothing: statistics over a batch need some that differ."""

    observation_space: gymnasium.Space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space: gymnasium.Space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observe(), {}

    def observe(self) -> Any:
        return self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observe(), self.reward(action), True, False, {}

    def reward(self, action: Any) -> float:
        raise NotImplementedError


class IndifferentBandit(Distracted):
    """The reward is the action where the first number of the observation is positive, and nothing otherwise."""

    is_paid = True

    def observe(self) -> Any:
        self.is_paid = bool(self.np_random.random() < 0.5)
        return marked(super().observe(), self.is_paid)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(action[0]) if self.is_paid else 0.0  # Before the mark of the next observation.
        return self.observe(), reward, True, False, {}


def marked(observation: Any, is_positive: bool) -> Any:
    """An observation with a first number between 0.5 and 1, or -1 and -0.5; the rest stays."""
    sign = 1.0 if is_positive else -1.0
    return np.array([sign * (0.75 + 0.25 * observation[0]), *observation[1:]], np.float32)


class Arms(Distracted):
    """One of three arms."""

    rewards = (-0.5, 0.6, 0.1)
    action_space = gymnasium.spaces.Discrete(3)

    def reward(self, action: Any) -> float:
        return self.rewards[int(action)]


class Walk(gymnasium.Env):
    """A line of places, and a goal beyond all that is walked to; each step goes one place down or up.

    Observations are places by 10. The value of the best way to a goal d places away, at discount gamma, is
    -(1 + ... + gamma^(d - 2)): the step that reaches it costs nothing, and the episode is over.
    """

    observation_space = gymnasium.spaces.Dict(
        {
            key: gymnasium.spaces.Box(-9.0, 9.0, (1,), np.float32)
            for key in ("observation", "achieved_goal", "desired_goal")
        }
    )
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(-4, 5))
        return self.at(self.place, 40), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place += 2 * int(action) - 1
        return self.at(self.place, 40), -1.0, False, False, {}

    @staticmethod
    def at(place: int, goal: int) -> dict[str, np.ndarray]:
        numbers = {"observation": place, "achieved_goal": place, "desired_goal": goal}
        return {name: np.array([number / 10], np.float32) for name, number in numbers.items()}

    def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> np.ndarray:
        return np.where(self.compute_terminated(achieved_goal, desired_goal, info), 0.0, -1.0)

    def compute_terminated(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> np.ndarray:
        return np.abs(achieved_goal - desired_goal).max(axis=-1) < 0.05


OBSERVATIONS = np.random.default_rng(3).uniform(-1.0, 1.0, (10, 2)).astype(np.float32)
PAID, UNPAID = ([marked(observation, is_paid) for observation in OBSERVATIONS] for is_paid in (True, False))
ACTIONS = np.linspace(-1.0, 1.0, 21)[:, None]


def learner(
    folder: Path, env_ctor: Callable[[], Any], horizon: int, episodes: int, updates: int = UPDATES, **attributes: Any
) -> Learner:
    """One that has trained on episodes of random actions."""
    small = {
        "actor_fc_layer_params": (32, 32),
        "critic_joint_fc_layer_params": (32, 32),
        "batch_size": 64,
        "learning_rate": falling(updates),
        "alpha_learning_rate": 3e-2,
        "target_update_tau": 0.1,
        "num_iter": 1,
        "updates_per_iter": updates,
    }
    trained = Learner(folder / "ring", env_ctor, horizon, **(small | attributes))
    trained.collect(episodes)
    trained.train(updates)
    return trained


def q_errors(trained: Learner, observations: Sequence[np.ndarray], rewards: Any) -> np.ndarray:
    """The root of each critic's mean squared error of all actions at observations."""
    actions = np.tile(ACTIONS, (len(observations), 1))
    values = trained.q_of_each(np.repeat(observations, len(ACTIONS), axis=0), actions)
    return np.sqrt(np.mean((values.reshape(len(values), len(observations), -1) - rewards) ** 2, axis=(1, 2)))


def sampled(trained: Learner, observations: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([trained.sampled_actions(observation, 400) for observation in observations])


def test_every_algorithm_is_among_them() -> None:
    """DroQ's is that of REDQ, whose critics have dropout."""
    named = {attributes.get("algorithm", "sac") for attributes in [*CONTINUOUS.values(), *DISCRETE.values()]}
    assert named | {"droq"} == set(algorithms.ALGORITHMS)


@pytest.mark.parametrize("attributes", CONTINUOUS.values(), ids=CONTINUOUS)
def test_actions_have_boltzmanns_density_and_values_are_those_of_the_rewards(
    attributes: dict[str, Any], tmp_path: Path
) -> None:
    """pi(a) ~ exp(r(a) / alpha) (Haarnoja et al., arXiv 1812.05905, equation 4), as near as a tanh-Gaussian comes.

    Where there is no reward, all actions are alike, with entropy log 2. Critics know the rewards of these single steps.
    """
    alpha = 0.5
    # Categorical critics learn from rewards in deviations of the return: of random actions sqrt(1 / 6).
    scaled_alpha = alpha * (np.sqrt(6.0) if attributes in CATEGORICAL else 1.0)
    settings = {**attributes, "learn_entropy_coef": False, "sac_log_alpha": float(np.log(scaled_alpha))}
    is_normed = attributes.get("algorithm") in ("xqc", "flash_sac")  # Weights of norm 1 change more slowly.
    trained = learner(tmp_path, IndifferentBandit, 1, 1000, 3 * UPDATES if is_normed else UPDATES, **settings)
    assert scaled_alpha * trained.reward_divisor == pytest.approx(alpha, rel=0.05)
    assert np.all(q_errors(trained, PAID, ACTIONS[:, 0]) < 0.1)
    assert np.all(q_errors(trained, UNPAID, 0.0) < 0.1)
    drawn = sampled(trained, PAID)
    mean = 1.0 / np.tanh(1.0 / alpha) - alpha
    assert drawn.mean() == pytest.approx(mean, abs=0.06)
    assert np.mean(drawn**2) == pytest.approx(1.0 - 2.0 * alpha * mean, abs=0.06), "E a^2 of that density"
    density, edges = np.histogram(sampled(trained, UNPAID), bins=40, range=(-1.0, 1.0), density=True)
    entropy = -np.sum(density * np.log(np.maximum(density, 1e-12))) * (edges[1] - edges[0])
    assert entropy == pytest.approx(np.log(2.0), abs=0.12)


def test_iqn_knows_the_best_arm_and_the_values_of_all(tmp_path: Path) -> None:
    trained = learner(tmp_path, Arms, 1, 600, **DISCRETE["iqn"])
    values = trained.agent.critics[0].acting_values(OBSERVATIONS).numpy()
    np.testing.assert_allclose(values, np.tile(Arms.rewards, (len(values), 1)), atol=0.12)
    assert [trained.greedy_choice(observation) for observation in OBSERVATIONS] == [1] * len(OBSERVATIONS)


def test_dqn_walks_to_goals_that_no_episode_was_after(tmp_path: Path) -> None:
    """From random walks alone: the choice towards every goal within three places, and its value."""
    gamma, updates = 0.9, 1000
    trained = learner(tmp_path, Walk, 12, 200, updates, **DISCRETE["dqn"], discount=gamma, hindsight_share=0.8)
    for place in range(-3, 4):
        for away in (-3, -2, -1, 1, 2, 3):
            seen = Walk.at(place, place + away)
            batch = {name: leaf[None] for name, leaf in seen.items()}
            values = trained.agent.critics[0].acting_values(batch)[0].numpy()
            exact = -sum(gamma**k for k in range(abs(away) - 1))
            assert trained.greedy_choice(seen) == (away > 0), (place, away, values)
            assert abs(values.max() - exact) < 0.35, (place, away, values, exact)


def test_discrete_sac_reaches_its_target_entropy(tmp_path: Path) -> None:
    """With arms of unequal reward, so that alpha has to be found: neither 0 nor without limit."""
    attributes = {**DISCRETE["sac_discrete"], "sac_log_alpha": -3.0, "target_entropy": 0.7}
    trained = learner(tmp_path, Arms, 1, 600, 700, **attributes)
    logits = trained.agent.acting.network.acting_values(OBSERVATIONS).numpy()
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances = exponents / exponents.sum(axis=1, keepdims=True)
    entropy = -np.sum(chances * np.log(chances), axis=1)
    assert entropy.mean() == pytest.approx(0.7, abs=0.05), "alpha is one for all observations"
