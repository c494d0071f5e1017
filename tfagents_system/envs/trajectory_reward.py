"""Reward from a recorded trajectory: how far along it the agent gets, as in TMRL 0.7 (`RewardFunction`).

Runs under SAC_ENV_PYTHON as well: NumPy and Gymnasium are needed, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import numpy as np

from tfagents_system.checks.rules import Rule
from tfagents_system.envs.layers import device_layer, gym_layers
from tfagents_system.envs.reward_files import point_of_return, read_points, recorded_track
from tfagents_system.envs.reward_places import DEFAULT_FILE, KEY, find_reward_file
from tfagents_system.errors import UserError, shown
from tfagents_system.hyperparameters import Count, CountOrZero, Number, Positive, read_section

POSITION = "position"  # In the info of a step: the agent's coordinates, metres.
FINISHED, STRAYED, NO_PROGRESS = "finished", "strayed", "no progress"
_POINTS_PER_REWARD = 100.0


@dataclasses.dataclass(frozen=True)
class TrajectoryRewardSettings:
    """TMRL's REWARD_CONFIG, under its names in lower case, and the file."""

    file: Annotated[str, Rule("the path of a reward.npz", lambda value: isinstance(value, str) and value != "")] = (
        DEFAULT_FILE
    )
    end_of_track: Number = 100.0
    """Reward at the finish."""
    constant_penalty: Number = 0.0
    """Added to the reward of each step; a penalty is negative."""
    check_forward: Count = 500
    """Points without improvement after which the search ahead ends, the nearest one included: how far a cut may be."""
    check_backward: Count = 10
    """The same of the search backwards."""
    failure_countdown: CountOrZero = 10
    """An episode ends after more steps than this without progress."""
    min_steps: CountOrZero = 70
    """Steps at an episode's begin that can't end it."""
    max_stray: Positive = 100.0
    """Metres from the trajectory."""
    regain: bool = False
    """TMRL's rule: points that were passed again after moving back are paid again."""

    @classmethod
    def of(cls, section: Any) -> TrajectoryRewardSettings:
        """Reads the object of the JSON.

        Raises:
          UserError: It has unknown keys or impossible values.
        """
        return read_section(cls, section, KEY)


class TrajectoryReward:
    """Follows an agent along the points of a trajectory.

    A step looks ahead from the agent's point for the nearest one, the later of equals, until `check_forward` points in
    a row are no improvement. If that is its own point, the step is no progress, and looks back in the same way, the
    earlier of equals. The agent's point then moves back, and progress over points that have been paid is not paid
    again (unless `regain`). Beyond `max_stray` of all points looked at, nothing moves.

    Args:
      points: Points of the trajectory, 0.1 m apart, `[n, 2]` or `[n, 3]`.
      settings: The rules.

    Attributes:
      index: The point where the agent is.
      end: Why the episode is over: FINISHED, STRAYED, NO_PROGRESS; empty if it is not.
    """

    def __init__(self, points: np.ndarray, settings: TrajectoryRewardSettings) -> None:
        self._points = np.ascontiguousarray(points, np.float64)
        self._settings = settings
        self._stray_squared = settings.max_stray**2
        self.reset()

    def reset(self) -> None:
        """An episode begins at the first point."""
        self.index = self._paid = self._steps = self._failures = 0
        self.end = ""

    def step(self, position: Any, *, has_finished: bool = False) -> tuple[float, bool]:
        """The reward of a step, and whether it terminates the episode.

        Args:
          position: Where the agent is, as many coordinates as the points have.
          has_finished: The environment says that the agent is at the finish, wherever its point is.

        Raises:
          ValueError: It has another number of coordinates, or they are not finite.
        """
        settings, self.end = self._settings, ""
        self._steps += 1
        place = self._place(position)
        nearest, distance_squared = self._nearest_ahead(place)
        is_stray = distance_squared > self._stray_squared
        reward = settings.constant_penalty
        if nearest > self.index and not is_stray:
            reward += self._pay(nearest) / _POINTS_PER_REWARD
            self.index, self._failures = nearest, 0
        elif is_stray:
            self.end = STRAYED if self._steps > settings.min_steps else ""
        else:
            self.index = self._nearest_behind(place)
            self._failures += self._steps > settings.min_steps
            self.end = NO_PROGRESS if self._failures > settings.failure_countdown else ""
        if has_finished or self.index == len(self._points) - 1:
            self.end = FINISHED
            reward += settings.end_of_track
        return reward, self.end != ""

    def step_of_info(self, info: Mapping[str, Any]) -> tuple[float, bool, dict[str, Any]]:
        """Reward and end of a step whose info has the position; and the info with `end` and `is_success` of both.

        Raises:
          UserError: It has none.
          ValueError: See `step`.
        """
        if POSITION not in info:
            raise UserError(
                f'{KEY}: the info of a step has no "{POSITION}", the agent\'s coordinates in metres: add it, of a '
                "device in the info of its get_obs_rew_terminated_info(), because a wrapper around it is not asked"
            )
        reward, is_over = self.step(info[POSITION], has_finished=bool(info.get("is_success")))
        return reward, is_over, {**info, "end": self.end or info.get("end", ""), "is_success": self.end == FINISHED}

    def _place(self, position: Any) -> np.ndarray:
        place, expected = np.asarray(position, np.float64), self._points.shape[1]
        if place.shape != (expected,):
            raise ValueError(
                f'the info\'s "{POSITION}" must be {expected} coordinates in metres, as the trajectory has, found '
                + shown(position)
            )
        if not np.isfinite(place).all():  # No point is farther than that: the agent would be at the finish.
            raise ValueError(
                f'the info\'s "{POSITION}" is not finite ({shown(place.tolist())}): where it is unknown, tell the last '
                "one that was known"
            )
        return place

    def _pay(self, nearest: int) -> int:
        """The points from here to `nearest` that have not been paid; all of them if `regain`."""
        paid = self.index if self._settings.regain else max(self.index, self._paid)
        self._paid = max(self._paid, nearest)
        return max(0, nearest - paid)

    def _nearest_ahead(self, place: np.ndarray) -> tuple[int, float]:
        """The nearest point and its squared distance."""
        nearest, least = self.index, np.inf
        start, stop = self.index, self.index + self._settings.check_forward
        while start < min(stop, len(self._points)):
            offsets = self._points[start:stop] - place
            squares = np.einsum("ij,ij->i", offsets, offsets)
            last = len(squares) - 1 - int(squares[::-1].argmin())
            if squares[last] > least:
                break
            nearest, least = start + last, squares.item(last)
            start, stop = stop, nearest + self._settings.check_forward
        return nearest, least

    def _nearest_behind(self, place: np.ndarray) -> int:
        nearest, least = self.index, np.inf
        stop, start = self.index + 1, self.index + 1 - self._settings.check_backward
        while stop > max(start, 0):
            offsets = self._points[max(start, 0) : stop] - place
            squares = np.einsum("ij,ij->i", offsets, offsets)
            first = int(squares.argmin())
            if squares[first] > least:
                break
            nearest, least = max(start, 0) + first, squares.item(first)
            stop, start = start, nearest + 1 - self._settings.check_backward
        return nearest


