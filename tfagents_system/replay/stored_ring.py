"""The ring of another run, or of imported experience: read as it is on disk, and taken into the ring of a new run.

A run takes experience once, before its first checkpoint and before the replay server serves: the ring's header then
has the mark of the run. A server that is killed meanwhile begins again with an empty ring.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from absl import logging

from tfagents_system.errors import UserError
from tfagents_system.hyperparameters import FrameStack
from tfagents_system.replay.ring import (
    DESCRIPTION,
    HISTORY,
    STEP_FIRST,
    STEP_LAST,
    Ring,
    RingFiles,
    RingRows,
    episode_of,
    is_held_out,
    is_repeated,
    kind_of_step,
    row_ranges,
)
from tfagents_system.run_files.kept_checkpoints import newest_complete
from tfagents_system.run_files.taken import Taken
from tfagents_system.transport.segments import OPTIONAL_COLUMNS, Column, Layout, Segment

_SEGMENTS_AT_ONCE = 1000


class StoredRing(RingRows):
    """The experience in a folder, as of the moment it was opened. A run may continue writing to it.

    Args:
      folder: Of a ring, or a run directory whose ring is in it.

    Attributes:
      rows: Rows that it holds.
      env_steps: Transitions of its run so far, those overwritten since included.
      damaged_steps: Transitions that the last call of `segments` left out, because a checksum was wrong.

    Raises:
      UserError: There is no ring, it can't be read, or it is of another version.
    """

    def __init__(self, folder: Path) -> None:
        folder = ring_folder(folder)
        try:
            files = RingFiles.find(folder)
            header = files.newest_header() if files is not None else None
            if files is None or header is None:
                raise UserError(
                    f"the replay ring in {folder} can't be read: it is damaged, or another version of this program "
                    "made it. Give another run"
                )
            super().__init__(files, mode="r")
        except OSError as error:
            raise UserError(f"the replay ring in {folder} can't be read ({error.strerror}): give another run") from None
        self.rows, self._end = int(header["filled_rows"]), int(header["total_rows"])
        self._first = self._end - self.rows
        self.env_steps = int(header["env_steps"])
        self.damaged_steps = 0

    @property
    def steps(self) -> int:
        """Transitions that it holds, each once."""
        return self.counts(self._first, self._end)[0]

    def segments(self, newest_rows: int | None = None) -> Iterator[Segment]:
        """Whole segments, oldest first, as copies; damaged ones and those overwritten meanwhile are left out.

        Args:
          newest_rows: Only segments with any of so many newest rows; None: all.
        """
        self.damaged_steps = 0
        for begin, end in self._extents(newest_rows):
            segment = self._segment(begin, end)
            if segment is not None:
                yield segment
            else:
                self.damaged_steps += end - begin - 1

    def longest_segment_rows(self, newest_rows: int) -> int:
        """Rows of the longest one of `segments(newest_rows)`, damaged ones included; 0 without any."""
        return max((end - begin for begin, end in self._extents(newest_rows)), default=0)

    def lone_episodes(self) -> frozenset[int]:
        """Numbers of episodes below 0 that one segment alone has: nobody may have said what it continues with."""
        if self.episode is None:
            return frozenset()
        begins = np.array([begin for begin, _ in self._extents()], np.int64)
        numbers, counts = np.unique(self.episode[begins % self.num_rows, 0], return_counts=True)
        return frozenset(numbers[(numbers < 0) & (counts == 1)].tolist())

    def _extents(self, newest_rows: int | None = None) -> Iterator[tuple[int, int]]:
        """Numbers of each segment's first row and of the row behind its last one."""
        places = np.arange(self._first, self._end) % self.num_rows
        begin, oldest = self._first, 0 if newest_rows is None else self._end - newest_rows
        for end in (self._first + np.flatnonzero(self.steps_left[places] == 0) + 1).tolist():
            if end > oldest:
                yield begin, end
            begin = end

    def _segment(self, begin: int, end: int) -> Segment | None:
        if end - begin < 2:  # A row of a damaged one.
            return None
        per_observation = [self._copy(column, begin, end) for column in self.per_observation]
        per_transition = [self._copy(column, begin, end - 1) for column in self.per_transition]
        # After the copies were made: a run may write over the rows meanwhile.
        if self.checksum(begin, end - 1 - begin) != int(self.crc[(end - 1) % self.num_rows]):
            return None
        *seen, steps_left, step_type = per_observation
        observation, further = seen[: len(self.layout.observation)], seen[len(self.layout.observation) :]
        history = int(np.count_nonzero(steps_left == HISTORY))
        *action, reward, discount = per_transition[: len(self.layout.action) + 2]
        values = [values[history:] for values in per_transition[len(self.layout.action) + 2 :]] + further
        optional = dict(zip(self.layout.optional, values, strict=True))
        worker_id = 0
        if self.layout.episode is not None:
            worker_id, optional["episode"] = episode_of(optional["episode"][0])
        not_starts = is_repeated(step_type)[history:-1]
        context = int(np.argmin(np.append(not_starts, False)))
        deferred = int(np.argmin(np.append(not_starts[context:][::-1], False)))
        kind = kind_of_step(step_type)
        return Segment(
            worker_id=worker_id,
            incarnation=1,  # This and the next three are not in the ring.
            number=0,
            iteration=0,
            end_of_iteration=False,
            starts_episode=bool(kind[0] == STEP_FIRST),
            ends_episode=bool(kind[-1] == STEP_LAST),
            observation=observation,
            action=[leaf[history:] for leaf in action],
            reward=reward[history:],
            discount=discount[history:],
            held_out=bool(is_held_out(step_type[:1])[0]),
            history=history,
            lead=context,
            context=context,
            deferred=deferred,
            **optional,
        )

    def _copy(self, column: np.ndarray, begin: int, end: int) -> np.ndarray:
        return np.concatenate([column[part] for part in row_ranges(begin, end, self.num_rows)])


