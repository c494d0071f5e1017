"""What comes over the network: good clients are served, everything else is refused, counted and logged."""

import json
import logging as python_logging
import socket
import ssl
import struct
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.channel.channel_for_tests import (
    IDENTITY,
    MAX_BYTES,
    Cable,
    FakeConnection,
    numbers_of,
    report,
    running_gateway,
    segment,
    wait_until,
)
from tfagents_system.channel import client as client_module
from tfagents_system.channel import credentials, frames, gateway, messages, sharing
from tfagents_system.channel.door import Door
from tfagents_system.channel.errors import ChannelError, FrameError, GatewayRefusedError
from tfagents_system.channel.streaming import Arrivals
from tfagents_system.replay import tables
from tfagents_system.replay.connection import ServerUnreachableError, StoppedError

PASSWORD = "correct horse battery"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One gateway, and a good client whose traffic goes on while others attack."""
    with running_gateway(tmp_path_factory.mktemp("gateway"), max_workers=20) as running:
        good = running.client()
        good.wait_until_up(10)
        yield running, good
        assert good.describe() == ""
        good.close()


@pytest.fixture(autouse=True)
def traffic(request):
    """The good client's segments go on in every test that attacks, and all of them arrive."""
    if "shared" not in request.fixturenames:
        yield
        return
    running, good = request.getfixturevalue("shared")
    first, stop = len(numbers_of(running.tables)), threading.Event()
    sent = []

    def send():
        while not stop.is_set():
            good.put(tables.SEGMENTS, segment(first + len(sent), good.slot).to_wire())
            sent.append(0)
            time.sleep(0.005)

    thread = threading.Thread(target=send)
    thread.start()
    yield
    stop.set()
    thread.join()
    wait_until(lambda: numbers_of(running.tables) == list(range(first + len(sent))))
    assert good.slot == 1


def door(running, folder=None):
    return Door(running.address, folder or running.paths.credentials, None)


def in_session(running, kind="collect", **hello):
    """A transport of a client that has been let in, and its welcome."""
    transport = door(running).open()
    transport.send(messages.Hello(kind, IDENTITY, token=hello.pop("token", "attacker"), **hello))
    answer, _ = transport.receive(messages.FromGateway, frames.Limits(10**6, 10**6), 5)
    assert isinstance(answer, messages.Welcome), answer
    return transport, answer


def refusal(transport):
    """Why the gateway ends a session."""
    answer, _ = transport.receive(messages.FromGateway, frames.Limits(10**6, 10**6), 10)
    assert isinstance(answer, messages.Refused), answer
    with pytest.raises(ChannelError):
        transport.receive(messages.FromGateway, frames.Limits(10**6, 10**6), 5)
    transport.close()
    return answer.message


class Counted:
    """Exactly one more refusal of a reason, in the end."""

    def __init__(self, running, reason, more=1):
        self._running, self._reason, self._more = running, reason, more

    def __enter__(self):
        self._before = self._running.refused(self._reason)

    def __exit__(self, *error):
        if error[0] is None:
            wait_until(lambda: self._running.refused(self._reason) >= self._before + self._more)
            assert self._running.refused(self._reason) == self._before + self._more


# Those who can't prove themselves.


def test_plain_text_is_refused(shared):
    running, _ = shared
    for words in (b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9), b"\0" * 64):
        with Counted(running, "tls"), socket.create_connection(("localhost", running.port), timeout=5) as plain:
            plain.sendall(words)
            answer = b""
            try:
                while piece := plain.recv(100):
                    answer += piece
            except ConnectionResetError:
                pass
            assert len(answer) < 100  # An alert of TLS, and no word of ours.


def test_no_certificate_is_refused(shared):
    running, _ = shared
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(running.paths.credentials / "ca.pem")
    context.check_hostname = False
    with (
        Counted(running, "tls"),
        socket.create_connection(("localhost", running.port), timeout=5) as plain,
        context.wrap_socket(plain) as tls,
        pytest.raises(OSError, match="certificate"),
    ):
        tls.recv(1)


