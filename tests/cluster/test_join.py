"""Workers that join a run: how it is found, where they work, and how they end; with small programs as workers."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import socket
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from tests.support.fake_run import CRASHES, SAVES, ProgramStarter, command_of, variables_of
from tests.support.gateway_for_tests import running_gateway
from tests.support.machines import flat
from tests.support.settings_for_tests import variables_with, write_run_json
from tests.support.shell import ROOT, run
from tests.support.supervised import once_up
from tfagents_system.cluster import join
from tfagents_system.cluster.join import JoinPreparation, Target, find_target
from tfagents_system.errors import UserError
from tfagents_system.launch import prepare, role_process
from tfagents_system.launch.cpus import plan_for
from tfagents_system.launch.prepare import Preparation
from tfagents_system.launch.supervisor import Supervisor
from tfagents_system.launch.trial import Inspection
from tfagents_system.machine.claims import Claims
from tfagents_system.machine.files import write_json
from tfagents_system.machine.processes import processes_of_run
from tfagents_system.machine.signals import StopFlag
from tfagents_system.run_files.run_directory import origin_of_run
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.load_params import load_params_class
from tfagents_system.settings.resolved import Overrides, Settings
from tfagents_system.transport.tunnel import identity_of

HERE = "this_machine"
GATEWAY = {"host": "node7", "port": 8443, "machine": "node7"}
WORKERS = ("worker_0", "worker_1")


@pytest.fixture
def running(tmp_path: Path) -> RunPaths:
    """The directory of a run that continues."""
    paths = RunPaths(tmp_path / "run")
    paths.credentials.mkdir(parents=True)
    paths.gateway_json.write_text(json.dumps(GATEWAY))
    begin(paths)
    tell(paths, "running")
    return paths


def begin(paths: RunPaths, expert_workers: int = 0, **run: Any) -> None:
    counts = {"num_collect_workers": 2, "local_workers": 2, "max_workers": 4, "envs_per_worker": 3}
    counts |= {"collect_worker_cpus": 64, "expert_workers": expert_workers}  # The first is not taken over.
    variables = variables_with(exp_dir=paths.exp_dir, seed=5, **counts)
    write_run_json(paths, variables=variables, attributes={"num_iter": 9}, **run)


def tell(paths: RunPaths, state: str, **more: object) -> None:
    roles = more.pop("roles", {})
    run = {"state": state, "updated_at": time.time(), "host": HERE, "port": 8123, "pid": 1} | more
    beside = paths.status_json.with_suffix(".new")
    beside.write_text(json.dumps({"run": run, "roles": roles}))
    os.replace(beside, paths.status_json)


# Where the run is.


def target_of(run: RunPaths) -> Target:
    return Target("node7:8443", run.credentials, None, run)


def test_the_run_directory_tells_gateway_and_credentials(running: RunPaths) -> None:
    target = find_target(running, {"SAC_PASSWORD_FILE": "/etc/word"})
    assert target == Target("node7:8443", running.credentials, Path("/etc/word"), running, follows=True)
    running.gateway_json.write_text(json.dumps(GATEWAY | {"machine": socket.gethostname()}))
    assert find_target(running, {}).server == "127.0.0.1:8443", "whatever its name leads to here"
    given = {"SAC_SERVER": "login:8443", "SAC_CREDENTIALS_DIR": "/keys"}
    assert find_target(running, given) == Target("login:8443", Path("/keys"), None, running)


def test_what_can_not_be_known_is_asked_for(running: RunPaths) -> None:
    with pytest.raises(UserError, match=r"which run\? Give --to with its directory, or --server HOST:PORT"):
        find_target(None, {})
    with pytest.raises(UserError, match=r"no credentials for the server node7:8443.*--credentials DIR"):
        find_target(None, {"SAC_SERVER": "node7:8443"})
    running.gateway_json.unlink()
    with pytest.raises(UserError, match=r"run has no gateway: start it with SAC_GATEWAY_PORT=0"):
        find_target(running, {})


def test_a_run_that_is_being_started_is_waited_for(running: RunPaths, tmp_path: Path) -> None:
    tell(running, "starting")
    looks: list[float] = []

    def stop(secs: float) -> bool:
        looks.append(secs)
        if len(looks) == 3:
            tell(running, "running")
        return False

    assert join.wait_for_run([RunPaths(tmp_path / "other"), running], stop) == running
    assert len(looks) == 3
    assert join.wait_for_run([RunPaths(tmp_path / "other")], lambda secs: True) is None


def test_a_machine_whose_clock_is_ahead_finds_a_live_run(running: RunPaths) -> None:
    began = time.time() - 300.0  # By the clock here, all beats are five minutes old.
    tell(running, "running", updated_at=began)
    assert waits(running), "so far it may as well be dead"
    tell(running, "running", updated_at=began + 2.0)
    assert not waits(running)


def waits(run: RunPaths, since: float = 0.0) -> bool:
    """Whether a command that joins a run would wait, as things are."""
    return join.wait_for_run([run], lambda secs: True, since) is None


def test_a_run_with_a_gateway_is_up_once_its_gateway_is(running: RunPaths) -> None:
    tell(running, "running", roles={"gateway": {"state": "starting"}})
    running.gateway_json.unlink()
    assert waits(running)
    running.gateway_json.write_text(json.dumps(GATEWAY))
    assert not waits(running)
    write_json(running.gateway_json, {"port": 8443})
    assert waits(running), "a start has forgotten the address of the one before"
    tell(running, "running", roles={"gateway": {"state": "stopped", "given_up": True}})
    assert not waits(running), "it would wait in vain: the error says that there is no gateway"


def test_further_nodes_of_a_job_wait_for_the_run_of_their_own_attempt(running: RunPaths) -> None:
    began = time.time()
    tell(running, "running", started_at=began - 20.0)
    assert waits(running, began) and not waits(running), "its node was lost seconds ago"
    tell(running, "running", started_at=began + 20.0)
    assert not waits(running, began)


@pytest.mark.parametrize("state", ["done", "failed"])
def test_a_run_that_is_finished_is_not_waited_for(running: RunPaths, tmp_path: Path, state: str) -> None:
    """Its supervisor may have failed after the last update."""
    stop = MagicMock(return_value=True)
    tell(running, state, started_at=9.0, roles={"trainer": {"state": "done", "num_iter": 9}})
    assert join.wait_for_run([running, RunPaths(tmp_path / "other")], stop) is None and not stop.called
    assert join.wait_for_run([running], stop, since=10.0) is None and stop.called, "it is that of an earlier attempt"


def test_a_run_that_is_not_started_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "_WAIT_SECS", 0.0)
    with pytest.raises(UserError, match=r"the run in .*none has not been started for 0 s: start it with run_script.sh"):
        join.wait_for_run([RunPaths(tmp_path / "none")], lambda secs: False)


# What this machine has for it.


def environ_of(folder: Path) -> dict[str, str]:
    (folder / "params.py").write_text("")
    (folder / "config.json").write_text("{}")
    counts = {"REVERB_CPUS": "1", "TRAIN_CPUS": "64", "NUM_COLLECT_WORKERS": "99", "COLLECT_WORKER_CPUS": "1"}
    places = {"EXP_DIR": f"{folder}/run", "PARAMS": f"{folder}/params.py", "CONFIG": f"{folder}/config.json"}
    values = {"EXP_NAME": "test", "REVERB_PORT": "8008", **places, **counts}
    return {f"SAC_{name}": value for name, value in values.items()}


def test_as_many_as_there_are_cpus_and_slots(
    running: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join.os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(join, "plan_for", lambda *args, **kwargs: None)

    def workers(wanted: int | None = None, target: Target | None = None) -> JoinPreparation:
        return JoinPreparation(environ_of(tmp_path), None, target or target_of(running), running.joined, wanted)

    assert workers().workers == 2, "the run has four slots, two of them for its own workers"
    assert workers(1).workers == 1
    (error,) = workers(3).findings.errors
    assert "--workers 3, but the run has 2 slots for workers of kind collect" in error
    assert workers(target=Target("a:1", Path("/c"), None, None)).workers == 8


@pytest.mark.parametrize("is_trainer", [False, True])
def test_a_wrong_password_is_told_before_the_environment_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_trainer: bool
) -> None:
    tried: list[str] = []

    def inspect(*_: object, **__: object) -> Inspection:
        tried.append("")
        return Inspection()

    def errors(password: str) -> list[str]:
        file.write_text(password)
        if is_trainer:
            own = {"SAC_TRAINER_SERVER": there.address, "SAC_CREDENTIALS_DIR": str(folder)}
            made = Preparation(environ_of(tmp_path) | own | {"SAC_PASSWORD_FILE": str(file)}, None)
        else:
            target = Target(there.address, folder, file, None)
            made = JoinPreparation(environ_of(tmp_path), None, target, tmp_path / "joined", 1)
        made.run()
        return made.findings.texts("ERROR", "server")

    monkeypatch.setattr(prepare, "run_trial", inspect)
    (file := tmp_path / "password").touch(mode=0o600)
    with running_gateway(tmp_path / "there", password="correct horse battery") as there:
        folder = there.paths.credentials
        (error,) = errors("wrong horse battery!")
        assert "asks for a password, another one was given: set SAC_PASSWORD_FILE" in error and not tried
        monkeypatch.setattr(JoinPreparation, "_check_server", lambda _: None)
        assert errors("correct horse battery") == [] and tried
    assert errors("wrong horse battery!") == [], "there is no gateway yet"


def test_the_input_files_of_this_machine_are_part_of_what_is_compared(tmp_path: Path) -> None:
    """Where the run can't be seen from here, its gateway compares the files."""
    target, own, digests = Target("a:1", Path("/c"), None, None), RunPaths(tmp_path / "here"), []
    preparation = JoinPreparation(environ_of(tmp_path), None, target, own.exp_dir, 1)
    preparation.inspection.specs = b""
    own.exp_dir.mkdir()
    for content in (b"PK1", b"PK2", None):
        (tmp_path / "laps.npz").write_bytes(content or b"")
        preparation.inspection.config = {"input_files": {} if content is None else {"laps": "laps.npz"}}
        preparation.write_inputs(own)
        digests.append(identity_of(own, Overrides()).get("input_files/laps.npz"))
    assert digests == [hashlib.sha256(b"PK1").hexdigest(), hashlib.sha256(b"PK2").hexdigest(), None]


