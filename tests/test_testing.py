"""tfagents_system.testing: what a user's own tests can ask."""

from __future__ import annotations

from typing import Any

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


@pytest.mark.parametrize("horizon", [1e3, 0, True], ids=str)
def test_an_impossible_horizon_is_told(horizon: Any) -> None:
    def broken() -> Reach:
        raise OSError("no simulator")

    with pytest.raises(AssertionError, match=f'"horizon" in SAC_CONFIG must be an integer .*, found {horizon}'):
        assert_environment(broken, horizon=horizon)


def test_mistakes_in_the_configuration_are_told() -> None:
    curriculum = {"g": {"iters": [0, 10], "rnge": [1, 2]}}
    with pytest.raises(AssertionError, match="curriculum.g.rnge is not known: range is meant"):
        assert_environment(Reach, horizon=20, config={"curriculum": curriculum})
    with pytest.raises(AssertionError, match='"curiculum" in SAC_CONFIG is not known: "curriculum" is meant'):
        assert_environment(Reach, horizon=20, config={"curiculum": curriculum})


def test_a_constructor_that_takes_a_seed_gets_one() -> None:
    seeds: list[int] = []

    def make(seed: int) -> Reach:
        seeds.append(seed)
        return Reach()

    assert_environment(make, horizon=20, seed=7)
    assert seeds and set(seeds) == {7}
