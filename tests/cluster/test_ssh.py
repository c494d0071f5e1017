"""What `sac join --ssh` brings from the machine of the run; its tunnel, which comes back when it breaks."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import ssh_for_tests
from tests.support.gateway_for_tests import echo_server
from tests.support.settings_for_tests import write_run_json
from tests.support.ssh_for_tests import FAKE_HOST
from tests.support.waiting import gone
from tfagents_system.cluster import join
from tfagents_system.cluster.join import SshRun, SshTunnel, fetch_run
from tfagents_system.errors import UserError
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.resolved import Overrides
from tfagents_system.transport import credentials
from tfagents_system.transport.tunnel import identity_of

RUN = Path("repository/logs/my run")


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """The directory of a run with a gateway, in the home directory of another machine."""
    home = tmp_path / "home"
    paths = RunPaths(home / RUN)
    paths.params_folder.mkdir(parents=True)
    ssh_for_tests.make_fake(home, monkeypatch)
    write_run_json(paths, params_kept=str(paths.params_folder / "mine.py"))
    paths.params.write_text("import beside\n")
    (paths.params_folder / "mine.py").write_text("import beside\n")
    (paths.params_folder / "beside.py").write_text("")
    paths.config.write_text("{}")
    paths.input_files.mkdir()
    (paths.input_files / "laps.npz").write_bytes(b"PK\x03")
    paths.specs.write_bytes(b"\x00specs\xff")
    paths.gateway_json.write_text(json.dumps({"host": "node7", "port": 8443, "machine": os.uname().nodename}))
    credentials.make_credentials(paths.credentials, "test")
    tell(paths, "running")
    return paths


def tell(paths: RunPaths, state: str, ago_secs: float = 0.0) -> None:
    run = {"state": state, "updated_at": time.time() - ago_secs}
    paths.status_json.write_text(json.dumps({"run": run, "roles": {}}))


def fetch(folder: Path, run: Path = RUN) -> SshRun:
    return SshRun(FAKE_HOST, run, folder / "here" / "of_run")


def test_its_inputs_come_as_they_are(there: RunPaths, tmp_path: Path) -> None:
    run = fetch(tmp_path)
    assert (run.state, run.name) == ("running", f"{FAKE_HOST}:{RUN}")
    assert identity_of(run.paths, Overrides()) == identity_of(there, Overrides()), "the gateway compares them"
    assert run.environ() == {
        "SAC_EXP_DIR": str(run.paths.exp_dir),
        "SAC_PARAMS": str(run.paths.params_folder / "mine.py"),
        "SAC_CONFIG": str(run.paths.config),
        "SAC_CREDENTIALS_DIR": str(run.paths.credentials),
    }
    assert (run.paths.params_folder / "beside.py").exists(), "params import what is beside them"
    assert (run.paths.input_files / "laps.npz").read_bytes() == b"PK\x03"
    assert stat.S_IMODE(run.paths.exp_dir.stat().st_mode) == 0o700
    assert credentials.check_credentials(run.paths.credentials) == []
    shutil.rmtree(there.params_folder)
    assert fetch(tmp_path).environ()["SAC_PARAMS"] == str(run.paths.params), "that of the first fetch is gone"


def test_the_gateway_is_on_the_machine_of_the_login_or_behind_it(there: RunPaths, tmp_path: Path) -> None:
    assert fetch(tmp_path).gateway == "127.0.0.1:8443"
    there.gateway_json.write_text('{"host": "node7", "port": 8443, "machine": "node7"}')
    assert fetch(tmp_path).gateway == "node7:8443"


@pytest.mark.parametrize(("state", "ago_secs", "found"), [("stopped", 0, "stopped"), ("running", 99, "dead")])
def test_a_run_that_does_not_go_on_is_not_joined(
    state: str, ago_secs: float, found: str, there: RunPaths, tmp_path: Path
) -> None:
    tell(there, state, ago_secs)
    with pytest.raises(UserError, match=f"my run is {found}, not running: start it there with run_script.sh"):
        fetch(tmp_path).tunnel()


def test_what_is_missing_there_is_told(there: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"me@fake:logs/none is no run directory, or me@fake can't read it: give --to"):
        fetch(tmp_path, Path("logs/none"))
    with pytest.raises(UserError, match=r"me@fake:repository/logs is no run directory"):
        fetch(tmp_path, RUN.parent)
    there.gateway_json.unlink()
    with pytest.raises(UserError, match=r"my run has no gateway: start it with SAC_GATEWAY_PORT=0"):
        fetch(tmp_path)
    there.gateway_json.write_text('{"port": 8443}')
    with pytest.raises(UserError, match=r"my run has no gateway: start it with .* or wait until it is up"):
        fetch(tmp_path)
    there.gateway_json.write_text('{"host": "node7", "port": 8443}')
    shutil.rmtree(there.credentials)
    with pytest.raises(UserError, match=r"credentials can't be read or is missing: log in"):
        fetch(tmp_path)
    ssh_for_tests.refuse("me@fake: Permission denied (publickey).", monkeypatch)
    with pytest.raises(UserError, match=r"ssh me@fake fails \(me@fake: Permission denied.*ssh-copy-id.*BatchMode=yes"):
        fetch(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"--ssh needs the program ssh.*openssh-client"):
        fetch(tmp_path)
    with pytest.raises(UserError, match=r"--ssh '-oProxyCommand=x' must be a host"):
        SshRun("-oProxyCommand=x", RUN, tmp_path / "here")


def test_nothing_stays_here(there: RunPaths, tmp_path: Path) -> None:
    copy = tmp_path / "logs" / "joined" / "laptop" / "of_run"
    with fetch_run(FAKE_HOST, RUN, copy):
        assert copy.is_dir()
    assert not (tmp_path / "logs").exists()
    with fetch_run(FAKE_HOST, RUN, copy):
        (copy.parent / "logs").mkdir()
    assert not copy.exists() and (copy.parent / "logs").exists(), "workers' logs are for the user"


@pytest.mark.parametrize("more", [[], ["--to", "a", "--server", "b:1"], ["--to", "a", "--credentials", "c"]])
def test_its_arguments_are_checked_first(more: list[str]) -> None:
    with pytest.raises(UserError, match="--ssh needs --to with the run directory on that machine"):
        join.main(["--ssh", FAKE_HOST, *more])


def test_a_run_that_is_done_is_joined_by_nobody(
    there: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(there, "done")
    monkeypatch.setenv("SAC_EXP_DIR", str(tmp_path / "elsewhere"))
    assert join.main(["--ssh", FAKE_HOST, "--to", str(RUN)]) == 0
    assert f"{FAKE_HOST}:{RUN} is finished" in capsys.readouterr().out
    assert not (tmp_path / "elsewhere").exists()


# The tunnel.


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the login is; tests/end_to_end/test_joining_by_ssh.py has a real one."""
    monkeypatch.setattr(join, "_AGAIN_SECS", 0.1)
    ssh_for_tests.make_fake(tmp_path, monkeypatch)
    return FAKE_HOST


