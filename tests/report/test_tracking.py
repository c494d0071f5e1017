"""Metrics reach Weights & Biases and MLflow once each, with the real packages and no network."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.tracked_runs import history
from tfagents_system.checks.checklist import Check
from tfagents_system.errors import UserError
from tfagents_system.launch.tracking_checks import check_tracking
from tfagents_system.report.tracking import tracker as tracking
from tfagents_system.report.tracking.rows import Sent, to_send
from tfagents_system.report.tracking.settings import TrackingSettings, group_of, keep_tracked, read_tracked
from tfagents_system.report.tracking.to_mlflow import ToMlflow
from tfagents_system.report.tracking.tracker import Feed, Tracker, alone
from tfagents_system.run_files.run_paths import RunPaths

TRAIN, EVAL = "train_return", "eval_return"


def row(env_steps: float, kind: str = TRAIN, value: float = 1.0) -> dict[str, float | None]:
    return {"env_steps": env_steps, "train_step": env_steps / 2, kind: value}


def write_metrics(paths: RunPaths, rows: Sequence[Mapping[str, float | None]]) -> None:
    columns = ["train_step", "env_steps", TRAIN, EVAL]
    cells = [[each.get(name) for name in columns] for each in rows]
    lines = [columns, *(["" if cell is None else str(cell) for cell in line] for line in cells)]
    text = "".join(",".join(line) + "\n" for line in lines)
    paths.metrics_csv.write_text(text)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    found = RunPaths(tmp_path / "swing_task_3")
    found.exp_dir.mkdir()
    found.resolved.write_text(json.dumps({"params": {"discount": 0.99, "layers": [256, 256]}, "run": {"seed": 3}}))
    return found


class Recorder:
    """A destination that keeps what it gets, and fails when it is told to."""

    name = "recorder"

    def __init__(self) -> None:
        self.rows: list[Mapping[str, float]] = []
        self.begun, self.is_broken = 0, False

    def begin(self, resolved: Mapping[str, Any]) -> Sent:
        self._fail()
        self.begun += 1
        return Sent.told({name: value for each in self.rows for name, value in each.items()})

    def send(self, row: Mapping[str, float]) -> None:
        self._fail()
        self.rows.append(row)

    def flush(self) -> None:
        self._fail()

    def add_files(self, kind: str, files: Sequence[Path]) -> None:
        raise AssertionError

    def finish(self, is_done: bool) -> None:
        self._fail()

    def where(self) -> str:
        return "here"

    def _fail(self) -> None:
        if self.is_broken:
            raise ConnectionError("no route to host")


def test_what_a_resumed_run_does_again_is_not_sent_again() -> None:
    sent = Sent()
    for each in [row(100), row(200), row(200, EVAL), row(300)]:
        sent.add(each)
    again = [row(100), row(150), row(250), row(350), row(200, EVAL), row(300, EVAL), row(360)]
    assert sent.new(again) == [row(350), row(300, EVAL), row(360)]


def test_an_evaluation_that_ends_after_later_rows_is_sent() -> None:
    assert Sent().new([row(100), row(200), row(100, EVAL)]) == [row(100), row(200), row(100, EVAL)]


def test_a_destination_tells_by_its_newest_values_what_it_has() -> None:
    values = {**to_send(row(100)), **to_send(row(300)), **to_send(row(200, EVAL)), "note": "text"}
    assert Sent.told(values).steps == {"train": 300, "eval": 200}
    assert Sent.told({}).steps == {}


def test_a_failure_loses_nothing_and_doubles_nothing_and_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    recorder = Recorder()
    feed = Feed(recorder, {}, told.append)
    feed.take([row(100)])
    recorder.is_broken = True
    for steps in (200, 300):
        monkeypatch.setattr(feed, "_next_at", 0.0)
        feed.take([row(100), row(200), row(steps)])
    assert feed.problem == "ConnectionError: no route to host" and len(told) == 1 and "nothing is lost" in told[0]
    recorder.is_broken = False
    feed.take([row(100), row(200), row(300)])
    assert len(recorder.rows) == 1, "it waits before it tries again"
    monkeypatch.setattr(feed, "_next_at", 0.0)
    feed.take([row(100), row(200), row(300)])
    assert [each["env_steps"] for each in recorder.rows] == [100, 200, 300] and recorder.begun == 2
    assert feed.problem == "" and told[-1] == "recorder is reached again"


def test_each_agent_of_a_run_has_one_name_for_ever(paths: RunPaths) -> None:
    assert read_tracked(paths) is None
    first = keep_tracked(paths, TrackingSettings(wandb="offline"), 0)
    second = keep_tracked(paths, TrackingSettings(mlflow_uri="http://here", wandb_tags=("a", "b")), 1)
    assert second.ids["0"] == first.ids["0"] != second.ids["1"]
    assert read_tracked(paths) == second


def test_tasks_of_a_sweep_are_a_group() -> None:
    assert group_of(TrackingSettings(), "swing_task_3") == "swing"
    assert group_of(TrackingSettings(wandb_group="mine"), "swing_task_3") == "mine"
    assert group_of(TrackingSettings(), "swing") is None


# Weights & Biases, in files.


def send_by_hand(paths: RunPaths) -> str:
    environ = {**os.environ, "HOME": str(paths.exp_dir), "WANDB_API_KEY": ""}
    command = [sys.executable, "-m", "tfagents_system.report.tracking.tracker", str(paths.exp_dir)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


def test_files_of_wandb_have_one_id_and_rows_of_rising_steps_after_a_kill_and_a_resume(paths: RunPaths) -> None:
    tracked = keep_tracked(paths, TrackingSettings(wandb="offline", wandb_project="swings"), 0)
    write_metrics(paths, [row(100, value=-1.0), row(200), row(300)])
    send_by_hand(paths)
    (file,) = paths.exp_dir.glob("wandb/offline-run-*/*.wandb")
    file.write_bytes(file.read_bytes()[:100])  # As a killed process leaves it.
    write_metrics(paths, [row(100, value=-1.0), row(150), row(150, EVAL, 7.0), row(250)])  # Resumed at 100.
    last_line = send_by_hand(paths)
    (folder,) = paths.exp_dir.glob("wandb/offline-run-*")
    assert last_line == f"Weights & Biases: wandb sync {folder}"
    run_id, rows = history(folder)
    assert run_id == tracked.ids["0"]
    assert [(each["env_steps"], each.get(TRAIN), each.get(EVAL)) for each in rows] == [
        (100, -1, None),
        (150, 1, None),
        (150, None, 7),
        (250, 1, None),
    ]


# MLflow, in a folder and at addresses where nobody answers.


def test_mlflow_goes_on_where_it_was_and_has_every_step_once(paths: RunPaths) -> None:
    from mlflow import MlflowClient

    uri = f"file://{paths.exp_dir}/mlflow"
    tracked = keep_tracked(paths, TrackingSettings(mlflow_uri=uri, mlflow_experiment="swings"), 0)
    write_metrics(paths, [row(100 * k) for k in range(1, 400)])  # More values than one request takes.
    first = Tracker(paths, tracked, print)
    first.look()
    assert first.waiting() == 0 and first.feeds[0].problem == ""
    write_metrics(paths, [row(100), row(39_850), row(39_950), row(39_950, EVAL)])
    second = Tracker(paths, tracked, print)
    second.look()
    second.close()
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("swings")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    steps = [metric.step for metric in client.get_metric_history(run.info.run_id, TRAIN)]
    assert steps == [*(100 * k for k in range(1, 400)), 39_950]
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, EVAL)] == [39_950]
    assert run.data.params == {"params.discount": "0.99", "params.layers": "[256, 256]", "run.seed": "3"}
    assert run.info.status == "KILLED" and run.info.run_name == "swing_task_3"


@pytest.mark.parametrize("answers", ["refuses", "hangs", "hangs up"])
def test_a_server_that_does_not_answer_is_tried_again_later(
    paths: RunPaths, answers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if answers == "hangs up":
            threading.Thread(target=lambda: server.accept()[0].close(), daemon=True).start()
        if answers == "refuses":
            server.close()
        feed = Feed(ToMlflow(TrackingSettings(mlflow_uri=f"http://127.0.0.1:{port}"), "id", "swing"), {}, print)
        began = time.monotonic()
        feed.take([row(100)])
        feed.close(is_done=True)
        assert time.monotonic() - began < 20
    assert feed.problem and feed.waiting([row(100)]) == 1


def test_only_one_sends(paths: RunPaths) -> None:
    keep_tracked(paths, TrackingSettings(wandb="offline"), 0)
    with alone(paths), pytest.raises(UserError, match="is under way and sends its metrics itself"):
        tracking.main([str(paths.exp_dir)])


def test_a_run_that_is_not_tracked_is_told_how(paths: RunPaths) -> None:
    with pytest.raises(UserError, match="SAC_WANDB=online, SAC_WANDB=offline or SAC_MLFLOW_URI"):
        tracking.main([str(paths.exp_dir)])


# Before a start.


def findings(values: dict[str, Any], **environ: str) -> list[str]:
    check = Check("tracking")
    check_tracking(values, {"NETRC": "/nowhere", **environ}, check)
    return check.errors


def test_what_keeps_metrics_from_being_sent_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "key"
    key.write_text("two words")
    key.chmod(0o644)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    told = findings({"wandb": "online", "wandb_key_file": key, "mlflow_uri": "http://me:secret@host:5000"})
    assert len(told) == 5 and not any("secret" in line for line in told)
    assert "pip install '.[wandb]'" in told[0] and f"chmod 600 {key}" in told[1] and "nothing else" in told[2]
    assert "pip install '.[mlflow]'" in told[3] and "MLFLOW_TRACKING_PASSWORD" in told[4]


def test_a_key_comes_from_a_file_a_variable_or_netrc(tmp_path: Path) -> None:
    key, netrc = tmp_path / "key", tmp_path / "netrc"
    key.write_text("0123\n")
    key.chmod(0o600)
    netrc.write_text("machine wandb.here login user password 0123\n")
    netrc.chmod(0o600)
    (told,) = findings({"wandb": "online"})
    assert "SAC_WANDB_KEY_FILE" in told and "SAC_WANDB=offline needs none" in told
    assert findings({"wandb": "online", "wandb_key_file": key}) == []
    assert findings({"wandb": "online"}, WANDB_API_KEY="0123") == []
    assert findings({"wandb": "online"}, NETRC=str(netrc), WANDB_BASE_URL="https://wandb.here:80") == []
    assert findings({"wandb": "offline"}) == []


@pytest.mark.parametrize("uri", ["host:5000", "http://", "ftp://host", "mlruns", "http://[::1"])
def test_an_address_of_mlflow_must_be_one(uri: str) -> None:
    (told,) = findings({"mlflow_uri": uri})
    assert "http://host:5000" in told


@pytest.mark.parametrize("uri", ["http://host:5000", "https://host/mlflow", "sqlite:///a.db", "file:///tmp/a"])
def test_addresses_of_mlflow(uri: str) -> None:
    assert findings({"mlflow_uri": uri}) == []