def test_a_certificate_of_another_authority_is_refused(shared, tmp_path):
    running, _ = shared
    credentials.make_credentials(tmp_path / "other", "other")
    # It takes the gateway for what it is, but has a certificate of another authority.
    for name in ("client.pem", "client.key"):
        (tmp_path / name).write_bytes((tmp_path / "other" / name).read_bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(running.paths.credentials / "ca.pem")
    context.load_cert_chain(tmp_path / "client.pem", tmp_path / "client.key")
    context.check_hostname = False
    with (
        Counted(running, "tls"),
        socket.create_connection(("localhost", running.port), timeout=5) as plain,
        context.wrap_socket(plain) as tls,
        pytest.raises(OSError, match="unknown ca"),
    ):
        tls.recv(1)


def test_a_gateway_of_another_authority_is_not_believed(shared, tmp_path):
    running, _ = shared
    credentials.make_credentials(tmp_path / "other", "other")
    with pytest.raises(ChannelError, match="self-signed certificate|unable to get|verify"):
        door(running, tmp_path / "other").open()


def test_a_client_can_not_pass_for_the_gateway(tmp_path):
    """Its certificate is of the right authority, but made for clients."""
    credentials.make_credentials(tmp_path / "credentials", "test")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "credentials" / "client.pem", tmp_path / "credentials" / "client.key")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pretend():
            connection, _ = listener.accept()
            with pytest.raises(OSError), context.wrap_socket(connection, server_side=True) as tls:
                tls.recv(1)

        thread = threading.Thread(target=pretend)
        thread.start()
        host = Door(f"127.0.0.1:{listener.getsockname()[1]}", tmp_path / "credentials", None)
        with pytest.raises(ChannelError, match="purpose|unsuitable"):
            host.open()
        thread.join()


def test_an_older_tls_is_refused(shared):
    running, _ = shared
    context = credentials.client_context(running.paths.credentials)
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    with (
        Counted(running, "tls"),
        socket.create_connection(("localhost", running.port), timeout=5) as plain,
        pytest.raises(OSError, match="protocol version"),
    ):
        context.wrap_socket(plain)


def test_recorded_traffic_that_is_replayed_is_refused(shared):
    running, _ = shared
    cable = Cable(running.port)
    victim = client_module.RemoteConnection(
        f"localhost:{cable.port}",
        lambda: False,
        client_module.Hello("collect", IDENTITY),
        credentials=running.paths.credentials,
    )
    victim.wait_until_up(10)
    victim.put(tables.REPORTS, report(victim.slot).to_wire())
    victim.close()
    wait_until(lambda: running.gateway.state()["remote_workers"] == 1)
    reports = len(running.tables.items[tables.REPORTS])
    with Counted(running, "tls"), socket.create_connection(("localhost", running.port), timeout=5) as replay:
        replay.sendall(bytes(cable.recorded[0]))
        try:
            while replay.recv(1000):
                pass
        except ConnectionResetError:
            pass
    cable.close()
    assert len(running.tables.items[tables.REPORTS]) == reports


@pytest.mark.parametrize("given", ["", "wrong horse battery!"])
def test_a_wrong_password_is_refused_in_words(tmp_path, given):
    with running_gateway(tmp_path, password=PASSWORD) as running, Counted(running, "password"):
        file = tmp_path / "password"
        file.write_text(given)
        file.chmod(0o600)
        impostor = running.client(password_file=file if given else None)
        with pytest.raises(GatewayRefusedError, match="password, (another one|none) was given: set SAC_PASSWORD_FILE"):
            impostor.wait_until_up(10)


