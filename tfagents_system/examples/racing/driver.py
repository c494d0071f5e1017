"""A driver that knows the track: pure pursuit of the middle of the road, as fast as the grip allows.

Coulter, "Implementation of the Pure Pursuit Path Tracking Algorithm" (1992). Its lap time is the one to beat.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tfagents_system.errors import UserError
from tfagents_system.examples.racing.car import GRAVITY, MAX_STEER, WHEELBASE, CarParameters, CarState
from tfagents_system.examples.racing.track import Track

if TYPE_CHECKING:
    from tfagents_system.examples.racing.environment import RacingEnvironment

_LATERAL_SHARE, _BRAKE_SHARE, _GAS_SHARE = 0.85, 0.6, 0.4  # Of the grip, in bends and along the road.
_TOP_SPEED = 40.0  # m/s
_CURVATURE_METRES = 3.0  # Over which bends are averaged.
_LOOK_AHEAD_METRES, _LOOK_AHEAD_SECS = (3.0, 14.0), 0.35
_PEDAL_GAIN = 0.6  # Of full pedal, for each m/s that the car is too slow or too fast.


class PurePursuit:
    """Drives along a track.

    Args:
      track: The track.
      parameters: Of the car.

    Attributes:
      speeds: The speed that it holds at each zone centre, m/s, `[n]`.
    """

    def __init__(self, track: Track, parameters: CarParameters) -> None:
        self._track = track
        self.speeds = speed_profile(track, parameters)

    def action(self, state: CarState, zone: int) -> np.ndarray:
        """Gas, brake and steer, `[3]` float32 in [-1, 1], for a car whose last zone is `zone`."""
        track, speed = self._track, state.speed
        ahead = min(max(_LOOK_AHEAD_SECS * speed + _LOOK_AHEAD_METRES[0], 0.0), _LOOK_AHEAD_METRES[1])
        x, y = track.centres[track.index(zone + max(1, round(ahead / track.spacing)))].tolist()
        dx, dy = x - state.x, y - state.y
        left = math.cos(state.heading) * dy - math.sin(state.heading) * dx
        steer = math.atan(2.0 * WHEELBASE * left / max(dx * dx + dy * dy, 1e-6))
        error = self.speeds.item(track.index(zone + max(1, round(0.1 * speed / track.spacing)))) - speed
        pedals = min(1.0, max(-1.0, _PEDAL_GAIN * error))
        turn = min(1.0, max(-1.0, -steer / MAX_STEER))
        return np.array((pedals, -pedals, turn), np.float32)


def speed_profile(track: Track, parameters: CarParameters) -> np.ndarray:
    """The largest speeds at the zone centres that the grip allows in bends, before and behind them, `[n]` m/s."""
    grip = parameters.friction * GRAVITY
    window = max(1, round(_CURVATURE_METRES / track.spacing))
    around = (window // 2, window - 1 - window // 2)
    turning: np.ndarray = np.abs(track.curvatures)
    bends = np.convolve(np.pad(turning, around, mode="wrap"), np.full(window, 1.0 / window), "valid")
    speeds = np.minimum(_TOP_SPEED, np.sqrt(_LATERAL_SHARE * grip / np.maximum(bends, 1e-6)))
    rows = list(range(len(speeds))) * 2
    for row, before in zip(rows[1:], rows, strict=False):
        gas = min(_GAS_SHARE * grip, parameters.power / (parameters.mass * max(speeds[before], 1.0)))
        speeds[row] = min(speeds[row], math.sqrt(speeds[before] ** 2 + 2.0 * gas * track.spacing))
    for row, behind in zip(rows[-2::-1], rows[::-1], strict=False):
        speeds[row] = min(speeds[row], math.sqrt(speeds[behind] ** 2 + 2.0 * _BRAKE_SHARE * grip * track.spacing))
    return speeds


class Expert:
    """PurePursuit as a policy, in whichever environment has returned the observation: it knows more than this tells.

    Args:
      environments: Returns the environments of this process.
    """

    def __init__(self, environments: Callable[[], Iterable[RacingEnvironment]]) -> None:
        self._environments = environments

    def __call__(self, observation: Mapping[str, Any]) -> np.ndarray:
        """Gas, brake and steer, `[3]` float32.

        Raises:
          UserError: No environment of this process has returned the observation.
        """
        for env in self._environments():
            parts = env.observation  # Empty before its first episode.
            whole = [name for name in parts if parts[name].shape == observation[name].shape]  # Not made smaller.
            if whole and all(np.array_equal(parts[name], observation[name]) for name in whole):
                return env.driver_action()
        raise UserError(
            "the driver of the racing environment needs an environment in its own process: unset SAC_ENV_PYTHON, "
            "or set SAC_EXPERT_POLICY to a saved policy"
        )
