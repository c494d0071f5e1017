"""Decides which workers share the steps of which iteration, because the replay server knows who has collected what."""

from __future__ import annotations

from collections.abc import Collection

from tfagents_system.replay.ring import Ring
from tfagents_system.transport.sharing import Sharing

_MOST_OWED = 20  # Iterations: what differs by more is of another agent, or of iterations of another length.


class StepShares:
    """Shares the steps of each iteration among the workers that are there.

    A worker may be at most `lag` iterations ahead of the trainer, so what is decided when iteration i is complete is
    for iteration i + 1 + lag, which nobody has begun. It reaches the workers with the policy that they need for it. The
    iterations before that are shared by the planned workers.

    What iterations lack, or have too many of, follows from the steps in the ring. So a server that is started again
    makes up for it, too, though it deals the next `lag` iterations anew.

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
        self._workers: tuple[int, ...] = tuple(range(num_workers))  # Who shares iterations that nothing was decided of.
        self._base = 0  # How many more steps the iterations 0 to i are to have than (i + 1) * steps.

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
        later = iteration + 1 + self._lag
        pending = sum(self._of(i).steps - self._steps for i in range(iteration + 1, later))
        owed = (iteration + 1) * self._steps - self._ring.steps_up_to(iteration)
        if self._newest < 0:
            if abs(owed) > _MOST_OWED * self._steps:
                self._base = -owed
            if iteration:
                self._workers = workers
        owed += self._base - pending
        steps = max(len(workers), min(2 * self._steps, self._steps + owed))
        self._newest, self._decided[later] = iteration, Sharing(later, steps, workers)
        self._decided = {i: sharing for i, sharing in self._decided.items() if iteration < i <= later}

    def _of(self, iteration: int) -> Sharing:
        """As it was decided, else of the workers that share all others."""
        return self._decided.get(iteration) or Sharing(iteration, max(self._steps, len(self._workers)), self._workers)
