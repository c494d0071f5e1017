"""The robots of EnvPool: examples that are whole, also where it is not installed."""

from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path

import pytest

from tests.support.launching import ROOT
from tfagents_system.launch import new_project
from tfagents_system.settings.params_check import advice, check_params


@pytest.mark.parametrize(
    ("example", "task"),
    [("quadruped_go1", "Go1JoystickFlatTerrain-v1"), ("humanoid_g1", "G1JoystickFlatTerrain-v1")],
)
def test_a_copy_is_whole_and_builds_lanes_of_the_task_with_its_seed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, example: str, task: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert new_project.main(["robot", "--example", example]) == 0
    files = {path.name: path.read_text() for path in Path("robot").iterdir()}
    assert sorted(files) == ["config.json", "params.py", "vars.sh"] and "SAC_EXP_NAME:=robot}" in files["vars.sh"]
    assert "tfagents_system.examples" not in files["params.py"]

    monkeypatch.setitem(sys.modules, "envpool", types.SimpleNamespace(make=lambda *args, **kwargs: (args, kwargs)))
    module = importlib.import_module(f"tfagents_system.examples.{example}.params")
    params = module.TrainParams(json.loads((ROOT / f"tfagents_system/examples/{example}/config.json").read_text()))
    del sys.modules[f"tfagents_system.examples.{example}.params"]  # It has the stand-in.
    assert check_params(params) == [] and advice(params) == []
    names, options = params.env_ctor(seed=7)
    assert names == (task,) and (options["num_envs"], options["seed"], options["env_type"]) == (16, 7, "gymnasium")
    assert params.env_ctor(num_envs=4)[1]["num_envs"] == 4
    assert params.actor_observations == ("state",)
    assert params.env_steps_per_iter % 16 == 0, "each lane makes as many steps"
