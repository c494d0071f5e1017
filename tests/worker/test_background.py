"""Between two steps of a device nothing blocks: segments, reports, heartbeats and reads go through threads.

What blocks costs 30 s of the virtual clock in the thread that steps, and waits for the test in any other.
"""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.devices_for_tests import DummyDevice
from tests.support.segments_for_tests import numbered_segment
from tests.support.waiting import until
from tfagents_system.envs.real_time import RealTimeEnvironment, VirtualClock
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.replay.ring import INIT_ITERATION
from tfagents_system.transport import tables
from tfagents_system.transport.connection import ServerUnreachableError, StoppedError, Waiting
from tfagents_system.transport.segments import Layout, Segment
from tfagents_system.worker import sender as sender_module
from tfagents_system.worker.actors import RandomActor
from tfagents_system.worker.newest_policy import ProgressReader
from tfagents_system.worker.rollout import Rollout, SegmentBuilder
from tfagents_system.worker.sender import (
    BackgroundHeartbeat,
    BackgroundReader,
    BackgroundSender,
    num_bytes,
)

SECS = 20.0  # Deadlines.


class Server:
    """A replay server that can stall; it stores each segment that is the next one.

    Attributes:
      is_up: Cleared, everything that it is asked for waits.
    """

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.is_up = threading.Event()
        self.is_up.set()
        self.items: list[tuple[str, Any]] = []
        self.stored: list[Segment] = []
        self.error: Exception | None = None
        self.address = "127.0.0.1:1"
        self.asked = 0

    def _block(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self.clock.advance(30.0)
        elif not self.is_up.wait(SECS):
            raise StoppedError
        if self.error is not None:
            raise self.error

    def put(self, table: Any, arrays: Any) -> None:
        self._block()
        if table == tables.SEGMENTS:
            for segment in arrays:
                self.items.append((table, segment.number))
                if segment.number == len(self.stored):
                    self.stored.append(segment)
        else:
            self.items.append((table, arrays))

    def stop(self) -> bool:
        return False

    def news(self, table: str) -> Any:
        return types.SimpleNamespace(get=lambda wait_secs: None)

    def newest(self, table: str) -> Any:
        return types.SimpleNamespace(get=lambda timeout_secs=5.0: self._newest(table))

    def _newest(self, table: str) -> Any:
        self._block()
        self.asked += 1
        if table != tables.STATUS:
            return [np.array([self.asked])]
        record = types.SimpleNamespace(incarnation=1, number=len(self.stored) - 1, iteration_done=-2)
        return types.SimpleNamespace(worker=lambda worker_id: record, server=1, received=len(self.items))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    server = Server()
    monkeypatch.setattr("tfagents_system.worker.sender.tables.Stored.from_wire", lambda told: told)
    monkeypatch.setattr("tfagents_system.worker.sender.to_wire", lambda segments: segments)
    yield server
    server.is_up.set()


def sender_to(server: Any, max_unsent_mb: int = 1, is_lockstep: bool = False) -> BackgroundSender:
    return BackgroundSender(server, 0, 1, max_unsent_mb, is_lockstep=is_lockstep)


def flush(sender: BackgroundSender) -> None:
    sender.flush(Waiting("segments", SECS, lambda: False))


def large(number: int, **more: Any) -> Segment:
    """Of more than a quarter of a MiB."""
    segment = numbered_segment(steps=9000, episode=number, **more)
    assert 2**18 < num_bytes(segment) < 2**18 * 1.3
    return segment


def reports(server: Server) -> list[int]:
    return [int(arrays[0][0]) for table, arrays in server.items if table == tables.REPORTS]


def episodes(server: Server) -> list[int]:
    return [int(segment.observation[0][0, 1]) for segment in server.stored]


def test_a_worker_whose_server_stalls_misses_no_step(server: Server) -> None:
    clock = server.clock
    real_time = RealTimeEnvironment(DummyDevice(clock), 0.05, 0.04, clock=clock)
    env = TrainingEnvironment(real_time, horizon=30)
    sender = sender_to(server)
    progress = ProgressReader(server.news(""), BackgroundReader(server.newest(tables.PROGRESS), "progress"))
    heartbeat = BackgroundHeartbeat(types.SimpleNamespace(beat=lambda *args, **fields: server._block()))  # type: ignore[arg-type]
    layout = Layout.from_specs(env.observation_spec(), env.action_spec())
    rollout = Rollout(
        [env],
        RandomActor(env.action_spec(), np.random.default_rng(0)),
        new_builder=lambda: SegmentBuilder(layout, 1000, sender.send),
    )
    server.is_up.clear()
    for iteration in range(12):
        rollout.steps(10)
        sender.confirm()
        sender.call(functools.partial(server.put, tables.REPORTS, [np.array([iteration])]))
        heartbeat.beat("collecting", steps=iteration)
        progress.get()
    assert real_time.late_steps == 0 and clock.now() == pytest.approx(120 * 0.05)
    assert server.stored == [] and sender.unconfirmed_segments >= 12
    server.is_up.set()
    flush(sender)
    assert sum(segment.num_steps for segment in server.stored) == 120 and sender.dropped_steps == 0
    assert [segment.number for segment in server.stored] == list(range(12))
    until(lambda: reports(server) == list(range(12)), SECS, "the reports")
    assert server.clock.now() == pytest.approx(120 * 0.05), "nothing blocked in the end either"


def test_beyond_the_bound_the_oldest_are_dropped_before_they_get_a_number(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(
        sender_module.logging, "log_every_n_seconds", lambda level, text, secs, *args: told.append(text % args)
    )
    sender = sender_to(server)  # Room for three.
    server.is_up.clear()
    for number in range(7):  # The first one is under way at once.
        sender.send(large(number))
    assert sender.dropped_steps == 4 * 9000
    assert sender.take_metrics() == {"dropped_steps": 36000.0} and sender.take_metrics() == {"dropped_steps": 0.0}
    assert "36000 steps were dropped so far, the oldest beyond max_unsent_mb=1" in told[-1]
    server.is_up.set()
    flush(sender)
    assert episodes(server) == [0, 5, 6], "what is left of the newest, and what was under way"
    assert [segment.number for segment in server.stored] == [0, 1, 2], "without a gap"


def test_the_newest_segment_and_what_the_server_waits_for_are_never_dropped(server: Server) -> None:
    sender = sender_to(server)
    sender.send(numbered_segment(steps=60_000))  # Beyond the bound alone.
    flush(sender)
    assert len(server.stored) == 1 and sender.dropped_steps == 0
    server.stored.clear()
    sender = sender_to(server, is_lockstep=True)
    server.is_up.clear()
    sender.send(large(0))
    sender.send(large(1, iteration=INIT_ITERATION))
    for number in range(2, 10):
        sender.send(large(number, iteration=number // 2, end_of_iteration=bool(number % 2)))
    server.is_up.set()
    flush(sender)
    assert episodes(server) == [0, 1, 3, 5, 7, 9]


def test_what_ends_the_thread_is_raised_at_the_next_call(server: Server) -> None:
    sender = sender_to(server)
    server.error = KeyError("refused")
    sender.send(numbered_segment())
    until(lambda: sender._error is not None, SECS, "the error")
    calls: list[Callable[[], Any]] = [sender.confirm, lambda: sender.send(numbered_segment())]
    for call in (*calls, lambda: flush(sender)):
        with pytest.raises(KeyError, match="refused"):
            call()


def test_a_server_that_is_away_for_longer_than_anybody_waits_costs_nothing(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection gives up after ten minutes; what it could not bring is kept, and brought in order later."""
    monkeypatch.setattr("tfagents_system.worker.sender._RESEND_SECS", 0.05)
    told: list[str] = []
    monkeypatch.setattr(sender_module.logging, "warning", lambda text, *args: told.append(text % args))
    sender = sender_to(server)
    server.error = ServerUnreachableError("waited 600 s: giving up")
    for number in range(3):
        sender.send(numbered_segment(episode=number))
        sender.call(functools.partial(server.put, tables.REPORTS, [np.array([number])]))
    until(lambda: len(told) > 5, SECS, "it to be tried again")
    sender.confirm()
    assert sender.unconfirmed_segments >= 3 and told[0].startswith("waited 600 s: giving up; the worker continues")
    server.error = None
    flush(sender)
    assert episodes(server) == [0, 1, 2] and [segment.number for segment in server.stored] == [0, 1, 2]
    until(lambda: reports(server) == [0, 1, 2], SECS, "the reports")


def test_a_reader_returns_what_an_earlier_call_has_begun_to_read() -> None:
    may_answer, answers = threading.Event(), iter(range(9))

    def get() -> list[np.ndarray]:
        assert may_answer.wait(SECS)
        return [np.array(next(answers))]

    reader = BackgroundReader(types.SimpleNamespace(get=get), "table")
    assert reader.get() is None and reader.get() is None and reader.is_pending
    may_answer.set()
    assert reader._read is not None
    answer = reader._read.result(SECS)
    assert reader.get() is answer and not reader.is_pending and int((answer or [])[0]) == 0, "one read alone was begun"


def test_heartbeats_are_left_out_while_one_is_written_and_last_words_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    began, may_write, written = threading.Event(), threading.Event(), []

    def beat(state: str, **fields: Any) -> None:
        began.set()
        assert may_write.wait(SECS)
        written.append(state)

    heartbeat = BackgroundHeartbeat(types.SimpleNamespace(beat=beat))  # type: ignore[arg-type]
    heartbeat.beat("collecting")
    assert began.wait(SECS)
    heartbeat.beat("waiting")
    wait_for_what_is_under_way = sender_module.wait

    def wait(*args: Any, **kwargs: Any) -> Any:
        may_write.set()
        return wait_for_what_is_under_way(*args, **kwargs)

    monkeypatch.setattr(sender_module, "wait", wait)
    heartbeat.beat("stopped")
    assert written == ["collecting", "stopped"]
