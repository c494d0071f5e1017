"""The worker's end of the trainer's progress: news of it wake a sleeping worker."""

from __future__ import annotations

import time
from collections.abc import Callable

from tfagents_system.agents.iteration_counts import least_updates_per_env_step, updates_of_iteration
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport import tables
from tfagents_system.transport.tables import Progress
from tfagents_system.worker.background import AnyConnection, is_pending, look

_LOOK_SECS, _MAX_LOOK_SECS = 2.0, 30.0  # Between two looks for news that got lost.
_MOST_SECS = 600.0  # The replay server may have lost steps that the trainer has counted, and then waits for new ones.


class OtherRunError(Exception):
    """Another run has taken the place of this worker's (`--fresh`), whose iterations are others."""


class ProgressReader:
    """How far the trainer is.

    News reach a sleeping worker at once and cost nothing while there are none. In case one got lost, or the server was
    restarted, the newest is read now and then as well: the more rarely, the longer that has brought nothing new.

    Args:
      connection: To the replay server.
      worker_id: The worker.
      straggler_secs: SAC_STRAGGLER_SECS: whoever has not heard of an iteration for so long is left out.

    Attributes:
      newest: As far as it is known; None before the trainer has published anything.
    """

    def __init__(self, connection: AnyConnection, worker_id: int, straggler_secs: float = 120.0) -> None:
        self._news = connection.news(tables.news(worker_id))
        self._reader = connection.newest(tables.PROGRESS)
        self._max_look_secs = min(_MAX_LOOK_SECS, straggler_secs / 4)
        self._look_secs, self._look_at = _LOOK_SECS, 0.0
        self.newest: tables.Progress | None = None
        self._run: int | None = None

    def get(self, wait_secs: float = 0.0) -> tables.Progress | None:
        """The newest; waits for news of it up to `wait_secs`.

        Raises:
          OtherRunError: It is another run than when this was first asked.
        """
        arrays = self._news.get(wait_secs)
        if arrays is not None:
            self._take(tables.Progress.from_wire(arrays))
        elif time.monotonic() >= self._look_at:
            self._look()
        return self.newest

    def _look(self) -> None:
        before, arrays = self.newest, look(self._reader)
        if arrays is not None:
            self._take(tables.Progress.from_wire(arrays))
        elif is_pending(self._reader):
            return  # The next call takes what comes.
        wished = _LOOK_SECS if self.newest != before else 2 * self._look_secs
        self._look_secs = min(wished, self._max_look_secs)
        self._look_at = time.monotonic() + self._look_secs

    def _take(self, progress: tables.Progress) -> None:
        if self.newest is not None and place(progress) < place(self.newest):
            return  # News have overtaken it on the way.
        if self._run not in (None, progress.run):
            raise OtherRunError("another run has taken this one's place")
        self.newest, self._run = progress, progress.run


def place(progress: tables.Progress) -> tuple[int, int, int]:
    """What increases with each policy that is published."""
    return progress.session, progress.iteration, progress.train_step


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
