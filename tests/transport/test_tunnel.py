"""A role that joins a run: its tunnel carries Reverb's protocol, through deaths of each of its ends in turn."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from tests.support.gateway_for_tests import (
    DEADLINE_SECS,
    IDENTITY,
    beat_file,
    echo_server,
    running_gateway,
    slow_line,
    tunnel_to,
    wait_until,
)
from tests.support.ports import free_port
from tests.support.segments_for_tests import numbered_segment
from tests.support.settings_for_tests import variables_with
from tests.support.waiting import gone
from tests.support.warm_starts import WarmPopen
from tfagents_system import sac_collect
from tfagents_system.errors import EXIT_RENEW, UserError
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.resolved import Settings
from tfagents_system.transport import connection as connection_module
from tfagents_system.transport import tables
from tfagents_system.transport import tunnel as tunnel_module
from tfagents_system.transport.connection import Connection, Waiting
from tfagents_system.transport.credentials import make_credentials
from tfagents_system.transport.tunnel import Answer, Hello, SlotLostError, Tunnel, check_path, join
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
        process = WarmPopen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
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
        return tunnel_to(f"localhost:{port or self.port}", self.paths, kind, token=token)

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
        tunnel.leave()


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
    ]
    with joined(host.tunnel()) as (tunnel, connection):
        assert tunnel.worker_id == 0
        sender = SegmentSender(connection, 0, time.time_ns())
        for number in range(48):
            if number % 12 == 6 and kills:
                kills.pop(0)(tunnel)
            sender.send(numbered_segment(steps=STEPS))
            sender.confirm()
        sender.flush(Waiting("the segments", 120.0, lambda: False))
        assert not kills and sender.unconfirmed_segments == 0
        assert tunnel.worker_id == 0 and tunnel.down == ""
    stored = host.end()
    assert (stored["steps"], stored["malformed"]) == (48 * STEPS, 0)


# The program, in front of any server.


def test_its_socket_is_ours_alone_its_last_words_arrive_and_its_slot_is_free(tmp_path: Path) -> None:
    with (
        echo_server() as replay_port,
        running_gateway(tmp_path, max_workers=2, replay_port=replay_port) as running,
    ):
        for number in range(2):
            tunnel = running.tunnel(token=str(number))
            with socket.socket(socket.AF_UNIX) as dialled:  # It is held until the gateway lets the role in.
                dialled.settimeout(DEADLINE_SECS)
                connect = functools.partial(dialled.connect_ex, tunnel.socket)
                wait_until(lambda connect=connect: connect() == 0)  # type: ignore[misc]
                assert stat.S_IMODE(os.stat(os.path.dirname(tunnel.socket)).st_mode) == 0o700
                dialled.sendall(b"at once")
                assert dialled.recv(100) == b"at once"
            beat_file(running.paths).write_text(json.dumps({"state": "stopped", "steps": number}) + "\n")
            tunnel.leave()
            beat = json.loads(running.paths.heartbeat("worker_1").read_text())
            assert (beat["state"], beat["steps"]) == ("stopped", number)
            assert gone(child_of(tunnel), 10.0) and not os.path.exists(os.path.dirname(tunnel.socket))
        wait_until(lambda: not running.gateway.slots.sessions)


def test_it_ends_with_its_role(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from tfagents_system.transport.tunnel import Hello, Tunnel\n"
        "tunnel = Tunnel(sys.argv[1], Hello('collect'), Path(sys.argv[2]), None, Path('none'))\n"
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


def test_refusals_and_the_end_of_the_run_are_told(tmp_path: Path) -> None:
    with running_gateway(tmp_path) as running:
        stranger = tunnel_to(running.address, running.paths, identity={})
        wait_until(lambda: stranger.refused is not None)
        assert stranger.refused is not None and "other inputs: use its own params" in stranger.refused.message
        stranger.leave()
        tunnel = running.tunnel()
        wait_until(lambda: tunnel.welcome is not None)
        running.end("stopped")
        wait_until(lambda: tunnel.end_of_run == "stopped")
        tunnel.leave()
    lonely = running.tunnel(token="late")
    wait_until(lambda: "nobody listens on localhost port" in lonely.down)
    lonely.leave()


# The path, tried before a role starts.


def test_the_path_is_tried_step_by_step(tmp_path: Path) -> None:
    with running_gateway(tmp_path, password="correct horse battery") as running:
        (tmp_path / "password").touch(0o600)
        (tmp_path / "password").write_text("correct horse battery\n")
        way = running.address, running.paths.credentials, tmp_path / "password"
        facts = check_path(*way, identity=IDENTITY).report()
        assert f"the gateway at {running.address} lets us in: it has tfagents_system 0.1.0 and the same inputs" in facts
        (error,) = check_path(*way, identity={"params": "d" * 64}).errors
        assert "refuses us: the run was started with other inputs: use its own params" in error
        assert check_path(*way).errors == [], "without inputs they are not compared"
        (tmp_path / "password").write_text("another horse battery\n")
        (refusal,) = check_path(*way, must_answer=False).errors
        assert "asks for a password, another one was given" in refusal
    (error,) = check_path(*way).errors
    assert "nobody listens on localhost port" in error
    assert check_path(*way, must_answer=False).errors == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (socket.gaierror(-2, "Name not known"), "does not know the host node7 (Name not known): give its address"),
        (ConnectionRefusedError(), "nobody listens on node7 port 8443: is the run alive, with SAC_GATEWAY_PORT set"),
        (ConnectionResetError(104, "reset"), "node7 port 8443 does not prove to be the gateway of these credentials"),
        (EOFError(), "the gateway at node7 port 8443 has ended the connection"),
        (TimeoutError(), "laptop can't reach node7 port 8443 (no answer in time): is there a firewall between"),
    ],
)
def test_what_stands_in_the_way_is_told(error: Exception, words: str) -> None:
    route = tunnel_module.Route("node7", 8443, "/credentials", Hello("collect", host="laptop"))
    assert words in tunnel_module._obstacle(route, error)


def test_a_server_that_is_no_gateway_is_told(tmp_path: Path) -> None:
    make_credentials(tmp_path / "credentials", "test")
    with echo_server() as port:
        (error,) = check_path(f"127.0.0.1:{port}", tmp_path / "credentials").errors
    assert "does not prove to be the gateway" in error


# What a role makes of it.

COUNTS = {"num_collect_workers": 2, "local_workers": 1, "max_workers": 5}
SHARED: dict[str, dict[str, Any]] = Settings(variables_with(**COUNTS)).shared()


class FakeTunnel(Tunnel):
    """To a gateway that lets everybody in."""

    newest: Answer

    def __init__(self, address: str, hello: Any = None, *_: Any) -> None:
        self.address, self.hello, self.socket, self.down = address, hello, "/tmp/socket", ""
        self.welcome, self.refused, self.end_of_run, self.has_left = self.newest, None, None, False

    def leave(self) -> None:
        self.has_left = True


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    monkeypatch.setattr(tunnel_module, "Tunnel", FakeTunnel)
    monkeypatch.setattr(connection_module, "Connection", MagicMock())
    monkeypatch.setattr(tunnel_module, "identity_of", lambda *inputs: {"params": "digest"})
    monkeypatch.setattr(FakeTunnel, "newest", Answer(11, None, SHARED), raising=False)
    paths = RunPaths(tmp_path / "joined")
    paths.heartbeats.mkdir(parents=True)
    return paths


def take_part(role: str, paths: RunPaths, **values: Any) -> FakeTunnel:
    variables = variables_with(exp_dir=paths.exp_dir, credentials_dir=Path("/c"), **COUNTS, **values)
    tunnel = join(role, "node7:8443", lambda: False, Settings(variables), paths)
    assert isinstance(tunnel, FakeTunnel)
    return tunnel


def test_a_trainer_hears_that_another_run_has_begun_where_the_server_is(paths: RunPaths) -> None:
    """Its tunnel stays: another gateway welcomes it, with the number of another run."""
    tunnel = take_part("trainer", paths)
    assert tunnel.worker_id == -1 and tunnel.ended() is None
    tunnel.check()
    FakeTunnel.newest = tunnel.welcome = Answer(12, None, SHARED)
    assert tunnel.ended() == "replaced"
    with pytest.raises(UserError, match="the run at node7:8443 has begun anew since .* joined it: .*--fresh"):
        tunnel.check()
    assert take_part("trainer", paths).ended() is None, "one that has trained nothing yet may join it"
    paths.metrics_csv.write_text("train_step\n5\n")
    paths.run_json.write_text("{}")
    FakeTunnel.newest = Answer(13, None, SHARED)
    with pytest.raises(UserError, match="has begun anew"):
        take_part("trainer", paths)
    tunnel.end_of_run = "done"
    assert tunnel.ended() == "done"


def test_a_worker_takes_over_what_both_sides_share_and_is_known_when_it_comes_again(paths: RunPaths) -> None:
    variables = SHARED["variables"] | {"seed": 17, "max_workers": None, "exec_prefix": "rm", "BASH_ENV": "/tmp/x"}
    defaults = {"log_period_iters": 5, "env_ctor": 3, "horizon": "200"}
    FakeTunnel.newest = Answer(11, 4, {"variables": variables, "defaults": defaults})
    worker, again, other = (take_part(role, paths, worker_role="eval") for role in ("worker_0", "worker_0", "worker_1"))
    settings = worker.settings.variables
    assert (worker.worker_id, settings.seed, settings.slots.most, settings.local_workers) == (4, 17, 2, 1)
    assert settings.exec_prefix is None, "the other side sets what both share, and nothing else"
    assert worker.settings.overrides.defaults == {"log_period_iters": 5}
    assert worker.hello.kind == "eval" and worker.hello.identity == {"params": "digest"}
    assert worker.hello.token == again.hello.token != other.hello.token and len(other.hello.token) == 32


@pytest.mark.parametrize(("reason", "error"), [("slot_lost", SlotLostError), ("inputs", UserError)])
def test_who_is_refused_later_hears_why(paths: RunPaths, reason: str, error: type[Exception]) -> None:
    tunnel = FakeTunnel("node7:8443")
    tunnel.check()
    tunnel.refused = Answer(refused=reason, message="for this reason")
    assert tunnel.ended() == "refused"
    with pytest.raises(error, match="the gateway at node7:8443 refuses us: for this reason"):
        tunnel.check()


@pytest.mark.parametrize("closing", [None, OSError("no such device")])
def test_a_worker_whose_slot_was_given_away_leaves_and_begins_anew(
    monkeypatch: pytest.MonkeyPatch, closing: OSError | None
) -> None:
    monkeypatch.setattr(sac_collect, "make_worker", MagicMock())
    sac_collect.make_worker().close.side_effect = closing  # type: ignore[attr-defined, call-arg]
    role = MagicMock(stop=threading.Event())
    role.joined.check.side_effect = SlotLostError("slot 1 was given to another worker")
    expected: Any = pytest.raises(OSError) if closing else contextlib.nullcontext()
    with expected:
        assert sac_collect.collect(role) == EXIT_RENEW
    role.joined.leave.assert_called_once_with()
