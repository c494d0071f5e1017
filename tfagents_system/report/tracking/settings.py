"""Where a run's metrics are sent to, and the one name that it has there for ever."""

from __future__ import annotations

import dataclasses
import os
import re
import uuid
from collections.abc import Mapping
from typing import Any

from tfagents_system.machine.files import read_json, write_json
from tfagents_system.run_files.run_paths import RunPaths

WANDB_MODES = ("online", "offline")
# Of the packages themselves, which read them. `sac track` has those of the run.
LIBRARY_VARIABLES = ("WANDB_PROJECT", "WANDB_ENTITY", "WANDB_RUN_GROUP", "WANDB_TAGS", "MLFLOW_EXPERIMENT_NAME")
_DEFAULT_PROJECT = "tfagents_system"


@dataclasses.dataclass(frozen=True)
class TrackingSettings:
    """What the SAC_ variables of the same names say.

    Attributes:
      wandb: One of WANDB_MODES; None: nothing goes to Weights & Biases.
      mlflow_uri: None: nothing goes to MLflow.
    """

    wandb: str | None = None
    mlflow_uri: str | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> TrackingSettings:
        """From checked variables by field, or from a JSON object with such names; others are left out."""
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in names and value is not None})

    @property
    def is_wanted(self) -> bool:
        """Whether there is anywhere to send metrics to."""
        return self.wandb is not None or self.mlflow_uri is not None


@dataclasses.dataclass(frozen=True)
class Tracked:
    """The contents of tracking.json.

    Attributes:
      settings: Those of the last start.
      names: What it had of the packages' own variables (LIBRARY_VARIABLES).
      run_id: The name that the run has there for ever.
    """

    settings: TrackingSettings
    run_id: str
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)


def read_tracked(paths: RunPaths) -> Tracked | None:
    """None where the run was never to be tracked."""
    content = read_json(paths.tracking_json)
    if not content:
        return None
    return Tracked(TrackingSettings.of(content.get("settings", {})), content["run_id"], content.get("names", {}))


def keep_tracked(paths: RunPaths, settings: TrackingSettings) -> Tracked:
    """Writes the settings, and the run's id if it has none yet, before anybody hears of it."""
    before = read_tracked(paths)
    run_id = uuid.uuid4().hex[:12] if before is None else before.run_id
    names = {name: os.environ[name] for name in LIBRARY_VARIABLES if os.environ.get(name)}
    write_json(paths.tracking_json, {"settings": dataclasses.asdict(settings), "run_id": run_id, "names": names})
    return Tracked(settings, run_id, names)


def wandb_project() -> str:
    """WANDB_PROJECT, or ours."""
    return os.environ.get("WANDB_PROJECT") or _DEFAULT_PROJECT


def mlflow_experiment() -> str:
    """MLFLOW_EXPERIMENT_NAME, or ours."""
    return os.environ.get("MLFLOW_EXPERIMENT_NAME") or _DEFAULT_PROJECT


def group_of(name: str) -> str | None:
    """WANDB_RUN_GROUP; without it, tasks of a sweep or an array are one group."""
    task = re.fullmatch(r"(.+)_task_\d+", name)
    return os.environ.get("WANDB_RUN_GROUP") or (task[1] if task else None)
