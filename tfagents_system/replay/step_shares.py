"""Decides which workers share the steps of which iteration, because the replay server knows who has collected what."""

from __future__ import annotations

from collections.abc import Collection

from tfagents_system.replay.ring import Ring
from tfagents_system.transport.sharing import Sharing


class StepShares:
    """Shares the steps of each iteration among the workers that are there.

    A worker may be at most `lag` iterations ahead of the trainer, so what is decided when iteration i is complete is
    for iteration i + 1 + lag, which nobody has begun. It reaches the workers with the policy that they need for it. The
    iterations before that are shared by the planned workers, and after a restart of the replay server by those that are
    there, as they most likely were told.

    Args:
      ring: Knows how many steps each iteration has brought.
      steps: `env_steps_per_iter`.
      num_workers: Planned workers, which share the first iterations.
      lag: Iterations that workers may be ahead.
    """

    def __init__(self, ring: Ring, steps: int, num_workers: int, lag: int) -> None:
        self._ring = ring
        self._steps = steps
        self._num_workers = num_workers
        self._lag = lag
        self._decided: dict[int, Sharing] = {}
        self._newest = -1  # Iteration that was complete when it was last decided.
        self._collected = 0  # Steps of all iterations up to that one.
        self._first: tuple[int, ...] = tuple(range(num_workers))  # Who shares iterations that nothing was decided of.
        self._owed = 0  # Steps that earlier iterations lack; negative where they had too many.

    def after(self, iteration: int, workers: Collection[int]) -> tuple[Sharing, ...]:
        """The sharings of the `lag` + 1 iterations after one that is complete.

        Args:
          iteration: The one that is complete.
          workers: Those that are there.
        """
        if iteration > self._newest:
            self._decide(iteration, workers)
        return tuple(self._of(later) for later in range(iteration + 1, iteration + 2 + self._lag))

    def _decide(self, iteration: int, present: Collection[int]) -> None:
        workers = tuple(sorted(present)) or tuple(range(self._num_workers))  # All have left: whoever comes back.
        collected = self._ring.steps_up_to(iteration)
        if self._newest < 0 < iteration:  # After a restart: what earlier iterations lack is not known.
            self._first = workers
        else:
            before = self._ring.steps_up_to(self._newest) if self._newest < 0 else self._collected
            wanted = sum(self._of(i).steps for i in range(self._newest + 1, iteration + 1))
            self._owed += wanted - (collected - before)
        self._newest, self._collected = iteration, collected
        fewest, most = len(workers), 2 * self._steps
        steps = max(fewest, min(most, self._steps + self._owed))
        self._owed -= steps - self._steps
        later = iteration + 1 + self._lag
        self._decided[later] = Sharing(later, steps, workers)
        self._decided = {i: sharing for i, sharing in self._decided.items() if i > iteration}

    def _of(self, iteration: int) -> Sharing:
        steps = max(self._steps, len(self._first))
        return self._decided.get(iteration) or Sharing(iteration, steps, self._first)
