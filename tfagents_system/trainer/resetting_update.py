"""The update of a block where networks are drawn anew periodically, between updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from absl import logging

from tfagents_system.agents.block_update import BlockUpdate
from tfagents_system.trainer.periods import parts_of
from tfagents_system.trainer.trainer_checkpoints import TrainerState


class ResettingUpdate:
    """A BlockUpdate that parts blocks where a reset is due.

    A reset comes right before the update that follows a multiple of the period: a checkpoint of that train step is of
    the networks before it, and a run that is resumed there does the same reset again. So the end of a run never has
    networks that were not trained.

    Args:
      update: What is parted.
      state: Of the trainer; counts the resets.
      train_step: Updates done.
      redraw: Draws the networks anew.
      period_updates: Of the resets.
    """

    def __init__(
        self,
        update: BlockUpdate,
        state: TrainerState,
        train_step: Callable[[], int],
        redraw: Callable[[], None],
        period_updates: int,
    ) -> None:
        self._update, self._state, self._train_step, self._redraw = update, state, train_step, redraw
        self._period_updates = period_updates
        self.kind, self.measure = update.kind, update.measure

    def __call__(self, arrays: Sequence[np.ndarray]) -> dict[str, float]:
        """As of BlockUpdate."""
        sums: dict[str, float] = {}
        counts: dict[str, int] = {}
        for part in parts_of(self._train_step(), len(arrays[0]), self._period_updates):
            self._reset_if_due()
            for name, value in self._update([array[part] for array in arrays]).items():
                updates = part.stop - part.start
                sums[name] = sums.get(name, 0.0) + updates * value
                counts[name] = counts.get(name, 0) + updates
        return {name: total / counts[name] for name, total in sums.items()}

    def _reset_if_due(self) -> None:
        train_step = self._train_step()
        if train_step == 0 or train_step % self._period_updates:
            return
        self._redraw()
        self._state.network_resets += 1
        logging.info("networks are drawn anew at train step %d", train_step)