def test_the_right_password_is_let_in_and_told_nowhere(tmp_path, caplog):
    caplog.set_level(python_logging.DEBUG)
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    file.chmod(0o600)
    with running_gateway(tmp_path, password=PASSWORD) as running:
        good = running.client(password_file=file)
        good.wait_until_up(10)
        good.close()
    assert PASSWORD not in caplog.text
    assert PASSWORD not in repr(messages.Hello("collect", password=PASSWORD, token="secret"))
    for path in running.paths.exp_dir.rglob("*"):
        assert path.is_dir() or PASSWORD.encode() not in path.read_bytes()


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"version": "9.9.9"}, "version", r"has tfagents_system 0\.1\.0, you have 9\.9\.9"),
        ({"protocol": 99}, "version", "speaks protocol 2, you speak 99"),
        (
            {"identity": IDENTITY | {"params": "d" * 64}},
            "inputs",
            r"another params file \(SHA-256 aaaaaaaaaaaa there, dddd",
        ),
        ({"identity": {}}, "inputs", "another params file .* none here.*another configuration.*other specs"),
        ({"kind": "boss"}, "kind", "'boss' is none of collect"),
        ({"worker_id": 0}, "slots", "slot 0 is not free"),
        ({"kind": "trainer"}, "trainer", "has a trainer of its own"),
    ],
)
def test_what_does_not_belong_to_the_run_is_refused_with_both_sides_named(tmp_path, changes, reason, words):
    with running_gateway(tmp_path, has_trainer=True) as running, Counted(running, reason):
        kind = changes.get("kind", "collect")
        stranger = running.client(kind, hello={name: v for name, v in changes.items() if name != "kind"})
        with pytest.raises(GatewayRefusedError, match=words):
            stranger.wait_until_up(10)


def test_slow_loris_connections_are_ended(shared, monkeypatch):
    running, _ = shared
    monkeypatch.setattr(gateway, "HANDSHAKE_SECS", 0.5)
    with Counted(running, "silent", 12):
        began = time.monotonic()
        silent = [socket.create_connection(("localhost", running.port), timeout=5) for _ in range(6)]
        handshaken = [door(running).open() for _ in range(6)]
        for transport in handshaken:
            transport._tls.setblocking(True)
            transport._tls.send(b"S")
        for slow in silent:
            slow.sendall(b"\x16\x03\x01")
            slow.recv(10)
        for transport in handshaken:
            with pytest.raises(ChannelError):
                transport.receive(messages.FromGateway, frames.HELLO_LIMITS, 5)
        assert time.monotonic() - began < 4
    wait_until(lambda: not running.gateway._shaking_hands)


def test_more_connections_than_may_prove_themselves_at_once_are_refused(shared, monkeypatch):
    running, _ = shared
    monkeypatch.setattr(gateway, "_MAX_HANDSHAKES_OF_ONE", 5)
    with Counted(running, "busy", 3), Counted(running, "silent", 5):
        crowd = [socket.create_connection(("localhost", running.port), timeout=5) for _ in range(8)]
        wait_until(lambda: running.refused("busy") >= 3)
        for one in crowd:
            one.close()


# Those who have proved themselves, but do what they may not.


def test_frames_that_are_too_long_are_refused_before_memory_is_taken(shared):
    running, _ = shared
    for head, words in [
        (struct.pack("<4sIQ", b"SAC1", 2**31, 0), "a message of 2147483648 bytes, at most 262144"),
        (struct.pack("<4sIQ", b"SAC1", 10, 2**60), f"arrays of {2**60} bytes, at most {MAX_BYTES}"),
        (struct.pack("<4sIQ", b"SAC1", 10, MAX_BYTES + 1), f"arrays of {MAX_BYTES + 1} bytes"),
        (b"GET / HTTP/1.1\r\n", "not a frame: it begins with b'GET '"),
    ]:
        with Counted(running, "frame"):
            transport, _ = in_session(running)
            transport._send_all([head])
            assert words in refusal(transport)


def test_a_frame_that_is_cut_short_is_counted(shared):
    running, _ = shared
    with Counted(running, "truncated"):
        transport, welcome = in_session(running)
        whole = frames.encode(messages.Put(1, [tables.SEGMENTS]), segment(0, welcome.worker_id).to_wire())
        transport._send_all([b"".join(whole)[:100]])
        transport.close()


