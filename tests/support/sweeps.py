"""Small sweeps: params, a grid file, and a task's run that has begun."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tfagents_system.run_files import params_folder
from tfagents_system.run_files.run_paths import RunPaths

PARAMS = """
from tfagents_system.train_params_base import TrainParamsBase

class TrainParams(TrainParamsBase):
    num_iter = 3

    def env_ctor(self, *args, seed=None, **kwargs):
        raise RuntimeError("the simulator is not asked")
"""


def grid_file(folder: Path, content: Any) -> str:
    (folder / "g.json").write_text(json.dumps(content))
    return str(folder / "g.json")


def begun(folder: Path, number: int, state: str = "running") -> RunPaths:
    """A task's run that has copies of p.py and of the JSON as they are."""
    paths = RunPaths(folder / f"logs/try_task_{number}")
    params_folder.copy(folder, ["p.py"], paths.params_folder)
    (paths.params_folder / "p.py").rename(paths.params)
    paths.config.write_text((folder / "c.json").read_text())
    paths.run_json.write_text(json.dumps({"num_iter": 3, "params_source": str(folder / "p.py")}))
    trainer = {"train_step": 5, "state": state, "num_iter": 3}
    paths.status_json.write_text(json.dumps({"run": {}, "roles": {"trainer": trainer}}))
    return paths
