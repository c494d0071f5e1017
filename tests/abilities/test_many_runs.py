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

import pytest

from tests.abilities.support import QUIET, ROOT, SMALL, Project, environ, sac, status

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

NOTEBOOK = ROOT / "docs/tutorials/from_python.ipynb"
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


def test_the_notebook_trains_its_class_from_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells in one process, as a kernel executes them, with a run that is small and a class of another name."""
    for variable in os.environ.keys() - environ().keys():
        monkeypatch.delenv(variable)
    for name, value in QUIET.items():
        monkeypatch.setenv(f"SAC_{name}", str(value))
    monkeypatch.setenv("SAC_PYTHON", sys.executable)
    monkeypatch.chdir(tmp_path)
    small = {
        "class TrainParams(": "class Mine(",
        "train(TrainParams, ": "train(Mine, ",
        "    num_env_steps = 6_000\n": f"    {SMALL}\n    num_iter = 2\n    num_eval_episodes = 1\n",
        "    eval_period_env_steps = 1_500": "    eval_period_iters = 1",
        '{"horizon": 200}': '{"horizon": 20}',
        "workers=2)": 'workers=1, attributes={"batch_size": 16})',
    }
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    texts = ["".join(cell["source"]) for cell in cells]
    space: dict[str, Any] = {"__name__": "__main__"}
    for number, text in enumerate(texts):
        for old, new in small.items():
            assert "".join(texts).count(old) == 1
            text = text.replace(old, new)
        name = f"/tmp/ipykernel_7/{number}.py"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec"), space)
    run, found = space["run"], space["found"]
    assert run.exp_dir == tmp_path / "logs/from_a_notebook" and run.status["run"]["state"] == "done"
    assert run.metrics["env_steps"].iloc[-1] == 20 * (2 + 2) and len(run.evaluations) == 3
    assert len(space["axes"].lines[0].get_xydata()) == 3 and -17.0 * 200 < space["total"] < 0.0
    assert "is finished" in run.output and found.metrics.equals(run.metrics)
    assert json.loads((run.exp_dir / "run.json").read_text())["attributes"]["batch_size"] == 16


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
