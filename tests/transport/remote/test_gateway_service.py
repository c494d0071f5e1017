"""What a client gets from the gateway when all is well."""

import json
import socket
import time
import types

import numpy as np
import pytest

from tests.support.channel_for_tests import IDENTITY, LAYOUT, report, running_gateway, wait_until
from tests.support.fakes import FakeParams
from tests.support.settings_for_tests import write_run_json
from tests.support.tiny_agents import ACTION, OBSERVATION
from tfagents_system import sac_gateway
from tfagents_system.envs.specs import save_specs
from tfagents_system.report.episodes import MOST_KEPT_BYTES, Episode, KeptEpisode, Report
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.sac_gateway import run_facts
from tfagents_system.transport import tables
from tfagents_system.transport.remote import frames, gateway, messages, shared_tables
from tfagents_system.transport.remote.errors import ChannelError
from tfagents_system.transport.remote.tls_client import TlsClient
from tfagents_system.transport.run_layout import run_layout


def test_a_client_learns_who_it_is_and_what_the_run_is_like(shared):
    _, good = shared
    assert (good.slot, good.welcome.max_workers, good.welcome.run) == (1, 20, 7)
    assert good.welcome.settings == {"variables": {"seed": 7}, "defaults": {}}


def test_reports_arrive_bit_by_bit_and_put_waits_for_them(shared):
    running, good = shared
    before = len(running.tables.items[tables.REPORTS])
    good.put(tables.REPORTS, report().to_wire())
    assert len(running.tables.items[tables.REPORTS]) == before + 1
    np.testing.assert_array_equal(running.tables.items[tables.REPORTS][-1][0], report().to_wire()[0])


def test_episodes_that_are_kept_come_whatever_their_number_up_to_the_most_that_is_told(tmp_path):
    sizes = [MOST_KEPT_BYTES, *[500_000] * 40]
    kept = [KeptEpisode(float(size), 7, number, bytes(size)) for number, size in enumerate(sizes)]
    whole = Report("train", 0, 1, 3, 7, 3, [Episode(1.5, 5)] * 41, kept=kept)
    limit = gateway.layout_frame_bytes(LAYOUT, None, keeps_episodes=True)
    with running_gateway(tmp_path, max_worker_bytes=limit) as running:
        worker = running.client()
        worker.wait_until_up(10)
        for part in whole.parts():
            worker.put(tables.REPORTS, part.to_wire())
        arrived = [Report.from_wire(item) for item in running.tables.items[tables.REPORTS]]
        assert running.gateway.refusals.counts == {}
        worker.close()
    first, *others = arrived
    assert (first.kind, len(first.episodes), first.kept) == ("train", 41, [])
    assert [(each.kind, each.episodes) for each in others] == [("kept", [])] * len(sizes)
    assert [len(each.kept[0].file) for each in others] == sizes


@pytest.mark.parametrize("count", [0, 3])
def test_the_limit_of_a_run_knows_of_episodes_that_are_kept(tmp_path, count):
    paths = RunPaths(tmp_path)
    save_specs(paths.specs, OBSERVATION, ACTION)
    paths.params.write_text("")
    paths.config.write_text("{}")
    settings = write_run_json(paths)
    params = type("TrainParams", (FakeParams,), {"keep_best_episodes": count})({"horizon": 9})
    role = types.SimpleNamespace(params=params, paths=paths, settings=settings, run_id=7, max_workers=4)
    found = run_facts(role).max_worker_bytes
    layout = run_layout(params, OBSERVATION, ACTION)
    assert found == gateway.layout_frame_bytes(layout, None, keeps_episodes=count > 0)
    assert (found > MOST_KEPT_BYTES) == (count > 0)


def test_the_newest_item_is_never_older_than_the_question(shared):
    running, good = shared
    reader = good.newest(tables.WEIGHTS)
    for version in range(50):
        arrays = [np.array([1, version, 0]), np.frombuffer(b"[]", np.uint8), np.full((100, 10), version, np.float32)]
        running.tables.try_put(tables.WEIGHTS, arrays, 1)
        got = reader.get()
        assert got[0].tolist() == [1, version, 0]
        assert got[2].shape == (100, 10) and got[2].dtype == np.float32 and (got[2] == version).all()


def test_one_read_serves_all_who_ask_within_20_ms(shared, monkeypatch):
    running, good = shared
    now = [time.monotonic()]
    clock = types.SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep)
    monkeypatch.setattr(shared_tables, "time", clock)
    reader = good.newest(tables.STATUS)
    reads = running.tables.reads[tables.STATUS]
    for more, secs in enumerate((0.0, 0.03, 0.03)):
        now[0] += secs
        running.tables.try_put(tables.STATUS, [np.arange(4) + more], 1)
        answers = [reader.get() for _ in range(50)]
        assert all(
            answer is not None and answer[0].tolist() == [more, more + 1, more + 2, more + 3] for answer in answers
        )
        assert running.tables.reads[tables.STATUS] == reads + 1 + more


