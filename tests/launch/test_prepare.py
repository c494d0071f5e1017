"""All that is wrong is told before a process starts; a run directory keeps what the run began with."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from tests.support.prepared_runs import PARAMS, prepare_run, train
from tests.support.starts_of_a_project import update
from tfagents_system.agents.agent import make_agent
from tfagents_system.envs.specs import load_specs
from tfagents_system.errors import UserError
from tfagents_system.launch import prepare
from tfagents_system.launch.prepare import Preparation
from tfagents_system.launch.run_settings import EDITS, FRESH, KEEP, RunSettings, resolve
from tfagents_system.machine.cpus import cpu_model
from tfagents_system.run_files import kept_checkpoints, run_directory, run_lock
from tfagents_system.run_files.kept_checkpoints import AgentSignature
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.load_params import load_params
from tfagents_system.trainer.trainer_checkpoints import signature_of
from tfagents_system.transport.credentials import make_credentials


def test_a_run_directory_is_prepared(environ: dict[str, str], tmp_path: Path) -> None:
    assert prepare_run(environ)
    paths = RunPaths(tmp_path / "run")
    assert paths.params.read_text() == PARAMS
    assert json.loads(paths.config.read_text()) == {"horizon": 20}
    run = json.loads(paths.run_json.read_text())
    assert run["params_source"] == environ["SAC_PARAMS"] and run["start"]["versions"]["tf-agents"] == "0.19.0"
    machine = {"host": platform.node(), "cpus": len(os.sched_getaffinity(0)), "cpu": cpu_model()}
    assert (run["environment"], run["start"]["machine"]) == ("Pendulum-v1", machine)
    assert run["start"]["commit"] == run_directory.git_commit()
    assert (run["seed"], run["attributes"]["num_iter"]) == (5, 3)
    observation_spec, action_spec = load_specs(paths.specs)
    assert tuple(observation_spec.shape) == (3,) and tuple(action_spec.shape) == (1,)


def test_a_trainer_needs_no_room_for_the_experience_of_a_server_elsewhere(
    environ: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "params.py").write_text(PARAMS.replace("buffer_size = 200", f"buffer_size = {10**13}"))
    make_credentials(tmp_path / "keys", "try")
    environ |= {"SAC_TRAINER_SERVER": "node7:8443", "SAC_CREDENTIALS_DIR": str(tmp_path / "keys")}
    assert prepare.check(environ, None) == 0
    out = capsys.readouterr().out
    assert "replay buffer" not in out and "checkpoints, policies, logs" in out and "updates/s" not in out


def test_a_run_goes_on_with_the_agent_that_it_began_with(environ: dict[str, str], tmp_path: Path) -> None:
    """Its own params.py may be edited, but not to another agent than that of its checkpoint."""
    assert prepare_run(environ)
    paths = RunPaths(tmp_path / "run")

    def checkpoint(train_step: int, signature: AgentSignature) -> None:
        partial = kept_checkpoints.begin(paths.trainer_checkpoints, train_step)
        (partial / "agent.index").write_bytes(b"index")
        kept_checkpoints.finish(partial, train_step, 1, {}, signature)

    checkpoint(5, {"class": "Redq", "256x256": 10})
    with pytest.raises(UserError) as raised:
        prepare_run(environ)
    (finding,) = raised.value.findings
    assert (
        "checkpoint_0000000005 and TrainParams have different agents" in finding
        and "choose another SAC_EXP_NAME" in finding
    )
    params = load_params(paths.params, {"horizon": 20})
    agent = make_agent(params, *load_specs(paths.specs), tf.Variable(0, dtype=tf.int64))
    checkpoint(10, signature_of(agent))
    assert prepare_run(environ)
    kept_checkpoints.remember(paths.saved, 10)
    for is_damaged in (True, False):
        for path in paths.trainer_checkpoints.iterdir():
            if is_damaged:
                (path / "agent.index").write_bytes(b"")
            else:
                shutil.rmtree(path)
        with pytest.raises(UserError, match="the run has had a checkpoint after 10 updates in "):
            prepare_run(environ)


@pytest.mark.usefixtures("untried")
def test_a_run_without_an_update_takes_the_files_and_settings_as_they_are_now(
    environ: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = RunPaths(tmp_path / "run")
    assert prepare_run(environ)
    for folder in (paths.replay, paths.trainer_checkpoints / "checkpoint_0000000000", paths.policies):
        folder.mkdir(parents=True)
    assert prepare_run(environ)
    assert paths.replay.exists(), "nothing has changed: what was collected stays"
    (tmp_path / "params.py").write_text(PARAMS.replace("num_iter = 3", "num_iter = 9"))
    capsys.readouterr()
    settings = resolve(environ | {"SAC_SEED": "6"}, ["discount=0.5"], vars_file=None, root=tmp_path)
    assert settings.findings == () and prepare_run(environ | {"SAC_SEED": "6"}, settings)
    out = capsys.readouterr().out
    assert "own copy" not in out and f"params {environ['SAC_PARAMS']}" in out
    assert "num_iter = 9" in paths.params.read_text()
    run = run_directory.read_run_json(paths)
    assert (run["seed"], run["attributes"]["num_iter"]) == (6, 9)
    assert run_directory.read_run_json(paths)["overrides"]["params"] == {"discount": 0.5}
    assert not (paths.replay.exists() or paths.trainer_checkpoints.exists() or paths.policies.exists())


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize("evidence", ["status", "checkpoint", "metrics"])
def test_one_update_is_enough_for_a_run_to_keep_what_it_has(
    evidence: str, environ: dict[str, str], tmp_path: Path
) -> None:
    paths = RunPaths(tmp_path / "run")
    assert prepare_run(environ)
    paths.replay.mkdir()
    if evidence == "status":
        train(paths)
    elif evidence == "checkpoint":
        update(paths, 5)
    else:
        paths.metrics_csv.write_text("train_step,iteration\n0,0\n5,1\n")
    (tmp_path / "params.py").write_text(PARAMS.replace("num_iter = 3", "num_iter = 9"))
    with pytest.raises(UserError, match=r"params\.py"):
        prepare_run(environ)
    assert prepare_run(environ | {EDITS: KEEP})
    assert paths.params.read_text() == PARAMS and paths.replay.exists()


@pytest.mark.usefixtures("untried")
def test_what_may_change_is_given_to_a_run_that_has_begun_and_kept(
    environ: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = RunPaths(tmp_path / "run")
    assert prepare_run(environ)
    train(paths)
    for assignments in (["num_iter=7", "actor_learning_rate=0.001"], []):
        capsys.readouterr()
        settings = resolve(environ, assignments, vars_file=None, root=tmp_path)
        assert settings.findings == () and prepare_run(environ, settings)
        assert f"params {paths.params}" in capsys.readouterr().out
        assert run_directory.read_run_json(paths)["attributes"]["num_iter"] == 7
        assert run_directory.read_run_json(paths)["overrides"]["params"] == {
            "num_iter": 7,
            "actor_learning_rate": 0.001,
        }


@pytest.mark.usefixtures("untried")
def test_a_finished_run_says_so_until_it_is_to_be_longer(
    environ: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare_run(environ)
    paths = RunPaths(tmp_path / "run")
    paths.status_json.write_text(json.dumps({"roles": {"trainer": {"state": "done", "num_iter": 3}}}))
    assert not prepare_run(environ)
    assert "try is finished: num_iter=3 is reached (" in capsys.readouterr().out
    for text, is_idle in (
        ("batch_size=31", True),
        ("num_iter=3", False),
        ("num_iter=4", False),
        ("SAC_TRAIN_CPUS=7", True),
        ("SAC_TRAIN_CPUS=01", False),
        ("SAC_TRAIN_CPUS=auto", False),
        ("SAC_STEP_TIMEOUT_SECS=300", False),
        (f"SAC_EXP_DIR={tmp_path / 'run'}/", False),
    ):
        settings = resolve(environ, [text], vars_file=None, root=tmp_path)
        checked = Preparation(environ, None, settings)
        checked._check_directories(starts=False)
        (finding,) = checked.findings.errors or [""]
        assert finding.startswith(f"{text} changes nothing, this run is finished: add --set num_iter=") == is_idle, text
    paths.params.write_text(PARAMS.replace("num_iter = 3", "num_iter = 4"))
    assert prepare_run(environ)


@pytest.mark.usefixtures("untried")
def test_a_start_of_a_run_that_another_one_checks_or_trains_is_refused(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "_LOCK_GRACE_SECS", 0.2)
    paths = RunPaths(tmp_path / "run")
    checking = Preparation(environ, None)
    checking.take_directory()
    for more in ({}, {EDITS: FRESH}, {"SAC_TRAIN_CPUS": "500", "SAC_SHARE_CPUS": "0"}):
        with pytest.raises(UserError, match=f"is in use by the run with pid {os.getpid()}") as refused:
            prepare_run(environ | more)
        assert len(refused.value.findings) == 1, "CPUs and port are maybe those of that run"
    checking.close()
    assert not paths.exp_dir.exists(), "a start that ends in its checks leaves nothing"
    paths.exp_dir.mkdir()
    checking.take_directory()
    checking.close()
    assert paths.exp_dir.exists(), "the user's own"
    assert prepare_run(environ)
    for owner in ("this", "another machine"):
        starting = Preparation(environ | {EDITS: FRESH}, None)
        starting.take_directory()
        starting.run()
        if owner == "this":
            assert prepare._write_run(starting) and starting.lock is not None and starting.lock.is_own()
            assert starting.was_done() == [f"what was in {paths.exp_dir} is in {tmp_path / 'run_before_1'} now"]
            starting.close()
        else:
            paths.lock.write_text('{"pid": 7, "host": "node2", "token": "other"}')
            with pytest.raises(UserError, match="was taken over by the run with pid 7 on node2"):
                prepare._write_run(starting)
    assert paths.run_json.exists() and not (tmp_path / "run_before_2").exists()


@pytest.mark.parametrize("prefix", [(), ("unshare", "--pid", "--fork")], ids=["", "process 1 of a container"])
def test_a_signal_before_the_run_has_begun_says_that_nothing_was_started(prefix: tuple[str, ...]) -> None:
    if subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("no namespaces here")
    program = (
        "import os, signal, sys, time\nfrom tfagents_system.launch import forks\n"
        "def end():\n    print('closed', flush=True)\n    return sys.argv[1:]\n"
        "forks.end_early_on_signals()\nwith forks._stderr_held_back(), forks.before_early_end(end):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(20)\n"
    )
    command = [*prefix, sys.executable, "-c", program, "the run is in run_before_1 now"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (128 + signal.SIGINT if prefix else -signal.SIGINT, "closed\n")
    assert ended.stderr == "stopped by SIGINT: nothing was started; the run is in run_before_1 now\n"


@pytest.mark.usefixtures("untried")
def test_settings_are_checked_used_and_kept(
    environ: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def settings(*assignments: str) -> RunSettings:
        return resolve(environ, assignments, vars_file=None, root=prepare.ROOT)

    with pytest.raises(UserError, match="TrainParams.num_iter must be an integer of at least 1, found 0"):
        prepare_run(environ, settings("num_iter=0"))
    capsys.readouterr()
    assert prepare_run(environ, settings("num_iter=7", "config.horizon=9", "SAC_SEED=8"))
    assert "settings: num_iter=7 config.horizon=9 SAC_SEED=8" in capsys.readouterr().out
    paths = RunPaths(tmp_path / "run")
    run = json.loads(paths.run_json.read_text())
    assert paths.params.read_text() == PARAMS and json.loads(paths.config.read_text()) == {"horizon": 20}
    assert (run["attributes"]["num_iter"], run["config"], run["seed"]) == (7, {"horizon": 9}, 8)
    assert run["attributes"]["discount"] == 0.99, "a default"
    assert run["attributes"]["actor_fc_layer_params"] == [256, 256]