def ring_folder(folder: Path) -> Path:
    """Where the ring is: in the folder itself, or in `replay/` of a run directory; UserError where in neither."""
    for candidate in (folder, folder / "replay"):
        if (candidate / DESCRIPTION).is_file():
            return candidate
    raise UserError(
        f"{folder} has no replay ring: give the directory of a run that has collected experience, or a folder made by "
        "sac experience import. A run with SAC_REPLAY_DIR has its ring in the run directory only from its first "
        "checkpoint on"
    )


def differences(
    ours: Layout, theirs: Layout, *, makes_do: bool = True, words: tuple[str, str] = ("here", "there")
) -> list[str]:
    """A line for each column that only one of two layouts has, or that differs.

    Args:
      makes_do: Without those for which `add_segments` can make do: `explored` and `episode`, and columns of potentials
        and returns that nobody asks for.
      words: What the two are called.
    """
    unasked = {"explored", "episode"} if makes_do else set()
    if makes_do:
        unasked |= {OPTIONAL_COLUMNS[name].name for name in ("potential", "returns") if getattr(ours, name) is None}

    def kinds(layout: Layout) -> dict[str, str]:
        columns = (column for column in layout.columns if column.name not in unasked)
        return {column.name: f"{column.dtype} {list(column.shape)}{_of_count(column)}" for column in columns}

    first, second = kinds(ours), kinds(theirs)
    return [
        f"{name}: {words[0]} {first.get(name, 'none')}, {words[1]} {second.get(name, 'none')}"
        for name in first | second
        if first.get(name) != second.get(name)
    ]


def _of_count(column: Column) -> str:
    return f", one of {column.count}" if column.count else ""


# Into the ring of a new run.


