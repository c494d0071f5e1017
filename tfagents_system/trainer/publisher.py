"""Publishes new policies: in memory for workers on this machine, and on the replay server for all.

A thread speaks to the server beside the updates: with many workers, or a slow server, that takes long.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from collections.abc import Sequence

import numpy as np
from absl import logging

from tfagents_system.policies.weights import NOWHERE, SharedWeights, share
from tfagents_system.transport import tables
from tfagents_system.transport.connection import Connection, NewestReader

_CLOSE_SECS = 10.0
_LOOK_SECS = 0.1
# Policies within an iteration reach the server so seldom that its workers, and the thread, have little to do with them.
_WITHIN_SECS, _WITHIN_SHARE = 1.0, 0.1

Item = tuple[str | Sequence[str], Sequence[np.ndarray]]  # table or tables, and what is put there


class Publisher:
    """Shares what the trainer publishes in memory, and puts it into the tables, one publication after the other.

    A publication's items are put in their order, each when the server has the one before: whoever hears of a policy
    finds it. Nothing is left out, so the trainer waits where it publishes faster than the server takes it. An error
    that ends the thread is raised by the trainer's next call.

    Args:
      connection: To the replay server.
      max_workers: Slots for workers: each has a table of news.
    """

    def __init__(self, connection: Connection, max_workers: int) -> None:
        self._connection = connection
        self._shared: SharedWeights | None = None
        self._is_shared = True  # As far as it is known.
        self._within_at = 0.0  # When the next policy within an iteration may be put into the tables.
        self._progress_tables = [tables.PROGRESS, *(tables.news(worker_id) for worker_id in range(max_workers))]
        self._publications: queue.Queue[list[Item]] = queue.Queue()
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._error: BaseException | None = None
        self._status: NewestReader | None = None
        self._last: tuple[Sequence[np.ndarray], tables.Progress] | None = None
        threading.Thread(target=self._put_all, name="publish", daemon=True).start()

    def publish(
        self,
        policy: Sequence[np.ndarray],
        evaluated: Sequence[np.ndarray] | None,
        progress: tables.Progress,
        *,
        is_within: bool = False,
    ) -> None:
        """Returns when the publication before is done; this one is then under way, and in memory already.

        Args:
          policy: For the table of weights: the arrays must not be changed any more. All policies have the same shapes.
          evaluated: The same for the policy to evaluate; None: there is no new one.
          progress: Told when the policies are there.
          is_within: Of an iteration that continues: it returns at once, and the tables get it unless that is too soon.

        Raises:
          Exception: What ended an earlier publication.
        """
        self._last = policy, progress = policy, self._share(policy, progress)
        if is_within:
            self.check()
            if not self._is_idle.is_set() or time.monotonic() < self._within_at:
                return
        else:
            self.wait()
        items: list[Item] = [(tables.WEIGHTS, policy)]
        if evaluated is not None:
            items.append((tables.EVAL_WEIGHTS, evaluated))
        items.append((self._progress_tables, progress.to_wire()))
        self._is_idle.clear()
        self._publications.put(items)

    def watch(self, status: NewestReader) -> None:
        """From now on `repeat_if_restarted` knows the server by its status."""
        self._status, self._server = status, _server_of(status)

    def repeat_if_restarted(self, evaluated: Sequence[np.ndarray]) -> None:
        """A replay server that was restarted has lost what is published, and gets it again.

        Args:
          evaluated: The policy that is to be evaluated; empty: there is none.
        """
        server = _server_of(self._status) if self._status is not None else None
        if server is None or server == self._server:
            return
        logging.info("the replay server was restarted")
        self._server = server
        if self._last is not None:
            policy, progress = self._last
            self.publish(policy, evaluated or None, progress)

    def wait(self) -> None:
        """Until all is published. Each put has a deadline, and ends when the role is to stop.

        Raises:
          Exception: What ended a publication.
        """
        while not self._is_idle.wait(_LOOK_SECS):
            pass
        self.check()

    def check(self) -> None:
        """Raises what has ended a publication."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Waits a moment for what is under way: the process may end then."""
        self._is_idle.wait(_CLOSE_SECS)

    def _share(self, policy: Sequence[np.ndarray], progress: tables.Progress) -> tables.Progress:
        """Makes it the newest one in memory; returns the progress that says where that is."""
        if self._is_shared and self._shared is None:
            self._shared = share(policy)
            self._is_shared = self._shared is not None
        if self._shared is None:
            return dataclasses.replace(progress, memory=NOWHERE)
        self._shared.write(policy)
        return dataclasses.replace(progress, memory=self._shared.place)

    def _put_all(self) -> None:
        while self._error is None:
            items = self._publications.get()
            began = time.monotonic()
            try:
                for table, arrays in items:
                    self._connection.put(table, arrays)
            except BaseException as error:
                self._error = error
            now = time.monotonic()
            self._within_at = now + max(_WITHIN_SECS, (now - began) / _WITHIN_SHARE)
            self._is_idle.set()


def _server_of(status: NewestReader) -> int | None:
    """Which process the replay server is."""
    arrays = status.get(timeout_secs=1.0)
    return tables.Stored.from_wire(arrays).server if arrays is not None else None
