"""Sends the rows of a run's metrics.csv to Weights & Biases or MLflow, for as long as the run lasts.

`sac track logs/NAME` sends what the run itself could not: rows wait in metrics.csv while there is no network. How many
rows of training and of evaluations each destination has is in tracking_sent.json. A kill takes rows of metrics.csv back
to those of a checkpoint: as many as were sent before are not sent again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tfagents_system.errors import EXIT_DONE, EXIT_FAILED, OptionParser, UserError
from tfagents_system.machine.claims import lock
from tfagents_system.machine.files import read_json, write_json
from tfagents_system.report.status import RETURN, RunModel
from tfagents_system.run_files.heartbeat import read_heartbeat
from tfagents_system.run_files.metrics import read_rows
from tfagents_system.run_files.run_paths import TRAINER, RunPaths
from tfagents_system.settings.values import by_name

Row = Mapping[str, float | None]

WANDB_MODES = ("online", "offline")
# Variables of the packages themselves. `sac track` sets those that the run had.
LIBRARY_VARIABLES = ("WANDB_PROJECT", "WANDB_ENTITY", "WANDB_RUN_GROUP", "WANDB_TAGS", "MLFLOW_EXPERIMENT_NAME")
_BY_AGENT = {"WANDB_SWEEP_ID", "WANDB_LAUNCH"}  # `wandb agent` sets one of them.
_DEFAULT_PROJECT = "tfagents_system"
_RETRY_SECS = 30.0
_ROWS_AT_ONCE = 10
_MARKS = {kind: f"tracked/{kind}" for kind in ("train", "eval")}  # At Weights & Biases: how many such rows it has.
_WANDB_INIT_SECS = 60
# Of a request to MLflow, which the tracker repeats by itself.
_MOST_METRICS, _MOST_PARAMS, _LONGEST_PARAM, _LONGEST_NAME, _REQUEST_SECS, _RETRIES = 1000, 100, 500, 240, 20, 1


@dataclasses.dataclass(frozen=True)
class Tracked:
    """The contents of tracking.json.

    Attributes:
      wandb: SAC_WANDB of the last start, one of WANDB_MODES; None: nothing goes to Weights & Biases.
      mlflow_uri: SAC_MLFLOW_URI of the last start; None: nothing goes to MLflow.
      run_id: Identifies the run at Weights & Biases for its whole life.
      names: What the last start had of LIBRARY_VARIABLES.
    """

    wandb: str | None
    mlflow_uri: str | None
    run_id: str
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)


def is_tracked(variables: Mapping[str, Any]) -> bool:
    """Whether a start's variables, by field, say where metrics are sent."""
    return variables.get("wandb") is not None or variables.get("mlflow_uri") is not None


def read_tracked(paths: RunPaths) -> Tracked | None:
    """None where the run was never to be tracked."""
    content = read_json(paths.tracking_json)
    return Tracked(**content) if content else None


def keep_tracked(paths: RunPaths, variables: Mapping[str, Any]) -> Tracked:
    """Writes tracking.json, with a new id if the run has none yet."""
    before = read_tracked(paths)
    run_id = uuid.uuid4().hex[:12] if before is None else before.run_id
    if _BY_AGENT & os.environ.keys():  # The package then takes no other id.
        run_id = os.environ.get("WANDB_RUN_ID") or run_id
    names = {name: os.environ[name] for name in LIBRARY_VARIABLES if os.environ.get(name)}
    tracked = Tracked(variables.get("wandb"), variables.get("mlflow_uri"), run_id, names)
    write_json(paths.tracking_json, dataclasses.asdict(tracked))
    return tracked


class Destination(Protocol):
    """Weights & Biases or MLflow. Any method may raise anything, and take as long as the network does."""

    name: str
    key: str  # In tracking_sent.json.

    def begin(self, settings: Mapping[str, Any], sent: dict[str, Any]) -> None:
        """Begins or resumes the run. `sent`, what tracking_sent.json says of this destination, may be changed: `train`
        and `eval` are how many such rows it has.
        """

    def send(self, rows: Sequence[Row]) -> None:
        """Sends rows without empty values."""

    def finish(self, is_done: bool) -> None:
        """The run has ended there, or is to continue later."""

    def where(self) -> str:
        """For the user: where the run is to be seen, or the command that sends it there."""