def fill(ring: Ring, taken: Taken, checkpoints: Path, frame_stack: FrameStack = 1, *, counts: bool = False) -> None:
    """Fills the ring with the experience of another run, unless that was done or the run has a checkpoint.

    Args:
      ring, checkpoints: Of the run.
      taken: What the run takes.
      frame_stack: How many frames of which leaves samples see at once.
      counts: The rows count for the ratio of updates to steps.

    Raises:
      UserError: The other ring has another layout, can't be read, or has segments that are too long for this one, or
        numbers that are not finite.
    """
    if ring.run == taken.mark or newest_complete(checkpoints) is not None:
        return
    began, source = time.monotonic(), Path(taken.run)
    ring.clear()
    stored = StoredRing(source)
    if lines := differences(ring.layout, stored.layout):
        raise UserError(f"SAC_FROM={source} has another layout than this run: {'; '.join(lines)}")
    add_segments(ring, finite(stored.segments(ring.capacity_rows), f"SAC_FROM={source}"), source, frame_stack)
    if stored.damaged_steps:
        logging.error("%s: %d steps were damaged and are left out", source, stored.damaged_steps)
    ring.begin_run(taken.mark, taken.env_steps, counts_rows=counts)
    with (ring.copy or ring.files).usable():
        ring.make_durable()
    logging.info("the ring has %d steps of %s after %.1f s", ring.ring_steps, source, time.monotonic() - began)


def finite(segments: Iterable[Segment], what: str) -> Iterator[Segment]:
    """The same segments; raises UserError, which begins with `what`, at the first number that is not finite."""
    for segment in segments:
        arrays = [*segment.observation, *segment.action, segment.reward, segment.discount]
        if not all(np.isfinite(array).all() for array in arrays if array.dtype.kind == "f"):
            raise UserError(f"{what} has numbers that are not finite (NaN or infinite): give another run")
        yield segment


def add_segments(ring: Ring, segments: Iterable[Segment], source: Path, frame_stack: FrameStack) -> None:
    """Stores segments of others, as samples with such stacks may start in them; arguments and errors as of `fill`."""
    numbered = _renumbered(segments, ring.total_rows) if ring.layout.episode is not None else segments
    fitting = (_fit(segment, ring.layout, frame_stack) for segment in numbered)
    while together := list(itertools.islice(fitting, _SEGMENTS_AT_ONCE)):
        try:
            ring.take_over(together)
        except ValueError as error:
            raise UserError(f"SAC_FROM={source}: {error}: raise buffer_size") from None


def _renumbered(segments: Iterable[Segment], rows: int) -> Iterator[Segment]:
    """Gives episodes of others numbers that are nobody's: below 0, and below those of the ring's first `rows` rows.

    Where nobody has said what belongs together, each segment is an episode.
    """
    known: dict[object, int] = {}
    for segment in segments:
        number, first = (None, 0) if segment.episode is None else segment.episode[0].tolist()
        key = (segment.worker_id, number) if number is not None else object()
        new = known.setdefault(key, -1 - rows - len(known))
        yield dataclasses.replace(segment, worker_id=0, episode=np.array([[new, first]], np.int64))


def _fit(segment: Segment, layout: Layout, frame_stack: FrameStack) -> Segment:
    """The segment for a ring of other optional columns and perhaps longer stacks.

    No action has explored where nobody has said so, and no sample starts where frames before it are missing.
    """
    explored = segment.explored if segment.explored is not None else np.zeros(len(segment.reward), np.uint8)
    context, missing = segment.context, layout.history_rows(frame_stack) - segment.history
    if not segment.starts_episode and missing > context:
        context = min(missing, len(segment.reward) - segment.deferred)
    return dataclasses.replace(
        segment,
        lead=context,
        context=context,
        explored=explored if layout.explored is not None else None,
        returns=segment.returns if layout.returns is not None else None,
        potential=segment.potential if layout.potential is not None else None,
        episode=segment.episode if layout.episode is not None else None,
    )
