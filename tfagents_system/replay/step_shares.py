"""Decides which workers share the steps of which iteration, because the replay server knows who has collected what."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec
from absl import logging

from tfagents_system.machine.files import write_atomically
from tfagents_system.replay.ring import Ring
from tfagents_system.transport.sharing import Sharing

_FILE = "step_shares.json"


def forget(folder: Path) -> None:
    """What earlier servers have told is of steps that the ring does not have, or of another agent of the run."""
    (folder / _FILE).unlink(missing_ok=True)


class _Kept(msgspec.Struct, frozen=True):
    """What a server that is started again has to know, beside the steps in the ring.

    Attributes:
      steps, epoch: It is of iterations of so many steps, for this agent of the run.
      base: How many more steps the iterations 0 to i are to have than (i + 1) * steps: those of another agent.
      workers: Who shares iterations that `decided` has not, of `steps` each.
      decided: Iteration, steps and workers of those with other ones that were told and are not complete.
    """

    steps: int
    epoch: int
    base: int
    workers: tuple[int, ...]
    decided: tuple[tuple[int, int, tuple[int, ...]], ...] = ()


class StepShares:
    """Shares the steps of each iteration among the workers that are there.

    A worker may be at most `lag` iterations ahead of the trainer, so what is decided when iteration i is complete is
    for iteration i + 1 + lag, which nobody has begun. It reaches the workers with the policy that they need for it. The
    iterations before that are shared by the planned workers.

    What iterations lack, or have too many of, follows from the steps in the ring and from what was decided for
    iterations that are not complete. A small file has that, so it is the same after a restart. It is written where
    it changes: not while the workers stay the same and each iteration has its steps.

    Args:
      ring: Knows how many steps each iteration has brought.
      steps: `env_steps_per_iter`.
      num_workers: Planned workers, which share the first iterations.
      lag: Iterations that workers may be ahead.
      folder: The run directory's `replay/`, which has the file, also where the ring is on scratch.
    """

    def __init__(self, ring: Ring, steps: int, num_workers: int, lag: int, folder: Path) -> None:
        self._ring = ring
        self._steps = steps
        self._num_workers = num_workers
        self._lag = lag
        self._decided: dict[int, Sharing] = {}
        self._newest = -1  # Iteration that was complete when it was last decided.
        self._workers: tuple[int, ...] = tuple(range(num_workers))  # Who shares iterations that nothing was decided of.
        self._base = 0
        self._path = folder / _FILE
        self._kept: _Kept | None = None

    def after(self, iteration: int, workers: Collection[int]) -> tuple[Sharing, ...]:
        """The sharings of the `lag` + 1 iterations after one that is complete.

        Args:
          iteration: The one that is complete.
          workers: Those that are there.
        """
        if iteration > self._newest:
            self._decide(iteration, tuple(sorted(workers)) or tuple(range(self._num_workers)))
        return tuple(self._of(later) for later in range(iteration + 1, iteration + 2 + self._lag))

    def _decide(self, iteration: int, workers: tuple[int, ...]) -> None:
        if self._newest < 0:
            self._begin(iteration, workers)
        self._newest, later = iteration, iteration + 1 + self._lag
        pending = sum(self._of(i).steps - self._steps for i in range(iteration + 1, later))
        owed = self._base + (iteration + 1) * self._steps - self._ring.steps_up_to(iteration) - pending
        steps = max(len(workers), min(2 * self._steps, self._steps + owed))
        self._decided[later] = Sharing(later, steps, workers)
        self._decided = {i: sharing for i, sharing in self._decided.items() if iteration < i <= later}
        self._keep([self._of(i) for i in range(iteration + 1, later + 1)], workers)

    def _begin(self, iteration: int, workers: tuple[int, ...]) -> None:
        """Goes on as an earlier server has told it."""
        kept = self._read()
        if kept is not None:
            self._base, self._workers, self._kept = kept.base, kept.workers, kept
            self._decided = {row[0]: Sharing(*row) for row in kept.decided}
        elif iteration == 0:
            self._base = self._ring.steps_up_to(-1)
        else:  # It is not known who was told what: this is where the counting begins.
            self._base = self._ring.steps_up_to(iteration) - (iteration + 1) * self._steps
            self._workers = workers

    def _of(self, iteration: int) -> Sharing:
        """As it was decided, else of the workers that share all others."""
        return self._decided.get(iteration) or self._of_all(iteration, self._workers)

    def _of_all(self, iteration: int, workers: tuple[int, ...]) -> Sharing:
        return Sharing(iteration, max(self._steps, len(workers)), workers)

    def _keep(self, told: Sequence[Sharing], workers: tuple[int, ...]) -> None:
        others = [each for each in told if each != self._of_all(each.iteration, workers)]
        rows = tuple((each.iteration, each.steps, each.workers) for each in others)
        kept = _Kept(self._steps, self._ring.epoch, self._base, workers, rows)
        if kept == self._kept:
            return
        try:
            write_atomically(self._path, msgspec.json.encode(kept))
        except OSError as error:
            logging.error("%s can't be written (%s): a restart may forget steps", self._path, error.strerror)
        self._kept = kept

    def _read(self) -> _Kept | None:
        try:
            kept = msgspec.json.decode(self._path.read_bytes(), type=_Kept)
        except (OSError, msgspec.MsgspecError):
            return None
        return kept if (kept.steps, kept.epoch) == (self._steps, self._ring.epoch) and kept.workers else None
