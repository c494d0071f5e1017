"""Segments in, blocks out, over a real Reverb server."""

from __future__ import annotations

import ctypes
import dataclasses
import math
import os
import subprocess
import threading
import time
import types
from unittest import mock

import numpy as np
import pytest
import reverb

from tests.support.ports import free_port
from tests.support.replay_service import Server, ask, take_block
from tests.support.segments_for_tests import numbered_segment
from tests.support.settings_for_tests import variables_with
from tests.support.waiting import until
from tfagents_system import role as role_module
from tfagents_system.machine.files import write_json
from tfagents_system.machine.signals import SUPERVISOR_PID_VARIABLE
from tfagents_system.replay import server as server_module
from tfagents_system.role import Role
from tfagents_system.run_files import kept_checkpoints
from tfagents_system.run_files.heartbeat import Heartbeat, read_heartbeat
from tfagents_system.run_files.run_paths import REPLAY, TRAINER, RunPaths
from tfagents_system.transport import tables
from tfagents_system.transport.connection import Connection, ServerUnreachableError, StoppedError, Waiting
from tfagents_system.transport.segments import NEVER, WorkerRecord
from tfagents_system.worker import sender as sender_module
from tfagents_system.worker.sender import RefusedError, SegmentSender


@pytest.fixture
def start(tmp_path):
    """Starts a server, with options."""
    servers = []
    yield lambda **options: servers.append(Server(tmp_path / "ring", free_port(), **options)) or servers[-1]
    for server in servers:
        server.close()


@pytest.fixture
def server(start):
    return start()


def test_an_iteration_is_drawn_when_its_experience_is_there_in_blocks_of_bounded_size(server):
    reader = server.connection.reader(tables.BLOCKS)
    ask(server, iteration=0)
    server.turn()
    assert reader.get(0) is None
    assert server.service.waiting_for == "iteration 0 of workers [0]"
    server.connection.put(tables.SEGMENTS, numbered_segment(steps=50, iteration=0, end_of_iteration=True).to_wire())
    blocks = [take_block(server, reader) for _ in range(3)]
    assert [(block.first, block.count) for block in blocks] == [(0, 8), (8, 8), (16, 4)]
    assert all((block.session, block.iteration, block.env_steps) == (1, 0, 50) for block in blocks)
    assert all((block.total, block.held_out) == (20, 0) for block in blocks)
    ids, actions, rewards = blocks[0].arrays[0], blocks[0].arrays[2], blocks[0].arrays[3]
    assert ids.shape == (8, 4, 3)
    np.testing.assert_array_equal(rewards, ids[..., 2])
    np.testing.assert_allclose(actions[..., 1], ids[..., 2] / 1e4)
    ask(server, iteration=0, session=2, count=8)
    again = take_block(server, reader)
    assert again.session == 2
    np.testing.assert_equal(again.arrays, blocks[0].arrays, "they depend on seed and position alone")


def test_errors_from_the_trainer_decide_what_is_drawn_and_go_into_the_checkpoint(start):
    server = start(priority_exponent=1.0)
    reader = server.connection.reader(tables.BLOCKS)
    segment = numbered_segment(steps=50, iteration=1, end_of_iteration=True, held_out=False)
    server.connection.put(tables.SEGMENTS, segment.to_wire())
    ask(server, iteration=0, count=4)
    block = take_block(server, reader)
    weight, rows = block.arrays[-2:]
    assert (weight == 1).all() and np.array_equal(rows, block.arrays[0][..., 2])
    errors = np.zeros((1, 50), np.float32)
    errors[0, 7] = 1000.0
    server.connection.put(tables.PRIORITIES, [np.arange(50)[None], errors])
    server.connection.put(tables.PRIORITIES, [np.arange(50)[None], np.full((1, 50), np.nan, np.float32)])
    ones = np.ones(3, np.float32)
    for malformed in ([ones], [np.arange(5), ones], [ones, ones]):
        server.connection.put(tables.PRIORITIES, malformed)
    server.turn_until(lambda: server.service.malformed == 3)
    server.turn_until(lambda: not server.connection.size(tables.PRIORITIES))
    server.turn(3)
    ask(server, iteration=1, count=4)
    assert (take_block(server, reader).arrays[-1] == 7).mean() > 0.9
    partial = kept_checkpoints.begin(server.checkpoints, 4)
    name = kept_checkpoints.finished_name(partial)
    server.connection.put(tables.SNAPSHOTS, tables.Snapshot(name).to_wire())
    server.turn_until((partial / kept_checkpoints.REPLAY).exists)
    saved = (partial / kept_checkpoints.PRIORITIES).read_bytes()
    assert saved == server.service._draw_settings.priorities.snapshot()


