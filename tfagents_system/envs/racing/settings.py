"""What the JSON says about the racing environment, under its key `racing`.

Runs under SAC_ENV_PYTHON as well: NumPy and Gymnasium are needed, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Annotated, Any, Literal, Optional

from tfagents_system.checks.hyperparameters import Count, CountOrZero, Positive
from tfagents_system.checks.rules import Rule, meant_among, number_in, number_where
from tfagents_system.checks.sections import read_section
from tfagents_system.checks.spelling import SIMILARITY_OF_KEYS, near_misses
from tfagents_system.envs.racing.track import CLOSED, HELD_OUT, POINT_TO_POINT, TRAIN

LIDAR, MOTION, KINEMATICS, PROGRESS, CAMERA = OBSERVATIONS = ("lidar", "motion", "kinematics", "progress", "camera")
_TRACK_NAME = re.compile(rf"({CLOSED}|{POINT_TO_POINT})/({TRAIN}|{HELD_OUT})/(\d{{1,9}})")
_KINDS_AND_SPLITS = (CLOSED, POINT_TO_POINT, TRAIN, HELD_OUT)


def _are_observations(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and 0 < len(value) == len(set(value)) and set(value) <= set(OBSERVATIONS)


Observations = Annotated[
    tuple[str, ...],
    Rule(f"a list of some of {', '.join(OBSERVATIONS)}", _are_observations, meant=meant_among(OBSERVATIONS)),
]


def _is_track_name(value: Any) -> bool:
    return isinstance(value, str) and _TRACK_NAME.fullmatch(value) is not None


def _track_meant(value: Any) -> list[tuple[str, str]]:
    """A track's name with its kind and split put right."""
    parts = value.split("/") if isinstance(value, str) else []
    known = dict(near_misses(parts[:2], _KINDS_AND_SPLITS, SIMILARITY_OF_KEYS))
    name = "/".join([*(known.get(part, part) for part in parts[:2]), *parts[2:]])
    return [(value, name)] if _is_track_name(name) else []


TrackName = Annotated[
    Optional[str],  # noqa: UP045  (Python 3.9)
    Rule(
        f"a track's name, KIND/SPLIT/NUMBER such as closed/train/3, where KIND is {CLOSED} or {POINT_TO_POINT}, and "
        f"SPLIT {TRAIN} or {HELD_OUT}",
        _is_track_name,
        meant=_track_meant,
    ),
]


@dataclasses.dataclass(frozen=True)
class RacingSettings:
    """Tracks, observations, rewards, ends of episodes, and faults for tests. docs/how_to/racing.md has a table."""

    observations: Observations = (LIDAR, MOTION, PROGRESS)
    kinds: Literal["closed", "point_to_point", "both"] = "closed"
    train_tracks: Count = 20
    held_out_tracks: Count = 5
    track: TrackName = None
    """The only track, in training and evaluations; None: those of `kinds`."""
    width: Annotated[float, number_in(5.0, 16.0), "metres"] = 8.0
    centres: Count = 20
    centre_spacing: Annotated[Positive, "metres"] = 2.0
    camera_channels: Literal[1, 3] = 1
    off_track_metres: Annotated[Optional[Positive], "metres"] = 2.0  # noqa: UP045  (Python 3.9)
    """How far the car's centre may be beyond the edge of the road; None: any distance."""
    stuck_secs: Annotated[Optional[Positive], "seconds"] = 5.0  # noqa: UP045  (Python 3.9)
    """An episode ends after so long without a new zone; None: only at the horizon."""
    reward_per_metre: Positive = 1.0
    finish_reward: Annotated[float, number_where("a number of at least 0", lambda value: value >= 0)] = 20.0
    action_delay_steps: CountOrZero = 0
    """Steps before an action reaches the car; before the first arrives it rolls."""
    lost_observations: Annotated[float, number_in(0.0, 1.0)] = 0.0
    """Share of the steps that return the observation of the step before."""
    crash_at_step: Optional[Count] = None  # noqa: UP045  (Python 3.9)
    """The step, of all since it was built, that raises an error."""

    @classmethod
    def of(cls, section: Any) -> RacingSettings:
        """Reads the object of the JSON.

        Raises:
          UserError: It has unknown keys or impossible values.
        """
        return read_section(cls, section, "racing")

    def tracks(self, split: str) -> list[tuple[str, str, int]]:
        """Kind, split and number of each track of a split."""
        if self.track is not None:
            kind, split, number = self.track.split("/")
            return [(kind, split, int(number))]
        count = self.train_tracks if split == "train" else self.held_out_tracks
        if self.kinds == "both":
            return [((CLOSED, POINT_TO_POINT)[k % 2], split, k // 2) for k in range(count)]
        return [(self.kinds, split, number) for number in range(count)]

    def track_names(self, *splits: str) -> list[str]:
        """The tracks of these splits, each once."""
        return list(dict.fromkeys("/".join(map(str, track)) for split in splits for track in self.tracks(split)))
