"""A role on another machine: its tunnel carries Reverb's protocol, through deaths of each of its ends in turn."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from tests.support.gateway_for_tests import (
    DEADLINE_SECS,
    IDENTITY,
    echo_server,
    running_gateway,
    segment,
    slow_line,
    wait_until,
)
from tests.support.ports import free_port
from tests.support.waiting import gone
from tfagents_system.errors import UserError
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.transport import tables
from tfagents_system.transport.connection import Connection, Waiting
from tfagents_system.transport.tunnel import Hello, Tunnel, check_path, refusals, route_to
from tfagents_system.worker.sender import SegmentSender

ROOT = Path(__file__).resolve().parents[2]
STEPS = 100


class Host:
    """A run's replay server and its gateway, each a process."""

    def __init__(self, folder: Path) -> None:
        self.paths = RunPaths(folder / "run")
        self.replay_port, self.port = free_port(), free_port()
        self.replay = self.start("host_for_tests", self.paths.exp_dir, self.replay_port)
        self.gateway = self.start("gateway_for_tests", folder, self.port, self.replay_port)

    def start(self, name: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", f"tests.support.{name}", *map(str, arguments)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert process.stdout is not None and process.stdout.readline()
        return process

    def restart_replay(self) -> None:
        self.replay.kill()
        self.replay.wait()
        self.replay = self.start("host_for_tests", self.paths.exp_dir, self.replay_port)

    def restart_gateway(self) -> None:
        self.gateway.kill()
        self.gateway.wait()
        self.gateway = self.start("gateway_for_tests", self.paths.exp_dir.parent, self.port, self.replay_port)

    def tunnel(self, kind: str = "collect", token: str = "t", port: int = 0) -> Tunnel:
        address = f"localhost:{port or self.port}"
        return Tunnel(address, Hello(kind, IDENTITY, token=token), self.paths.credentials, None)

    def end(self) -> dict[str, Any]:
        """What is stored."""
        assert self.replay.stdin is not None and self.replay.stdout is not None
        self.replay.stdin.close()
        stored: dict[str, Any] = json.loads(self.replay.stdout.readline())
        return stored

    def kill(self) -> None:
        for process in (self.replay, self.gateway):
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """The test that kills it comes last."""
    host = Host(tmp_path_factory.mktemp("host"))
    yield host
    host.kill()


@contextlib.contextmanager
def joined(tunnel: Tunnel) -> Iterator[tuple[Tunnel, Connection]]:
    connection = Connection(tunnel.address, lambda: False, tunnel.socket)
    try:
        wait_until(lambda: tunnel.welcome is not None)
        connection.wait_until_up(DEADLINE_SECS)
        yield tunnel, connection
    finally:
        connection.close()
        tunnel.close()


def child_of(tunnel: Tunnel) -> int:
    return tunnel._process.pid


def test_queues_news_and_newest_items_pass_both_ways(host: Host) -> None:
    """A trainer and a worker elsewhere; what goes to and from the replay server's own machine is Reverb's."""
    weights = [np.array([1, 5]), np.random.default_rng(0).normal(size=200_000)]
    with joined(host.tunnel("trainer", "a")) as (_, trainer), joined(host.tunnel("collect", "b")) as (_, worker):
        news, newest, reports = worker.news(tables.news(0)), worker.newest(tables.WEIGHTS), trainer.reader("reports")
        trainer.put(tables.WEIGHTS, weights)
        progress = tables.Progress(1, 2, 3, 4)
        trainer.put([tables.PROGRESS, tables.news(0), tables.news(3)], progress.to_wire())
        came = news.get(DEADLINE_SECS)
        assert came is not None and tables.Progress.from_wire(came) == progress
        got = newest.get(DEADLINE_SECS)
        assert got is not None
        np.testing.assert_array_equal(got[1], weights[1])
        assert worker.try_put(tables.REPORTS, [np.arange(3)], DEADLINE_SECS)
        report = reports.get(DEADLINE_SECS)
        assert report is not None and report[0].tolist() == [0, 1, 2]


def test_over_a_slow_line_large_items_arrive_once(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though each takes longer than anyone waits for it at a time."""
    monkeypatch.setattr("tfagents_system.transport.connection._PUT_TIMEOUT_SECS", 0.5)
    item = [np.random.default_rng(0).integers(0, 255, 400_000).astype(np.uint8)]
    with slow_line(host.port, 200_000.0) as port, joined(host.tunnel(port=port)) as (_, worker):
        assert worker.try_put(tables.BLOCKS, item, 0.5)  # Which nobody has read.
        assert worker.size(tables.BLOCKS) == 1
        assert worker.try_put(tables.WEIGHTS, item, 0.5)
        newest, got = worker.newest(tables.WEIGHTS), None
        began = time.monotonic()
        while got is None and time.monotonic() - began < DEADLINE_SECS:
            got = newest.get(0.3)
            time.sleep(0.3)  # It comes while nobody waits.
        assert got is not None and np.array_equal(got[0], item[0])


def test_experience_is_stored_once_though_each_end_is_killed_in_turn(host: Host) -> None:
    kills: list[Callable[[Tunnel], None]] = [
        lambda tunnel: os.kill(child_of(tunnel), signal.SIGKILL),
        lambda tunnel: host.restart_gateway(),
        lambda tunnel: host.restart_replay(),
        lambda tunnel: os.kill(child_of(tunnel), signal.SIGKILL),
    ]
    with joined(host.tunnel()) as (tunnel, connection):
        assert tunnel.welcome is not None and tunnel.welcome.slot == 0
        sender = SegmentSender(connection, 0, time.time_ns())
        for number in range(60):
            if number % 12 == 6 and kills:
                kills.pop(0)(tunnel)
            sender.send(segment(0, 0, STEPS))
            sender.confirm()
        sender.flush(Waiting("the segments", 120.0, lambda: False))
        assert not kills and sender.unconfirmed_segments == 0
        assert tunnel.welcome.slot == 0 and tunnel.describe() == ""
    stored = host.end()
    assert (stored["steps"], stored["malformed"]) == (60 * STEPS, 0)


# The program, in front of any server.


def echoed(tunnel: Tunnel, word: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(DEADLINE_SECS)
        connection.connect(tunnel.socket)
        connection.sendall(word)
        return connection.recv(100)


def test_the_socket_is_ours_alone_and_held_until_the_gateway_is_there(tmp_path: Path) -> None:
    with echo_server() as replay_port, running_gateway(tmp_path, replay_port=replay_port) as running:
        tunnel = running.tunnel()
        try:
            wait_until(lambda: os.path.exists(tunnel.socket))
            assert stat.S_IMODE(os.stat(os.path.dirname(tunnel.socket)).st_mode) == 0o700
            assert echoed(tunnel, b"at once") == b"at once"
            pid = child_of(tunnel)
        finally:
            tunnel.close()
        assert gone(pid, 10.0) and not os.path.exists(os.path.dirname(tunnel.socket))
        wait_until(lambda: not running.gateway.slots.sessions)


def test_it_ends_with_its_role(tmp_path: Path) -> None:
    code = (
        "import os, sys, time; from pathlib import Path\n"
        "from tfagents_system.transport.tunnel import Hello, Tunnel\n"
        "tunnel = Tunnel(sys.argv[1], Hello('collect'), Path(sys.argv[2]), None)\n"
        "print(tunnel._process.pid, tunnel.socket, flush=True)\n"
        "time.sleep(600)\n"
    )
    with running_gateway(tmp_path) as running:
        command = [sys.executable, "-c", code, running.address, str(running.paths.credentials)]
        role = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert role.stdout is not None
        pid, path = role.stdout.readline().split()
        wait_until(lambda: os.path.exists(path))
        role.kill()
        role.wait()
        assert gone(int(pid), 15.0) and not os.path.exists(os.path.dirname(path))


def test_it_is_started_again_after_a_start_that_fails_and_its_role_logs_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with running_gateway(tmp_path) as running:
        tunnel = running.tunnel()
        wait_until(lambda: tunnel.welcome is not None)
        start = mock.Mock(wraps=tunnel._start, side_effect=[OSError("no memory"), mock.DEFAULT])
        monkeypatch.setattr(tunnel, "_start", start)
        monkeypatch.setattr("tfagents_system.transport.tunnel._SPEAK_SECS", 0.0)
        os.kill(child_of(tunnel), signal.SIGKILL)
        wait_until(lambda: start.call_count == 2 and tunnel.down == "")
        tunnel.close()
    assert "the tunnel can't be started: no memory" in caplog.text
    assert "(its tunnel has ended with exit code -9, and is started again): check that" in caplog.text


def test_its_last_words_arrive_and_its_slot_is_free(tmp_path: Path) -> None:
    with running_gateway(tmp_path, max_workers=2) as running:
        for number in range(3):
            tunnel = running.tunnel(token=str(number))
            wait_until(lambda tunnel=tunnel: tunnel.welcome is not None)  # type: ignore[misc]
            tunnel.tell({"state": "stopped", "steps": number})
            tunnel.close()
            beat = json.loads(running.paths.heartbeat("worker_1").read_text())
            assert (beat["state"], beat["steps"]) == ("stopped", number)


def test_refusals_and_the_end_of_the_run_are_told(tmp_path: Path) -> None:
    with running_gateway(tmp_path) as running:
        stranger = Tunnel(running.address, Hello("collect"), running.paths.credentials, None)
        wait_until(lambda: stranger.refused is not None)
        assert stranger.refused is not None and "another params file" in stranger.refused.message
        stranger.close()
        tunnel = running.tunnel()
        wait_until(lambda: tunnel.welcome is not None)
        running.end("stopped")
        wait_until(lambda: tunnel.end_of_run == "stopped")
        tunnel.close()
    lonely = running.tunnel(token="late")
    wait_until(lambda: "can't reach the gateway at" in lonely.describe() and "onnect" in lonely.down)
    lonely.close()


# The path, tried before a role starts.


def test_the_path_is_tried_step_by_step(tmp_path: Path) -> None:
    with running_gateway(tmp_path, password="correct horse battery") as running:
        (tmp_path / "password").touch(0o600)
        (tmp_path / "password").write_text("correct horse battery\n")
        way = running.address, running.paths.credentials, tmp_path / "password"
        facts = check_path(*way, identity=IDENTITY).report()
        assert f"the gateway at {running.address} lets us in: it has tfagents_system 0.1.0 and the same inputs" in facts
        (error,) = check_path(*way, identity={"params": "d" * 64}).errors
        assert "refuses us: the run was started with another params file" in error
        assert refusals(*way) == []
        (tmp_path / "password").write_text("another horse battery\n")
        (refusal,) = refusals(*way)
        assert "asks for a password, another one was given" in refusal
    (error,) = check_path(*way).errors
    assert "nobody listens on localhost port" in error


@pytest.mark.parametrize("address", ["node7", "node7:", ":8100", "node7:0", "node7:70000", "node7:x"])
def test_an_address_that_is_none_is_refused(address: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="must be host:port, such as node7:8100"):
        route_to(address, Hello("collect"), tmp_path, None)
