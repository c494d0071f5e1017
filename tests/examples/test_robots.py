"""The robots of EnvPool: examples that are whole, and with EnvPool installed pass the trial of a start."""

from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from tests.support.launching import ROOT
from tfagents_system.checks.findings import Findings
from tfagents_system.launch import new_project
from tfagents_system.launch.environment_checks import EnvironmentTrial
from tfagents_system.settings.params_check import advice, check_params

ROBOTS = [
    ("quadruped_go1", "Go1JoystickFlatTerrain-v1", 48, 12),
    ("humanoid_g1", "G1JoystickFlatTerrain-v1", 103, 29),
]


def params_of(example: str) -> Any:
    module = importlib.import_module(f"tfagents_system.examples.{example}.params")
    return module.TrainParams(json.loads((ROOT / f"tfagents_system/examples/{example}/config.json").read_text()))


@pytest.mark.parametrize(("example", "task"), [robot[:2] for robot in ROBOTS])
def test_a_copy_is_whole_and_builds_lanes_of_the_task_with_its_seed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, example: str, task: str
) -> None:
    """Also where EnvPool is not installed."""
    monkeypatch.chdir(tmp_path)
    assert new_project.main(["robot", "--example", example]) == 0
    files = {path.name: path.read_text() for path in Path("robot").iterdir()}
    assert sorted(files) == ["config.json", "params.py", "vars.sh"] and "SAC_EXP_NAME:=robot}" in files["vars.sh"]
    assert "tfagents_system.examples" not in files["params.py"]

    monkeypatch.setitem(sys.modules, "envpool", types.SimpleNamespace(make=lambda *args, **kwargs: (args, kwargs)))
    params = params_of(example)
    del sys.modules[f"tfagents_system.examples.{example}.params"]  # It has the stand-in.
    assert check_params(params) == [] and advice(params) == []
    names, options = params.env_ctor(seed=7)
    assert names == (task,) and (options["num_envs"], options["seed"], options["env_type"]) == (16, 7, "gymnasium")
    assert params.env_ctor(num_envs=4)[1]["num_envs"] == 4
    assert params.actor_observations == ("state",)
    assert params.env_steps_per_iter % 16 == 0, "each lane makes as many steps"


@pytest.mark.parametrize(("example", "task", "state", "actions"), ROBOTS)
def test_a_start_accepts_it_where_envpool_is_installed(example: str, task: str, state: int, actions: int) -> None:
    pytest.importorskip("envpool", reason="the extra `envpool` is not installed")
    params, checks = params_of(example), Findings()
    trial = EnvironmentTrial(params, 0, checks).run()
    assert checks.errors == [] and trial is not None
    env = params.env_ctor(seed=1, num_envs=1)
    assert env.spec.config.task_name == task.removesuffix("-v1")
    shapes = {name: space.shape for name, space in env.single_observation_space.spaces.items()}
    assert shapes["state"] == (state,) < shapes["privileged_state"]
    assert env.single_action_space.shape == (actions,)
