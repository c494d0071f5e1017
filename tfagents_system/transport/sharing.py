"""Who collects the steps of an iteration, and how many each of them.

The replay server decides with each block which workers share the steps of a later iteration. The trainer passes that on
with the policy before it, so every worker knows it in time and none has to ask. A worker that is late, lost or has left
is in no later sharing. The steps that it did not collect are added to those of a later iteration; steps that a new
worker collected unasked are taken off. The sum of all iterations' steps stays what was asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Sharing:
    """An iteration's steps and workers.

    Attributes:
      iteration: The iteration.
      steps: Of all workers together, at least one for each of them.
      workers: In ascending order.
    """

    iteration: int
    steps: int
    workers: tuple[int, ...]

    @classmethod
    def planned(cls, iteration: int, steps: int, num_workers: int) -> Sharing:
        """Of the planned workers, where nothing else is known."""
        return cls(iteration, max(steps, num_workers), tuple(range(num_workers)))

    def share(self, worker_id: int) -> int:
        """Steps that a worker collects: they differ by one at most, and take turns in being the larger ones.

        A worker that is not among them yet takes as many as it would have as one more.
        """
        is_in = worker_id in self.workers
        count = len(self.workers) + (not is_in)
        rank = self.workers.index(worker_id) if is_in else count - 1
        each, left_over = divmod(self.steps, count)
        return max(1, each + ((rank + self.iteration) % count < left_over))

    def to_row(self) -> np.ndarray:
        """`[2 + workers]` int64."""
        return np.array([self.iteration, self.steps, *self.workers], np.int64)

    @classmethod
    def from_row(cls, row: np.ndarray) -> Sharing:
        """Reads what `to_row` made.

        Raises:
          ValueError: It is anything else.
        """
        if row.dtype != np.int64 or row.ndim != 1 or len(row) < 3:
            raise ValueError(f"expected int64 (3 or more,) but found {row.dtype} {row.shape}")
        iteration, steps, *workers = (int(value) for value in row)
        return cls(iteration, steps, tuple(workers))


def find(sharings: Sequence[Sharing], iteration: int) -> Sharing | None:
    """The one of an iteration."""
    return next((sharing for sharing in sharings if sharing.iteration == iteration), None)