def test_a_newer_trainer_replaces_what_an_older_one_asked_for_and_iterations_are_served_in_order(server):
    reader = server.connection.reader(tables.BLOCKS)
    for iteration, session in ((0, 5), (1, 5), (1, 9), (0, 9), (3, 5)):
        ask(server, iteration, session=session, count=8)
        server.turn()
    server.connection.put(tables.SEGMENTS, numbered_segment(steps=50, iteration=3, end_of_iteration=True).to_wire())
    blocks = [take_block(server, reader) for _ in range(2)]
    assert [(block.session, block.iteration) for block in blocks] == [(9, 0), (9, 1)]
    server.turn()
    assert reader.get(0) is None


def test_the_sender_forgets_what_is_stored_and_sends_the_rest_again_after_a_restart(tmp_path):
    port = free_port()
    first = Server(tmp_path / "ring", port)
    connection = Connection(f"localhost:{port}", lambda: False)
    sender = SegmentSender(connection, worker_id=0, incarnation=7)
    for _ in range(3):
        sender.send(numbered_segment())
    first.turn_until(lambda: sender.confirm() is not None and sender.unconfirmed_segments == 0)
    assert first.ring.env_steps == 15
    sender.send(numbered_segment())  # The server dies with it in its inbox.
    first.close()
    second = Server(tmp_path / "ring", port)
    assert second.ring.env_steps == 15
    connection.wait_until_up(30.0)
    deadline = time.monotonic() + 40.0
    while sender.unconfirmed_segments and time.monotonic() < deadline:
        sender.confirm()
        second.turn(5)
    assert second.ring.env_steps == 20, "stored once, though it may have been sent twice"
    second.close()


def test_a_worker_that_collects_a_stored_iteration_again_goes_on_with_the_next_one(start):
    """It was restarted while what it had sent waited for other workers, and has not heard that it is stored."""
    server = start(has_room=lambda num_rows: True)
    for incarnation in (1, 2):
        sender = SegmentSender(server.connection, 0, incarnation, is_patient=True)
        sender.send(numbered_segment())
        sender.send(numbered_segment(end_of_iteration=True))
        server.turn_until(lambda: server.ring.env_steps == 10 and not server.connection.size(tables.SEGMENTS))
    server.service._publish_stored()
    assert sender.unconfirmed_segments == 2
    sender.send(numbered_segment(iteration=1, end_of_iteration=True))
    server.turn_until(lambda: server.ring.env_steps == 15)
    assert (server.ring.worker(0).incarnation, server.ring.worker(0).number) == (2, 0)
    server.turn_until(lambda: sender.confirm() is not None and sender.unconfirmed_segments == 0)
    sender.send(numbered_segment(iteration=2, end_of_iteration=True))
    server.turn_until(lambda: server.ring.env_steps == 20)
    assert server.ring.worker(0).number == 1


def test_what_waited_for_room_is_told_as_stored_though_no_segment_follows(start):
    is_full = True
    server = start(has_room=lambda num_rows: not is_full)
    status = server.connection.newest(tables.STATUS)

    def told():
        stored = tables.Stored.from_wire(status.get())
        return stored.received, stored.env_steps

    server.connection.put(tables.SEGMENTS, numbered_segment(steps=50, end_of_iteration=True).to_wire())
    server.turn_until(lambda: told() == (1, 0))
    is_full = False
    server.turn_until(lambda: told() == (1, 50))


