"""Metrics reach Weights & Biases and MLflow once each, with the real packages and no network."""

import csv
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from tests.support.settings_for_tests import variables_with, write_run_json
from tfagents_system.errors import EXIT_FAILED, UserError
from tfagents_system.report import tracking
from tfagents_system.report.status import RunModel
from tfagents_system.report.tracking import (
    Feed,
    ToMlflow,
    Tracked,
    Tracker,
    alone,
    keep_tracked,
    read_tracked,
)
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.variables import read_variables

TRAIN, EVAL = "train_return", "eval_return"


def row(env_steps: float, kind: str = TRAIN, value: float = 1.0) -> dict[str, float | None]:
    """Of an iteration for each ten steps."""
    return {"env_steps": env_steps, "train_step": env_steps / 2, "iteration": env_steps / 10, kind: value}


def write_metrics(paths: RunPaths, rows: Sequence[Mapping[str, float | None]]) -> None:
    columns = list(dict.fromkeys(["train_step", "env_steps", TRAIN, EVAL, *(name for each in rows for name in each)]))
    cells = [[each.get(name) for name in columns] for each in rows]
    lines = [columns, *(["" if cell is None else str(cell) for cell in line] for line in cells)]
    with paths.metrics_csv.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    found = RunPaths(tmp_path / "swing_task_3")
    found.exp_dir.mkdir()
    secrets = {"job_prelude": "export HF_TOKEN=s3cret", "credentials_dir": Path("/s3cret")}
    variables = variables_with(exp_dir=found.exp_dir, seed=3, **secrets)
    params, config = {"discount": 0.99, "layers": [256, 256]}, {"arms (m)": {"left/": 2.0}}
    write_run_json(found, variables=variables, attributes=params, config=config)
    return found


class Recorder:
    """A destination that keeps what it gets, and fails when it is told to."""

    name = key = "recorder"

    def __init__(self) -> None:
        self.rows: list[Mapping[str, float | None]] = []
        self.begun, self.is_broken = 0, False

    def begin(self, settings: Mapping[str, Any], sent: dict[str, Any]) -> None:
        self._fail()
        self.begun += 1

    def send(self, rows: Sequence[Mapping[str, float | None]]) -> None:
        self._fail()
        self.rows += rows

    def finish(self, is_done: bool) -> None:
        self._fail()

    def where(self) -> str:
        return "here"

    def _fail(self) -> None:
        if self.is_broken:
            raise ConnectionError("no route to host")


def feed_of(paths: RunPaths, recorder: Recorder, say: Any = print) -> Feed:
    return Feed(recorder, RunModel(paths.exp_dir), say)


def test_each_process_goes_on_behind_the_last_rows_and_nothing_that_is_trained_again_is_sent(paths: RunPaths) -> None:
    recorder, sent = Recorder(), [row(100), row(200), row(100, EVAL), row(300)]
    # Killed, it goes back to the first row, behind which the pending evaluation lands later.
    again = [row(100), row(150), row(250), row(350), row(100, EVAL), row(300, EVAL), row(360)]
    for rows in (sent[:1], sent, again[:1], again[:3], again):
        feed_of(paths, recorder).take(rows)
    assert recorder.rows == [*sent, row(350), row(300, EVAL), row(360)]


