"""What `sac join --ssh` brings from the machine of the run, and what it says where that can't be had."""

from __future__ import annotations

import json
import os
import shutil
import stat
import time
from pathlib import Path

import pytest

from tests.support import ssh_for_tests
from tests.support.settings_for_tests import write_run_json
from tests.support.ssh_for_tests import FAKE_HOST
from tfagents_system.cluster import join
from tfagents_system.cluster.ssh import SshRun, fetch_run
from tfagents_system.errors import UserError
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.overrides import Overrides
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
    }
    assert (run.paths.params_folder / "beside.py").exists(), "params import what is beside them"
    assert (run.paths.input_files / "laps.npz").read_bytes() == b"PK\x03"
    assert stat.S_IMODE(run.paths.exp_dir.stat().st_mode) == 0o700
    shutil.rmtree(there.params_folder)
    assert fetch(tmp_path).environ()["SAC_PARAMS"] == str(run.paths.params), "that of the first fetch is gone"


def test_the_credentials_come_along(there: RunPaths, tmp_path: Path) -> None:
    run = fetch(tmp_path)
    assert credentials.check_credentials(run.paths.credentials) == []


def test_the_gateway_is_on_the_machine_of_the_login_or_behind_it(there: RunPaths, tmp_path: Path) -> None:
    assert fetch(tmp_path).gateway == "127.0.0.1:8443"
    there.gateway_json.write_text('{"host": "node7", "port": 8443, "machine": "node7"}')
    assert fetch(tmp_path).gateway == "node7:8443"


@pytest.mark.parametrize(
    ("state", "ago_secs", "found"),
    [("stopped", 0, "stopped"), ("failed", 0, "failed"), ("starting", 0, "starting"), ("running", 99, "dead")],
)
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
