"""What a worker hears of its trainer: how far it is, and the weights that it has published last."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from tfagents_system.agents.iteration_counts import least_updates_per_env_step, updates_of_iteration
from tfagents_system.policies import weights
from tfagents_system.policies.weights import SharedWeightsReader, open_shared
from tfagents_system.policies.worker_policy import WorkerPolicy
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport.connection import Reader
from tfagents_system.transport.tables import Progress

_LOOK_SECS, _MAX_LOOK_SECS = 2.0, 30.0  # Between two looks for news that got lost.
# Within an episode the replay server is asked so seldom: 1,000 workers may do it, and a slow one must not hold them up.
_REFRESH_SECS, _REFRESH_SHARE = 1.0, 0.05
_MOST_HELD_SECS = 600.0  # The server may have lost steps that the trainer has counted: that one waits for new ones.


class NewestItem(Protocol):
    """Reads the newest item of a table."""

    def get(self) -> list[np.ndarray] | None:
        """The item; None if there is none, or none in time."""


class OtherRunError(Exception):
    """Another run has taken the place of this worker's (`--fresh`), whose iterations are others."""


class ProgressReader:
    """How far the trainer is.

    News reach a sleeping worker at once and cost nothing while there are none. In case one got lost, or the server was
    restarted, the newest is read now and then as well: the more rarely, the longer that has brought nothing new.

    Args:
      news: Of the worker.
      table: PROGRESS.
      straggler_secs: SAC_STRAGGLER_SECS: whoever has not heard of an iteration for so long is left out.

    Attributes:
      newest: As far as it is known; None before the trainer has published anything.
    """

    def __init__(self, news: Reader, table: NewestItem, straggler_secs: float = 120.0) -> None:
        self._news = news
        self._table = table
        self._max_look_secs = min(_MAX_LOOK_SECS, straggler_secs / 4)
        self._look_secs, self._look_at = _LOOK_SECS, 0.0
        self.newest: Progress | None = None

    def get(self, wait_secs: float = 0.0) -> Progress | None:
        """The newest; waits for news of it up to `wait_secs`.

        Raises:
          OtherRunError: It is another run than when this was first asked.
        """
        arrays = self._news.get(wait_secs)
        if arrays is not None:
            self._take(Progress.from_wire(arrays))
        elif time.monotonic() >= self._look_at:
            self._look()
        return self.newest

    def _look(self) -> None:
        before, arrays = self.newest, self._table.get()
        if arrays is not None:
            self._take(Progress.from_wire(arrays))
        elif getattr(self._table, "is_pending", False):
            return  # A read in the background: the next call takes what it brings.
        wished = _LOOK_SECS if self.newest != before else 2 * self._look_secs
        self._look_secs = min(wished, self._max_look_secs)
        self._look_at = time.monotonic() + self._look_secs

    def _take(self, progress: Progress) -> None:
        if self.newest is not None:
            if place(progress) < place(self.newest):
                return  # News have overtaken it on the way.
            if progress.run != self.newest.run:
                raise OtherRunError("another run has taken this one's place")
        self.newest = progress


def place(progress: Progress) -> tuple[int, int, int]:
    """What increases with each policy that is published."""
    return progress.session, progress.iteration, progress.train_step


class NewestPolicy:
    """A policy with the weights that the trainer has published last, as far as they were taken.

    They come from the memory that the trainer shares with the workers on its machine, else from the replay server.

    Args:
      table: WEIGHTS.
      policy: Computes the actions.
      progress: How far the trainer is, as far as that is known; asked within episodes.

    Attributes:
      policy: Computes the actions.
      session: Of the trainer that published it: it may have gone back to an earlier version.
      version: Iterations that it was trained for; -1: none was published yet.
      train_step: Updates that it was trained for.
    """

    def __init__(
        self, table: NewestItem, policy: WorkerPolicy, progress: Callable[[], Progress | None] = lambda: None
    ) -> None:
        self._table = table
        self.policy = policy
        self.session = 0
        self.version = -1
        self.train_step = 0
        self._weights: dict[str, np.ndarray] = {}
        self._progress = progress
        self._memory: SharedWeightsReader | None = None
        self._memory_of: tuple[int, tuple[int, int]] = (0, (0, 0))  # The trainer's session, and where that shares.
        self._number = 0  # Of the policy that was read there last.
        self._refresh_at = 0.0

    def follow(self, progress: Progress | None) -> None:
        """Takes the newest weights if the trainer has published newer ones than these."""
        if progress is None or place(progress) <= (self.session, self.version, self.train_step):
            return
        self._open_memory(progress)
        if not self._take_from_memory() and (arrays := self._table.get()) is not None:
            self._take(arrays)

    def may_collect(self, oldest: int, progress: Progress, *, lock_step: bool) -> bool:
        """Whether iteration `oldest`, or a later one, is published and taken.

        In lock-step what a trainer has published before it went back does not count, even of a later iteration.
        """
        if lock_step and self.session != progress.session:
            return False
        # An evaluation that is due comes with the progress, which the policy itself may be ahead of.
        return min(progress.iteration, self.version) >= oldest

    def refresh(self) -> None:
        """Takes newer weights within an episode, if there are any; waits for nothing where memory is shared.

        A recurrent policy keeps its state.
        """
        if self._memory is not None and self._memory.newest != self._number:
            self._take_from_memory()
            return
        began = time.monotonic()
        if began >= self._refresh_at:  # Without shared memory; and a new trainer shares other memory.
            self.follow(self._progress())
            now = time.monotonic()
            self._refresh_at = now + max(_REFRESH_SECS, (now - began) / _REFRESH_SHARE)

    def _open_memory(self, progress: Progress) -> None:
        """Opens the memory of the trainer whose progress this is; what another run's trainer shares there is none."""
        if self._memory_of == (progress.session, progress.memory):
            return
        self._memory_of, self._number = (progress.session, progress.memory), 0
        self._memory = open_shared(progress.memory)
        content = self._memory.read() if self._memory is not None else None
        if content is None or int(content[1][0][0]) != progress.session:
            self._memory = None

    def _take_from_memory(self) -> bool:
        """Takes the newest weights of the memory; False where there are none."""
        content = self._memory.read() if self._memory is not None else None
        if content is None:
            return False
        self._number, arrays = content
        self._take(arrays)
        return True

    def _take(self, arrays: Sequence[np.ndarray]) -> None:
        self.session, self.version, self.train_step = (int(value) for value in arrays[0])
        self._weights = weights.from_arrays(arrays[1:])
        self.policy.assign(self._weights)

    @contextlib.contextmanager
    def acting_with(self, evaluated: Mapping[str, np.ndarray]) -> Iterator[None]:
        """Gives the policy these weights; behind the block it has the newest ones again."""
        self.policy.assign(evaluated)
        yield
        if self._weights:
            self.policy.assign(self._weights)


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
            self._progress, self._steps_then, self._until = progress, steps, self._clock() + _MOST_HELD_SECS
        counted = progress.paced_steps + steps - self._steps_then
        is_held = progress.paced_updates + self._under_way < self._least * counted
        if is_held and self._clock() >= self._until:
            self._until = self._clock() + _MOST_HELD_SECS
            return False
        return is_held
