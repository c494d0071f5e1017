"""Prioritised experience replay (Schaul et al., arXiv 1511.05952): which steps of a ring are drawn how often.

Priorities are a column beside the ring's own, in a file of its own: other columns never change once they are written,
these change with each update. So checkpoints have a copy of it, while the rows themselves stay in the ring. Its head is
an int64: up to which row it is known, since rows that came later have not been measured.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np

from tfagents_system.errors import UserError
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.ring_files import row_ranges
from tfagents_system.replay.sum_tree import GROUP, SumTree
from tfagents_system.run_files.kept_checkpoints import PRIORITIES

EPSILON = np.float32(2e-3)  # Linesight's; no step is never drawn again.
NO_ROW = -1  # In the place of a row's number: the priority of none.
_HEAD_BYTES = 64


class Priorities:
    """Priorities of the steps that are trained on, and draws in proportion to them. Its caller holds the ring's lock.

    Args:
      ring: Its rows. They may become more, as long as this is asked for draws between.
      exponent: alpha.

    Raises:
      UserError: Its file can't be made or opened.
    """

    def __init__(self, ring: Ring, exponent: float) -> None:
        self._ring = ring
        self._known_rows, self._column = _map(ring)
        self._known_rows[0] = min(int(self._known_rows[0]), ring.total_rows)
        self._exponent = exponent
        self._plant()

    def draw(self, rng: np.random.Generator, count: int, first: int) -> tuple[np.ndarray, np.ndarray]:
        """Draws rows with replacement at which samples start, P(i) proportional to p_i^alpha.

        Args:
          rng: Decides what is drawn.
          count: n.
          first: Rows that are never drawn, counted from the oldest.

        Returns:
          Places `[n]`, and N P(i) `[n]` float64 of each. Empty where there is nothing to draw.
        """
        self._take_over()
        ring = self._ring
        oldest, end = ring.total_rows - ring.filled_rows + first, ring.total_rows
        # Independent numbers in ascending order, which the tree finds fast, and then an order for what is found.
        steps = np.cumsum(rng.standard_exponential(count + 1))
        places, likelihood = self._tree.draw(steps[:-1] / steps[-1], row_ranges(oldest, end, ring.num_rows))
        order = rng.permutation(len(places))
        return places[order], likelihood[order]

    def numbers(self, places: np.ndarray) -> np.ndarray:
        """The rows at these places, int64, counted from the beginning of the run."""
        ring = self._ring
        return ring.total_rows - ring.filled_rows + (places - ring.oldest_row) % ring.num_rows

    def measure(self, rows: np.ndarray, td_errors: np.ndarray) -> None:
        """Sets p = |TD error| + epsilon of rows `[n]`, by their numbers; what the ring has given up is passed over."""
        self._take_over()
        ring = self._ring
        is_held = (rows >= ring.total_rows - ring.filled_rows) & (rows < ring.total_rows)
        self._tree.measure(rows[is_held] % ring.num_rows, td_errors[is_held] + EPSILON)

    def snapshot(self) -> bytes:
        """Its file, as of this moment."""
        self._take_over()
        return _head(int(self._known_rows[0])) + self._column.tobytes()

    def _plant(self) -> None:
        """Makes the tree of its column."""
        ring, is_start = self._ring, np.zeros(len(self._column), bool)
        is_start[: ring.num_rows] = ring.rows.is_training_start(slice(0, ring.num_rows))
        self._tree = SumTree(self._column, is_start, self._exponent)

    def _take_over(self) -> None:
        """Rows that came since the last time are new."""
        ring, known = self._ring, int(self._known_rows[0])
        if known == ring.total_rows:
            return
        for part in row_ranges(max(known, ring.total_rows - ring.num_rows), ring.total_rows, ring.num_rows):
            self._tree.renew(part, ring.rows.is_training_start(part))
        self._known_rows[0] = ring.total_rows  # Last: a process that dies before this does it again.


@dataclasses.dataclass(frozen=True)
class Prioritized:
    """How a form draws by priorities.

    Attributes:
      priorities: None: all steps are alike here, and none has a priority.
      beta: Exponent of the importance weights (N P(i))^-beta.
    """

    priorities: Priorities | None
    beta: float = 1.0


def discard(folder: Path) -> None:
    """The ring in this folder has no priorities, or those of other rows or another agent."""
    (folder / PRIORITIES).unlink(missing_ok=True)


def _map(ring: Ring) -> tuple[np.ndarray, np.ndarray]:
    """The head and the column of the ring's file; it is made where there is none of this size."""
    path, length = ring.folder / PRIORITIES, _length(ring)
    size = _HEAD_BYTES + 4 * length
    try:
        if not path.exists() or path.stat().st_size != size:
            path.unlink(missing_ok=True)
            with path.open("wb") as file:
                file.write(_head(ring.total_rows))
                os.posix_fallocate(file.fileno(), 0, size)
        head = np.memmap(path, np.int64, "r+", shape=(1,))
        return np.asarray(head), np.asarray(np.memmap(path, np.float32, "r+", _HEAD_BYTES, (length,)))
    except OSError as error:
        raise UserError(
            f"the priorities of the replay ring need {size:,} bytes that can be written in {ring.folder} "
            f"({error.strerror}): free space, or set priority_exponent to None"
        ) from None


def _head(known_rows: int) -> bytes:
    return np.array([known_rows], np.int64).tobytes().ljust(_HEAD_BYTES, b"\0")


def _length(ring: Ring) -> int:
    return -(-ring.num_rows // GROUP) * GROUP