@pytest.mark.parametrize(
    ("kind", "message", "arrays", "words"),
    [
        ("collect", messages.Put(1, ["requests"]), [np.arange(6)], "'collect' may not put the table 'requests'"),
        ("collect", messages.Put(1, ["weights"]), [np.zeros(3, int)], "may not put the table 'weights'"),
        ("collect", messages.Put(1, ["news_1"]), [np.arange(4)], "may not put the table 'news_1'"),
        ("collect", messages.Put(1, ["segments", "blocks"]), segment(0).to_wire(), "may not put|experience"),
        ("collect", messages.Put(1, ["no_such"]), [np.zeros(1)], "may not put the table 'no_such'"),
        ("collect", messages.Put(1, []), [np.zeros(1)], "an item for no table"),
        ("eval", messages.Put(1, ["segments"]), segment(0).to_wire(), "'eval' may not put the table 'segments'"),
        ("test", messages.Put(1, ["reports"]), report().to_wire(), "'test' may not put the table 'reports'"),
        ("check", messages.Put(1, ["reports"]), (), "'check' may not put"),
        ("collect", messages.Newest(1, "blocks"), (), "may not newest the table 'blocks'"),
        ("collect", messages.Take("blocks", 1, 0), (), "may not take the table 'blocks'"),
        ("collect", messages.Take("reports", 1, 0), (), "may not take the table 'reports'"),
        ("collect", messages.Feed("blocks"), [np.zeros(5, int)], "may not take the table 'blocks'"),
        ("collect", messages.Follow("news_19"), (), "may not follow the table 'news_19'"),
        ("collect", messages.Size(1, "requests"), (), "may not know of the table 'requests'"),
        ("collect", messages.Hello("collect"), (), "a second hello"),
        ("collect", messages.Beat("[1]"), (), "no JSON object"),
        ("collect", messages.Beat("[" * 100_000), (), "no JSON object"),
        ("collect", messages.Pong(), (), "malformed message"),
    ],
)
def test_tables_and_messages_that_are_not_for_this_kind_are_refused(shared, kind, message, arrays, words):
    running, _ = shared
    with Counted(running, "frame"):
        transport, _ = in_session(running, kind)
        transport.send(message, arrays)
        import re

        assert re.search(words, refusal(transport))


@pytest.mark.parametrize("fault", ["dtype", "shape", "count", "nan", "owner"])
def test_segments_that_are_not_what_was_declared_are_refused(shared, fault):
    running, _ = shared
    before = len(numbers_of(running.tables))
    transport, welcome = in_session(running)
    arrays = segment(0, welcome.worker_id).to_wire()
    if fault == "dtype":
        arrays[3] = arrays[3].astype(np.float64)
    elif fault == "shape":
        arrays[3] = arrays[3][:, :2]
    elif fault == "count":
        arrays.append(np.zeros(3))
    elif fault == "nan":
        arrays[3][0, 0] = np.nan
    else:
        arrays = segment(0, welcome.worker_id + 1).to_wire()
    with Counted(running, "frame"):
        transport.send(messages.Put(1, [tables.SEGMENTS]), arrays)
        assert ("experience or a report of worker" if fault == "owner" else "for 'segments'") in refusal(transport)
    owners = {int(arrays[0][1]) for arrays in running.tables.items[tables.SEGMENTS][before:]}
    assert owners <= {1}  # The good client's alone.


def test_arrays_that_could_run_code_do_not_travel(shared):
    running, _ = shared
    with pytest.raises(FrameError, match="arrays of object do not travel"):
        frames.encode(messages.Put(1, ["reports"]), [np.array([print], object)])
    for dtype in ("object", "O", "V16", "datetime64[ns]", "str", ">f4", "float128"):
        with Counted(running, "frame"):
            transport, _ = in_session(running)
            put = messages.Put(1, ["reports"])
            put.arrays = [messages.ArrayHead(dtype, [1])]
            transport.send(put)
            assert "does not travel" in refusal(transport)