def test_the_runs_own_settings_win(running: RunPaths, tmp_path: Path) -> None:
    target = target_of(running)
    preparation = JoinPreparation(environ_of(tmp_path), None, target, running.joined, 2)
    assert preparation.findings.errors == []
    variables = preparation.variables()
    assert (variables.num_collect_workers, variables.local_workers) == (2, 2)
    assert (variables.envs_per_worker, variables.seed) == (3, 5)
    assert variables.collect_worker_cpus == 1, "that is this machine's"
    assert (variables.reverb_cpus, variables.train_cpus, variables.reverb_port) == (0, 0, None)


def test_what_is_beside_the_params_comes_with_them(
    running: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's paths may be those of another machine."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    there = "/machine/of/the/run/mine.py"
    files = {"beside_joined.py": "", "removed.py": ""}
    begin(running, params_source=there, params_kept=there, params_files=files)
    running.params_folder.mkdir()
    os.mkfifo(running.params_folder / "written_by_the_run")
    (running.params_folder / "beside_joined.py").write_text("VALUE = 7\n")
    (running.params_folder / "__pycache__").mkdir()
    running.params.write_text(
        "import beside_joined\nfrom tfagents_system.train_params_base import TrainParamsBase\n\n"
        "class TrainParams(TrainParamsBase):\n    num_iter = beside_joined.VALUE\n"
        "    def env_ctor(self, *args, seed=None, **kwargs): ...\n"
    )
    running.config.write_text("{}")
    running.input_files.mkdir()
    (running.input_files / "laps.npz").write_bytes(b"PK1")
    target = target_of(running)
    preparation = JoinPreparation(environ_of(tmp_path), None, target, running.joined, 1)
    own = RunPaths(running.joined / HERE)
    own.params_folder.mkdir(parents=True)
    own.input_files.mkdir()
    for stale in (own.params_folder / "of_an_earlier_join.py", own.input_files / "of_an_earlier_join.npz"):
        stale.write_text("")
    preparation.inspection.specs = b"specs"
    preparation.write_inputs(own)
    assert load_params_class(own.params, origin_of_run(own)).num_iter == 7
    assert [path.name for path in own.params_folder.iterdir() if path.name != "__pycache__"] == ["beside_joined.py"]
    assert own.specs.read_bytes() == b"specs"
    assert {stat.S_IMODE(file.stat().st_mode) for file in (own.params, own.config)} == {0o600}
    assert [(path.name, path.read_bytes()) for path in own.input_files.iterdir()] == [("laps.npz", b"PK1")]
    shutil.rmtree(running.params_folder)
    preparation.write_inputs(own)
    assert not own.params_folder.exists(), "the run keeps none"


def test_two_joins_at_once_have_folders_of_their_own(tmp_path: Path) -> None:
    first, second = Claims(), Claims()
    names = [join.take_folder(tmp_path, HERE, claims).name for claims in (first, second)]
    assert names == [HERE, f"{HERE}_2"]
    first.release_all()
    assert join.take_folder(tmp_path, HERE, Claims()).name == HERE
    second.release_all()


# How they end.


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(role_process, "_FIRST_BACKOFF_SECS", 0.01)
    monkeypatch.setattr(role_process, "_MAX_BACKOFF_SECS", 0.05)
    folder = tmp_path / "joined"
    yield folder
    assert list(processes_of_run(folder)) == []


def workers_in(folder: Path, stop: StopFlag, program: str, run: RunPaths | None = None) -> Supervisor:
    spec = {"exp_dir": str(folder), "roles": {"worker": program}, "workers": 2, "max_restarts": 1}
    variables = dataclasses.replace(variables_of(spec), reverb_cpus=0, train_cpus=0)
    plan = plan_for(vars(variables), usable=flat([0]))
    target, starter = Target("node7:8443", Path("/credentials"), None, run), ProgramStarter(command_of(spec))
    return join.JoinSupervisor(variables, plan, Claims(), 0, stop, starter, step_secs=0.02, target=target)


def test_their_settings_have_the_numbers_of_the_run_and_its_place(
    running: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("claim_cpus", "JoinSupervisor"):
        monkeypatch.setattr(join, name, MagicMock())
    own = RunPaths(running.joined / HERE)
    own.exp_dir.mkdir(parents=True)
    here = {"reverb_cpus": 0, "train_cpus": 0, "local_workers": 1, "collect_worker_cpus": 3, "worker_role": "eval"}
    target = Target("node7:8443", Path("/credentials"), None, running)
    variables = variables_with(server=target.server, credentials_dir=target.credentials_dir, **here)

    def write_inputs(paths: RunPaths) -> None:
        shutil.copy(running.run_json, paths.run_json)

    preparation = MagicMock(target=target, overrides=Overrides(), write_inputs=write_inputs)
    preparation.variables.return_value = variables
    join.join(preparation, own.exp_dir, Claims(), StopFlag(signals=()), MagicMock())
    found = Settings.read(own.run_json).variables
    assert (found.server, found.credentials_dir) == ("node7:8443", Path("/credentials"))
    assert (found.seed, found.envs_per_worker, found.train_cpus, found.local_workers) == (5, 3, 1, 2), "of the run"
    assert (found.collect_worker_cpus, found.worker_role, found.exp_dir) == (3, "eval", own.exp_dir), "its own"


def test_the_closing_line_says_who_has_stopped_the_run(
    folder: Path, running: RunPaths, stop: StopFlag, capfd: pytest.CaptureFixture[str]
) -> None:
    tell(running, "running", message="stopped by SIGUSR1")
    assert workers_in(folder, stop, "exit 75", running).run() == 75
    closing = "the run was stopped by SIGUSR1 on this_machine; the workers here have left the run"
    assert f"joined: {closing}" in capfd.readouterr().out


def test_the_closing_line_says_that_the_run_is_done(
    folder: Path, stop: StopFlag, capfd: pytest.CaptureFixture[str]
) -> None:
    assert workers_in(folder, stop, "exit 0").run() == 0
    assert "joined: the run is done; the workers here have left the run" in capfd.readouterr().out


def test_a_run_that_goes_on_is_not_said_to_be_stopped(running: RunPaths) -> None:
    tell(running, "running")
    assert join.how_it_ended("stopped", running).endswith("the run continues: start this again")
    tell(running, "stopped", message="the run was stopped where its replay server is")
    assert join.how_it_ended("stopped", running) == "the run was stopped"


def test_a_signal_ends_them_alone(folder: Path, stop: StopFlag, capfd: pytest.CaptureFixture[str]) -> None:
    once_up(folder, stop.set, WORKERS)
    assert workers_in(folder, stop, SAVES).run() == 75
    assert "joined: this command was stopped by SIGTERM; the workers here have left the run" in capfd.readouterr().out
    assert "saved" in (folder / "logs/worker_0.log").read_text()


def leaves(target: Target) -> tuple[int, str] | None:
    """The exit code and the reason with which workers that are at work leave, as things are."""
    supervisor = MagicMock(exit_code=None, workers=[MagicMock(is_over=False)], _target=target, _look_at=0.0)
    join.JoinSupervisor.look(supervisor)
    return supervisor.finish.call_args and supervisor.finish.call_args.args


@pytest.mark.parametrize(
    ("state", "code", "words"),
    [
        ("done", 0, "the run is done"),
        ("stopped", 75, "the run was stopped by SIGINT on this_machine"),
        ("failed", 1, "the run has failed: failed by SIGINT"),
    ],
)
def test_what_the_run_directory_says_ends_them(running: RunPaths, state: str, code: int, words: str) -> None:
    assert leaves(target_of(running)) is None
    tell(running, state, message=f"{state} by SIGINT")
    assert leaves(target_of(running)) == (code, words)


def test_a_run_that_goes_on_elsewhere_ends_them(running: RunPaths) -> None:
    """After its node was lost they would try to reach that one for ever."""
    target = dataclasses.replace(target_of(running), follows=True)
    assert leaves(target) is None
    write_json(running.gateway_json, {"port": 8443})  # As while it is restarted.
    assert leaves(target) is None
    write_json(running.gateway_json, GATEWAY | {"host": "node9"})
    assert leaves(target) == (75, "the run continues at node9:8443: start this command again to join it there")


def test_a_crashed_worker_is_restarted_and_given_up(
    folder: Path, stop: StopFlag, capfd: pytest.CaptureFixture[str]
) -> None:
    assert workers_in(folder, stop, CRASHES).run() == 1
    output = capfd.readouterr().out
    assert "worker_0 ended with exit code 1 (ValueError: no luck): restart 1 of at most 1 in a row" in output
    assert "error: no worker could stay in the run\n  exit code 1 (ValueError: no luck)" in output


def test_a_refused_worker_is_not_tried_again(folder: Path, stop: StopFlag, capfd: pytest.CaptureFixture[str]) -> None:
    program = "echo 'error: version 2 here, 1 in the run' >&2; exit 2"
    assert workers_in(folder, stop, program).run() == 2
    output = capfd.readouterr().out
    assert "worker_0 can't join: error: version 2 here, 1 in the run" in output
    assert (folder / "logs/worker_0.log").read_text().count("version 2") == 1


@pytest.mark.parametrize("name", ["run", "run_task_5"])
def test_in_a_job_array_the_named_run_is_joined(
    running: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Each task of an array of workers has a number, which is no part of the run's name."""
    monkeypatch.setattr(join, "JoinPreparation", prepared := MagicMock())
    monkeypatch.setattr(join, "join", joined := MagicMock(return_value=0))
    run = RunPaths(running.exp_dir.rename(tmp_path / name))
    environ = environ_of(tmp_path) | {"SLURM_ARRAY_TASK_ID": "2", "SAC_GRID": "of_the_run.json"}
    for variable, value in environ.items():
        monkeypatch.setenv(variable, value)
    assert join.main(["--to", str(run.exp_dir), "--server", "node7:8443"]) == 0
    (given, _, target, folder, *_), _ = prepared.call_args
    assert target.run == run and folder == run.joined == joined.call_args[0][1].parent
    assert given["SLURM_ARRAY_TASK_ID"] == "2", "params.py may read it"


# The script.


def test_the_script_refuses_bad_input_before_anything_starts(tmp_path: Path) -> None:
    vars_file = tmp_path / "vars.sh"
    lines = [f"{name}={value}" for name, value in environ_of(tmp_path).items()]
    vars_file.write_text("\n".join([*lines, "SAC_SHARE_CPUS=yes"]))
    result = run(ROOT / "tfagents_system/launch/join_script.sh", vars_file, VIRTUAL_ENV=sys.prefix)
    assert result.returncode == 2
    assert "SAC_SHARE_CPUS=yes must be 0 or 1" in result.stderr
    assert "which run? Give --to" in result.stderr
    assert "Traceback" not in result.stderr and not (tmp_path / "run").exists()