class TrajectoryRewardEnvironment(gymnasium.Wrapper):
    """An environment with the reward and the ends of a trajectory beside its own ends.

    The environment's info names its `position`. Where it says `is_success`, the agent is at the finish. The info then
    says `end` and `is_success` of the trajectory.

    Args:
      env: The environment; its own rewards are dropped.
      points, settings: See TrajectoryReward.

    Raises:
      UserError, ValueError: In a step: the info has no position, or one that is none.
    """

    def __init__(self, env: gymnasium.Env, points: np.ndarray, settings: TrajectoryRewardSettings) -> None:
        super().__init__(env)
        self.trajectory = TrajectoryReward(points, settings)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self.trajectory.reset()
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, info = self.env.step(action)
        reward, is_over, info = self.trajectory.step_of_info(info)
        return observation, reward, is_over or terminated, truncated, info


class TrajectoryRewardInterface:
    """The same for a device: its own interface says when an episode ends, so that nothing is sent any more.

    Whatever else the device has, this has, too.

    Args:
      interface: The device, see `real_time.Interface`; its own rewards are dropped.
      points, settings: See TrajectoryReward.

    Raises:
      UserError, ValueError: In a step: the info has no position, or one that is none.
    """

    def __init__(self, interface: Any, points: np.ndarray, settings: TrajectoryRewardSettings) -> None:
        self._interface = interface
        self._trajectory = TrajectoryReward(points, settings)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self).get("_interface"), name)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._trajectory.reset()
        observation, info = self._interface.reset(seed=seed, options=options)
        return observation, info

    def get_obs_rew_terminated_info(self) -> tuple[Any, float, bool, dict[str, Any]]:
        observation, _, terminated, info = self._interface.get_obs_rew_terminated_info()
        reward, is_over, info = self._trajectory.step_of_info(info)
        return observation, reward, is_over or terminated, info


def with_trajectory_reward(env: gymnasium.Env, env_config: Mapping[str, Any]) -> gymnasium.Env:
    """The environment with the reward that the JSON names under `trajectory_reward`; without that key, as it is.

    In real time (RealTimeEnvironment, or rtgym's) its device gets that reward: see TrajectoryRewardInterface. Another
    environment that acts in real time is wrapped as all others are.

    A closed lap's search ahead goes over half of it at most: at the start it would find the finish, which is as near.

    Raises:
      UserError: The settings are wrong, the file is missing or no trajectory, or it was recorded on a track other than
        the only one in the `track_names` of the environment or device. A device is closed then.
    """
    if KEY not in env_config:
        return env
    in_real_time = device_layer(gym_layers(env))
    device = inspect.getattr_static(in_real_time, "interface", None)  # Its own, or replacing it would do nothing.
    if not callable(getattr(device, "get_obs_rew_terminated_info", None)):
        device = None  # What a user's own has under that name may be anything.
    try:
        settings = TrajectoryRewardSettings.of(env_config[KEY])
        path = find_reward_file(settings.file)
        points = _points_for(env if device is None else device, path)
    except UserError:
        if device is not None:
            env.close()
        raise
    settings = _ahead_of_the_finish(settings, points)
    if device is None:
        return TrajectoryRewardEnvironment(env, points, settings)
    in_real_time.interface = TrajectoryRewardInterface(device, points, settings)
    return env


def _points_for(raced: Any, path: Path) -> np.ndarray:
    """The points of a file, which was not recorded on a track other than the only one of what is raced."""
    points = read_points(path)
    recorded, tracks = recorded_track(path), getattr(raced, "track_names", None)
    if recorded and tracks is not None and tracks != [recorded]:
        several = f"{tracks[0]} and {len(tracks) - 1} more" if len(tracks) > 1 else tracks[0]
        raise UserError(
            f"{path} was recorded on {recorded}, but the environment has {several}: "
            f'set "track": "{recorded}" in the JSON, or record another'
        )
    return points


def _ahead_of_the_finish(settings: TrajectoryRewardSettings, points: np.ndarray) -> TrajectoryRewardSettings:
    back = point_of_return(points)
    if back is None or back > settings.check_forward:
        return settings
    return dataclasses.replace(settings, check_forward=back // 2)
