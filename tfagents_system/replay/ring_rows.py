"""The rows of a ring: its columns as arrays, a segment written into them, and the checksum that it gets."""

from __future__ import annotations

import zlib
from typing import Literal

import numpy as np

from tfagents_system.replay.ring_files import RingFiles, row_ranges
from tfagents_system.transport.segments import Segment

HISTORY = -1  # steps_left
EPISODE_BITS = 32  # Of the second number of `episode`, those of the place in the episode.
STEP_FIRST, STEP_MID, STEP_LAST = 0, 1, 2  # as in tf_agents.trajectories.StepType
# Bits of step_type.
_HELD_OUT = 0x80  # The row is of an episode that is never trained on.
_NO_START = 0x40  # A transition that is in two segments: samples start at it in the other one.


class RingRows:
    """The columns of a ring, each an array `[num_rows, ...]` that is its file.

    Row number n, counted from the beginning of the run, is at place `n % num_rows`.

    Args:
      files: The ring's.
      mode: `r+`, or `r` where nothing is written.

    Attributes:
      columns: All of them, as `RingFiles.columns` has them.
      observation, action: Those of the leaves.
      reward, discount, steps_left, step_type, crc: The ring's own.
      returns, explored, potential, episode: Those that the layout may have; None where it has not. A row of `episode`
        is the episode's number among those of its worker, and `worker << 32` plus the observation's place in it.
      per_observation, per_transition: The columns of which a segment of T transitions has T + 1 values, and T.
    """

    def __init__(self, files: RingFiles, mode: Literal["r", "r+"] = "r+") -> None:
        layout = files.layout
        self.num_rows = files.num_rows
        self.columns = [files.map(column, mode) for column in files.columns]
        split, end = len(layout.observation), len(layout.observation) + len(layout.action)
        self.observation, self.action = self.columns[:split], self.columns[split:end]
        self.reward, self.discount, self.steps_left, self.step_type, self.crc = self.columns[-5:]
        optional = dict(zip(layout.optional, self.columns[end:-5], strict=True))
        self.returns, self.explored = optional.get("returns"), optional.get("explored")
        self.potential, self.episode = optional.get("potential"), optional.get("episode")
        of_observations = _present(self.potential, self.episode)
        self.per_observation = [*self.observation, *of_observations, self.steps_left, self.step_type]
        self.per_transition = [*self.action, self.reward, self.discount, *_present(self.returns, self.explored)]

    def episode_at(self, numbers: np.ndarray) -> np.ndarray:
        """`[n, 2]`: the column `episode` of rows by their numbers."""
        assert self.episode is not None, "the layout says of which episode a row is"
        found: np.ndarray = self.episode[numbers % self.num_rows]
        return found

    def write(self, segment: Segment, first_row: int) -> None:
        """Writes a segment to the rows from number `first_row` on, its checksum last."""
        rows, history = segment.num_rows, segment.history
        step_type = np.full(rows, STEP_MID, np.uint8)
        if segment.starts_episode:
            step_type[0] = STEP_FIRST
        if segment.ends_episode:
            step_type[-1] = STEP_LAST
        if segment.held_out:
            step_type |= _HELD_OUT
        step_type[history : history + segment.context] |= _NO_START
        step_type[rows - 1 - segment.deferred : rows - 1] |= _NO_START
        steps_left = np.arange(rows - 1, -1, -1, dtype=np.int32)
        steps_left[:history] = HISTORY
        per_observation = [*segment.observation, *_present(segment.potential, _episode_rows(segment))]
        per_observation += [steps_left, step_type]
        per_transition = [*segment.action, segment.reward, segment.discount]
        per_transition += _present(segment.returns, segment.explored)
        for column, values in zip(
            self.per_observation + self.per_transition,
            [*per_observation, *(_after_history(each, history) for each in per_transition)],
            strict=True,
        ):
            self._put(column, values, first_row)
        self.crc[(first_row + rows - 1) % self.num_rows] = self.checksum(first_row, rows - 1)

    def _put(self, column: np.ndarray, values: np.ndarray, first_row: int) -> None:
        """Writes `values`, around the end of the files."""
        start = first_row % self.num_rows
        head = min(len(values), self.num_rows - start)
        column[start : start + head] = values[:head]
        column[: len(values) - head] = values[head:]

    def checksum(self, first_row: int, steps: int) -> int:
        """Of a segment's `steps + 1` rows, and of where it begins: an older or newer one there is another one."""
        crc = zlib.crc32(first_row.to_bytes(8, "little"))
        for columns, rows in ((self.per_observation, steps + 1), (self.per_transition, steps)):
            for part in row_ranges(first_row, first_row + rows, self.num_rows):
                for column in columns:
                    crc = zlib.crc32(column[part].data, crc)
        return crc

    def is_held_out(self, places: np.ndarray | slice) -> np.ndarray:
        """Which rows are of episodes that are never trained on."""
        return self.are_held_out(self.step_type[places])

    def step_types(self, places: np.ndarray) -> np.ndarray:
        """tf_agents' StepType of these rows, int32."""
        return self.without_flags(self.step_type[places])

    def is_repeated(self, places: np.ndarray | slice) -> np.ndarray:
        """Of rows of transitions: at which of them samples start in another segment alone."""
        return self.has_no_start(self.step_type[places])

    # What the values of `step_type` say.

    @staticmethod
    def are_held_out(step_type: np.ndarray) -> np.ndarray:
        return step_type >= _HELD_OUT

    @staticmethod
    def has_no_start(step_type: np.ndarray) -> np.ndarray:
        return (step_type & _NO_START).astype(bool)

    @staticmethod
    def without_flags(step_type: np.ndarray) -> np.ndarray:
        """tf_agents' StepType, int32."""
        return (step_type & ~np.uint8(_HELD_OUT | _NO_START)).astype(np.int32)

    def count_starts(self, first_row: int, last_row: int) -> int:
        """Transitions in the rows numbered `first_row` up to `last_row` (not included) at which samples start."""
        return sum(np.count_nonzero(self.is_start(part)) for part in row_ranges(first_row, last_row, self.num_rows))

    def count_held_out(self, first_row: int, last_row: int) -> int:
        """Those of them that are held out."""
        return sum(
            np.count_nonzero(self.is_start(part) & self.is_held_out(part))
            for part in row_ranges(first_row, last_row, self.num_rows)
        )

    def counts(self, first_row: int, last_row: int) -> tuple[int, int, int]:
        """The three numbers of these rows: `count_starts`, `count_held_out` and `count_repeated`."""
        rows = first_row, last_row
        return self.count_starts(*rows), self.count_held_out(*rows), self.count_repeated(*rows)

    def count_repeated(self, first_row: int, last_row: int) -> int:
        """Transitions in these rows at which samples start in another segment alone."""
        return sum(
            np.count_nonzero((self.steps_left[part] > 0) & self.is_repeated(part))
            for part in row_ranges(first_row, last_row, self.num_rows)
        )

    def is_training_start(self, part: slice) -> np.ndarray:
        """Where samples start that are trained on."""
        return self.is_start(part) & ~self.is_held_out(part)

    def is_start(self, places: np.ndarray | slice) -> np.ndarray:
        """Where samples start."""
        return (self.steps_left[places] > 0) & ~self.is_repeated(places)


def _episode_rows(segment: Segment) -> np.ndarray | None:
    """The column `episode` of its rows."""
    if segment.episode is None:
        return None
    ((number, first),) = segment.episode.tolist()
    rows = np.empty((segment.num_rows, 2), np.int64)
    rows[:, 0] = number
    rows[:, 1] = (segment.worker_id << EPISODE_BITS) + first + np.arange(segment.num_rows)
    return rows


def episode_of(row: np.ndarray) -> tuple[int, np.ndarray]:
    """The worker, and the Segment's `episode`, of a segment whose first row has this in the column `episode`."""
    number, place = row.tolist()
    return place >> EPISODE_BITS, np.array([[number, place & ((1 << EPISODE_BITS) - 1)]], np.int64)


def _present(*columns: np.ndarray | None) -> list[np.ndarray]:
    return [column for column in columns if column is not None]


def _after_history(values: np.ndarray, history: int) -> np.ndarray:
    """One value a transition, with zeros for the rows of history."""
    return np.concatenate([np.zeros((history, *values.shape[1:]), values.dtype), values]) if history else values
