"""Reward from a recorded trajectory: how far along it the agent gets, as in TMRL 0.7 (`RewardFunction`).

For any environment whose info has its `position`. It runs under SAC_ENV_PYTHON as well: NumPy and Gymnasium are needed,
Python 3.9.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from tfagents_system.envs.gym_driver import device_layer, gym_layers
from tfagents_system.errors import UserError, shown
from tfagents_system.hyperparameters import Count, CountOrZero, Number, Positive, read_section

KEY = "trajectory_reward"  # In the JSON of SAC_CONFIG, and of its file there among `input_files`.
POSITION = "position"  # In the info of a step: the agent's coordinates, metres.
FINISHED, STRAYED, NO_PROGRESS = "finished", "strayed", "no progress"
SPACING_METRES = 0.1
MIN_METRES, MAX_GAP_METRES = 20.0, 1.0
_POINTS_PER_REWARD = 100.0
_RECORD = "record it with `sac racing record-reward`"
_MAX_BYTES = 200 * 2**20


@dataclasses.dataclass(frozen=True)
class TrajectoryRewardSettings:
    """TMRL's REWARD_CONFIG, under its names in lower case. docs/how_to/racing.md has a table.

    Attributes:
      check_forward: Points without improvement after which the search ahead ends, the nearest one included.
      check_backward: The same of the search backwards.
      failure_countdown: An episode ends after more steps than this without progress.
      min_steps: Steps at an episode's begin that can't end it.
      regain: TMRL's rule: points that were passed again after moving back are paid again.
    """

    end_of_track: Number = 100.0
    constant_penalty: Number = 0.0
    check_forward: Count = 500
    check_backward: Count = 10
    failure_countdown: CountOrZero = 10
    min_steps: CountOrZero = 70
    max_stray: Positive = 100.0
    regain: bool = False


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
        can_end = self._steps > settings.min_steps
        position = self._checked(position)
        nearest, distance_squared = self._nearest_ahead(position)
        reward = settings.constant_penalty
        if distance_squared > settings.max_stray**2:
            self.end = STRAYED if can_end else ""
        elif nearest > self.index:
            paid = self.index if settings.regain else max(self.index, self._paid)
            reward += max(0, nearest - paid) / _POINTS_PER_REWARD
            self._paid = max(self._paid, nearest)
            self.index, self._failures = nearest, 0
        else:
            self.index = self._nearest_behind(position)
            self._failures += can_end
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

    def _checked(self, position: Any) -> np.ndarray:
        point, expected = np.asarray(position, np.float64), self._points.shape[1]
        if point.shape != (expected,):
            raise ValueError(
                f'the info\'s "{POSITION}" must be {expected} coordinates in metres, as the trajectory has, found '
                + shown(position)
            )
        if not np.isfinite(point).all():  # No point is farther than that: the agent would be at the finish.
            raise ValueError(
                f'the info\'s "{POSITION}" is not finite ({shown(point.tolist())}): where it is unknown, tell the last '
                "one that was known"
            )
        return point

    def _squares(self, start: int, stop: int, position: np.ndarray) -> np.ndarray:
        offsets = self._points[start:stop] - position
        return np.einsum("ij,ij->i", offsets, offsets)

    def _nearest_ahead(self, position: np.ndarray) -> tuple[int, float]:
        """The nearest point and its squared distance."""
        nearest, least = self.index, np.inf
        start, stop = self.index, self.index + self._settings.check_forward
        while start < min(stop, len(self._points)):
            squares = self._squares(start, stop, position)
            last = len(squares) - 1 - int(squares[::-1].argmin())
            if squares[last] > least:
                break
            nearest, least = start + last, squares.item(last)
            start, stop = stop, nearest + self._settings.check_forward
        return nearest, least

    def _nearest_behind(self, position: np.ndarray) -> int:
        nearest, least = self.index, np.inf
        stop, start = self.index + 1, self.index + 1 - self._settings.check_backward
        while stop > max(start, 0):
            squares = self._squares(max(start, 0), stop, position)
            first = int(squares.argmin())
            if squares[first] > least:
                break
            nearest, least = max(start, 0) + first, squares.item(first)
            stop, start = start, nearest + 1 - self._settings.check_backward
        return nearest


class TrajectoryRewardEnvironment(gymnasium.Wrapper):
    """An environment with the reward and the ends of a trajectory beside its own ends; its own rewards are dropped.

    The environment's info names its `position`. Where it says `is_success`, the agent is at the finish. The info then
    says `end` and `is_success` of the trajectory.
    """

    def __init__(self, env: gymnasium.Env, trajectory: TrajectoryReward) -> None:
        super().__init__(env)
        self.trajectory = trajectory

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self.trajectory.reset()
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, info = self.env.step(action)
        reward, is_over, info = self.trajectory.step_of_info(info)
        return observation, reward, is_over or terminated, truncated, info


class TrajectoryRewardInterface:
    """The same for a device: its own interface says when an episode ends, so that nothing is sent any more.

    Whatever else the device (see RealTimeEnvironment) has, this has, too.
    """

    def __init__(self, interface: Any, trajectory: TrajectoryReward) -> None:
        self._interface, self._trajectory = interface, trajectory

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
    """The environment with the reward that the JSON describes under `trajectory_reward`; without that key, as it is.

    In real time (RealTimeEnvironment, or rtgym's) its device gets that reward: see TrajectoryRewardInterface. Another
    environment that acts in real time is wrapped as all others are.

    Raises:
      UserError: The settings are wrong, the file is missing or no trajectory. The environment is closed then.
    """
    if KEY not in env_config:
        return env
    try:
        settings = read_section(TrajectoryRewardSettings, env_config[KEY], KEY)
        points = read_points((env_config.get("input_files") or {}).get(KEY))
    except UserError:
        env.close()
        raise
    trajectory = TrajectoryReward(points, _ahead_of_the_finish(settings, points))
    in_real_time = device_layer(gym_layers(env))
    device = inspect.getattr_static(in_real_time, "interface", None)  # Its own, or replacing it would do nothing.
    if not callable(getattr(device, "get_obs_rew_terminated_info", None)):  # What a user's own has may be anything.
        return TrajectoryRewardEnvironment(env, trajectory)
    in_real_time.interface = TrajectoryRewardInterface(device, trajectory)
    return env


def _ahead_of_the_finish(settings: TrajectoryRewardSettings, points: np.ndarray) -> TrajectoryRewardSettings:
    """A closed lap's search ahead ends after half of it: at the start it would find the finish, which is as near."""
    first = round(MIN_METRES / 2 / SPACING_METRES)  # Those before are the start itself.
    is_back = np.linalg.norm(points[first:] - points[0], axis=1) <= MAX_GAP_METRES
    back = first + int(is_back.argmax())
    if not is_back.any() or back > settings.check_forward:
        return settings
    return dataclasses.replace(settings, check_forward=back // 2)


# The file: an .npz with `points`.


def polyline(positions: np.ndarray) -> np.ndarray:
    """The points of a trajectory, SPACING_METRES apart.

    Args:
      positions: Of a whole lap, `[n, 2]` or `[n, 3]`, metres.

    Raises:
      UserError: It has NaN, gaps above MAX_GAP_METRES, or is shorter than MIN_METRES.
    """
    positions = np.asarray(positions, np.float64)
    if positions.ndim != 2 or positions.shape[1] not in (2, 3) or len(positions) < 2:
        raise UserError(f"a trajectory is many points [x, y] or [x, y, z], found an array {positions.shape}")
    if not np.isfinite(positions).all():
        step = int(np.argmin(np.isfinite(positions).all(axis=1)))
        raise UserError(f"the position of step {step} is not finite ({positions[step]}): correct the environment")
    lengths = np.linalg.norm(np.diff(positions, axis=0), axis=1)
    along = np.concatenate([[0.0], np.cumsum(lengths)])
    if lengths.max() > MAX_GAP_METRES:
        step = int(lengths.argmax())
        raise UserError(
            f"the trajectory has a gap of {lengths.max():.2f} m behind step {step}, at most {MAX_GAP_METRES:g} m is "
            "allowed: drive slower, or have the position measured more often"
        )
    if along[-1] < MIN_METRES:
        raise UserError(f"the lap is {along[-1]:.1f} m long, at least {MIN_METRES:g} m is needed: drive a whole lap")
    moved = np.concatenate([[True], lengths > 0.0])
    ticks = np.linspace(0.0, along[-1], round(along[-1] / SPACING_METRES) + 1)
    return np.stack([np.interp(ticks, along[moved], axis[moved]) for axis in positions.T], axis=1)


def read_points(path: str | None) -> np.ndarray:
    """The points of a reward.npz, `[n, 2]` or `[n, 3]` float64.

    Raises:
      UserError: There is none, or it has something else.
    """
    if path is None:
        raise UserError(f'{KEY} has no file: add "input_files": {{"{KEY}": "reward.npz"}} to the JSON')
    if not Path(path).is_file():
        raise UserError(f"the reward file {path} does not exist: {_RECORD}, or correct input_files.{KEY}")
    try:
        if Path(path).stat().st_size > _MAX_BYTES:
            raise ValueError(f"it is larger than {_MAX_BYTES // 2**20} MB")
        with np.load(path, allow_pickle=False) as file:
            points = np.asarray(file["points"], np.float64)
    except Exception as error:  # Of zipfile, zlib, or tokenize: NumPy reads a header before the zip's checksum is seen.
        raise UserError(f"the reward file {path} can't be read ({error}): {_RECORD}") from None
    if points.ndim != 2 or points.shape[1] not in (2, 3) or len(points) < 2 or not np.isfinite(points).all():
        raise UserError(
            f"the reward file {path} must hold finite points [n, 2] or [n, 3], found an array {points.shape}: {_RECORD}"
        )
    return points
