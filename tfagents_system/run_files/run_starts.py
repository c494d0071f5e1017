"""What run.json records of a run's starts: the SLURM jobs that made them, and the settings of the newest one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tfagents_system.run_files.heartbeat import read_json
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.overrides import Overrides

_JOBS, _WITHOUT_OPTIONS, _SETTINGS = "jobs", "jobs_without_options", "settings_sha256"


def jobs_after(before: Mapping[str, Any], jobs: Sequence[str]) -> dict[str, Any]:
    """What run.json has of jobs from a start on.

    Earlier versions recorded that a job had started the run, and not with which options: those jobs stay marked.

    Args:
      before: The content of run.json; empty for a new run.
      jobs: Of this start: the job's id, and the same with the options of what it does once.
    """
    known = before.get(_JOBS, list(jobs) if before else [])
    return {
        _JOBS: list(dict.fromkeys([*before.get(_JOBS, []), *jobs])),
        _WITHOUT_OPTIONS: before.get(_WITHOUT_OPTIONS, known),
    }


def was_started_by(paths: RunPaths, job: str, asked: str) -> bool:
    """Whether a SLURM job has done with this run what it asks for once.

    Args:
      job: Its id.
      asked: The options, as of `run_settings.asked_once`; empty: whether it has started the run.
    """
    run = read_json(paths.run_json) or {}
    jobs = run.get(_JOBS, [job])  # The earliest versions recorded no jobs.
    return bool(run) and (f"{job} {asked}".rstrip() in jobs or job in run.get(_WITHOUT_OPTIONS, jobs))


def settings_after(kept: Overrides) -> dict[str, str]:
    """What run.json has of the settings of a start: overrides.json, which has them, may be edited."""
    content = json.dumps([kept.params, kept.config, kept.variables], sort_keys=True)
    return {_SETTINGS: hashlib.sha256(content.encode()).hexdigest()}


def were_settings(paths: RunPaths, kept: Overrides) -> bool:
    """Whether the newest start had these settings; False for those of earlier versions, which did not record it."""
    return settings_after(kept).items() <= (read_json(paths.run_json) or {}).items()