@pytest.fixture
def target() -> Iterator[str]:
    with echo_server() as port:
        yield f"127.0.0.1:{port}"


def answers(server: str) -> bool:
    """Whether what is sent comes back."""
    address, _, port = server.rpartition(":")
    try:
        with socket.create_connection((address, int(port)), timeout=5) as connection:
            connection.sendall(b"there and back")
            return connection.recv(100) == b"there and back"
    except OSError:
        return False


def in_time(is_so: Callable[[], bool], look: Callable[[], None]) -> bool:
    deadline = time.monotonic() + 20.0
    while not is_so():
        if time.monotonic() > deadline:
            return False
        look()
        time.sleep(0.05)
    return True


def processes() -> list[psutil.Process]:
    """Those of `ssh` that tunnels of this process have started."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.ZombieProcess, psutil.NoSuchProcess):  # What another test has left.
            if "ExitOnForwardFailure=yes" in child.cmdline():  # Of Slurm's daemons, too, `-N` is an option.
                found.append(child)
    return found


def test_it_comes_back_at_the_same_port_and_leaves_nothing_over(
    host: str, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.closing(SshTunnel(host, target)) as tunnel:
        assert answers(tunnel.server)
        (first,) = processes()
        assert os.getsid(first.pid) == first.pid, "Ctrl-C at the terminal is not for it"
        for _ in range(2):
            (process,) = processes()
            process.kill()
            assert gone(process.pid, 10.0) and in_time(lambda: answers(tunnel.server), tunnel.look)
        (last,) = processes()
    assert capsys.readouterr().out.count(f"the tunnel by ssh {host} is broken") == 1, "told once a minute"
    assert gone(last.pid, 10.0) and processes() == []
    assert not answers(tunnel.server)


def test_it_ends_with_a_program_that_is_killed(host: str, target: str) -> None:
    code = (
        "import sys, time; from tfagents_system.cluster.join import SshTunnel\n"
        "tunnel = SshTunnel(*sys.argv[1:]); print(tunnel._process.pid, flush=True); time.sleep(60)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code, host, target], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    assert not gone(pid, 0.0)
    owner.send_signal(signal.SIGKILL)
    owner.communicate(timeout=10)
    assert gone(pid, 5.0)


def test_what_ssh_says_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh_for_tests.make_fake(tmp_path, monkeypatch)
    ssh_for_tests.refuse("administratively prohibited", monkeypatch)
    with pytest.raises(UserError, match=r"me@fake opens no tunnel .* \(administratively prohibited\).*AllowTcpForward"):
        SshTunnel(FAKE_HOST, "127.0.0.1:9")
    (call,) = ssh_for_tests.calls(tmp_path)
    for option in ("BatchMode=yes", "ExitOnForwardFailure=yes", "ServerAliveInterval=15", "ControlMaster=no"):
        assert f"-o {option}" in call


def test_a_host_that_does_not_answer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "_OPEN_SECS", 0.3)
    ssh_for_tests.put_in_path("exec sleep 60", tmp_path, monkeypatch)
    with pytest.raises(UserError, match=r"opens no tunnel .* \(no answer\)"):
        SshTunnel(FAKE_HOST, "127.0.0.1:9")
    assert processes() == []


def test_what_the_system_refuses_is_tried_again(host: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start = join.processes.start_apart
    refused: list[Any] = []

    def refuse_twice(*command: Any, **options: Any) -> Any:
        if len(refused) < 2:
            refused.append(command)
            raise OSError(11, "Resource temporarily unavailable")
        return start(*command, **options)

    with contextlib.closing(SshTunnel(host, target)) as tunnel:
        assert answers(tunnel.server)
        monkeypatch.setattr(join.processes, "start_apart", refuse_twice)
        assert tunnel._process is not None
        tunnel._process.kill()
        assert in_time(lambda: len(refused) == 2, tunnel.look)
        assert in_time(lambda: answers(tunnel.server), tunnel.look)
