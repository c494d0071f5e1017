"""tfagents_system.testing: what a user's own tests can ask."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from tfagents_system.testing import assert_environment


class Reach(gymnasium.Env):
    """A point that is pushed."""

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, observation: object = None) -> None:
        self._observation = observation

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._x = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self._x, {}

    def step(self, action: np.ndarray) -> tuple[object, float, bool, bool, dict]:
        self._x = np.clip(self._x + action, -10, 10).astype(np.float32)
        seen = self._x if self._observation is None else self._observation
        return seen, -float(abs(self._x[0])), False, False, {}


def test_a_sound_environment_passes() -> None:
    notes = assert_environment(Reach, horizon=20)
    assert all(isinstance(note, str) for note in notes)


def test_what_is_wrong_is_told_with_the_remedy() -> None:
    with pytest.raises(AssertionError, match="observation"):
        assert_environment(lambda: Reach(np.full(1, np.nan, np.float32)), horizon=20)


def test_a_constructor_that_takes_a_seed_gets_one() -> None:
    seeds: list[int] = []

    def make(seed: int) -> Reach:
        seeds.append(seed)
        return Reach()

    assert_environment(make, horizon=20, seed=7)
    assert seeds and set(seeds) == {7}


@pytest.mark.parametrize(
    ("horizon", "config", "told"),
    [
        (1e3, {}, '"horizon" .* must be an integer'),
        (20, {"curriculum": {"gain": {"iters": [0, 10], "rnge": [1, 2]}}}, "rnge"),
        (20, {"horizn": 3}, '"horizn" .* is not known: "horizon" is meant'),
    ],
)
def test_a_wrong_configuration_is_told_and_not_passed_over(horizon: int, config: dict, told: str) -> None:
    """With it the environment was not tried at all, which passed."""
    with pytest.raises(AssertionError, match=told):
        assert_environment(Reach, horizon=horizon, config=config)