def test_a_server_that_is_not_there_is_named_after_the_deadline_and_a_stop_ends_every_wait():
    port, began = free_port(), time.monotonic()
    words = rf"waited \d+ s for the replay server at 127\.0\.0\.1:{port}: giving up"
    with pytest.raises(ServerUnreachableError, match=words):
        Connection(f"localhost:{port}", lambda: False).wait_until_up(1.0)
    assert time.monotonic() - began >= 1.0
    with pytest.raises(StoppedError):
        Connection(f"localhost:{port}", lambda: True).wait_until_up(60.0)
    with pytest.raises(StoppedError):
        Waiting("x", 60.0, lambda: True).check()


def test_news_wake_every_worker_at_once_and_are_told_once(start):
    server = start(num_workers=2)
    readers = [server.connection.news(tables.news(worker_id)) for worker_id in range(2)]
    assert all(reader.get(0) is None for reader in readers)
    woken = []
    threads = [threading.Thread(target=lambda r=reader: woken.append(r.get(20.0))) for reader in readers]
    for thread in threads:
        thread.start()
    progress = tables.Progress(session=1, iteration=3, train_step=30, eval_iteration=-1)
    server.connection.put([tables.PROGRESS, tables.news(0), tables.news(1)], progress.to_wire())
    for thread in threads:
        thread.join(20.0)
    assert [tables.Progress.from_wire(arrays) for arrays in woken] == [progress, progress]
    assert all(reader.get(0.2) is None for reader in readers)
    assert tables.Progress.from_wire(server.connection.newest(tables.PROGRESS).get()) == progress