def test_reports_must_be_reports_of_the_worker(shared):
    running, _ = shared
    transport, welcome = in_session(running)
    for arrays in (report(welcome.worker_id + 1).to_wire(), [np.frombuffer(b"{}", np.uint8)], [np.zeros(3)], []):
        with Counted(running, "frame"):
            transport, _ = in_session(running, worker_id=None)
            transport.send(messages.Put(1, ["reports"]), arrays)
            refusal(transport)


@settings(max_examples=60)
@given(junk=st.binary(min_size=1, max_size=200))
def test_a_fuzzed_stream_ends_the_session_and_nothing_else(shared, junk):
    running, _ = shared
    transport, _ = in_session(running)
    transport._send_all([struct.pack("<4sIQ", b"SAC1", len(junk), 0) + junk])
    transport._send_all([struct.pack("<4sIQ", b"SAC1", len(junk), len(junk)) + junk + junk])
    transport.shut()
    transport.close()
    wait_until(lambda: running.gateway.state()["remote_workers"] == 1)


# Those who are served.


def test_a_client_learns_who_it_is_and_what_the_run_is_like(shared):
    _, good = shared
    assert (good.slot, good.welcome.seed, good.welcome.num_collect_workers, good.welcome.max_workers) == (1, 7, 1, 20)
    assert good.welcome.settings == {"SAC_SEED": "7"} and good.run == {"seed": 7}


def test_reports_arrive_bit_by_bit_and_put_waits_for_them(shared):
    running, good = shared
    before = len(running.tables.items[tables.REPORTS])
    good.put(tables.REPORTS, report().to_wire())
    assert len(running.tables.items[tables.REPORTS]) == before + 1
    np.testing.assert_array_equal(running.tables.items[tables.REPORTS][-1][0], report().to_wire()[0])


def test_the_newest_item_is_never_older_than_the_question(shared):
    running, good = shared
    reader = good.newest(tables.WEIGHTS)
    for version in range(50):
        arrays = [np.array([1, version, 0]), np.frombuffer(b"[]", np.uint8), np.full((100, 10), version, np.float32)]
        running.tables.try_put(tables.WEIGHTS, arrays, 1)
        got = reader.get()
        assert got[0].tolist() == [1, version, 0]
        assert got[2].shape == (100, 10) and got[2].dtype == np.float32 and (got[2] == version).all()


def test_one_read_serves_all_who_ask_at_once(shared):
    running, good = shared
    running.tables.try_put(tables.STATUS, [np.arange(4)], 1)
    reads = running.tables.reads
    began = time.monotonic()
    reader = good.newest(tables.STATUS)
    asked = 0
    while time.monotonic() - began < 0.5:
        assert reader.get() is not None
        asked += 1
    # One look every 20 ms, and those that follow progress.
    assert asked > 30 + (running.tables.reads - reads - 0.5 / 0.025)


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
    assert time.monotonic() - began < 1
    assert news.get(0.1) is None


def test_heartbeats_are_written_as_the_workers_own_with_our_clock_and_our_name_for_it(shared):
    running, good = shared
    good.tell(
        {"state": "collecting", "role": "replay", "time": 1000.0, "since": 990.0, "steps": 3, "nan": float("nan")}
    )
    path = running.paths.heartbeat("worker_1")
    wait_until(path.exists)
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


def test_the_end_of_a_log_comes_home_without_what_could_steer_a_terminal(shared):
    running, good = shared
    good.send_log("../../etc/passwd", "first line\nred \x1b[31m line")
    wait_until(lambda: running.paths.log("worker_1").exists())
    wait_until(lambda: "red" in running.paths.log("worker_1").read_text())
    assert "first line\nred ?[31m line\n" in running.paths.log("worker_1").read_text()


def test_what_happens_is_told_in_the_heartbeat(shared):
    running, _ = shared
    state = running.gateway.state()
    assert state["connections"] == state["remote_workers"] == 1 and state["received_bytes"] > 1000


# Connections that break.


