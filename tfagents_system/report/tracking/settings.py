"""Where a run's metrics are sent to, and the one name that it has there for ever."""

from __future__ import annotations

import dataclasses
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfagents_system.run_files.heartbeat import read_json, write_json
from tfagents_system.run_files.run_paths import RunPaths

WANDB_MODES = ("online", "offline")
_PREFIX = "SAC_"


@dataclasses.dataclass(frozen=True)
class TrackingSettings:
    """What the SAC_ variables of the same names say.

    Attributes:
      wandb: One of WANDB_MODES; None: nothing goes to Weights & Biases.
      wandb_key_file: Holds the key, if WANDB_API_KEY and ~/.netrc don't.
      mlflow_uri: None: nothing goes to MLflow.
      track_artifacts: Whether settings, best policy and videos are sent when a run is done.
    """

    wandb: str | None = None
    wandb_project: str = "tfagents_system"
    wandb_entity: str | None = None
    wandb_group: str | None = None
    wandb_tags: tuple[str, ...] = ()
    wandb_key_file: str | None = None
    mlflow_uri: str | None = None
    mlflow_experiment: str = "tfagents_system"
    track_artifacts: bool = False

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> TrackingSettings:
        """From checked variables by field, or from a JSON object with such names; others are left out."""
        names = {field.name for field in dataclasses.fields(cls)}
        found = {name: value for name, value in values.items() if name in names and value is not None}
        if "wandb_tags" in found:
            found["wandb_tags"] = tuple(found["wandb_tags"])
        if "wandb_key_file" in found:
            found["wandb_key_file"] = str(found["wandb_key_file"])
        return cls(**found)

    @property
    def is_wanted(self) -> bool:
        """Whether there is anywhere to send metrics to."""
        return self.wandb is not None or self.mlflow_uri is not None


@dataclasses.dataclass(frozen=True)
class Tracked:
    """The contents of tracking.json.

    Attributes:
      settings: Those of the last start.
      ids: A name for each agent of the run, by how many were before it (`--reset_training` replaces one): whose
        updates count from 0 is another run to those who draw curves.
    """

    settings: TrackingSettings
    ids: Mapping[str, str]


def read_tracked(paths: RunPaths) -> Tracked | None:
    """None where the run was never to be tracked."""
    content = read_json(paths.tracking_json)
    if not content:
        return None
    return Tracked(TrackingSettings.of(content.get("settings", {})), content.get("ids", {}))


def keep_tracked(paths: RunPaths, settings: TrackingSettings, agents_before: int) -> Tracked:
    """Writes the settings, and an id for this agent if it has none yet, before anybody hears of it."""
    ids = dict((before := read_tracked(paths)) and before.ids or {})
    ids.setdefault(str(agents_before), uuid.uuid4().hex[:12])
    tracked = Tracked(settings, ids)
    write_json(paths.tracking_json, {"settings": dataclasses.asdict(settings), "ids": ids})
    return tracked


def group_of(settings: TrackingSettings, name: str) -> str | None:
    """Tasks of a sweep or an array are one group, unless something else is said."""
    task = re.fullmatch(r"(.+)_task_\d+", name)
    return settings.wandb_group or (task[1] if task else None)


def read_key(settings: TrackingSettings) -> str | None:
    """The key in the file; None without one."""
    return None if settings.wandb_key_file is None else Path(settings.wandb_key_file).read_text("utf-8").strip()
