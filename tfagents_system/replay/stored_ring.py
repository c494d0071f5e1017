"""A ring as it is on disk, read without changing it: that of another run, or of imported experience."""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tfagents_system.errors import UserError
from tfagents_system.replay import ring_header
from tfagents_system.replay.ring_files import DESCRIPTION, VERSION, RingFiles, layout_of, row_ranges
from tfagents_system.replay.ring_rows import HISTORY, STEP_FIRST, STEP_LAST, RingRows, episode_of
from tfagents_system.transport.layout import OPTIONAL_COLUMNS, Column, Layout
from tfagents_system.transport.segments import Segment


class StoredRing:
    """The experience in a folder, as of the moment it was opened. A run may go on writing to it.

    Args:
      folder: Of a ring, or a run directory whose ring is in it.

    Attributes:
      folder: Of the ring.
      layout: Its columns.
      rows: Rows that it holds.
      env_steps: Transitions of its run so far, those overwritten since included.
      capacity_rows, slack_rows: Its size, as of Ring.
      damaged_steps: Transitions that the last call of `segments` left out, because a checksum was wrong.

    Raises:
      UserError: There is no ring, it can't be read, or it is of another version.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder = ring_folder(folder)
        try:
            described = json.loads((folder / DESCRIPTION).read_bytes())
            if described["version"] != VERSION:
                raise ValueError(f"another version of this program made it, with ring format {described['version']}")
            self.layout = layout_of(described)
            files = RingFiles(folder, self.layout, described["capacity_rows"], described["slack_rows"])
            header = ring_header.newest_slot(ring_header.map_slots(files.header, "r"), files.fingerprint)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"the replay ring in {folder} can't be read ({error}): give another run") from None
        if header is None:
            raise UserError(
                f"the replay ring in {folder} is damaged, its header has a wrong checksum: give another run"
            )
        self._files = files
        self.capacity_rows, self.slack_rows = files.capacity_rows, files.slack_rows
        self._columns = RingRows(files, mode="r")
        self._first, self._end = int(header["total_rows"] - header["filled_rows"]), int(header["total_rows"])
        self.rows = self._end - self._first
        self.env_steps = int(header["env_steps"])
        self.damaged_steps = 0

    @property
    def steps(self) -> int:
        """Transitions that it holds, each once."""
        return int(self._columns.count_starts(self._first, self._end))

    def segments(self, newest_rows: int | None = None) -> Iterator[Segment]:
        """Whole segments, oldest first, as copies; damaged ones and those overwritten meanwhile are left out.

        Args:
          newest_rows: Only segments with any of so many newest rows; None: all.
        """
        self.damaged_steps = 0
        oldest = 0 if newest_rows is None else self._end - newest_rows
        for begin, end in self._extents():
            if end <= oldest:
                continue
            segment = self._segment(begin, end)
            if segment is not None:
                yield segment
            elif begin != self._first:  # The oldest one may have lost rows, which is no damage.
                self.damaged_steps += end - begin - 1

    def longest_segment_rows(self, newest_rows: int) -> int:
        """Rows of the longest one of `segments(newest_rows)`; 0 without any."""
        found = [(begin, end) for begin, end in self._extents() if end > self._end - newest_rows]
        longest_first = sorted(found, key=lambda extent: extent[0] - extent[1])
        return next((end - begin for begin, end in longest_first if self._segment(begin, end) is not None), 0)

    def lone_episodes(self) -> frozenset[int]:
        """Numbers of episodes below 0 that one segment alone has: nobody may have said what it goes on with."""
        if self._columns.episode is None:
            return frozenset()
        begins = np.array([begin for begin, _ in self._extents()], np.int64)
        numbers, counts = np.unique(self._columns.episode[begins % self._files.num_rows, 0], return_counts=True)
        return frozenset(numbers[(numbers < 0) & (counts == 1)].tolist())

    def _extents(self) -> Iterator[tuple[int, int]]:
        """Numbers of each segment's first row and of the row behind its last one."""
        places = np.arange(self._first, self._end) % self._files.num_rows
        lasts = self._first + np.flatnonzero(self._columns.steps_left[places] == 0)
        begins = np.concatenate([[self._first], lasts[:-1] + 1]) if len(lasts) else lasts
        yield from zip(begins.tolist(), (lasts + 1).tolist(), strict=True)

    def _segment(self, begin: int, end: int) -> Segment | None:
        columns = self._columns
        if end - begin < 2:  # What is left of an overwritten one.
            return None
        per_observation = [self._copy(column, begin, end) for column in columns.per_observation]
        per_transition = [self._copy(column, begin, end - 1) for column in columns.per_transition]
        if self._checksum(begin, per_observation, per_transition) != int(columns.crc[(end - 1) % self._files.num_rows]):
            return None
        *seen, steps_left, step_type = per_observation
        observation, further = seen[: len(self.layout.observation)], seen[len(self.layout.observation) :]
        history = int(np.count_nonzero(steps_left == HISTORY))
        *action, reward, discount = per_transition[: len(self.layout.action) + 2]
        optional = [values[history:] for values in per_transition[len(self.layout.action) + 2 :]] + further
        own = dict(zip(self.layout.optional, optional, strict=True))
        worker_id = 0
        if self.layout.episode is not None:
            worker_id, own["episode"] = episode_of(own["episode"][0])
        not_starts = columns.has_no_start(step_type)[history:-1]
        context = int(np.argmin(np.append(not_starts, False)))
        deferred = int(np.argmin(np.append(not_starts[context:][::-1], False)))
        kind = columns.without_flags(step_type)
        return Segment(
            worker_id=worker_id,
            incarnation=1,  # This and the next three are not in the ring.
            number=0,
            iteration=0,
            end_of_iteration=False,
            starts_episode=bool(kind[0] == STEP_FIRST),
            ends_episode=bool(kind[-1] == STEP_LAST),
            observation=observation,
            action=[values[history:] for values in action],
            reward=reward[history:],
            discount=discount[history:],
            held_out=bool(columns.are_held_out(step_type[:1])[0]),
            history=history,
            lead=context,
            context=context,
            deferred=deferred,
            **own,
        )

    def _checksum(self, begin: int, *kinds: Sequence[np.ndarray]) -> int:
        """As of RingRows, of copies: a run may write over the rows meanwhile. The columns of a range are together."""
        crc, head = zlib.crc32(begin.to_bytes(8, "little")), self._files.num_rows - begin % self._files.num_rows
        for columns in kinds:
            for part in (slice(0, head), slice(head, None)):
                for values in columns:
                    crc = zlib.crc32(np.ascontiguousarray(values[part]).data, crc)
        return crc

    def _copy(self, column: np.ndarray, begin: int, end: int) -> np.ndarray:
        return np.concatenate([column[part] for part in row_ranges(begin, end, self._files.num_rows)])


