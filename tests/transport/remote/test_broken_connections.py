"""Connections that break, gateways that are gone: nothing is lost, doubled or out of order, and no wait hangs."""

import json
import socket
import threading
import time
from unittest.mock import MagicMock

import numpy as np
import pytest

from tests.support.channel_for_tests import (
    IDENTITY,
    Cable,
    FakeConnection,
    numbers_of,
    report,
    running_gateway,
    segment,
    wait_until,
)
from tfagents_system import sac_collect
from tfagents_system.errors import EXIT_RENEW
from tfagents_system.transport import tables
from tfagents_system.transport.connection import ServerUnreachableError, StoppedError
from tfagents_system.transport.remote import client as client_module
from tfagents_system.transport.remote import credentials, messages, remote_slots, shared_tables
from tfagents_system.transport.remote.tls_client import TlsClient
from tfagents_system.worker.progress import ProgressReader


def test_segments_arrive_in_order_through_a_cable_that_is_cut_again_and_again(tmp_path):
    with running_gateway(tmp_path) as running:
        cable = Cable(running.port)
        worker = running.client(cable=cable)
        worker.wait_until_up(10)
        for number in range(120):
            worker.put(tables.SEGMENTS, segment(number, 1, steps=500).to_wire())
            if number % 40 == 20:
                cable.cut()
        wait_until(lambda: numbers_of(running.tables)[-1:] == [119])
        numbers = numbers_of(running.tables)
        assert sorted(set(numbers)) == list(range(120))
        # As the ring sees it, which stores the next one of a worker alone: nothing is missing at any point.
        newest = -1
        for number in numbers:
            assert number <= newest + 1
            newest = max(newest, number)
        assert cable.connections >= 4 and worker.slot == 1
        worker.close()
        cable.close()


def test_segments_that_the_replay_server_does_not_take_come_again_in_order(tmp_path):
    with running_gateway(tmp_path) as running:
        worker = running.client()
        worker.wait_until_up(10)
        running.tables.takes = False
        putting = threading.Thread(
            target=lambda: [worker.put(tables.SEGMENTS, segment(number).to_wire()) for number in range(10)]
        )
        putting.start()
        time.sleep(0.3)
        assert numbers_of(running.tables) == []
        running.tables.takes = True
        wait_until(lambda: numbers_of(running.tables) == list(range(10)))
        putting.join(10)
        worker.close()


def test_a_worker_goes_on_when_the_gateway_was_restarted(tmp_path):
    fake = FakeConnection()
    with running_gateway(tmp_path, fake=fake) as running:
        port = running.port
        worker = running.client()
        worker.wait_until_up(10)
        news = worker.news(tables.news(1))
        worker.put(tables.SEGMENTS, segment(0).to_wire())
        wait_until(lambda: numbers_of(fake) == [0])
    wait_until(lambda: "can't reach the gateway" in worker.describe())
    putting = threading.Thread(target=worker.put, args=(tables.SEGMENTS, segment(1).to_wire()))
    putting.start()  # On its way when the gateway is back.
    with running_gateway(tmp_path, fake=fake, port=port) as running:
        wait_until(lambda: numbers_of(fake) == [0, 1])
        assert worker.slot == 1 and worker.describe() == ""
        fake.try_put(tables.PROGRESS, [np.array([1, 1, 1, 1])], 1)
        assert news.get(5) is not None
        putting.join(10)
        worker.close()


def test_an_item_of_a_queue_that_was_under_way_comes_again_and_none_comes_twice(tmp_path):
    with running_gateway(tmp_path) as running:
        cable = Cable(running.port)
        trainer = running.client("trainer", cable)
        trainer.wait_until_up(10)
        trainer.feed_dead_reader(tables.BLOCKS, tables.Block.empty().to_wire())
        blocks = trainer.reader(tables.BLOCKS)
        for number in range(60):
            running.tables.queues[tables.BLOCKS].put([np.array([number]), np.zeros(20_000, np.float32)])
        got = []
        while len(got) < 60:
            arrays = blocks.get(10)
            assert arrays is not None
            got.append(int(arrays[0][0]))
            if len(got) in (10, 30):
                cable.cut()
        assert got == list(range(60))
        assert blocks.get(0.2) is None
        trainer.close()
        cable.close()


def test_a_trainer_elsewhere_asks_and_publishes(tmp_path):
    with running_gateway(tmp_path) as running:
        trainer = running.client("trainer")
        trainer.wait_until_up(10)
        assert trainer.slot == -1
        trainer.put(tables.REQUESTS, tables.Request(1, 0, 0, 10, 0).to_wire())
        trainer.put([tables.PROGRESS, tables.news(0), tables.news(3)], tables.Progress(1, 2, 3, 4).to_wire())
        assert trainer.try_put(tables.SNAPSHOTS, tables.Snapshot("checkpoint_1").to_wire(), 5)
        taken = {name: len(items) for name, items in running.tables.items.items()}
        assert taken == {tables.REQUESTS: 1, tables.PROGRESS: 1, "news_0": 1, "news_3": 1, tables.SNAPSHOTS: 1}
        trainer.close()


