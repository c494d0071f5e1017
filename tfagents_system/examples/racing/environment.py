"""RacingEnvironment: a car on race tracks, with Gymnasium's interface, and its settings in the JSON."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Optional

import gymnasium
import numpy as np

from tfagents_system.checks.rules import NOT_NEGATIVE, Rule, is_kept, number_in
from tfagents_system.envs.gym_driver import EVALUATION, EVALUATION_EPISODE
from tfagents_system.errors import UserError
from tfagents_system.examples.racing.car import STEP_SECS, CarParameters, CarState, advance
from tfagents_system.examples.racing.driver import PurePursuit
from tfagents_system.examples.racing.sensors import CAMERA_PIXELS, RAY_METRES, RAYS, Camera, frame, lidar, motion
from tfagents_system.examples.racing.track import CLOSED, HELD_OUT, TRAIN, Track, TrackMap, make_track
from tfagents_system.hyperparameters import Count, Positive, read_section

LIDAR, MOTION, PROGRESS, CAMERA = OBSERVATIONS = ("lidar", "motion", "progress", "camera")
FINISHED, OFF_TRACK, STUCK = "finished", "off track", "stuck"
_PASSED_BESIDE_METRES = 2.0  # How far beside the road a zone still counts as passed.
_PARAMETERS: dict[str, Rule] = {
    "mass": number_in(200.0, 5000.0),
    "friction": number_in(0.1, 3.0),
    "power": number_in(1e3, 1e6),
}
_TRACK_NAME = re.compile(rf"{CLOSED}/({TRAIN}|{HELD_OUT})/(\d{{1,9}})")


def _are_observations(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and 0 < len(value) == len(set(value)) and set(value) <= set(OBSERVATIONS)


def _is_track_name(value: Any) -> bool:
    return isinstance(value, str) and _TRACK_NAME.fullmatch(value) is not None


Observations = Annotated[tuple[str, ...], Rule(f"a list of some of {', '.join(OBSERVATIONS)}", _are_observations)]
TrackName = Annotated[
    Optional[str],  # noqa: UP045 (it may run under Python 3.9)
    Rule(
        f"a track's name, {CLOSED}/SPLIT/NUMBER such as {CLOSED}/train/3, where SPLIT is {TRAIN} or {HELD_OUT}",
        _is_track_name,
    ),
]


@dataclasses.dataclass(frozen=True)
class RacingSettings:
    """The key `racing` of the JSON: tracks, observations, rewards, ends of episodes. docs/how_to/racing.md has a table.

    Attributes:
      track: The only track, in training and evaluations; None: all of them.
      off_track_metres: How far the car's centre may be beyond the edge of the road; None: any distance.
      stuck_secs: An episode ends after so long without a new zone; None: only at the horizon.
    """

    observations: Observations = (LIDAR, MOTION, PROGRESS)
    train_tracks: Count = 20
    held_out_tracks: Count = 5
    track: TrackName = None
    width: Annotated[float, number_in(5.0, 16.0), "metres"] = 8.0
    camera_channels: Literal[1, 3] = 1
    off_track_metres: Annotated[Optional[Positive], "metres"] = 2.0  # noqa: UP045
    stuck_secs: Annotated[Optional[Positive], "seconds"] = 5.0  # noqa: UP045
    reward_per_metre: Positive = 1.0
    finish_reward: Annotated[float, NOT_NEGATIVE] = 20.0

    @classmethod
    def of(cls, env_config: Mapping[str, Any]) -> RacingSettings:
        """Reads the JSON.

        Raises:
          UserError: The section has unknown keys or impossible values.
        """
        return read_section(cls, env_config.get("racing", {}), "racing")

    def tracks(self, split: str) -> list[tuple[str, int]]:
        """Split and number of each track of a split."""
        if self.track is not None:
            _, split, number = self.track.split("/")
            return [(split, int(number))]
        count = self.train_tracks if split == TRAIN else self.held_out_tracks
        return [(split, number) for number in range(count)]

    def track_names(self, *splits: str) -> list[str]:
        """The tracks of these splits, each once."""
        tracks = dict.fromkeys(track for split in splits for track in self.tracks(split))
        return [f"{CLOSED}/{split}/{number}" for split, number in tracks]


@functools.lru_cache(maxsize=24)  # All environments of a process share them: 0.4 MB each.
def circuit(split: str, number: int, width: float) -> tuple[Track, TrackMap]:
    """A track and its raster, drawn once."""
    track = make_track(split, number, width)
    return track, TrackMap(track)


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
        the last; `set_evaluation_episode(k)` lets the next reset begin on track k. The options
        `{"evaluation": True, "episode": k}` of a reset begin on a held-out track in any case.
      render_mode: None or `rgb_array`.

    Attributes:
      car: The car's state.
      parameters: Of the car.
      track, track_map: Of this episode.
      observation: What the last step or reset returned.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": round(1.0 / STEP_SECS)}
    car: CarState
    _driver: PurePursuit | None
    _zone: int
    _steps: int

    def __init__(self, racing: RacingSettings, split: str = TRAIN, render_mode: str | None = None) -> None:
        self._settings, self._split, self.render_mode = racing, split, render_mode
        self.track_names = racing.track_names(split)
        self._camera = Camera(racing.camera_channels)
        self.observation_space = gymnasium.spaces.Dict({name: _space(name, racing) for name in racing.observations})
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
        self._rng = np.random.default_rng()
        self.parameters = CarParameters()
        self.observation: dict[str, np.ndarray] = {}
        self.trail: list[tuple[float, float]] = []
        self._path: list[tuple[float, float]] = []
        self._evaluations = 0  # Begun since the last seed.
        self._episode: int | None = None  # Of the evaluation, which begins next.
        self._enter(racing.tracks(split)[0])

    def driver_action(self) -> np.ndarray:
        """What PurePursuit does now, `[3]` float32."""
        if self._driver is None:
            self._driver = PurePursuit(self.track, self.parameters)
        return self._driver.action(self.car, self._zone)

    # Gymnasium's interface.

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        if seed is not None:
            self._rng, self._evaluations = np.random.default_rng(seed), 0
        self._enter(self._next_track(options or {}))
        self.observation = self._observe()
        self.trail, self._path = [], [(self.car.x, self.car.y)]
        return self.observation, self._info("")

    def set_evaluation_episode(self, number: int) -> None:
        """Which of an evaluation's episodes the next reset begins, from 0: it decides the held-out track."""
        self._episode = number

    def step(self, action: Any) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        self._steps += 1
        on_grass = self.track_map.edge_metres_at(self.car.x, self.car.y) < 0.0
        self.car, self._path = advance(self.car, self.parameters, _pedals(action), on_grass)
        if self.render_mode is not None:
            self.trail.append((self.car.x, self.car.y))
        reward = self._settings.reward_per_metre * self._pass_zones()
        end = self._end()
        if end == FINISHED:
            reward += self._settings.finish_reward
        self.observation = self._observe()
        return self.observation, reward, end != "", False, self._info(end)

    def render(self) -> np.ndarray:
        """The whole track with the car's trail, and beside it the view from above with the rays, `[H, W, 3]` uint8."""
        return frame(self.track_map, self.car, self.trail)

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
        self.parameters = dataclasses.replace(self.parameters, **{k: float(v) for k, v in state.items()})
        self._driver = None

    # The step's parts.

    def _next_track(self, options: Mapping[str, Any]) -> tuple[str, int]:
        episode, self._episode = options.get(EVALUATION_EPISODE, self._episode), None
        if self._split == TRAIN and not options.get(EVALUATION):
            tracks = self._settings.tracks(TRAIN)
            return tracks[int(self._rng.integers(len(tracks)))]
        tracks = self._settings.tracks(HELD_OUT)
        number = self._evaluations if episode is None else episode  # No number is drawn: training continues as without.
        self._evaluations += 1
        return tracks[number % len(tracks)]

    def _enter(self, track: tuple[str, int]) -> None:
        """The car stands at the start of a track."""
        self.track, self.track_map = circuit(*track, self._settings.width)
        self._driver = None
        self.car = CarState(*self.track.start())
        self._zone = self._steps = self._steps_in_zone = 0
        self._metres = 0.0

    def _pass_zones(self) -> float:
        """Counts the zones that have been passed; returns the new metres."""
        track = self.track
        beside = track.width / 2.0 + _PASSED_BESIDE_METRES
        self._steps_in_zone += 1
        ahead = 0.0
        while self._zone < track.finish:
            row = track.index(self._zone + 1)
            (x, y), (dx, dy) = track.centres[row].tolist(), track.directions[row].tolist()
            x, y = self.car.x - x, self.car.y - y
            ahead = x * dx + y * dy
            if ahead < 0.0 or x * x + y * y > beside * beside:
                break
            self._zone += 1
            self._steps_in_zone = 0
        share = 1.0 + ahead / track.spacing if ahead < 0.0 else 0.0
        reached = min(self._zone + max(0.0, share), track.finish) * track.spacing
        gained = max(0.0, reached - self._metres)
        self._metres += gained
        return gained

    def _end(self) -> str:
        """Why the episode is over; empty if it is not."""
        beyond, stuck = self._settings.off_track_metres, self._settings.stuck_secs
        if self._zone >= self.track.finish:
            return FINISHED
        if beyond is not None and self.track_map.is_beyond(self.car.x, self.car.y, beyond):
            return OFF_TRACK
        if stuck is not None and self._steps_in_zone * STEP_SECS >= stuck:
            return STUCK
        return ""

    def _observe(self) -> dict[str, np.ndarray]:
        return {name: self._sense(name) for name in self._settings.observations}

    def _sense(self, name: str) -> np.ndarray:
        if name == LIDAR:
            return lidar(self.track_map, self.car)
        if name == CAMERA:
            return self._camera.observe(self.track_map, self.car)
        if name == PROGRESS:
            return np.array((self._zone / self.track.finish,), np.float32)
        return motion(self.car)

    def _info(self, end: str) -> dict[str, Any]:
        lap_time = self._steps * STEP_SECS
        if end == FINISHED:
            lap_time -= self._secs_behind_finish()
        return {
            "position": (self.car.x, self.car.y),
            "path": self._path,
            "metres": self._metres,
            "zone": self._zone,
            "record/metres": self._metres,
            "record/zone": self._zone,
            "lap_time": lap_time,
            "is_success": end == FINISHED,
            "track": self.track.name,
            "end": end,
        }

    def _secs_behind_finish(self) -> float:
        """How long ago the car crossed the finish line, within the last step."""
        row = self.track.index(self.track.finish)
        ahead = float((np.array((self.car.x, self.car.y)) - self.track.centres[row]) @ self.track.directions[row])
        return min(STEP_SECS, max(0.0, ahead / max(self.car.speed, 1e-3)))


def _pedals(action: Any) -> tuple[float, ...]:
    """The action as the car takes it."""
    values = np.asarray(action, np.float64)
    if values.shape != (3,) or not math.isfinite(values.sum()):
        raise ValueError(f"an action is three finite numbers, gas, brake and steer, found {action!r}")
    return tuple(min(1.0, max(-1.0, value)) for value in values.tolist())


def _space(name: str, racing: RacingSettings) -> gymnasium.spaces.Box:
    if name == CAMERA:
        return gymnasium.spaces.Box(0, 255, (CAMERA_PIXELS, CAMERA_PIXELS, racing.camera_channels), np.uint8)
    if name == LIDAR:
        return gymnasium.spaces.Box(0.0, RAY_METRES, (RAYS,), np.float32)
    if name == PROGRESS:
        return gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    return gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
