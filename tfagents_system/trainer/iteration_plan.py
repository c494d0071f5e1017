"""How many updates the trainer's iteration has, what it asks the replay server for, and the blocks that come.

An iteration begins, is asked for (`request`), gets blocks (`take`) until it `is_complete`, and ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tfagents_system.agents.iteration_counts import updates_due
from tfagents_system.trainer.state import TrainerState
from tfagents_system.transport import tables
from tfagents_system.transport.connection import Connection, Waiting

_DEADLINE_SECS = 24 * 3600.0  # A slow simulator may take hours for an iteration; the workers are supervised.
_ASK_AGAIN_SECS = 3.0
_POLL_SECS = 0.2


class IterationPlan:
    """Counts the updates of the current iteration.

    Either each iteration has as many as the parameters say, or as many as its experience asks for: then the replay
    server tells in the first block, and the iteration after it can be asked for only when that has come. A number that
    was told is kept, though a block that was asked for again may name more: the next iteration makes up for what has
    come meanwhile.

    Args:
      state: Of the trainer; `end` counts its iterations.
      train_step: Updates done since the run began.
      num_iter: Iterations of the run.
      updates_of_iteration: Of each; None: experience decides.
      ratio: Updates for each environment step; None: no ratio.
      least_ratio: Those that workers wait for; None: they never do.
      offline_updates: Of the iteration `tables.OFFLINE` before the first, where the state begins with it.

    Attributes:
      total: Updates of the current iteration; None while that is not known.
    """

    def __init__(
        self,
        state: TrainerState,
        train_step: Callable[[], int],
        num_iter: int,
        updates_of_iteration: int | None,
        ratio: float | None = None,
        offline_updates: int = 0,
        least_ratio: float | None = None,
    ) -> None:
        self._state = state
        self._train_step = train_step
        self._num_iter = num_iter
        self._updates_per_iter = updates_of_iteration
        self._ratio = ratio
        self._offline_updates = offline_updates
        self._least_ratio = least_ratio
        self.total = self._planned

    def begin(self) -> None:
        """The current iteration is asked for, from its start or from where a stop has left it."""
        self.total = self._planned
        self._follow_ratios()

    @property
    def is_offline(self) -> bool:
        """Whether the current iteration is the one before the first: without experience of the run."""
        return self._state.iteration == tables.OFFLINE

    @property
    def _planned(self) -> int | None:
        """Updates of the current iteration, as far as it is known before its experience has come."""
        return self._offline_updates if self.is_offline else self._updates_per_iter

    def _follow_ratios(self) -> None:
        """Ratios that were changed count from the last iteration's end on: what came before has had its updates."""
        state, steps = self._state, self._state.end_policy_steps
        if steps and (self._ratio, self._least_ratio) != (state.ratio, state.least_ratio):
            state.paced_from_update, state.paced_from_step = state.iteration_start, steps
            if self._ratio is not None and self._ratio != state.ratio:
                state.ratio_offset = updates_due(steps, self._ratio) - state.iteration_start
        state.ratio, state.least_ratio = self._ratio, self._least_ratio

    @property
    def paced(self) -> tuple[int, int]:
        """Updates and policy steps since the run has its ratios: as `tables.Progress` tells them."""
        state = self._state
        return self._train_step() - state.paced_from_update, state.policy_steps - state.paced_from_step

    def request(self, session: int, iteration: int) -> tables.Request | None:
        """Asks for what is left of the current iteration, or for the next one.

        Returns:
          None where there is nothing to ask for, or not yet.
        """
        if iteration == self._state.iteration:
            first, total, updates = self.done, self.total, self._train_step()
        elif self.total is not None:
            first, total, updates = 0, self._updates_per_iter, self._state.iteration_start + self.total
        else:
            return None
        if iteration >= self._num_iter or (total is not None and total <= first):
            return None
        count = tables.AS_DUE if total is None else total - first
        state = self._state
        return tables.Request(session, iteration, first, count, updates, state.recoveries, state.ratio_offset)

    def take(self, block: tables.Block) -> int:
        """Notes what a block tells; returns how many of its minibatches are to be trained on."""
        if not self.is_offline:
            self._state.env_steps, self._state.policy_steps = block.env_steps, block.env_steps - block.init_steps
        if self.total is None:
            self.total = block.total
        return min(block.count, self.total - self.done)

    @property
    def done(self) -> int:
        """Updates of the current iteration that are done."""
        return self._train_step() - self._state.iteration_start

    @property
    def is_complete(self) -> bool:
        return self.total is not None and self.done >= self.total

    @property
    def mean_updates(self) -> float | None:
        """Updates of an iteration, as it is planned, or as it was so far; None before the first."""
        if self._updates_per_iter is not None:
            return self._updates_per_iter
        done = self._state.iteration_start - self._offline_updates
        return done / self._state.iteration if self._state.iteration > 0 else None

    def end(self) -> None:
        """All updates of the iteration are done."""
        state = self._state
        if not self.is_offline:  # After that one nothing has been collected yet.
            state.earlier_end_env_steps, state.end_env_steps = state.end_env_steps, state.env_steps
        state.iteration += 1
        self._state.iteration_start = self._train_step()
        self._state.end_policy_steps = self._state.policy_steps
        self.total = self._planned


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