def test_an_empty_table_has_no_newest_item(shared):
    _, good = shared
    assert good.newest(tables.EVAL_WEIGHTS).get() is None


def test_news_come_to_whoever_sleeps(shared):
    running, good = shared
    news = good.news(tables.news(1))
    news.get(0.2)
    running.tables.try_put(tables.PROGRESS, [np.array([1, 2, 3, time.time_ns()])], 1)
    began = time.monotonic()
    assert news.get(5)[0][:3].tolist() == [1, 2, 3]
    assert time.monotonic() - began < 4
    assert news.get(0.1) is None


def test_heartbeats_are_written_as_the_workers_own_with_our_clock_and_our_name_for_it(shared):
    running, good = shared
    good.tell(
        {"state": "collecting", "role": "replay", "time": 1000.0, "since": 990.0, "steps": 3, "nan": float("nan")}
    )
    path = running.paths.heartbeat("worker_1")
    wait_until(lambda: path.exists() and "steps" in path.read_text())  # Another test's may be there.
    beat = json.loads(path.read_text())
    assert (beat["state"], beat["role"], beat["remote"], beat["steps"], beat["nan"]) == (
        "collecting",
        "worker_1",
        True,
        3,
        None,
    )
    assert abs(beat["time"] - time.time()) < 60 and beat["time"] - beat["since"] == pytest.approx(10.0)
    assert not running.paths.heartbeat("replay").exists()


def test_hostile_heartbeats_are_written_clean(shared):
    running, good = shared
    path = running.paths.heartbeat("worker_1")
    hostile = {"host": "x" * 1000, "waiting_for": "\x1b[31m" + "w" * 10_000}
    good.tell({"state": "state", "time": 1e9, "since": 5.0, **hostile})
    good.tell({"state": "waiting", "time": -1, "since": 1e300, **hostile})
    wait_until(lambda: path.exists() and json.loads(path.read_text())["state"] == "waiting")
    beat = json.loads(path.read_text())
    assert beat.keys() == {"state", "role", "host", "remote", "time", "since", "waiting_for"}
    assert beat["since"] == beat["time"] and beat["role"] == "worker_1" and len(beat["host"]) <= 100
    assert beat["waiting_for"].startswith("?[31mww") and len(beat["waiting_for"]) == 500


def test_a_slot_whose_record_can_not_be_written_is_given_and_free_again(tmp_path):
    with running_gateway(tmp_path, max_workers=2) as running:
        running.paths.gateway_slots.mkdir()  # Where the record should go.
        for _ in range(3):
            worker = running.client()
            worker.wait_until_up(10)
            assert worker.slot == 1
            worker.close()
            wait_until(lambda: running.gateway.state()["remote_workers"] == 0)


def test_a_session_that_can_not_begin_leaves_its_slot(tmp_path, monkeypatch):
    with running_gateway(tmp_path, max_workers=2) as running:
        monkeypatch.setattr(gateway.messages, "Welcome", None)  # Such as no memory left.
        transport = TlsClient(running.address, running.paths.credentials, None).open()
        transport.send(messages.Hello("collect", IDENTITY, token="first"))
        with pytest.raises(ChannelError, match="ended the connection"):
            transport.receive(messages.FromGateway, frames.HELLO_LIMITS, 10)
        transport.close()
        monkeypatch.undo()
        wait_until(lambda: running.gateway.state()["connections"] == 0)
        assert running.gateway.state()["remote_workers"] == 0 and running.gateway._listener.shaking_hands == 0


def test_what_happens_is_told_in_the_heartbeat(shared):
    running, good = shared
    for step in range(20):
        good.tell({"state": "collecting", "steps": step, "waiting_for": 100 * "w"})
    wait_until(lambda: running.gateway.state()["received_bytes"] > 1000)
    state = running.gateway.state()
    assert state["connections"] == state["remote_workers"] == 1 and state["received_bytes"] > 1000


@pytest.mark.parametrize(
    ("full", "node", "expected"),
    [("n7.example.org", "", "n7.example.org"), ("localhost", "n7", "n7"), ("localhost.localdomain", "", "n7host")],
)
def test_the_address_for_others_is_no_loopback_name(
    monkeypatch: pytest.MonkeyPatch, full: str, node: str, expected: str
) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda: full)
    monkeypatch.setattr(socket, "gethostname", lambda: "n7host")
    monkeypatch.setenv("SLURMD_NODENAME", node)
    assert sac_gateway.host_name() == expected
