"""When minibatches may be drawn: it follows the arrival of experience, so no dead or late worker can stop a run.

And in which order segments are stored where it must not depend on who was faster (SAC_DETERMINISTIC=1).
"""

from __future__ import annotations

import abc
import dataclasses
import math
import time
from collections.abc import Callable, Collection

from absl import logging

from tfagents_system.agents.iteration_counts import updates_due
from tfagents_system.replay.ring import Ring
from tfagents_system.transport.segments import Segment
from tfagents_system.transport.tables import AS_DUE, Request

_ASK_SECS = 1.0


class Pacing(abc.ABC):
    """Decides how many of a request's minibatches may be drawn now: first it is settled how many there are.

    Attributes:
      updates_per_env_step: Updates that each step of the policy's experience asks for; None: the trainer decides.
    """

    updates_per_env_step: float | None = None

    def heard(self, worker_id: int) -> None:  # noqa: B027 (who paces by steps alone does nothing)
        """A segment of the worker has arrived."""

    def settle(self, request: Request) -> Request | None:
        """The request with the number of its minibatches, which may be 0; None: it is not known yet."""
        return request

    @abc.abstractmethod
    def env_steps(self, iteration: int) -> int:
        """Environment steps of the run that count when an iteration is drawn, random ones included."""

    @abc.abstractmethod
    def allowed(self, request: Request, done: int) -> int:
        """Minibatches that may be drawn now, of the `request.count - done` that are left."""

    @abc.abstractmethod
    def waiting_for(self, request: Request) -> str:
        """What holds the request back."""


class Lockstep(Pacing):
    """Iteration i is drawn when all workers that are waited for have collected it.

    Those are the planned ones from the start, and others from their first segment on. One that is `straggler_secs`
    later than the first one is left out until its next segment arrives; one that has left, at once.

    Args:
      ring: Knows which iteration each worker has completed.
      num_workers, straggler_secs: Planned workers of the run, 0 to num_workers - 1; see above.
      has_left: Whether a worker said that it has stopped; asked once a second at most.
      updates_per_env_step: See Pacing.
    """

    def __init__(
        self,
        ring: Ring,
        num_workers: int,
        straggler_secs: float,
        has_left: Callable[[int], bool] = lambda worker_id: False,
        updates_per_env_step: float | None = None,
    ) -> None:
        self.updates_per_env_step = updates_per_env_step
        self._ring, self._straggler_secs, self._has_left = ring, straggler_secs, has_left
        self._ask_at = -math.inf
        self._waited_for = set(range(num_workers))
        # Of each iteration that is asked for, when its first worker was seen done: two are asked for in turn.
        self._first_done: dict[int, float] = {}

    def heard(self, worker_id: int) -> None:
        """The worker is waited for from now on, or again."""
        if worker_id not in self._waited_for:
            logging.info("worker %d has joined, or is back", worker_id)
            self._waited_for.add(worker_id)

    def settle(self, request: Request) -> Request | None:
        """After iteration i, floor(updates_per_env_step * steps of the iterations up to i) updates are to be done.

        So nothing of the ratio is lost from one iteration to the next, and what a late worker still sends for an
        earlier iteration counts in the next one.
        """
        if request.count != AS_DUE or self.updates_per_env_step is None:
            return request
        if not self._is_collected(request.iteration):
            return None
        steps = self._ring.steps_up_to(request.iteration)
        count = updates_due(steps, self.updates_per_env_step) - request.counted_updates
        if count < 0:  # The ring has lost experience that was trained on: what came for this iteration counts alone.
            steps -= self._ring.steps_up_to(request.iteration - 1)
            count = max(0, updates_due(steps, self.updates_per_env_step) - request.first)
        return dataclasses.replace(request, count=count)

    def env_steps(self, iteration: int) -> int:
        """Without those of later iterations, which some workers may have begun: the number depends on no timing."""
        return self._ring.init_steps + self._ring.steps_up_to(iteration)

    def allowed(self, request: Request, done: int) -> int:
        return request.count - done if self._is_collected(request.iteration) else 0

    def waiting_for(self, request: Request) -> str:
        return f"iteration {request.iteration} of workers {self._missing(request.iteration)}"

    def _is_collected(self, iteration: int) -> bool:
        """Whether all that are waited for have completed it; who is too late is left out."""
        if not (self._ring.iterations_done >= iteration).any():
            return False
        now = time.monotonic()
        if (missing := self._missing(iteration)) and now >= self._ask_at:
            self._ask_at = now + _ASK_SECS
            self._leave_out([worker_id for worker_id in missing if self._has_left(worker_id)], "have left")
            missing = self._missing(iteration)
        if missing:
            if now - self._first_done.setdefault(iteration, now) < self._straggler_secs:
                return False
            self._leave_out(missing, "are late")
        self._first_done = {i: at for i, at in self._first_done.items() if i > iteration}
        return True

    def _missing(self, iteration: int) -> list[int]:
        done = self._ring.iterations_done
        return [worker_id for worker_id in sorted(self._waited_for) if done[worker_id] < iteration]

    def _leave_out(self, workers: Collection[int], why: str) -> None:
        if workers:
            logging.warning("continuing without workers %s, which %s", workers, why)
            self._waited_for.difference_update(workers)