def test_waits_end_with_the_role_with_the_deadline_and_with_the_run(tmp_path):
    with running_gateway(tmp_path) as running:
        worker = running.client()
        worker.wait_until_up(10)
        other = running.client()
        other.wait_until_up(10)
        running.tables.takes = False
        with pytest.raises(
            ServerUnreachableError, match=rf"waited \d+ s for the gateway at {running.address} to take reports"
        ):
            worker.put(tables.REPORTS, report().to_wire(), deadline_secs=0.5)
        worker.stop = lambda: True
        with pytest.raises(StoppedError):
            worker.put(tables.REPORTS, report().to_wire())
        threading.Thread(target=running.gateway.end, args=("done", 0.5)).start()
        wait_until(lambda: other.end_of_run == "done")
        with pytest.raises(StoppedError):
            other.put(tables.REPORTS, report(2).to_wire())
        late = running.client()
        wait_until(lambda: late.end_of_run == "done" or "refused" in late.describe())


def test_a_worker_whose_slot_was_given_away_ends_and_a_new_process_gets_another(tmp_path, monkeypatch):
    monkeypatch.setattr(sac_collect, "make_worker", MagicMock())
    with running_gateway(tmp_path) as running:
        cable = Cable(running.port)
        away = running.client(cable=cable, hello={"token": "first"})
        away.wait_until_up(10)
        progress, slot = ProgressReader(away, away.slot), away.slot
        monkeypatch.setattr(remote_slots, "KEEP_SECS", 0.0)
        cable.close()
        wait_until(lambda: running.gateway.slots.connected == 0)
        other = running.client(hello={"token": "other", "worker_id": slot})
        other.wait_until_up(10)
        away._channel._tls_client = TlsClient(running.address, running.paths.credentials, None)  # The cable is whole.

        def wait_for_a_policy():
            while time.monotonic() - began < 10.0:
                progress.get(wait_secs=0.1)

        sac_collect.make_worker().run = wait_for_a_policy
        began = time.monotonic()
        assert sac_collect.collect(MagicMock(stop=threading.Event())) == EXIT_RENEW
        again = running.client(hello={"token": "first"})
        again.wait_until_up(10)
        assert other.slot == slot != again.slot
        assert running.refused("slot_lost") == 1


def test_a_slot_is_left_also_where_the_worker_can_not_be_closed(monkeypatch):
    monkeypatch.setattr(sac_collect, "make_worker", MagicMock())
    sac_collect.make_worker().close.side_effect = OSError("no such device")
    role = MagicMock()
    with pytest.raises(OSError, match="no such device"):
        sac_collect.collect(role)
    role.joined.leave.assert_called_once_with()


def test_who_cannot_reach_whom_is_told_with_since_when_and_what_to_check(tmp_path):
    credentials.make_credentials(tmp_path / "credentials", "test")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        lonely = client_module.RemoteConnection(
            address, lambda: False, client_module.Hello("collect", IDENTITY), credentials=tmp_path / "credentials"
        )
        with pytest.raises(ServerUnreachableError) as error:
            lonely.wait_until_up(1.0)
        lonely.close()
    words = str(error.value)
    for part in (messages.this_host(), address, "collect on ", "Connection refused", "since ", "firewall"):
        assert part in words


def test_items_that_are_not_known_to_have_arrived_go_to_the_next_connection_first():
    fake = FakeConnection()
    share = shared_tables.QueueShare(fake, tables.BLOCKS)
    first, second = [], []

    def send_first(table, number, arrays):
        first.append((number, int(arrays[0][0])))

    share.take(send_first, 3, 0)
    for number in range(5):
        fake.queues[tables.BLOCKS].put([np.array([number])])
    wait_until(lambda: len(first) == 3)
    share.forget(send_first)
    share.take(lambda table, number, arrays: second.append((number, int(arrays[0][0]))), 4, 1)  # One has arrived.
    wait_until(lambda: len(second) == 4)
    assert first == [(1, 0), (2, 1), (3, 2)]
    assert second == [(2, 1), (3, 2), (4, 3), (5, 4)]


def test_the_last_words_of_a_worker_that_leaves_arrive(tmp_path):
    with running_gateway(tmp_path) as running:
        for number in range(20):
            worker = running.client()
            worker.wait_until_up(10)
            worker.put(tables.SEGMENTS, segment(number, worker.welcome.worker_id, steps=500).to_wire())
            worker.tell({"state": "waiting", "steps": number})
            worker.tell({"state": "stopped", "steps": number})
            worker.close()
            # It has waited until all was read.
            beat = json.loads(running.paths.heartbeat(f"worker_{worker.welcome.worker_id}").read_text())
            assert (beat["state"], beat["steps"]) == ("stopped", number)
        assert len(running.tables.items[tables.SEGMENTS]) == 20
