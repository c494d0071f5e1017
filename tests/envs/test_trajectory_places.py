"""What the reward from a trajectory refuses: places that are none, and laps whose finish the start sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.support.devices_for_tests import DummyDevice, Forwarding
from tests.support.trajectory_walks import follow
from tfagents_system.envs.clocks import VirtualClock
from tfagents_system.envs.real_time import RealTimeEnvironment
from tfagents_system.envs.reward_files import write_points
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.envs.trajectory_reward import (
    FINISHED,
    TrajectoryReward,
    TrajectoryRewardEnvironment,
    TrajectoryRewardSettings,
    with_trajectory_reward,
)

STRAIGHT = np.stack([np.arange(301) * 0.1, np.zeros(301)], axis=1)
HAIRPIN = np.concatenate([STRAIGHT, STRAIGHT[::-1] + (0.0, 2.0)])


class Walker(gymnasium.Env):
    """Half a metre along x in a step."""

    observation_space = action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.x = 0.0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.x += 0.5
        return np.zeros(1, np.float32), 1.0, False, False, {"position": (self.x, 0.0)}


def config(folder: Path, points: np.ndarray, **settings: Any) -> dict[str, Any]:
    path = folder / "reward.npz"
    write_points(path, points, {})
    return {"trajectory_reward": {"file": str(path), **settings}}


@pytest.mark.parametrize(
    ("position", "told"),
    [
        ((np.nan, np.nan), "is not finite"),
        ((1.0, np.inf), "is not finite"),
        ((1.0, 2.0, 3.0), "must be 2 coordinates"),
        ((1.0,), "must be 2 coordinates"),
        (1.0, "must be 2 coordinates"),
        (None, "must be 2 coordinates .* found None"),
    ],
)
def test_a_position_that_is_none_pays_nothing(position: Any, told: str) -> None:
    """No point is farther than NaN: the search would reach the finish."""
    reward = TrajectoryReward(STRAIGHT, TrajectoryRewardSettings())
    reward.step((0.5, 0.0))
    with pytest.raises(ValueError, match=told):
        reward.step_of_info({"position": position})
    assert reward.index == 5 and reward.end == ""


def test_it_is_a_fault_of_the_environment(tmp_path: Path) -> None:
    class Lost(Walker):
        def step(self, action: Any) -> Any:
            *seen, info = super().step(action)
            return *seen, info | ({"position": (np.nan, 0.0)} if self.x == 1.0 else {})

    env = TrainingEnvironment(with_trajectory_reward(Lost(), config(tmp_path, STRAIGHT)), horizon=9)
    env.reset()
    assert float(env.step(np.zeros(1, np.float32)).reward) == pytest.approx(0.05)
    with pytest.raises(Exception, match=r'failed in step 2 of episode 1: .*"position" is not finite \(\[nan, 0.0\]\)'):
        env.step(np.zeros(1, np.float32))


def ring(metres: float, beyond: float) -> np.ndarray:
    """A circle from (0, 0) along x, driven so many metres beyond its start."""
    along = np.arange(0.0, metres + beyond + 0.05, 0.1)
    radius = metres / 2 / np.pi
    return radius * np.stack([np.sin(along / radius), 1.0 - np.cos(along / radius)], axis=1)


@pytest.mark.parametrize("beyond", [0.0, -0.5, 3.0])
def test_the_search_ahead_does_not_go_from_the_start_of_a_closed_lap_to_its_finish(
    tmp_path: Path, beyond: float
) -> None:
    points = ring(40.0, beyond)
    places = [(-0.3, 0.0), *points[::5]]
    rewards, _, end = follow(points, places)
    assert len(rewards) <= 8 and sum(rewards) > 100.0 and end == FINISHED, "that is why"
    env = with_trajectory_reward(Walker(), config(tmp_path, points))
    assert isinstance(env, TrajectoryRewardEnvironment)
    check_forward = env.trajectory._settings.check_forward
    assert 190 <= check_forward < 200
    rewards, indices, end = follow(points, places, check_forward=check_forward)
    assert indices[:3] == [0, 0, 5] and end == FINISHED and len(rewards) == len(places)
    assert sum(rewards) == pytest.approx(100.0 + (len(points) - 1) / 100)


@pytest.mark.parametrize("points", [ring(60.0, 0.0), STRAIGHT, HAIRPIN], ids=["long", "open", "hairpin"])
def test_other_laps_are_taken(tmp_path: Path, points: np.ndarray) -> None:
    env = with_trajectory_reward(Walker(), config(tmp_path, points))
    assert isinstance(env, TrajectoryRewardEnvironment) and env.trajectory._settings.check_forward == 500


class Placed(DummyDevice):
    def get_obs_rew_terminated_info(self) -> Any:
        *seen, info = super().get_obs_rew_terminated_info()
        return *seen, {**info, "position": (0.5 * self._count, 0.0)}


def test_a_device_within_a_wrapper_that_forwards_attributes_gets_the_reward(tmp_path: Path) -> None:
    clock = VirtualClock()
    wrapper = Forwarding(RealTimeEnvironment(Placed(clock), 0.05, clock=clock))
    assert with_trajectory_reward(wrapper, config(tmp_path, STRAIGHT)) is wrapper
    wrapper.reset()
    assert wrapper.step([0.0, 0.0])[1] == pytest.approx(0.05), "not the device's own, 1"
    assert "interface" not in vars(wrapper)
