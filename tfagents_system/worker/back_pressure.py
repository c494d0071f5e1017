"""Holds a worker's collecting back while there are too few updates for its steps (`min_updates_per_env_step`)."""

from __future__ import annotations

import time
from collections.abc import Callable

from tfagents_system.agents.iteration_counts import least_updates_per_env_step, updates_of_iteration
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport.tables import Progress

_MOST_SECS = 600.0  # The replay server may have lost steps that the trainer has counted, and then waits for new ones.


class BackPressure:
    """Compares the trainer's progress with the steps that it has counted and those that the worker took since then.

    The updates of the iteration under way count as done: without its experience the trainer could never finish it.
    Steps of other workers are not known here, so that a worker never waits for more updates than the trainer may do.

    Args:
      params: Of the run.
      clock: Seconds; monotonic.
    """

    def __init__(self, params: TrainParamsBase, clock: Callable[[], float] = time.monotonic) -> None:
        self._least = least_updates_per_env_step(params)
        self._under_way = updates_of_iteration(params) or 0
        self._clock = clock
        self._progress: Progress | None = None
        self._steps_then, self._until = 0, 0.0

    def holds(self, progress: Progress | None, steps: int) -> bool:
        """Whether a worker that has taken `steps` so far waits before it takes more."""
        if self._least is None or progress is None:
            return False
        if progress != self._progress:
            self._progress, self._steps_then, self._until = progress, steps, self._clock() + _MOST_SECS
        counted = progress.paced_steps + steps - self._steps_then
        is_held = progress.paced_updates + self._under_way < self._least * counted
        if is_held and self._clock() >= self._until:
            self._until = self._clock() + _MOST_SECS
            return False
        return is_held
