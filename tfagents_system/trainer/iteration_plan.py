"""Where training is, how many updates an iteration has, what the replay server is asked for, and the blocks that come.

An iteration begins, is asked for (`request`), gets blocks (`take`) until it `is_complete`, and ends.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport import tables
from tfagents_system.transport.connection import Connection, Waiting

_DEADLINE_SECS = 24 * 3600.0  # A slow simulator may take hours for an iteration; the workers are supervised.
_ASK_AGAIN_SECS = 3.0
_POLL_SECS = 0.2


@dataclasses.dataclass
class TrainerState:
    """What the trainer knows in addition to the agent's variables.

    Attributes:
      iteration: Iterations completed.
      env_steps: Environment steps of the run, as the newest block has counted them.
      best: The best policy of the present stage, as best.json has it; None before the first evaluation.
      recoveries: How often training diverged and went back to a checkpoint; random numbers depend on it.
      iteration_start: Train step at which the current iteration began.
      ended_early: Why the run ends before its last iteration, where it does.
      ended_for: The settings for which it does, as `settings_of_end` has them.
      evaluations: Rows of evaluations in metrics.csv that all of this follows from.
      evaluated: Policy checkpoint whose evaluation is under way.
      saved_policies: `policies_in_use` at each of the last saves, as many as may be gone back to.
      end_env_steps, earlier_end_env_steps: `env_steps` when the last iteration ended, and when the one before it did.
      network_resets: How often networks were drawn anew.
      policy_steps: Environment steps after the first random ones, as the newest block has counted them.
      uncounted_updates: Updates that were done before the first step that the ratio of both counts.
    """

    iteration: int = 0
    env_steps: int = 0
    best: dict[str, Any] | None = None
    recoveries: int = 0
    iteration_start: int = 0
    ended_early: str | None = None
    ended_for: str | None = None
    evaluations: int = 0
    evaluated: str | None = None
    saved_policies: list[list[str]] = dataclasses.field(default_factory=list)
    end_env_steps: int = 0
    earlier_end_env_steps: int = -1
    network_resets: int = 0
    policy_steps: int = 0
    uncounted_updates: int = 0

    @property
    def policies_in_use(self) -> list[str]:
        """Policy checkpoints of which one is the best, or may turn out to be."""
        best = None if self.best is None else self.best["checkpoint"]
        return [name for name in (best, self.evaluated) if name is not None]


class Period(NamedTuple):
    """One period: its length in iterations, or in environment steps, where that is given."""

    iterations: int
    env_steps: int | None

    @classmethod
    def of(cls, params: TrainParamsBase, kind: Literal["eval", "checkpoint"]) -> Period:
        return cls(getattr(params, f"{kind}_period_iters"), getattr(params, f"{kind}_period_env_steps"))

    def passed(self, iteration: int, env_steps: int) -> int:
        """Multiples of it that are reached after so many iterations and steps; -1 before the beginning (-1, -1)."""
        return iteration // self.iterations if self.env_steps is None else env_steps // self.env_steps

    def is_due(self, state: TrainerState) -> bool:
        """Whether the last iteration has reached a multiple; also before the first iteration."""
        now = self.passed(state.iteration, state.end_env_steps)
        return now > self.passed(state.iteration - 1, state.earlier_end_env_steps)


def parts_of(train_step: int, count: int, period: int | None) -> Iterator[slice]:
    """The parts of `count` updates after `train_step`: each ends at a multiple of the period, or with the last one."""
    first, period = 0, period or train_step + count
    while first < count:
        end = min(count, first + period - (train_step + first) % period)
        yield slice(first, end)
        first = end


class IterationPlan:
    """Counts the updates of the current iteration.

    Either each iteration has as many as the parameters say, or as many as its experience asks for: then the replay
    server tells in the first block, and the iteration after it can be asked for only when that has come. A number that
    was told is kept, though a block that was asked for again may name more: the next iteration makes up for it.

    Args:
      state: Of the trainer; `end` counts its iterations.
      train_step: Updates done since the run began.
      num_iter: Iterations of the run.
      updates_of_iteration: Of each; None: experience decides.
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
        offline_updates: int = 0,
    ) -> None:
        self._state, self._train_step, self._num_iter = state, train_step, num_iter
        self._updates_per_iter, self._offline_updates = updates_of_iteration, offline_updates
        self.begin()

    def begin(self) -> None:
        """The current iteration is asked for, from its start or from where a stop has left it."""
        self.total = self._offline_updates if self.is_offline else self._updates_per_iter

    @property
    def is_offline(self) -> bool:
        """Whether the current iteration is the one before the first: without experience of the run."""
        return self._state.iteration == tables.OFFLINE

    @property
    def paced(self) -> tuple[int, int]:
        """Updates and policy steps that the ratio of both counts, as `tables.Progress` tells them."""
        return self._train_step() - self._state.uncounted_updates, self._state.policy_steps

    def request(self, session: int, iteration: int) -> tables.Request | None:
        """Asks for what is left of the current iteration, or for the next one; None: there is nothing, or not yet."""
        state = self._state
        if iteration == state.iteration:
            first, total, updates = self.done, self.total, self._train_step()
        elif self.total is not None:
            first, total, updates = 0, self._updates_per_iter, state.iteration_start + self.total
        else:
            return None
        if iteration >= self._num_iter or (total is not None and total <= first):
            return None
        count = tables.AS_DUE if total is None else total - first
        return tables.Request(session, iteration, first, count, updates, state.recoveries, state.uncounted_updates)

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
        state.iteration_start = self._train_step()
        self.begin()


class Minibatches:
    """Those of a run, one session of the trainer after another; the replay server is up."""

    def __init__(self, connection: Connection, plan: IterationPlan, stopped: Callable[[], bool]) -> None:
        self._connection, self._plan, self._stopped, self._session = connection, plan, stopped, 0
        # Of session 0, so that a reader that is alive passes over it.
        connection.feed_dead_reader(tables.BLOCKS, tables.Block.empty().to_wire())
        self._blocks = connection.reader(tables.BLOCKS)

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
        """Waits for an iteration's block that starts with minibatch `first`; drops those meant for an earlier process.

        Asks again every few seconds: the stream of a killed trainer lives on in the server until it has taken one more
        block, and a restarted server has forgotten what it was asked. `while_waiting` is called several times a second.

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
