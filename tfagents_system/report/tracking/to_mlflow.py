"""MLflow: a server, or a folder (`file:...`) or database (`sqlite:...`) that its own programs read."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from tfagents_system.report.tracking.rows import MARKS, Sent
from tfagents_system.report.tracking.settings import TrackingSettings, mlflow_experiment

_TAG = "tfagents_system.run"
_DESCRIBED = "tfagents_system.described"  # A tag of runs that have all of their settings.
_MOST_METRICS, _MOST_PARAMS, _LONGEST_PARAM, _LONGEST_NAME = 1000, 100, 500, 240  # Of a request.
_REQUEST_SECS, _RETRIES = 20, 1  # The tracker itself tries again.


class ToMlflow:
    """One run of an MLflow experiment; see Destination.

    Args:
      settings: `mlflow_uri` says where.
      run_id: A tag of the run, by which it is found again.
      name: For people.
    """

    name = "MLflow"

    def __init__(self, settings: TrackingSettings, run_id: str, name: str) -> None:
        self._settings, self._id, self._shown = settings, run_id, name
        self._waiting: list[Any] = []
        self._names: dict[str, str] = {}
        self._client: Any = None
        self._run_id, self._experiment_id = "", ""

    def begin(self, resolved: Mapping[str, Any]) -> Sent:
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(_REQUEST_SECS))
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", str(_RETRIES))
        from mlflow import MlflowClient

        self._waiting = []
        self._client = MlflowClient(tracking_uri=self._settings.mlflow_uri)
        self._experiment_id = self._experiment()
        found = self._client.search_runs([self._experiment_id], f"tags.`{_TAG}` = '{self._id}'", max_results=1)
        if found:
            self._run_id = found[0].info.run_id
            self._client.update_run(self._run_id, status="RUNNING")
            if _DESCRIBED not in found[0].data.tags:  # An attempt before this one failed.
                self._describe(resolved, found[0].data.params)
            return Sent.told(found[0].data.metrics)
        made = self._client.create_run(self._experiment_id, tags={_TAG: self._id}, run_name=self._shown)
        self._run_id = made.info.run_id
        self._describe(resolved, {})
        return Sent()

    def _experiment(self) -> str:
        from mlflow.exceptions import MlflowException

        name = mlflow_experiment()
        if (experiment := self._client.get_experiment_by_name(name)) is not None:
            return str(experiment.experiment_id)
        try:
            return str(self._client.create_experiment(name))
        except MlflowException:  # Another run of a sweep was faster.
            if (experiment := self._client.get_experiment_by_name(name)) is None:
                raise
            return str(experiment.experiment_id)

    def _describe(self, resolved: Mapping[str, Any], known: Mapping[str, str]) -> None:
        """Sends all settings but those that are known there, which MLflow lets nobody change."""
        from mlflow.entities import Param

        texts = {self._name(name): str(value)[:_LONGEST_PARAM] for name, value in _flat(resolved)}
        params = [Param(name, text) for name, text in texts.items() if name not in known]
        for start in range(0, len(params), _MOST_PARAMS):
            self._client.log_batch(self._run_id, params=params[start : start + _MOST_PARAMS])
        self._client.set_tag(self._run_id, _DESCRIBED, "1")

    def _name(self, name: str) -> str:
        """The name that a metric or a setting has there: MLflow refuses some, and all that comes with them."""
        if name not in self._names:
            fit, given = fit_name(name), set(self._names.values())
            while fit in given:
                fit += "_"
            self._names[name] = fit
        return self._names[name]

    def send(self, row: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now, marks = int(1000 * time.time()), MARKS.values()
        # The newest value is that of the largest step: of marks, that must be the largest value.
        steps = {name: int(value if name in marks else row["env_steps"]) for name, value in row.items()}
        metrics = [Metric(self._name(name), value, now, steps[name]) for name, value in row.items()]
        if len(self._waiting) + len(metrics) > _MOST_METRICS:
            self.flush()
        self._waiting += metrics

    def flush(self) -> None:
        if self._waiting:
            self._client.log_batch(self._run_id, metrics=self._waiting)
            self._waiting = []

    def finish(self, is_done: bool) -> None:
        if self._client is not None and self._run_id:
            self._client.set_terminated(self._run_id, "FINISHED" if is_done else "KILLED")

    def has_refused(self, error: Exception) -> bool:
        from mlflow.exceptions import MlflowException

        return isinstance(error, MlflowException) and 400 <= error.get_http_status_code() < 500

    def where(self) -> str:
        return f"{self._settings.mlflow_uri}, experiment {mlflow_experiment()}, run {self._run_id}"


def fit_name(name: str) -> str:
    """A name that MLflow takes for a metric or a setting: letters, digits and `_-. :/`, and no `//`, `.` or `..`
    between slashes; others have `_` there.

    `train/speed (m/s)` becomes `train/speed _m/s_`.
    """
    parts = re.sub(r"[^\w\-. :/]", "_", name[:_LONGEST_NAME]).split("/")
    return "/".join("_" if part in ("", ".", "..") else part for part in parts)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
