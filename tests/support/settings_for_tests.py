"""Settings of a run that no start has resolved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.resolved import Overrides, Settings, of_start
from tfagents_system.settings.variables import RunVariables


def variables_with(**values: Any) -> RunVariables:
    """Variables by field; what must be given has a value that means nothing."""
    counts = dict.fromkeys(("reverb_cpus", "train_cpus", "num_collect_workers", "collect_worker_cpus"), 1)
    files = {"params": Path("/mine/params.py"), "config": Path("/mine/my.json"), "exp_dir": Path("/logs/try")}
    return RunVariables(**{**counts, **files, "exp_name": "try", **values})


def write_run_json(
    paths: RunPaths,
    *,
    variables: RunVariables | None = None,
    overrides: Overrides | None = None,
    attributes: Any = None,
    config: Any = None,
    **run: Any,
) -> Settings:
    """Writes the run.json of a prepared run; `run` has further values of it."""
    variables = variables or variables_with(exp_dir=paths.exp_dir)
    settings = Settings(variables, overrides or Overrides(), attributes or {}, config or {})
    start = {"variables": of_start(settings.variables), "versions": {"python": "3.11.7"}}
    paths.run_json.write_text(json.dumps({**settings.of_run(), **run, "start": start}))
    return settings