def ring_folder(folder: Path) -> Path:
    """Where the ring is: in the folder itself, or in `replay/` of a run directory.

    Raises:
      UserError: In neither.
    """
    for candidate in (folder, folder / "replay"):
        if (candidate / DESCRIPTION).is_file():
            return candidate
    raise UserError(
        f"{folder} has no replay ring: give the directory of a run that has collected experience, or a folder made by "
        "python -m tfagents_system.experience import. A run with SAC_REPLAY_DIR has its ring in the run directory only "
        "from its first checkpoint on"
    )


def differences(
    ours: Layout, theirs: Layout, *, makes_do: bool = True, words: tuple[str, str] = ("here", "there")
) -> list[str]:
    """A line for each column that only one of two layouts has, or that differs.

    Args:
      makes_do: Without those for which `fitted` can make do: `explored` and `episode`, and columns of potentials and
        returns that nobody asks for.
      words: What the two are called.
    """
    unasked = {"explored", "episode"} if makes_do else set()
    if makes_do:
        unasked |= {OPTIONAL_COLUMNS[name].name for name in ("potential", "returns") if getattr(ours, name) is None}

    def kinds(layout: Layout) -> dict[str, str]:
        columns = (each for each in layout.columns if each.name not in unasked)
        return {each.name: f"{each.dtype} {list(each.shape)}{_of_count(each)}" for each in columns}

    own, other = kinds(ours), kinds(theirs)
    names = [*own, *(name for name in other if name not in own)]
    return [
        f"{name}: {words[0]} {own.get(name, 'none')}, {words[1]} {other.get(name, 'none')}"
        for name in names
        if own.get(name) != other.get(name)
    ]


def _of_count(column: Column) -> str:
    return f", one of {column.count}" if column.count else ""


def fitted(segment: Segment, layout: Layout) -> Segment:
    """A segment of another ring for this layout: no action has explored where nobody has said so."""
    explored = segment.explored if segment.explored is not None else np.zeros(len(segment.reward), np.uint8)
    return dataclasses.replace(
        segment,
        explored=explored if layout.explored is not None else None,
        returns=segment.returns if layout.returns is not None else None,
        potential=segment.potential if layout.potential is not None else None,
        episode=segment.episode if layout.episode is not None else None,
    )
