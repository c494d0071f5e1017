"""Asks the replay server for minibatches ahead of time, and takes the blocks in which they come."""

from __future__ import annotations

import time
from collections.abc import Callable

from tfagents_system.trainer.iteration_plan import IterationPlan
from tfagents_system.transport import tables
from tfagents_system.transport.connection import Connection, Waiting

_DEADLINE_SECS = 24 * 3600.0  # A slow simulator may take hours for an iteration; the workers are supervised.
_ASK_AGAIN_SECS = 3.0
_POLL_SECS = 0.2


class Minibatches:
    """Those of a run, one session of the trainer after another.

    Args:
      connection: To the replay server, which is up.
      plan: Says what is to be asked for.
      stopped: Whether the trainer is to stop.
    """

    def __init__(self, connection: Connection, plan: IterationPlan, stopped: Callable[[], bool]) -> None:
        self._connection = connection
        self._plan = plan
        self._stopped = stopped
        # Of session 0, so that a reader that is alive passes over it.
        connection.feed_dead_reader(tables.BLOCKS, tables.Block.empty().to_wire())
        self._blocks = connection.reader(tables.BLOCKS)
        self._session = 0

    def begin(self, session: int) -> None:
        """What was asked for before is no longer meant."""
        self._session = session
        self._plan.begin()

    def request(self, iteration: int) -> None:
        """Asks for an iteration's minibatches; they are drawn while the one before it is trained on."""
        request = self._plan.request(self._session, iteration)
        if request is not None:
            self._connection.put(tables.REQUESTS, request.to_wire())

    def next(self, iteration: int, first: int, while_waiting: Callable[[], None]) -> tables.Block:
        """Waits for the block that starts with minibatch `first`; drops those meant for an earlier process.

        Asks again every few seconds: the stream of a killed trainer lives on in the server until it has taken one more
        block, and a restarted server has forgotten what it was asked.

        Args:
          iteration, first: The iteration, and the minibatch within it.
          while_waiting: Called several times a second.

        Raises:
          StoppedError: The trainer is to stop.
          ServerUnreachableError: They have not come for a day.
        """
        waiting = Waiting(f"minibatches of iteration {iteration}", _DEADLINE_SECS, self._stopped)
        ask_again = time.monotonic() + _ASK_AGAIN_SECS
        while True:
            waiting.check()
            arrays = self._blocks.get(_POLL_SECS)
            if arrays is None:
                while_waiting()
                if time.monotonic() >= ask_again:
                    ask_again = time.monotonic() + _ASK_AGAIN_SECS
                    self.request(iteration)
                    self.request(iteration + 1)
                continue
            block = tables.Block.from_wire(arrays)
            if (block.session, block.iteration, block.first) == (self._session, iteration, first):
                return block
