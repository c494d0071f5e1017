"""The order in which segments are stored where it must not depend on who was faster (SAC_DETERMINISTIC=1)."""

from __future__ import annotations

from collections.abc import Callable, Collection

from tfagents_system.replay.ring import Ring
from tfagents_system.transport.segments import Segment


class WorkerOrder:
    """Holds an iteration's segments back until it is complete, then gives them worker by worker.

    What is held is lost with the process: workers collect such an iteration again, with the same numbers.

    Args:
      ring: Knows which iteration each worker has completed.
      workers_of: The workers that collect in an iteration.
      has_room: Whether so many more rows may be stored now, behind so many that are released already: not while the
        ring would no longer go back to a checkpoint.
    """

    def __init__(
        self,
        ring: Ring,
        workers_of: Callable[[int], Collection[int]],
        has_room: Callable[[int, int], bool] = lambda num_rows, rows_before: True,
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

    def release(self, rows_before: int = 0) -> list[Segment]:
        """Those that are to be stored now; to be asked again, for room may have come.

        Args:
          rows_before: Released and not stored yet.
        """
        iteration = min((segment.iteration for held in self._held.values() for segment in held), default=0)
        if not all(self._has_completed(worker_id, iteration) for worker_id in self._workers_of(iteration)):
            return []
        ready = [
            segment
            for worker_id in sorted(self._held)
            for segment in self._held[worker_id]
            if segment.iteration == iteration
        ]
        num_rows = sum(segment.num_rows for segment in ready)
        if not ready or not self._has_room(num_rows, rows_before):
            return []
        for worker_id, held in self._held.items():
            self._held[worker_id] = [segment for segment in held if segment.iteration != iteration]
        return ready + self.release(rows_before + num_rows)

    def _has_completed(self, worker_id: int, iteration: int) -> bool:
        if self._ring.worker(worker_id).iteration_done >= iteration:
            return True
        return any(s.end_of_iteration and s.iteration == iteration for s in self._held.get(worker_id, []))