def test_a_failure_loses_nothing_and_doubles_nothing_and_is_told_once(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    recorder = Recorder()
    feed = feed_of(paths, recorder, told.append)
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
    assert feed.problem == "" and told[-1] == "recorder takes rows again"


def test_a_run_has_one_name_for_ever(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "swings")
    assert read_tracked(paths) is None
    first = keep_tracked(paths, {"wandb": "offline"})
    second = keep_tracked(paths, {"mlflow_uri": "http://here"})
    assert second.run_id == first.run_id
    assert read_tracked(paths) == second and second.names["WANDB_PROJECT"] == "swings"


def test_below_an_agent_of_a_sweep_the_run_is_the_agents(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_RUN_ID", "abc123")
    own = keep_tracked(paths, {"wandb": "offline"}).run_id
    assert own != "abc123", "without an agent the package takes the id that it is given"
    monkeypatch.setenv("WANDB_SWEEP_ID", "sw1")
    assert keep_tracked(paths, {"wandb": "offline"}).run_id == "abc123"
    monkeypatch.delenv("WANDB_RUN_ID")
    monkeypatch.delenv("WANDB_SWEEP_ID")
    assert keep_tracked(paths, {"wandb": "offline"}).run_id == "abc123", "later starts continue with it"


@pytest.mark.parametrize(("missing", "other"), [("wandb", "ToMlflow"), ("mlflow", "ToWandb")])
def test_without_its_package_a_destination_fails_in_one_line_and_the_other_gets_its_rows(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], missing: str, other: str
) -> None:
    recorder = Recorder()
    monkeypatch.setattr(tracking, other, lambda *args: recorder)
    for name in [name for name in sys.modules if name == missing or name.startswith(f"{missing}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    keep_tracked(paths, {"wandb": "offline", "mlflow_uri": "http://127.0.0.1:9"})
    write_metrics(paths, [row(100)])
    assert tracking.main([str(paths.exp_dir)]) == EXIT_FAILED
    assert [each["env_steps"] for each in recorder.rows] == [100]
    assert f"ModuleNotFoundError: import of {missing} halted" in capsys.readouterr().out


# Weights & Biases, in files.


def history(folder: Path) -> tuple[str, list[dict[str, Any]]]:
    """The run's id and its rows, by the package's own reader."""
    from wandb.proto import wandb_internal_pb2 as records
    from wandb.sdk.internal.datastore import DataStore

    (file,) = folder.glob("*.wandb")
    store = DataStore()
    store.open_for_scan(str(file))
    run_id, rows = "", []
    while (data := store.scan_data()) is not None:
        record = records.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "run":
            run_id = record.run.run_id
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return run_id, rows


def test_files_of_wandb_have_one_id_and_rows_of_rising_steps_after_a_kill_and_a_resume(paths: RunPaths) -> None:
    def send_by_hand(paths: RunPaths) -> str:
        environ = {**os.environ, "HOME": str(paths.exp_dir), "WANDB_API_KEY": ""}
        command = [sys.executable, "-m", "tfagents_system", "track", str(paths.exp_dir)]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()[-1]

    tracked = keep_tracked(paths, {"wandb": "offline"})
    write_metrics(paths, [row(100, value=-1.0), row(200), row(300)])
    send_by_hand(paths)
    (file,) = paths.exp_dir.glob("wandb/offline-run-*/*.wandb")
    file.write_bytes(file.read_bytes()[:100])  # As a killed process leaves it.
    write_metrics(paths, [row(100, value=-1.0), row(150), row(150, EVAL, 7.0), row(250)])  # Resumed at 100.
    last_line = send_by_hand(paths)
    (folder,) = paths.exp_dir.glob("wandb/offline-run-*")
    assert last_line == f"Weights & Biases: in files; to send them: wandb sync {folder}"
    run_id, rows = history(folder)
    assert run_id == tracked.run_id
    shown = [(each["env_steps"], each.get(TRAIN), each.get(EVAL)) for each in rows]
    assert shown == [(100, -1, None), (150, 1, None), (150, None, 7), (250, 1, None)]
    everything = [path.read_bytes() for path in paths.exp_dir.glob("wandb/**/*") if path.is_file()]
    assert everything and not any(b"s3cret" in each for each in everything)


def test_rows_that_wandb_had_queued_before_a_kill_are_sent_again(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, server = list[dict[str, float]](), dict[str, float]()
    run = MagicMock(log=log.append, summary=server)
    monkeypatch.setitem(sys.modules, "wandb", MagicMock(init=lambda **settings: run))
    tracked = keep_tracked(paths, {"wandb": "online"})
    write_metrics(paths, [row(100), row(100, EVAL), row(200)])
    Tracker(paths, tracked, print).look()
    server |= {**log[0], **log[1]}
    Tracker(paths, tracked, print).look()
    assert [each["env_steps"] for each in log] == [100, 100, 200, 200]


def test_mlflow_gets_names_that_it_accepts() -> None:
    names = ["train/speed (m/s)", "train/größe", "eval//a", "train/../b", "train/a/", "x" * 300]
    expected = ["train/speed _m/s_", "train/größe", "eval/_/a", "train/_/b", "train/a/_", "x" * 240]
    assert [tracking.fit_name(name) for name in names] == expected


# MLflow, at a server with SQLite and at addresses where nobody answers.


@pytest.fixture
def mlflow_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of MLflow's own server, in a thread of this process: its program takes five seconds to start."""
    from mlflow.server import ARTIFACT_ROOT_ENV_VAR, BACKEND_STORE_URI_ENV_VAR, app
    from werkzeug.serving import make_server

    monkeypatch.setenv(BACKEND_STORE_URI_ENV_VAR, f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv(ARTIFACT_ROOT_ENV_VAR, str(tmp_path / "artifacts"))
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join(10.0)
    server.server_close()


def test_mlflow_goes_on_where_it_was_and_has_every_step_once(
    paths: RunPaths, mlflow_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    uri = mlflow_server
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "swings")
    tracked = keep_tracked(paths, {"mlflow_uri": uri})
    write_metrics(paths, [row(100 * k) for k in range(1, 400)])  # More values than one request takes.
    first = Tracker(paths, tracked, print)
    first.look()
    assert first.waiting() == 0 and first.feeds[0].problem == ""
    write_metrics(paths, [*(row(100 * k) for k in range(1, 400)), row(39_950), row(39_950, EVAL)])
    second = Tracker(paths, tracked, print)
    second.look()
    assert second.feeds[0].problem == ""
    second.close()
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("swings")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    steps = [metric.step for metric in client.get_metric_history(run.info.run_id, TRAIN)]
    assert steps == [*(100 * k for k in range(1, 400)), 39_950]
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, EVAL)] == [39_950]
    expected = {"params.discount": "0.99", "config.arms _m_.left/_": "2.0", "variables.SAC_SEED": "3"}
    assert run.data.params.items() >= expected.items() and "s3cret" not in str(run.data.params)
    assert run.info.status == "KILLED" and run.info.run_name == "swing_task_3"


@pytest.mark.parametrize("answers", ["refuses", "hangs"])
def test_a_server_that_does_not_answer_is_tried_again_later(
    paths: RunPaths, answers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if answers == "refuses":
            server.close()
        tracked = Tracked(None, f"http://127.0.0.1:{port}", "id")
        feed = Feed(ToMlflow(paths, tracked), RunModel(paths.exp_dir), print)
        began = time.monotonic()
        feed.take([row(100)])
        feed.close(is_done=True)
        assert time.monotonic() - began < 20
    assert feed.problem and len(feed.unsent([row(100)])) == 1


def test_only_one_sends_and_a_run_that_is_not_tracked_is_told_how(paths: RunPaths) -> None:
    with pytest.raises(UserError, match="SAC_WANDB=online, SAC_WANDB=offline or SAC_MLFLOW_URI"):
        tracking.main([str(paths.exp_dir)])
    keep_tracked(paths, {"wandb": "offline"})
    with alone(paths), pytest.raises(UserError, match="is under way and sends its metrics itself"):
        tracking.main([str(paths.exp_dir)])


@pytest.mark.parametrize("uri", ["sqlite:///a.db", "file:runs", "sqlite:////tmp/a.db?timeout=9", "sqlite:///:memory:"])
def test_a_relative_address_of_mlflow_is_refused(uri: str) -> None:
    _, findings = read_variables({"SAC_MLFLOW_URI": uri}, vars_file=None, root=Path("/elsewhere"))
    told = f"SAC_MLFLOW_URI={uri} must be an address with an absolute path, such as sqlite:////home/me/mlflow.db"
    assert (told in findings) == (uri in ("sqlite:///a.db", "file:runs"))
