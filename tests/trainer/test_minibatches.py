"""The trainer takes the block that it waits for, and no other; while none comes it asks again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tfagents_system.trainer import iteration_plan as module
from tfagents_system.trainer.iteration_plan import IterationPlan, Minibatches
from tfagents_system.trainer.state import TrainerState
from tfagents_system.transport import tables
from tfagents_system.transport.connection import StoppedError
from tfagents_system.transport.tables import Block, Request

SESSION = 5


class Connection:
    """Gives what is in `blocks`, None for nothing in time; notes what is asked for."""

    def __init__(self, *blocks: Block | None) -> None:
        self.blocks = list(blocks)
        self.asked: list[tuple[int, int]] = []

    def feed_dead_reader(self, table: str, arrays: Any) -> None:
        assert table == tables.BLOCKS and Block.from_wire(arrays).session == 0

    def reader(self, table: str) -> Connection:
        assert table == tables.BLOCKS
        return self

    def get(self, timeout_secs: float) -> list[np.ndarray] | None:
        block = self.blocks.pop(0)
        return None if block is None else block.to_wire()

    def put(self, table: str, arrays: Any) -> None:
        assert table == tables.REQUESTS
        request = Request.from_wire(arrays)
        self.asked.append((request.session, request.iteration))


def block(session: int = SESSION, iteration: int = 0, first: int = 0) -> Block:
    return Block(session, iteration, first, 10, 100, 20, 0, [])


def make(connection: Connection, stopped: bool = False) -> Minibatches:
    plan = IterationPlan(TrainerState(), lambda: 0, 10, 20)
    minibatches = Minibatches(connection, plan, lambda: stopped)  # type: ignore[arg-type]
    minibatches.begin(SESSION)
    return minibatches


def nothing() -> None:
    pass


def test_blocks_of_another_session_iteration_or_place_are_dropped() -> None:
    others = [block(session=4), block(iteration=1), block(first=10)]
    connection = Connection(*others, block(), block(first=10))
    minibatches = make(connection)
    assert minibatches.next(0, 0, nothing) == block()
    assert minibatches.next(0, 10, nothing) == block(first=10)
    assert connection.blocks == [] and connection.asked == []


def test_it_asks_again_for_this_iteration_and_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now, told = [0.0], []
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    connection = Connection(None, None, None, None, block())

    def while_waiting() -> None:
        told.append(len(connection.asked))
        now[0] += 2.0

    minibatches = make(connection)
    assert minibatches.next(0, 0, while_waiting) == block()
    assert connection.asked == [(SESSION, 0), (SESSION, 1)] * 2, "after 3 s without a block, and after 3 s more"
    assert told == [0, 0, 2, 2]


def test_a_stop_ends_the_wait() -> None:
    with pytest.raises(StoppedError):
        make(Connection(block()), stopped=True).next(0, 0, nothing)