def test_segments_arrive_in_order_through_a_cable_that_is_cut_again_and_again(tmp_path):
    with running_gateway(tmp_path) as running:
        cable = Cable(running.port)
        worker = client_module.RemoteConnection(
            f"localhost:{cable.port}",
            lambda: False,
            client_module.Hello("collect", IDENTITY),
            credentials=running.paths.credentials,
        )
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
        for number in range(10):
            worker.put(tables.SEGMENTS, segment(number).to_wire())
        time.sleep(0.3)
        assert numbers_of(running.tables) == []
        running.tables.takes = True
        wait_until(lambda: numbers_of(running.tables) == list(range(10)))
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
    worker.put(tables.SEGMENTS, segment(1).to_wire())  # On its way when the gateway is back.
    with running_gateway(tmp_path, fake=fake, port=port) as running:
        wait_until(lambda: numbers_of(fake) == [0, 1])
        assert worker.slot == 1 and worker.describe() == ""
        fake.try_put(tables.PROGRESS, [np.array([1, 1, 1, 1])], 1)
        assert news.get(5) is not None
        worker.close()


def test_an_item_of_a_queue_that_was_under_way_comes_again_and_none_comes_twice(tmp_path):
    with running_gateway(tmp_path) as running:
        cable = Cable(running.port)
        trainer = client_module.RemoteConnection(
            f"localhost:{cable.port}",
            lambda: False,
            client_module.Hello("trainer", IDENTITY),
            credentials=running.paths.credentials,
        )
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
        wait_until(lambda: running.tables.items.get(tables.REQUESTS))  # It is not waited for when it is sent.
        taken = {name: len(items) for name, items in running.tables.items.items()}
        assert taken == {tables.REQUESTS: 1, tables.PROGRESS: 1, "news_0": 1, "news_3": 1, tables.SNAPSHOTS: 1}
        trainer.close()


def test_waits_end_with_the_role_with_the_deadline_and_with_the_run(tmp_path):
    with running_gateway(tmp_path) as running:
        worker = running.client()
        worker.wait_until_up(10)
        ended = []
        other = running.client(on_end=ended.append)
        other.wait_until_up(10)
        running.tables.takes = False
        with pytest.raises(
            ServerUnreachableError, match=f"waited . s for the gateway at {running.address} to take reports"
        ):
            worker.put(tables.REPORTS, report().to_wire(), deadline_secs=0.5)
        worker.stop = lambda: True
        with pytest.raises(StoppedError):
            worker.put(tables.REPORTS, report().to_wire())
        threading.Thread(target=running.gateway.end, args=("done", 0.5)).start()
        wait_until(lambda: ended == ["done"])
        assert other.end_of_run == "done"
        with pytest.raises(StoppedError):
            other.put(tables.REPORTS, report(2).to_wire())
        late = running.client()
        wait_until(lambda: late.end_of_run == "done" or "refused" in late.describe())


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


def test_behind_an_item_that_was_not_stored_none_is_stored_until_it_comes_again():
    fake = FakeConnection()
    under_way = Arrivals(fake)
    items = {number: segment(number).to_wire() for number in range(3)}
    fake.takes = False
    under_way.add(-9, tables.SEGMENTS, items[0])
    assert under_way.store(1.0) == messages.Done(-9, False)
    fake.takes = True
    under_way.add(-8, tables.SEGMENTS, items[1])
    assert under_way.store(1.0) is None and numbers_of(fake) == []
    for number in range(3):
        under_way.add(number - 9, tables.SEGMENTS, items[number])
    assert under_way.store(1.0) == messages.Done(-7, True)
    assert numbers_of(fake) == [0, 1, 2]


def test_items_that_are_not_known_to_have_arrived_go_to_the_next_connection_first():
    fake = FakeConnection()
    share = sharing.QueueShare(fake, tables.BLOCKS)
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
            worker.send_log("worker_0", "x" * 100_000)
            worker.close()
            # It has waited until all was read.
            beat = json.loads(running.paths.heartbeat(f"worker_{worker.welcome.worker_id}").read_text())
            assert (beat["state"], beat["steps"]) == ("stopped", number)
        assert len(running.tables.items[tables.SEGMENTS]) == 20
