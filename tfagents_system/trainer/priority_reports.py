"""Tells the replay server how wrong the critics were about what was drawn: these TD errors become priorities."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tfagents_system.trainer.trainer_checkpoints import TrainerState
from tfagents_system.transport.tables import TdErrors

_FILE = "td_errors.npz"


class PriorityReports:
    """Reports the TD errors of each block.

    Where draws must not depend on timing, the replay server uses those of an iteration from the next one on. So a
    checkpoint within an iteration has those of its updates so far. It also has those of the iteration before, which the
    replay server's part of the checkpoint may lack, and the server gets all of them again after a start.

    Args:
      put: Sends a message, and returns when the server has it.
      state: Of the trainer.
      train_step: Updates done since the run began.
      keeps: Whether draws must not depend on timing.
    """

    def __init__(
        self, put: Callable[[TdErrors], None], state: TrainerState, train_step: Callable[[], int], *, keeps: bool
    ) -> None:
        self._put, self._state, self._train_step, self._keeps = put, state, train_step, keeps
        self._opening = TdErrors.opening(0, 0)
        self._kept: list[TdErrors] = []
        self._starts = [0, 0]  # Updates before the iteration before, and before the current one.

    def begin(self, session: int) -> None:
        """A session of the trainer begins, from the start or from a restored checkpoint."""
        self._kept = [dataclasses.replace(found, session=session) for found in self._kept]
        first = self._kept[0].updates if self._kept else self._train_step()
        self._opening = TdErrors.opening(session, first)
        self.repeat()

    def repeat(self) -> None:
        """Sends again what the replay server may have lost: it passes over what it has."""
        for found in (self._opening, *self._kept):
            self._put(found)

    def tell(self, rows: np.ndarray, errors: np.ndarray) -> None:
        """Reports the TD errors `[K, B]` of the newest K updates, and the rows that they are of."""
        if (rows < 0).all():  # Of prior data alone: only the number of updates counts.
            rows, errors = rows[:, :0], errors[:, :0]
        found = TdErrors(self._opening.session, self._train_step() - len(rows), rows, errors)
        if self._keeps:
            start = self._state.iteration_start
            if start != self._starts[1]:
                self._starts = [self._starts[1], start]
            self._kept = [each for each in self._kept if each.end > self._starts[0]] + [found]
        self._put(found)

    def save(self, folder: Path) -> None:
        """Writes what is kept into a checkpoint's folder."""
        if self._keeps:
            arrays = {f"rows_{found.updates}": found.rows for found in self._kept}
            arrays |= {f"errors_{found.updates}": found.errors for found in self._kept}
            np.savez(folder / _FILE, starts=np.array(self._starts), **arrays)

    def restore(self, folder: Path) -> None:
        """Reads what `save` has written, if it has."""
        self._kept, self._starts = [], [0, self._state.iteration_start]
        if not self._keeps or not (folder / _FILE).exists():
            return
        with np.load(folder / _FILE) as saved:
            self._starts = saved["starts"].tolist()
            first = sorted(int(name.removeprefix("rows_")) for name in saved if name.startswith("rows_"))
            self._kept = [TdErrors(0, each, saved[f"rows_{each}"], saved[f"errors_{each}"]) for each in first]