class ToWandb:
    """A run of Weights & Biases, at a server or in files that `wandb sync` sends later.

    The server tells how far a run has got: the package sends rows later, or never where it is killed.
    An offline run can't be resumed: each start writes its files anew, with all rows.
    """

    name, key = "Weights & Biases", "wandb"

    def __init__(self, paths: RunPaths, tracked: Tracked) -> None:
        self._paths, self._id, self._is_offline = paths, tracked.run_id, tracked.wandb == "offline"
        self._project = os.environ.get("WANDB_PROJECT") or _DEFAULT_PROJECT
        self._run: Any = None
        self._counts = dict[str, int]()

    def begin(self, settings: Mapping[str, Any], sent: dict[str, Any]) -> None:
        import wandb

        task = re.fullmatch(r"(.+)_task_\d+", self._paths.exp_dir.name)  # Those of a sweep or an array are one group.
        self.finish(is_done=False)  # After an attempt that failed.
        if self._is_offline:
            for folder in self._offline_folders():
                shutil.rmtree(folder)
        self._run = wandb.init(
            dir=str(self._paths.exp_dir),
            id=self._id,
            name=self._paths.exp_dir.name,
            project=self._project,
            group=os.environ.get("WANDB_RUN_GROUP") or (task[1] if task else None),
            config=dict(settings),
            mode="offline" if self._is_offline else "online",
            resume=None if self._is_offline else "allow",
            # What the package would look for by itself: the console, code, git, the machine's load.
            settings=wandb.Settings(
                console="off",
                disable_code=True,
                disable_git=True,
                init_timeout=_WANDB_INIT_SECS,
                silent=True,
                x_disable_meta=True,
                x_disable_stats=True,
                x_save_requirements=False,
            ),
        )
        self._id = self._run.id  # Another one than asked for below an agent that names none.
        self._run.define_metric("env_steps")
        self._run.define_metric("*", step_metric="env_steps")
        self._counts = {kind: int(self._run.summary.get(mark) or 0) for kind, mark in _MARKS.items()}
        sent |= self._counts

    def send(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._counts[kind := _kind(row)] += 1
            self._run.log({**row, _MARKS[kind]: self._counts[kind]})

    def finish(self, is_done: bool) -> None:
        if self._run is not None:
            self._run.finish(0 if is_done else 1)
            self._run = None

    def where(self) -> str:
        if self._is_offline:
            return f"in files; to send them: wandb sync {' '.join(map(str, self._offline_folders()))}"
        return f"project {self._project}, run {self._id}"

    def _offline_folders(self) -> list[Path]:
        return sorted((self._paths.exp_dir / "wandb").glob(f"offline-run-*-{self._id}"))


class ToMlflow:
    """A run of an MLflow experiment: at a server, or in a folder or database that MLflow's own programs read."""

    name, key = "MLflow", "mlflow"

    def __init__(self, paths: RunPaths, tracked: Tracked) -> None:
        self._uri, self._shown = tracked.mlflow_uri, paths.exp_dir.name
        self._experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME") or _DEFAULT_PROJECT
        self._client: Any = None
        self._run_id = ""

    def begin(self, settings: Mapping[str, Any], sent: dict[str, Any]) -> None:
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(_REQUEST_SECS))
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", str(_RETRIES))
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient(tracking_uri=self._uri)
        if self._uri != sent.get("uri"):  # Another server has none of it.
            sent.clear()
        if "run" in sent:
            self._client.update_run(sent["run"], status="RUNNING")
        else:
            run = self._client.create_run(self._experiment_id(), run_name=self._shown)
            sent |= {"uri": self._uri, "run": run.info.run_id, "has_settings": False}
        self._run_id = sent["run"]
        if not sent["has_settings"]:
            texts = {fit_name(name): str(value)[:_LONGEST_PARAM] for name, value in by_name(settings, {}, {}).items()}
            params = [Param(name, text) for name, text in texts.items()]
            for start in range(0, len(params), _MOST_PARAMS):
                self._client.log_batch(self._run_id, params=params[start : start + _MOST_PARAMS])
            sent["has_settings"] = True

    def _experiment_id(self) -> str:
        from mlflow.exceptions import MlflowException

        with contextlib.suppress(MlflowException):  # It exists.
            return str(self._client.create_experiment(self._experiment))
        return str(self._client.get_experiment_by_name(self._experiment).experiment_id)

    def send(self, rows: Sequence[Row]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [
            Metric(fit_name(name), value, now, int(row["env_steps"] or 0))
            for row in rows
            for name, value in row.items()
        ]
        for start in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(self._run_id, metrics=metrics[start : start + _MOST_METRICS])

    def finish(self, is_done: bool) -> None:
        if self._run_id:
            self._client.set_terminated(self._run_id, "FINISHED" if is_done else "KILLED")

    def where(self) -> str:
        return f"{self._uri}, experiment {self._experiment}, run {self._run_id}"


def fit_name(name: str) -> str:
    """A name that MLflow accepts for a metric or a setting: `train/speed (m/s)` becomes `train/speed _m/s_`.

    MLflow takes letters, digits and `_-. :/`, and no `//`, `.` or `..` between slashes.
    """
    parts = re.sub(r"[^\w\-. :/]", "_", name[:_LONGEST_NAME]).split("/")
    return "/".join("_" if part in ("", ".", "..") else part for part in parts)


class Feed:
    """Sends rows to one destination and stores how far it has got.

    Attributes:
      problem: Why the last attempt failed; empty where it did not.
      has_begun: Whether the destination has accepted the run since its last failure.
    """

    def __init__(self, destination: Destination, model: RunModel, say: Callable[[str], None]) -> None:
        self.destination, self.problem = destination, ""
        self._paths, self._settings, self._say = model.paths, model.settings, say
        self._sent: dict[str, Any] = (read_json(self._paths.tracking_sent) or {}).get(destination.key, {})
        self.has_begun, self._next_at = False, 0.0

    def take(self, rows: Sequence[Row]) -> None:
        """Sends what is new of all rows, unless an attempt has failed a moment ago."""
        if time.monotonic() < self._next_at:
            return
        try:
            if not self.has_begun:
                try:
                    self.destination.begin(self._settings, self._sent)
                finally:
                    self._store()
                self.has_begun = True
            new = self.unsent(rows)
            for start in range(0, len(new), _ROWS_AT_ONCE):
                part = new[start : start + _ROWS_AT_ONCE]
                self.destination.send([{name: x for name, x in row.items() if x is not None} for row in part])
                for kind in map(_kind, part):
                    self._sent[kind] = self._sent.get(kind, 0) + 1
                self._store()
        except Exception as error:  # Of any package, any network: none of it is the run's.
            self._failed(error)
            return
        if self.problem:
            self._say(f"{self.destination.name} takes rows again")
        self.problem = ""

    def unsent(self, rows: Sequence[Row]) -> list[Row]:
        """Of each kind, those behind as many as the destination has."""
        left = {kind: self._sent.get(kind, 0) for kind in _MARKS}
        new = []
        for row in rows:
            left[kind := _kind(row)] -= 1
            if left[kind] < 0:
                new.append(row)
        return new

    def close(self, is_done: bool) -> None:
        """Ends the run at the destination, for now or for ever."""
        with contextlib.suppress(Exception):
            self.destination.finish(is_done)

    def _store(self) -> None:
        everything = read_json(self._paths.tracking_sent) or {}
        write_json(self._paths.tracking_sent, {**everything, self.destination.key: self._sent})

    def _failed(self, error: Exception) -> None:
        problem = f"{type(error).__name__}: {(str(error).strip() or 'no reason').splitlines()[0]}"
        if problem != self.problem:
            self._say(f"{self.destination.name} takes no rows ({problem}): it is tried again, and nothing is lost")
        self.problem, self.has_begun = problem, False
        self._next_at = time.monotonic() + _RETRY_SECS


def _kind(row: Row) -> str:
    """An evaluation that was pending at a kill lands behind training that is done again: each kind is counted."""
    return "train" if row.get(RETURN) is None else "eval"


class Tracker:
    """Sends a run's metrics to all its destinations; what `say` gets is for the user."""

    def __init__(self, paths: RunPaths, tracked: Tracked, say: Callable[[str], None]) -> None:
        destinations: list[Destination] = [ToWandb(paths, tracked)] if tracked.wandb is not None else []
        destinations += [ToMlflow(paths, tracked)] if tracked.mlflow_uri is not None else []
        self.feeds = [Feed(destination, RunModel(paths.exp_dir), say) for destination in destinations]
        self._paths, self._seen = paths, (0, 0)
        self._rows: Sequence[Row] = []

    def look(self) -> None:
        """Sends the rows that are new, and those that could not be sent before."""
        with contextlib.suppress(FileNotFoundError):
            stat = self._paths.metrics_csv.stat()
            if (stat.st_size, stat.st_mtime_ns) != self._seen:
                self._rows, self._seen = read_rows(self._paths.metrics_csv), (stat.st_size, stat.st_mtime_ns)
        for feed in self.feeds:
            if not feed.has_begun or feed.unsent(self._rows):
                feed.take(self._rows)

    def waiting(self) -> int:
        """Rows that wait, over all destinations."""
        return sum(len(feed.unsent(self._rows)) for feed in self.feeds)

    def close(self) -> None:
        """Ends the run at its destinations: for ever if its trainer is done."""
        is_done = (read_heartbeat(self._paths.heartbeat(TRAINER)) or {}).get("state") == "done"
        for feed in self.feeds:
            feed.close(is_done)


@contextlib.contextmanager
def alone(paths: RunPaths) -> Iterator[None]:
    """Holds the lock of those who send the metrics of a run.

    Raises:
      UserError: Another process does, or the file system has no locks.
    """
    with paths.tracking_lock.open("w") as file:
        if not lock(file.fileno(), Path(file.name), waits=False):
            raise UserError(
                f"the run in {paths.exp_dir} is under way and sends its metrics itself: its logs/tracker.log says how "
                "that goes"
            )
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    parser = OptionParser(description="To Weights & Biases or MLflow, as the run's last start says.")
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    paths = RunPaths(parser.parse_args(arguments).run.resolve())
    tracked = read_tracked(paths)
    if tracked is None or not is_tracked(vars(tracked)):
        raise UserError(
            f"{paths.exp_dir} is no run that was to be tracked: start it with SAC_WANDB=online, SAC_WANDB=offline or "
            "SAC_MLFLOW_URI=http://..."
        )
    for name, text in tracked.names.items():
        os.environ.setdefault(name, text)
    with alone(paths):
        tracker = Tracker(paths, tracked, lambda line: None)  # The last line says it.
        tracker.look()
        tracker.close()
    print("; ".join(f"{feed.destination.name}: {feed.problem or feed.destination.where()}" for feed in tracker.feeds))
    return EXIT_FAILED if any(feed.problem for feed in tracker.feeds) else EXIT_DONE
