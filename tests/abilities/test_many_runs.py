"""Runs from a notebook, sweeps and searches: each starts as a user's own program does."""

from __future__ import annotations

import csv
import json
import linecache
import os
import re
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import tfagents_system
from tests.abilities.support import QUIET, SMALL, Project, environ, sac, status

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

PARAMS = f"""
import gymnasium
from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    {SMALL}
    num_iter = 2
    num_eval_episodes = 1

    def env_ctor(self, *args, seed=None, **kwargs):
        return gymnasium.make("Pendulum-v1", **kwargs)
"""


def tune(project: Project, trials: int) -> str:
    space = {"batch_size": [8, 16]}
    (project.folder / "space.json").write_text(json.dumps(space))
    return sac("tune-params", project.vars_file, "--space", "space.json", "--trials", trials, cwd=project.folder)


def sweep(project: Project, **grid: list[Any]) -> str:
    (project.folder / "grid.json").write_text(json.dumps(grid))
    words = [project.vars_file, "--grid", "grid.json", "--seeds", "3", "--parallel", "2"]
    return sac("sweep", *words, cwd=project.folder)


def test_a_class_of_a_notebook_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in os.environ.keys() - environ().keys():
        monkeypatch.delenv(variable)
    cell, name = PARAMS.replace("class TrainParams(", "class Mine("), "/tmp/ipykernel_7/1.py"
    linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(cell, name, "exec"), space)
    variables = {f"SAC_{key}": value for key, value in QUIET.items()} | {"SAC_PYTHON": sys.executable}
    options: dict[str, Any] = {"folder": tmp_path, "name": "mine", "workers": 1, "variables": variables}
    run = tfagents_system.train(space["Mine"], {"horizon": 20}, attributes={"batch_size": 16}, **options)
    assert run.wait(600.0, progress=False) is run
    assert run.exp_dir == tmp_path / "logs" / "mine" and run.status["run"]["state"] == "done"
    assert run.metrics["env_steps"].iloc[-1] == 20 * (2 + 2) and len(run.evaluations) == 3
    assert "is finished" in run.output
    found = tfagents_system.load_run(run.exp_dir)
    assert found.metrics.equals(run.metrics)
    action = found.policy("latest")(gymnasium.make("Pendulum-v1").reset(seed=1)[0])
    assert action.shape == (1,) and np.all(np.abs(action) <= 2.0)


def test_a_sweep_trains_each_task_on_cpus_of_its_own(tmp_path: Path) -> None:
    project = Project(tmp_path, PARAMS, {"horizon": 20})
    sweep(project, batch_size=[8, 16])
    tasks = [project.run.with_name(f"try_task_{number}") for number in range(2)]
    for task, size in zip(tasks, (8, 16), strict=True):
        run = json.loads((task / "run.json").read_text())
        assert run["attributes"]["batch_size"] == size and run["seed"] == 3
        assert status(task)["roles"]["trainer"]["train_step"] == 2 * 4
    plans = [{cpu for cpus in status(task)["plan"].values() for cpu in cpus} for task in tasks]
    assert len(plans[0] | plans[1]) == 1 or not plans[0] & plans[1], plans
    sac("compare", *tasks, "--out", tmp_path / "compare.png")
    with (tmp_path / "compare.csv").open() as file:
        assert [row["runs"] for row in csv.DictReader(file)] == ["1", "1"]


def test_a_search_tries_settings_in_a_run(tmp_path: Path) -> None:
    told = tune(Project(tmp_path, PARAMS, {"horizon": 20}), 1)
    assert re.search(r"batch_size=(8|16)", told)
    done = [path for path in tmp_path.rglob("status.json") if status(path.parent)["run"]["state"] == "done"]
    assert len(done) == 1