def test_the_trainer_is_told_that_a_checkpoint_is_wanted_and_when_it_is_no_more(server):
    status = server.connection.newest(tables.STATUS)

    def is_wanted():
        return tables.Stored.from_wire(status.get()).checkpoint_wanted

    assert not is_wanted()
    for number in range(int(0.4 * server.ring.files.slack_rows // 501) + 1):
        server.connection.put(tables.SEGMENTS, numbered_segment(number=number, steps=500).to_wire())
    server.turn_until(is_wanted)
    partial = kept_checkpoints.begin(server.checkpoints, 10)
    server.connection.put(tables.SNAPSHOTS, tables.Snapshot(kept_checkpoints.finished_name(partial)).to_wire())
    server.turn_until(lambda: not is_wanted())


def test_what_is_stored_travels_whole():
    rows = np.array([[0, 1, 2, 3, 4], [70, 5, 6, 7, 8]], np.int64)
    sent = tables.Stored(7, 100, rows, True, 9)
    found = tables.Stored.from_wire(sent.to_wire())
    assert (found.server, found.env_steps, found.checkpoint_wanted, found.received) == (7, 100, True, 9)
    assert (found.worker(0), found.worker(70)) == (WorkerRecord(1, 2, 3, 4), WorkerRecord(5, 6, 7, 8))
    assert found.init_episodes == 12
    for nobody in (3, 71, 4000):
        assert found.worker(nobody) == WorkerRecord(incarnation=0, number=-1, iteration_done=NEVER, init_episodes=0)


def count_questions(sender):
    """A list that grows with each question of what is stored."""
    asked, get = [], sender._status.get
    sender._status.get = lambda: (asked.append(None), get())[1]
    return asked


def test_a_worker_keeps_few_bytes_of_what_is_stored_however_long_its_iteration(server, monkeypatch):
    segment_bytes = sum(array.nbytes for array in numbered_segment(steps=50).to_wire())
    monkeypatch.setattr(sender_module, "_ASK_BYTES", 4 * segment_bytes)
    sender = SegmentSender(server.connection, worker_id=0, incarnation=7)
    asked, kept = count_questions(sender), []
    for number in range(40):
        sender.send(numbered_segment(steps=50))
        server.turn_until(lambda number=number: server.ring.env_steps == 50 * (number + 1))
        server.service._publish_stored()
        kept.append(sender.unconfirmed_segments)
    assert max(kept) <= 5 and 5 <= len(asked) <= 20, "it asks only while something is unconfirmed"
    assert sender.unconfirmed_bytes == sender.unconfirmed_segments * segment_bytes
    sender.confirm()
    assert (sender.unconfirmed_segments, sender.unconfirmed_bytes) == (0, 0)


def test_a_worker_whose_segment_is_never_stored_ends_with_an_error(server, monkeypatch):
    monkeypatch.setattr(sender_module, "_RESEND_SECS", 0.05)
    sender = SegmentSender(server.connection, worker_id=0, incarnation=7)
    wrong = numbered_segment(iteration=4)
    wrong.reward = np.full(5, np.nan, np.float32)
    sender.send(wrong)
    sender.send(numbered_segment())
    with pytest.raises(RefusedError, match=r"segment 0 \(5 steps of iteration 4\), sent 6 times.*replay.log"):
        server.turn_until(lambda: sender.confirm() is None)
    assert server.service.malformed == 6
    assert server.ring.env_steps == 0
    restarted = SegmentSender(server.connection, worker_id=0, incarnation=8)
    restarted.send(numbered_segment())
    server.turn_until(lambda: restarted.confirm() is not None and restarted.unconfirmed_segments == 0)
    assert server.ring.env_steps == 5


def test_a_server_that_takes_in_nothing_is_waited_for(server, monkeypatch):
    monkeypatch.setattr(sender_module, "_RESEND_SECS", 0.02)
    sender = SegmentSender(server.connection, worker_id=0, incarnation=7)
    sender.send(numbered_segment())
    for _ in range(30):
        assert sender.confirm() is not None
        time.sleep(0.02)
    server.turn_until(lambda: sender.confirm() is not None and sender.unconfirmed_segments == 0)
    assert server.ring.env_steps == 5
    assert server.service.duplicates > 6


def test_what_is_not_confirmed_in_time_is_waited_for_by_its_writer(server, monkeypatch):
    """Another writer's append may corrupt memory while one is at work that was given up."""

    class Writer:
        history = (np.zeros(1),)

        def __init__(self):
            self.appended, self.is_away = [], False
            writers.append(self)

        def append(self, arrays):
            self.appended.append(arrays[0][0])

        def create_item(self, *args):
            pass

        def flush(self, timeout_ms):
            if self.is_away:
                raise reverb.errors.DeadlineExceededError

    writers = []
    connection = Connection(server.connection.address, lambda: False)
    monkeypatch.setattr(connection._client, "trajectory_writer", lambda **_: Writer())
    first, second = ([np.full(1, value)] for value in (1.0, 2.0))
    assert connection.try_put(tables.REPORTS, [np.zeros(1)], 0.01)
    away = Writer()
    away.is_away = True
    monkeypatch.setattr(connection._client, "trajectory_writer", lambda **_: away)
    assert not connection.try_put(tables.REPORTS, first, 0.01)
    monkeypatch.setattr(connection._client, "trajectory_writer", lambda **_: Writer())
    assert not connection.try_put(tables.REPORTS, first, 0.01)
    assert not connection.try_put(tables.REPORTS, second, 0.01)
    assert away.appended == [1.0] and len(writers) == 2, "nothing else is written meanwhile"
    away.is_away = False
    assert connection.try_put(tables.REPORTS, first, 0.01) and len(writers) == 2
    assert connection.try_put(tables.REPORTS, second, 0.01) and writers[-1].appended == [2.0]


def test_blocks_tell_how_many_updates_the_experience_asks_for(start):
    server = start(updates_per_env_step=0.25)
    reader = server.connection.reader(tables.BLOCKS)
    ask(server, iteration=0, count=tables.AS_DUE, updates=0)
    server.turn()
    assert reader.get(0) is None and server.service.waiting_for == "iteration 0 of workers [0]"
    for number, steps in enumerate([50, 1, 5]):
        segment = numbered_segment(number=number, steps=steps, iteration=number, end_of_iteration=True)
        server.connection.put(tables.SEGMENTS, segment.to_wire())
    first, second = take_block(server, reader), take_block(server, reader)
    assert [(block.first, block.count, block.total) for block in (first, second)] == [(0, 8, 12), (8, 4, 12)]
    ask(server, iteration=1, count=tables.AS_DUE, updates=12)
    nothing = take_block(server, reader)
    assert (nothing.iteration, nothing.count, nothing.total, nothing.arrays) == (1, 0, 0, [])
    ask(server, iteration=2, count=tables.AS_DUE, updates=12)
    assert (take_block(server, reader).total, server.ring.env_steps) == (2, 56)
    ask(server, iteration=0, session=2, first=5, count=tables.AS_DUE, updates=5)
    rest = take_block(server, reader)
    assert (rest.first, rest.count, rest.total) == (5, 7, 12)


def test_an_iterations_last_block_carries_minibatches_of_what_is_held_out(server):
    reader = server.connection.reader(tables.BLOCKS)
    for number in range(4):
        segment = numbered_segment(number=number, steps=50, held_out=number == 2, end_of_iteration=number == 3)
        server.connection.put(tables.SEGMENTS, segment.to_wire())
    ask(server, iteration=0, count=10)
    first, last = take_block(server, reader), take_block(server, reader)
    assert [(block.count, block.held_out) for block in (first, last)] == [(8, 0), (2, 3)]
    assert all(len(array) == 5 for array in last.arrays)
    assert set(last.arrays[0][:2, :, 1].reshape(-1)) <= {0, 1, 3}
    assert set(last.arrays[0][2:, :, 1].reshape(-1)) == {2}


# Iterations that bring no step at which a sample may start: nobody waits for what only their end lets come.


@pytest.fixture
def server_of_ratio(start):
    return start(updates_per_env_step=0.5)


def collect(server, iteration, steps=4, deferred=0, **options):
    """A segment of the only worker, the last of an iteration; at so many of its steps no sample starts yet."""
    options |= {"ends_episode": not deferred, "end_of_iteration": True}
    segment = numbered_segment(number=iteration, steps=steps, iteration=iteration, **options)
    server.connection.put(tables.SEGMENTS, dataclasses.replace(segment, deferred=deferred).to_wire())


def test_updates_of_iterations_without_starts_become_due_with_a_later_one(server_of_ratio):
    reader, updates = server_of_ratio.connection.reader(tables.BLOCKS), []
    for iteration, deferred in enumerate([4, 4, 3, 0]):
        ask(server_of_ratio, iteration, count=tables.AS_DUE, updates=sum(updates))
        collect(server_of_ratio, iteration, deferred=deferred)
        block = take_block(server_of_ratio, reader)
        assert (block.iteration, block.first, block.count) == (iteration, 0, block.total)
        updates.append(block.total)
    assert updates == [0, 0, 6, 2] and server_of_ratio.ring.ring_steps == 5


def test_who_waits_for_the_next_iteration_is_told_why_nothing_was_trained(server_of_ratio):
    server = server_of_ratio
    reader = server.connection.reader(tables.BLOCKS)
    collect(server, 0, deferred=4)
    ask(server, 0, count=tables.AS_DUE, updates=0)
    take_block(server, reader)
    ask(server, 1, count=tables.AS_DUE, updates=0)
    server.turn()
    told = server.service.waiting_for
    assert told is not None and told.startswith("iteration 1 of workers [0]; nothing to train on so far, no sample")
    assert "raise env_steps_per_iter" in told
    collect(server, 1, held_out=True)
    ask(server, 1, count=4)
    server.turn_until(lambda: server.ring.held_out_steps == 4)
    server.turn()
    assert server.service.waiting_for == (
        "experience to train on, all that the ring holds is held out: lower validation_share, or raise buffer_size"
    )


# The replay server stays as long as what a killed supervisor has left still saves.


@pytest.fixture
def role(tmp_path):
    stopped = []
    stop = types.SimpleNamespace(is_set=lambda: bool(stopped), set=lambda: stopped.append(True))
    return types.SimpleNamespace(stop=stop, paths=RunPaths(tmp_path), variables=variables_with())


@pytest.fixture
def orphaned(monkeypatch):
    monkeypatch.setenv(SUPERVISOR_PID_VARIABLE, "1" if os.getppid() != 1 else "2")


def trainer_says(role, state, pid):
    role.paths.heartbeats.mkdir(exist_ok=True)
    write_json(role.paths.heartbeat(TRAINER), {"state": state, "pid": pid})


def test_without_a_supervisor_it_stays_until_the_trainer_has_said_that_it_stopped(role, orphaned, monkeypatch):
    assert not server_module.stays_for_trainer(role, math.inf), "there never was a trainer"
    trainer_says(role, "saving", os.getpid())
    assert server_module.stays_for_trainer(role, math.inf)
    assert not server_module.stays_for_trainer(role, time.monotonic() - 0.1), "no longer than a stop may take"
    trainer_says(role, "stopped", os.getpid())
    assert not server_module.stays_for_trainer(role, math.inf)
    with subprocess.Popen(["true"]) as process:
        pass
    trainer_says(role, "saving", process.pid)
    assert not server_module.stays_for_trainer(role, math.inf), "it died"
    trainer_says(role, "saving", os.getpid())
    monkeypatch.setenv(SUPERVISOR_PID_VARIABLE, str(os.getppid()))
    assert not server_module.stays_for_trainer(role, math.inf), "its supervisor stops it last"


def test_its_start_says_what_it_is_at_and_the_others_wait_as_long(role, monkeypatch):
    """Such as a large ring that is verified: nobody is to take it for a server that hangs."""
    role.heartbeat, role.params = Heartbeat(role.paths.heartbeat(REPLAY), REPLAY, 0.02), None
    waiting = types.SimpleNamespace(
        paths=role.paths, heartbeat=Heartbeat(role.paths.heartbeat(TRAINER), TRAINER, min_secs=0.02)
    )
    waits = []

    class Unreachable:
        def wait_until_up(self, deadline_secs):
            until(lambda: read_heartbeat(role.paths.heartbeat(TRAINER)), 10.0, "a heartbeat of who waits")
            waits.append(deadline_secs)
            raise ServerUnreachableError

    class Opening:
        def open_ring(self, role, layout, work):
            work.doing, work.done, work.total, work.unit = "another size", 3, 10, "MiB"
            path = role.paths.heartbeat(REPLAY)
            until(lambda: "another size" in ((read_heartbeat(path) or {}).get("doing") or ""), 10.0, "a heartbeat")
            assert read_heartbeat(path)["doing"].startswith("ring: 3 of 10 MiB (30 %), another size, ")
            raise InterruptedError

    for name in ("run_layout", "specs"):
        monkeypatch.setattr(server_module, name, mock.MagicMock())
    monkeypatch.setattr(server_module, "_open_ring", Opening().open_ring)
    with pytest.raises(ServerUnreachableError):
        Role.wait_until_up(waiting, Unreachable(), 600.0)
    assert waits == [600.0], "nobody says anything"
    with pytest.raises(InterruptedError):
        server_module.serve(role)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 200 * len(waits))
    with pytest.raises(ServerUnreachableError):
        Role.wait_until_up(waiting, Unreachable(), 600.0)
    assert waits == [600.0] * 3, "the server has said nothing for longer than that"


def test_a_wait_for_the_server_that_hangs_in_c_ends_the_role_with_where_it_is(role, monkeypatch, tmp_path):
    monkeypatch.setattr(role_module, "_HUNG_SECS", 0.2)
    role.heartbeat = Heartbeat(role.paths.heartbeat(TRAINER), TRAINER)

    class Hanging:
        def wait_until_up(self, deadline_secs):
            ctypes.PyDLL(None).sleep(60)  # It keeps the GIL.

    if (pid := os.fork()) == 0:
        os.dup2(os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT), 2)
        Role.wait_until_up(role, Hanging(), 0.1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert "in wait_until_up" in (tmp_path / "log").read_text()
    Role.wait_until_up(role, mock.MagicMock(), 0.1)
    time.sleep(0.5)  # It is up: this process continues.
