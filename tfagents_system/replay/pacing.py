"""When minibatches may be drawn. It follows the arrival of experience, so no dead or late worker can stop a run."""

from __future__ import annotations

import abc
import time
from collections.abc import Callable

from absl import logging

from tfagents_system.replay.ring import Ring
from tfagents_system.replay.tables import Request


class Pacing(abc.ABC):
    """Decides how many of a request's minibatches may be drawn now."""

    @abc.abstractmethod
    def allowed(self, request: Request, done: int) -> int:
        """Minibatches that may be drawn now, of the `request.count - done` that are left."""

    @abc.abstractmethod
    def waiting_for(self, request: Request) -> str:
        """What holds the request back."""


class Lockstep(Pacing):
    """Iteration i is drawn when all workers have collected it.

    A worker that is `straggler_secs` later than the first one is left out until its next segment arrives.

    Args:
      ring: Knows which iteration each worker has completed.
      num_workers: Workers of the run.
      straggler_secs: See above.
      clock: Seconds; monotonic.
    """

    def __init__(
        self, ring: Ring, num_workers: int, straggler_secs: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ring = ring
        self._num_workers = num_workers
        self._straggler_secs = straggler_secs
        self._clock = clock
        self._late: set[int] = set()
        # Of each iteration that is asked for, when its first worker was seen done: two are asked for in turn.
        self._first_done: dict[int, float] = {}

    def heard(self, worker_id: int) -> None:
        """A segment of the worker arrived: it is waited for (again)."""
        if worker_id in self._late:
            logging.info("worker %d is back", worker_id)
            self._late.discard(worker_id)

    def allowed(self, request: Request, done: int) -> int:
        if not self._anyone_done(request.iteration):
            return 0
        missing = self._missing(request.iteration)
        if missing:
            first_done = self._first_done.setdefault(request.iteration, self._clock())
            if self._clock() - first_done < self._straggler_secs:
                return 0
            logging.warning("going on without workers %s, late with iteration %d", missing, request.iteration)
            self._late.update(missing)
        self._first_done = {i: at for i, at in self._first_done.items() if i > request.iteration}
        return request.count - done

    def waiting_for(self, request: Request) -> str:
        return f"iteration {request.iteration} of workers {self._missing(request.iteration)}"

    def _anyone_done(self, iteration: int) -> bool:
        return any(self._ring.worker(worker_id).iteration_done >= iteration for worker_id in range(self._num_workers))

    def _missing(self, iteration: int) -> list[int]:
        return [
            worker_id
            for worker_id in range(self._num_workers)
            if worker_id not in self._late and self._ring.worker(worker_id).iteration_done < iteration
        ]


class Asynchronous(Pacing):
    """Updates are held back while there are too many for each environment step.

    Nothing is drawn before the first random episodes are complete, or the workers that have theirs have collected as
    much experience again: a lost worker does not hold up the others.

    Args:
      ring: Knows the environment steps.
      num_workers: Workers of the run.
      max_updates_per_env_step: Updates allowed for each step after the first random episodes.
      init_episodes: How many these are.
      horizon: Steps of an episode, at most.
    """

    def __init__(
        self, ring: Ring, num_workers: int, max_updates_per_env_step: float, init_episodes: int, horizon: int
    ) -> None:
        self._ring = ring
        self._num_workers = num_workers
        self._max_updates_per_env_step = max_updates_per_env_step
        self._init_episodes = init_episodes
        self._horizon = horizon

    def allowed(self, request: Request, done: int) -> int:
        if not self._has_begun():
            return 0
        return max(0, min(request.count - done, self._budget() - request.updates - done))

    def waiting_for(self, request: Request) -> str:
        if not self._has_begun():
            return "the first random episodes"
        return f"environment steps: {self._budget()} updates are allowed so far"

    def _has_begun(self) -> bool:
        complete = sum(self._ring.worker(worker_id).init_episodes for worker_id in range(self._num_workers))
        return complete >= self._init_episodes or self._policy_steps() >= self._init_episodes * self._horizon

    def _policy_steps(self) -> int:
        return self._ring.env_steps - self._ring.init_steps

    def _budget(self) -> int:
        return int(self._policy_steps() * self._max_updates_per_env_step)