class Asynchronous(Pacing):
    """Updates are held back while there are too many for each environment step.

    Nothing is drawn before the first random experience is complete, or the workers that have theirs have collected as
    much again: a lost worker does not hold up the others. Updates that were done on experience which the
    ring has lost, more than its steps allow when the first request comes, are not held against what comes from then on.

    Args:
      ring: Knows the environment steps.
      max_updates_per_env_step: Updates allowed for each step after the first random ones.
      init_count: How many random episodes there are, or steps (`Ring.counts_init_steps`).
      init_steps: Steps that these are at most.
    """

    def __init__(self, ring: Ring, max_updates_per_env_step: float, init_count: int, init_steps: int) -> None:
        self._ring, self._max_updates_per_env_step = ring, max_updates_per_env_step
        self._init_count, self._init_steps = init_count, init_steps
        self._updates_of_lost_steps: int | None = None

    def env_steps(self, iteration: int) -> int:
        del iteration
        return self._ring.env_steps

    def allowed(self, request: Request, done: int) -> int:
        if self._updates_of_lost_steps is None:
            self._updates_of_lost_steps = max(0, request.counted_updates - self._budget())
        if not self._has_begun():
            return 0
        return max(0, min(request.count - done, self._budget() - request.counted_updates - done))

    def waiting_for(self, request: Request) -> str:
        if not self._has_begun():
            return "the first random steps"
        return f"environment steps: {self._budget()} updates are allowed so far"

    def _has_begun(self) -> bool:
        ring = self._ring
        return ring.init_episodes >= self._init_count or ring.env_steps - ring.init_steps >= self._init_steps

    def _budget(self) -> int:
        due = updates_due(self._ring.env_steps - self._ring.init_steps, self._max_updates_per_env_step)
        return due + (self._updates_of_lost_steps or 0)


class WorkerOrder:
    """Holds an iteration's segments back until it is complete, then gives them worker by worker.

    What is held is lost with the process: workers collect such an iteration again, with the same numbers.

    Args:
      ring: Knows which iteration each worker has completed.
      workers_of: The workers that collect in an iteration.
      has_room: Whether so many more rows may be stored now: not while the ring would no longer go back to a checkpoint.
    """

    def __init__(
        self,
        ring: Ring,
        workers_of: Callable[[int], Collection[int]],
        has_room: Callable[[int], bool] = lambda num_rows: True,
    ) -> None:
        self._ring = ring
        self._workers_of = workers_of
        self._has_room = has_room
        self._held: dict[int, list[Segment]] = {}  # by worker, in order

    def take(self, segment: Segment) -> list[Segment]:
        """Takes a segment; returns those that are to be stored now, in their order."""
        record = self._ring.worker(segment.worker_id)
        if segment.incarnation != record.incarnation and segment.iteration <= record.iteration_done:
            return []  # It was stored while the worker started again: the sender learns of it.
        held = self._held.get(segment.worker_id, [])
        if held and segment.incarnation > held[0].incarnation:
            held = []  # The worker was restarted and begins its iteration again.
        if held and segment.incarnation < held[0].incarnation:
            return []
        stored = record.number if record.incarnation == segment.incarnation else -1
        if segment.number == stored + len(held) + 1:
            held = [*held, segment]
        self._held[segment.worker_id] = held
        return self.release()

    def release(self) -> list[Segment]:
        """Those of the next iteration, if it is to be stored now; to be asked again, for room may have come."""
        iteration = min((segment.iteration for held in self._held.values() for segment in held), default=0)
        if not all(self._has_completed(worker_id, iteration) for worker_id in self._workers_of(iteration)):
            return []
        ready = [
            segment
            for worker_id in sorted(self._held)
            for segment in self._held[worker_id]
            if segment.iteration == iteration
        ]
        if not ready or not self._has_room(sum(segment.num_rows for segment in ready)):
            return []
        for worker_id, held in self._held.items():
            self._held[worker_id] = [segment for segment in held if segment.iteration != iteration]
        return ready

    def _has_completed(self, worker_id: int, iteration: int) -> bool:
        if self._ring.worker(worker_id).iteration_done >= iteration:
            return True
        return any(s.end_of_iteration and s.iteration == iteration for s in self._held.get(worker_id, []))
