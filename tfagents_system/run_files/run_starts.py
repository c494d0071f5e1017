"""What run.json records of a run's starts: the SLURM jobs that made them, and the settings of the newest one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tfagents_system.run_files.heartbeat import read_json
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.overrides import Overrides

_JOBS, _SETTINGS = "jobs", "settings_sha256"


def jobs_after(before: Mapping[str, Any], jobs: Sequence[str]) -> dict[str, Any]:
    """What run.json has of jobs from a start on.

    Args:
      before: The content of run.json; empty for a new run.
      jobs: Of this start: the job's id, and the same with the options of what it does once.
    """
    return {_JOBS: list(dict.fromkeys([*before.get(_JOBS, []), *jobs]))}


def was_started_by(paths: RunPaths, job: str, asked: str) -> bool:
    """Whether a SLURM job has done with this run what it asks for once.

    Args:
      job: Its id.
      asked: The options, as of `run_settings.asked_once`; empty: whether it has started the run.
    """
    return f"{job} {asked}".rstrip() in (read_json(paths.run_json) or {}).get(_JOBS, [])


def settings_after(kept: Overrides) -> dict[str, str]:
    """What run.json has of the settings of a start: overrides.json, which has them, may be edited."""
    content = json.dumps([kept.params, kept.config, kept.variables], sort_keys=True)
    return {_SETTINGS: hashlib.sha256(content.encode()).hexdigest()}
