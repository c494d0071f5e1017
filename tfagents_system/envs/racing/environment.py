"""RacingEnvironment: a car on race tracks, with Gymnasium's interface.

Runs under SAC_ENV_PYTHON as well: NumPy and Gymnasium are needed, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from tfagents_system.checks.rules import Rule, is_kept, number_in
from tfagents_system.envs.info_keys import EVALUATION, EVALUATION_EPISODE
from tfagents_system.envs.racing import sensors, settings
from tfagents_system.envs.racing.car import STEP_SECS, CarParameters, CarState, advance
from tfagents_system.envs.racing.driver import PurePursuit
from tfagents_system.envs.racing.settings import RacingSettings
from tfagents_system.envs.racing.track import HELD_OUT, TRAIN, Track, make_track
from tfagents_system.envs.racing.track_map import TrackMap
from tfagents_system.errors import UserError

FINISHED, OFF_TRACK, STUCK = "finished", "off track", "stuck"
_PASSED_BESIDE_METRES = 2.0  # How far beside the road a zone still counts as passed.
_PARAMETERS: dict[str, Rule] = {
    "mass": number_in(200.0, 5000.0),
    "friction": number_in(0.1, 3.0),
    "power": number_in(1e3, 1e6),
}


class Circuit(NamedTuple):
    """A track and its raster."""

    track: Track
    map: TrackMap


@functools.lru_cache(maxsize=24)  # All environments of a process share them: 0.4 MB each.
def circuit(split: str, number: int, width: float) -> Circuit:
    """A track, drawn once."""
    track = make_track(split, number, width)
    return Circuit(track, TrackMap(track))


@dataclasses.dataclass
class Race:
    """All that changes while the environment runs.

    Attributes:
      zone: The last zone passed, from 0 at the start.
      metres: The furthest place reached.
      steps: Of the episode.
      steps_in_zone: Since the last new zone.
      episodes: Begun since the last seed.
      evaluated: Episodes of evaluations, since it was built.
    """

    rng: np.random.Generator
    track: tuple[str, int]
    car: CarState
    parameters: CarParameters
    zone: int = 0
    metres: float = 0.0
    steps: int = 0
    steps_in_zone: int = 0
    observation: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    episodes: int = 0
    evaluated: int = 0


class RacingEnvironment(gymnasium.Env[dict[str, np.ndarray], np.ndarray]):
    """Drive from start to finish. A step is 50 ms.

    Actions are `[3]` float32 in [-1, 1]: gas and brake, of which values below 0 press nothing, and steer, positive to
    the right. Observations are a dictionary of what the settings name. Zones, half a metre apart, count in their order
    alone. The reward is `reward_per_metre` for each metre further than ever in the episode, and `finish_reward` at the
    finish. Finishing, leaving the road and standing still terminate.

    The info of a step has `position` (x, y), `path` (the positions of its five substeps), `metres`, `zone`, `lap_time`
    (seconds since the start; at the finish, up to its line), `is_success`, `track` (its name) and `end` (FINISHED,
    OFF_TRACK, STUCK or "").

    Args:
      racing: The settings.
      split: TRAIN, whose tracks are drawn by the seed, or HELD_OUT, which come one after the other, the first one after
        the last: `reset` begins on the next one, or after `set_evaluation_episode(k)` on track k. The options
        `{"evaluation": True, "episode": k}` begin on one of these in any case; without `episode` the next.
      render_mode: None or `rgb_array`.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": round(1.0 / STEP_SECS)}

    def __init__(self, racing: RacingSettings, split: str = TRAIN, render_mode: str | None = None) -> None:
        self._settings = racing
        self._split, self._is_drawn = split, split == TRAIN
        self._tracks, self._held_out = racing.tracks(split), racing.tracks(HELD_OUT)
        self._episode: int | None = None  # Of the evaluation, which begins next.
        self._camera = sensors.Camera(racing.camera_channels)
        self.render_mode = render_mode
        self.trail: list[tuple[float, float]] = []
        self._path: list[tuple[float, float]] = []
        self.observation_space = gymnasium.spaces.Dict({name: _space(name, racing) for name in racing.observations})
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
        self._driver: PurePursuit | None = None
        first = self._tracks[0]
        self._now = Race(np.random.default_rng(), first, CarState(0.0, 0.0, 0.0), CarParameters())
        self._enter(first)

    # What is where.

    @property
    def track_names(self) -> list[str]:
        """The tracks that it drives on."""
        return self._settings.track_names(self._split)

    @property
    def track(self) -> Track:
        """The track of this episode."""
        return self._circuit.track

    @property
    def track_map(self) -> TrackMap:
        """Its raster."""
        return self._circuit.map

    @property
    def car(self) -> CarState:
        """The car's state."""
        return self._now.car

    @property
    def observation(self) -> dict[str, np.ndarray]:
        """What the last step or reset returned."""
        return self._now.observation

    def driver_action(self) -> np.ndarray:
        """What PurePursuit does now, `[3]` float32."""
        if self._driver is None:
            self._driver = PurePursuit(self.track, self._now.parameters)
        return self._driver.action(self._now.car, self._now.zone)

    # Gymnasium's interface.

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], Any]:
        now = self._now
        if seed is not None:
            now.rng, now.episodes = np.random.default_rng(seed), 0
        self._enter(self._next_track(options or {}))
        now.car = CarState(*self.track.start())
        now.zone = now.steps = now.steps_in_zone = 0
        now.metres = 0.0
        now.episodes += 1
        now.observation = self._observe()
        self.trail, self._path = [], [(now.car.x, now.car.y)]
        return now.observation, self._info("")

    def set_evaluation_episode(self, number: int) -> None:
        """Which of an evaluation's episodes the next reset begins, from 0: it decides the held-out track."""
        self._episode = number

    def _next_track(self, options: Mapping[str, Any]) -> tuple[str, int]:
        now, is_evaluation = self._now, bool(options.get(EVALUATION))
        tracks = self._held_out if is_evaluation else self._tracks
        number, self._episode = options.get(EVALUATION_EPISODE, self._episode), None
        if self._is_drawn and not is_evaluation:
            return tracks[int(now.rng.integers(len(tracks)))]
        now.evaluated += is_evaluation  # Which draws no numbers: training goes on as without it.
        if number is None:
            number = now.evaluated - 1 if is_evaluation else now.episodes
        return tracks[number % len(tracks)]

    def step(self, action: Any) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        now = self._now
        now.steps += 1
        pedals = _pedals(action)
        on_grass = self.track_map.edge_metres_at(now.car.x, now.car.y) < 0.0
        now.car, self._path = advance(now.car, now.parameters, pedals, on_grass)
        if self.render_mode is not None:
            self.trail.append((now.car.x, now.car.y))
        reward = self._settings.reward_per_metre * self._pass_zones()
        end = self._end()
        if end == FINISHED:
            reward += self._settings.finish_reward
        now.observation = self._observe()
        return now.observation, reward, end != "", False, self._info(end)

    def render(self) -> np.ndarray:
        """The whole track with the car's trail, and beside it the view from above with the rays, `[H, W, 3]` uint8."""
        from tfagents_system.envs.racing import drawing

        return drawing.frame(self._circuit.map, self._now.car, self.trail)

    # What a curriculum and tests use.

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Sets mass (kg), friction or power (W) of the car, at once and for all episodes to come.

        Raises:
          UserError: It has no such parameter, or the value is impossible.
        """
        for name, value in state.items():
            if name not in _PARAMETERS:
                raise UserError(f"the car has no parameter {name!r}: it knows {', '.join(_PARAMETERS)}")
            if not is_kept(_PARAMETERS[name], value):
                raise UserError(f"{name} of the car must be {_PARAMETERS[name].words}, found {value!r}: correct it")
        self._now.parameters = dataclasses.replace(self._now.parameters, **{k: float(v) for k, v in state.items()})
        self._driver = None

    # The step's parts.

    def _enter(self, track: tuple[str, int]) -> None:
        self._now.track = track
        self._circuit = circuit(*track, self._settings.width)
        self._finish = self.track.finish
        self._driver = None

    def _pass_zones(self) -> float:
        """Counts the zones that have been passed; returns the new metres."""
        now, track = self._now, self.track
        beside = track.width / 2.0 + _PASSED_BESIDE_METRES
        now.steps_in_zone += 1
        ahead = 0.0
        while now.zone < self._finish:
            row = track.index(now.zone + 1)
            (x, y), (dx, dy) = track.centres[row].tolist(), track.directions[row].tolist()
            x, y = now.car.x - x, now.car.y - y
            ahead = x * dx + y * dy
            if ahead < 0.0 or x * x + y * y > beside * beside:
                break
            now.zone += 1
            now.steps_in_zone = 0
        share = 1.0 + ahead / track.spacing if ahead < 0.0 else 0.0
        reached = min(now.zone + max(0.0, share), self._finish) * track.spacing
        gained = max(0.0, reached - now.metres)
        now.metres += gained
        return gained

    def _end(self) -> str:
        """Why the episode is over; empty if it is not."""
        now, beyond, stuck = self._now, self._settings.off_track_metres, self._settings.stuck_secs
        if now.zone >= self._finish:
            return FINISHED
        if beyond is not None and self.track_map.is_beyond(now.car.x, now.car.y, beyond):
            return OFF_TRACK
        if stuck is not None and now.steps_in_zone * STEP_SECS >= stuck:
            return STUCK
        return ""

    def _observe(self) -> dict[str, np.ndarray]:
        return {name: self._sense(name) for name in self._settings.observations}

    def _sense(self, name: str) -> np.ndarray:
        now = self._now
        if name == settings.LIDAR:
            return sensors.lidar(self.track_map, now.car)
        if name == settings.CAMERA:
            return self._camera.observe(self.track_map, now.car)
        if name == settings.PROGRESS:
            return np.array((now.zone / self._finish,), np.float32)
        return sensors.motion(now.car)

    def _info(self, end: str) -> dict[str, Any]:
        now = self._now
        lap_time = now.steps * STEP_SECS
        if end == FINISHED:
            lap_time -= self._secs_behind_finish()
        return {
            "position": (now.car.x, now.car.y),
            "path": self._path,
            "metres": now.metres,
            "zone": now.zone,
            "record/metres": now.metres,
            "record/zone": now.zone,
            "lap_time": lap_time,
            "is_success": end == FINISHED,
            "track": self.track.name,
            "end": end,
        }

    def _secs_behind_finish(self) -> float:
        """How long ago the car crossed the finish line, within the last step."""
        track, car = self.track, self._now.car
        row = track.index(self._finish)
        ahead = float((np.array((car.x, car.y)) - track.centres[row]) @ track.directions[row])
        return min(STEP_SECS, max(0.0, ahead / max(car.speed, 1e-3)))


def _pedals(action: Any) -> tuple[float, ...]:
    """The action as the car takes it."""
    given = np.asarray(action, np.float64)
    pedals = tuple(min(1.0, max(-1.0, value)) for value in given.tolist())
    if given.shape != (3,) or not math.isfinite(given.sum()):
        raise ValueError(f"an action is three finite numbers, gas, brake and steer, found {action!r}")
    return pedals


def _space(name: str, racing: RacingSettings) -> gymnasium.spaces.Box:
    if name == settings.CAMERA:
        side = sensors.CAMERA_PIXELS
        return gymnasium.spaces.Box(0, 255, (side, side, racing.camera_channels), np.uint8)
    if name == settings.LIDAR:
        return gymnasium.spaces.Box(0.0, sensors.RAY_METRES, (sensors.RAYS,), np.float32)
    if name == settings.PROGRESS:
        return gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    return gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
