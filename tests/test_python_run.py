"""Runs from Python: `train`, `load_run` and what they return."""

from __future__ import annotations

import atexit
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

import tfagents_system
from tests.support.waiting import until
from tfagents_system.errors import UserError
from tfagents_system.launch.run_settings import resolve
from tfagents_system.python_run import Run, RunFailedError
from tfagents_system.run_files.metrics import MetricsLog
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.variables import read_variables


class Process:
    """One that has ended, or continues (None)."""

    def __init__(self, code: int | None) -> None:
        self.pid, self.returncode = 0, code

    def poll(self) -> int | None:
        return self.returncode


def ended(tmp_path: Path, code: int, output: str) -> Run:
    (tmp_path / "output.txt").write_text(output)
    return Run(tmp_path / "run", Process(code), tmp_path / "output.txt")  # type: ignore[arg-type]


def test_what_is_wrong_with_a_class_or_a_name_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="class Other must be named TrainParams"):
        tfagents_system.train(type("Other", (), {}), {}, folder=tmp_path)
    with pytest.raises(UserError, match="optimizer in attributes must be a number"):
        tfagents_system.train("p.py", {}, attributes={"optimizer": {1}}, folder=tmp_path)
    with pytest.raises(UserError, match="is no run directory: give one"):
        tfagents_system.load_run(tmp_path)
    for mark in ("TFAGENTS_RUN_TOKEN", "TFAGENTS_COMMAND"):  # Of a role, and of a start, which imports params as well.
        with monkeypatch.context() as patch, pytest.raises(UserError, match='below `if __name__ == "__main__":`'):
            patch.setenv(mark, "7")
            tfagents_system.train(tmp_path / "params.py", {}, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(AttributeError):
        _ = tfagents_system.trains


def test_errors_are_caught_by_public_names_and_the_import_loads_no_tensorflow() -> None:
    assert (tfagents_system.UserError, tfagents_system.RunFailedError) == (UserError, RunFailedError)
    program = (
        "import sys, tfagents_system; assert 'tfagents_system.errors' not in sys.modules; "
        "from tfagents_system import *; train, load_run, UserError, RunFailedError; "
        "assert not {'tensorflow', 'reverb', 'pandas'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize(
    ("file", "options", "place"),
    [
        ("reacher/params.py", {}, "logs/reacher"),
        ("my_params.py", {}, "logs/my"),
        ("arm.py", {"name": "one"}, "logs/one"),
        ("arm.py", {"variables": {"SAC_LOGS_DIR": "~/runs"}}, "home/runs/arm"),
        ("arm.py", {"variables": {"SAC_LOGS_DIR": "runs"}}, "runs/arm"),
    ],
)
def test_a_run_is_called_as_by_sac_and_where_its_variables_say(
    file: str, options: dict[str, Any], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tfagents_system.python_run.subprocess.Popen", MagicMock())
    run = tfagents_system.train(file, {"horizon": 9}, **options)
    atexit.unregister(run.stop)
    assert run.exp_dir == tmp_path / place


def test_a_run_that_is_starting_is_not_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its start takes seconds, in which there is no status; another one would write over what it prints."""
    start = "import sys, time; print('checking', flush=True); sys.stdin.read(); time.sleep(60)"
    real, started = subprocess.Popen, list[subprocess.Popen[bytes]]()

    def popen(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        started.append(real([sys.executable, "-c", start], **options))
        return started[-1]

    monkeypatch.setattr("tfagents_system.python_run.subprocess.Popen", popen)
    run = tfagents_system.train(tmp_path / "params.py", {"horizon": 9}, name="one", folder=tmp_path)
    try:
        until(lambda: run.output == "checking\n", 30.0, "the start to say something")
        with pytest.raises(UserError, match="logs/one is being trained"):
            tfagents_system.train(tmp_path / "params.py", {"horizon": 9}, name="one", folder=tmp_path)
        assert run.output == "checking\n" and len(started) == 1
    finally:
        run.stop()
    again = tfagents_system.train(tmp_path / "params.py", {"horizon": 9}, name="one", folder=tmp_path)
    again.stop()
    assert len(started) == 2


def test_a_run_that_does_not_end_in_time_is_killed(tmp_path: Path) -> None:
    hung = "trap '' TERM; echo hung; sleep 60"
    with subprocess.Popen(["bash", "-c", hung], start_new_session=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"hung\n"
        with pytest.raises(RunFailedError, match=r"one did not end within 0.1 s and was killed"):
            Run(tmp_path / "one", process).stop(timeout=0.1)
        assert process.wait(30.0) == -signal.SIGKILL


def test_in_a_job_array_a_run_has_its_own_name_and_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program that calls `train` is task 3 of its user's array; the run is no task of a sweep."""
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    monkeypatch.setenv("SAC_GRID", "of_an_array.json")
    popen = MagicMock()
    monkeypatch.setattr("tfagents_system.python_run.subprocess.Popen", popen)
    (tmp_path / "params.py").touch()
    run = tfagents_system.train(tmp_path / "params.py", {"horizon": 9}, name="one", seed=3, folder=tmp_path)
    atexit.unregister(run.stop)
    assert popen.call_args.kwargs["cwd"] == tmp_path
    assert popen.call_args.kwargs["env"]["TFAGENTS_CALL"] == "train(...)"
    monkeypatch.chdir(tmp_path)
    settings = resolve(popen.call_args.kwargs["env"], (), vars_file=None, root=tmp_path)
    values, _ = read_variables(settings.environ, vars_file=None, root=tmp_path)
    assert settings.findings == () and values["exp_dir"] == run.exp_dir == tmp_path / "logs/one"
    assert settings.environ["SAC_SEED"] == "3"
    assert settings.environ["SLURM_ARRAY_TASK_ID"] == "3", "params.py may read it"


def test_of_a_start_that_is_checked_nothing_earlier_is_shown(tmp_path: Path) -> None:
    of_run = {"name": "one", "state": "done", "started_at": time.time()}
    status = {"run": of_run, "roles": {"trainer": {"iteration": 3}}}
    (tmp_path / "run").mkdir()
    (tmp_path / "run/status.json").write_text(json.dumps(status))
    before = ended(tmp_path, 0, "")
    process: Any = Process(None)
    run = Run(tmp_path / "run", process, tmp_path / "output.txt")
    assert run.status == {} and "starting" in repr(run)
    process.returncode = 2
    assert run.status == {}  # It was refused.
    process.returncode = 0
    assert run.status["roles"]["trainer"]["iteration"] == 3 and before.status == run.status  # Nothing was to be done.
    assert Run(tmp_path / "run").status == run.status


def test_a_run_is_shown_as_done_once_its_results_are_drawn(tmp_path: Path) -> None:
    run, bar = ended(tmp_path, 0, ""), MagicMock()
    run.exp_dir.mkdir()
    of_run = {"name": "one", "state": "done", "started_at": time.time() + 9.0}
    (run.exp_dir / "status.json").write_text(json.dumps({"run": of_run, "roles": {}}))
    run._show(bar)
    assert bar.what.startswith("one: done, iteration 0/?")
    run._process, run._began = Process(None), 0.0  # type: ignore[assignment]
    run._show(bar)
    assert bar.what.startswith("one: drawing its results, iteration 0/?")


def test_a_damaged_run_can_be_looked_at(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    run = tfagents_system.load_run(tmp_path)
    for status in ('{"run": {"na', "[]", ""):
        (tmp_path / "status.json").write_text(status)
        assert str(run) == f"<Run {tmp_path}: starting>"
    (tmp_path / "status.json").write_text('{"run": {"state": "running", "updated_at": 1}, "roles": {}}')
    assert str(run) == f"<Run {tmp_path}: dead>", "whose supervisor is gone"
    for text, rows in (("", 0), ("iteration,train_step\n", 0), ("iteration,train_step\n1,20\n2", 1)):
        (tmp_path / "metrics.csv").write_text(text)
        assert len(run.metrics) == rows
    assert run.metrics.iloc[0].to_dict() == {"iteration": 1, "train_step": 20}
    assert {*map(str, run.metrics.dtypes)} == {"int64"}
    (tmp_path / "metrics.csv").write_text("env_steps,alpha\n1,1\n,1\n")
    assert {*map(str, run.metrics.dtypes)} == {"float64"}


def test_evaluations_are_the_rows_to_plot(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for table in (run.metrics, run.evaluations):
        assert len(table) == 0 and {"env_steps", "eval_return", "critic_loss"} <= {*table.columns}
    assert run.evaluations.plot(x="env_steps", y="eval_return").lines[0].get_xydata().tolist() == []
    log = MetricsLog(RunPaths(tmp_path), [])
    for k in range(4):  # An evaluation, then a row of training.
        values = {"critic_loss": 0.5} if k % 2 else {"eval_return": -10.0 * k}
        log._file.add([{"train_step": k, "env_steps": 100 * k, **values}])
    assert len(run.metrics) == 4
    drawn = run.evaluations.plot(x="env_steps", y="eval_return").lines[0].get_xydata()
    assert drawn.tolist() == [[0.0, 0.0], [200.0, -20.0]]


def test_how_a_run_has_ended_is_an_exception_in_words(tmp_path: Path) -> None:
    assert ended(tmp_path, 0, "").wait(progress=False).output == ""
    refused = (
        "note: this\nerror: horizon=0 must be at least 1: raise it\n  | -a\n  | +b\n c\n"
        "ERROR SAC_SEED=x must be an integer: correct it\n"
    )
    with pytest.raises(UserError) as error:
        ended(tmp_path, 2, refused).wait(progress=False)
    assert error.value.findings == (
        "horizon=0 must be at least 1: raise it\n  | -a\n  | +b",
        "SAC_SEED=x must be an integer: correct it",
    )
    with pytest.raises(RunFailedError, match="(?s)run failed with exit code 1:.*the last line"):
        ended(tmp_path, 1, "the last line\n").wait(progress=False)
    told = "error: trainer can't continue (error: mass)\n  error: mass\n"
    told += "run failed: correct that, and `train(...)` continues\n"
    with pytest.raises(RunFailedError) as failed:
        ended(tmp_path, 1, f"[00:42] iteration 3\n[00:47] iteration 4\n{told}").wait(progress=False)
    assert str(failed.value) == f"{tmp_path / 'run'} failed with exit code 1:\n{told.rstrip()}"
    (tmp_path / "run").mkdir()
    run = {"name": "run", "state": "failed", "started_at": time.time() + 9.0}
    (tmp_path / "run/status.json").write_text(json.dumps({"run": run, "roles": {}}))
    with pytest.raises(RunFailedError, match="(?s)failed with exit code 2:.*`train"):
        ended(tmp_path, 2, told).wait(progress=False)
    (tmp_path / "run/status.json").unlink()
    with pytest.raises(RunFailedError, match="was stopped and saved"):
        ended(tmp_path, 75, "").wait(progress=False)
    with pytest.raises(TimeoutError):
        Run(tmp_path / "run", Process(None), tmp_path / "output.txt").wait(0.0, progress=False)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="was not started here"):
        Run(tmp_path).wait()
