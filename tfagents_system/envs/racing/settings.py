"""What the JSON says about the racing environment, under its key `racing`.

Runs under SAC_ENV_PYTHON as well: NumPy and Gymnasium are needed, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Annotated, Any, Literal, Optional

from tfagents_system.checks.rules import Rule, number_in, number_where
from tfagents_system.envs.racing.track import CLOSED, HELD_OUT, TRAIN
from tfagents_system.hyperparameters import Count, Positive, read_section

LIDAR, MOTION, PROGRESS, CAMERA = OBSERVATIONS = ("lidar", "motion", "progress", "camera")
_TRACK_NAME = re.compile(rf"{CLOSED}/({TRAIN}|{HELD_OUT})/(\d{{1,9}})")


def _are_observations(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and 0 < len(value) == len(set(value)) and set(value) <= set(OBSERVATIONS)


Observations = Annotated[
    tuple[str, ...],
    Rule(f"a list of some of {', '.join(OBSERVATIONS)}", _are_observations),
]


def _is_track_name(value: Any) -> bool:
    return isinstance(value, str) and _TRACK_NAME.fullmatch(value) is not None


TrackName = Annotated[
    Optional[str],  # noqa: UP045  (Python 3.9)
    Rule(
        f"a track's name, {CLOSED}/SPLIT/NUMBER such as {CLOSED}/train/3, where SPLIT is {TRAIN} or {HELD_OUT}",
        _is_track_name,
    ),
]


@dataclasses.dataclass(frozen=True)
class RacingSettings:
    """Tracks, observations, rewards and ends of episodes. docs/how_to/racing.md has a table."""

    observations: Observations = (LIDAR, MOTION, PROGRESS)
    train_tracks: Count = 20
    held_out_tracks: Count = 5
    track: TrackName = None
    """The only track, in training and evaluations; None: all of them."""
    width: Annotated[float, number_in(5.0, 16.0), "metres"] = 8.0
    camera_channels: Literal[1, 3] = 1
    off_track_metres: Annotated[Optional[Positive], "metres"] = 2.0  # noqa: UP045  (Python 3.9)
    """How far the car's centre may be beyond the edge of the road; None: any distance."""
    stuck_secs: Annotated[Optional[Positive], "seconds"] = 5.0  # noqa: UP045  (Python 3.9)
    """An episode ends after so long without a new zone; None: only at the horizon."""
    reward_per_metre: Positive = 1.0
    finish_reward: Annotated[float, number_where("a number of at least 0", lambda value: value >= 0)] = 20.0

    @classmethod
    def of(cls, section: Any) -> RacingSettings:
        """Reads the object of the JSON.

        Raises:
          UserError: It has unknown keys or impossible values.
        """
        return read_section(cls, section, "racing")

    def tracks(self, split: str) -> list[tuple[str, int]]:
        """Split and number of each track of a split."""
        if self.track is not None:
            _, split, number = self.track.split("/")
            return [(split, int(number))]
        count = self.train_tracks if split == TRAIN else self.held_out_tracks
        return [(split, number) for number in range(count)]

    def track_names(self, *splits: str) -> list[str]:
        """The tracks of these splits, each once."""
        return list(
            dict.fromkeys(f"{CLOSED}/{name}/{number}" for split in splits for name, number in self.tracks(split))
        )
