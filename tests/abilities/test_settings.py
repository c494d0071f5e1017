"""What is said before anything starts: files and variables, all findings at once, kinds of environments, help."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.abilities.support import ROOT, SMALL, Project, call, sac, sets
from tfagents_system.testing import assert_environment

PARAMS = f"""
import gymnasium

import beside
from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    {SMALL}
    num_iter = 3
    mine = beside.NUMBER

    def __init__(self, env_config, compute_config=None):
        super().__init__(env_config, compute_config)
        assert self.compute_config["num_collect_workers"] == 1

    def env_ctor(self, *args, seed=None, **kwargs):
        return gymnasium.make("Pendulum-v1", **kwargs)
"""


def project_in(folder: Path, params: str = PARAMS, **config: Any) -> Project:
    (folder / "beside.py").write_text("NUMBER = 3\n")
    return Project(folder, params, {"horizon": 20, **config}, SEED=3)


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder, and what `--check` says of the run in it, with two variables of the environment."""
    folder = tmp_path_factory.mktemp("checked")
    return folder, project_in(folder).check(SEED=4, EXP_NAME="other")


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What `--check` says where much is wrong."""
    params = PARAMS.replace("num_iter = 3", "num_iter = 0\n    batchsize = 3\n    gamma = 0.9")
    settings = ("SAC_SEDE=1", "discount=7", "target_update_tua=0.1", "learning_starts=100", "nosuch=1")
    return project_in(tmp_path_factory.mktemp("wrong"), params, horizn=3).check(*sets(*settings), code=2)


@pytest.mark.slow
def test_files_are_beside_the_vars_file_and_the_environment_wins(checked: tuple[Path, str]) -> None:
    folder, told = checked
    assert f"{folder}/logs/other: a new run" in told and str(folder / "params.py") in told
    assert not (folder / "logs").exists(), "nothing is written"


@pytest.mark.slow
def test_check_finds_all_and_foretells_what_a_run_costs(checked: tuple[Path, str], wrong: str) -> None:
    lines = dict(re.findall(r"^ok    (.+?)  +(.+)$", checked[1], re.M))
    assert "for 3 iterations" in lines["duration"] and "MiB" in lines["memory"] and "replay buffer" in lines["disk"]
    assert "same seed gives the same episode" in lines["seeding"] and "frames of" in lines["rendering"]
    assert "0 errors" in checked[1]
    for finding in ("num_iter", "batchsize", "gamma", "horizn", "SAC_SEDE", "discount"):
        assert re.search(rf"^ERROR .*{finding}", wrong, re.M), (finding, wrong)


@pytest.mark.slow
def test_near_misses_are_refused_and_what_is_ones_own_passes(wrong: str) -> None:
    """`mine` and `beside` of the params are no finding, whatever else is one."""
    errors = [line for line in wrong.splitlines() if line.startswith("ERROR")]
    near, other = (next(line for line in errors if name in line) for name in ("_tua", "learning_starts"))
    assert "target_update_tau" in near and "nosuch" in wrong
    assert re.search("initial|init|before_training", other), "what is called so here"
    assert not re.search(r"^ERROR .*\b(mine|beside)\b", wrong, re.M)


class Old(gymnasium.Env):
    """As gym had it: `step` returns four values."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def reset(self) -> np.ndarray:  # type: ignore[override]
        return np.zeros(2, np.float32)

    def step(self, action: np.ndarray) -> Any:
        return np.zeros(2, np.float32), 0.0, False, {}


def py_environment() -> Any:
    from tf_agents.environments import py_environment as base
    from tf_agents.specs import BoundedArraySpec
    from tf_agents.trajectories import time_step as ts

    class Own(base.PyEnvironment):
        steps = 0

        def observation_spec(self) -> Any:
            return BoundedArraySpec((2,), np.float32, -1.0, 1.0, "observation")

        def action_spec(self) -> Any:
            return BoundedArraySpec((1,), np.float32, -1.0, 1.0, "action")

        def _reset(self) -> Any:
            self.steps = 0
            return ts.restart(np.zeros(2, np.float32))

        def _step(self, action: np.ndarray) -> Any:
            self.steps += 1
            if self.steps == 7:
                return ts.termination(np.zeros(2, np.float32), 1.0)
            return ts.transition(np.zeros(2, np.float32), 1.0)

    return Own()


def of_suite_gym() -> Any:
    from tf_agents.environments import suite_gym

    return suite_gym.load("Pendulum-v1")


@pytest.mark.parametrize("make", [py_environment, of_suite_gym, Old, lambda: gymnasium.make("Pendulum-v1")])
def test_environments_of_all_kinds_are_accepted(make: Any) -> None:
    assert_environment(make, horizon=20)


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_vector_environments_in_three_reset_modes_are_accepted(mode: AutoresetMode) -> None:
    assert_environment(
        lambda: SyncVectorEnv([lambda: gymnasium.make("Pendulum-v1")] * 2, autoreset_mode=mode), horizon=20
    )


COMMANDS = ("new", "check", "train", "play", "montage", "plots", "parameters", "cpus", "doctor", "status", "compare")


def test_each_command_has_help_with_an_example() -> None:
    everything = sac("--help")
    for command in COMMANDS:
        assert re.search(rf"^  {command} ", everything, re.M), command
    assert "sac status" in sac("status", "--help")
    assert "target_update_tau" in sac("parameters", "tau") and "discount" not in sac("parameters", "tau")


@pytest.mark.slow
def test_a_new_project_is_made_and_checked(tmp_path: Path) -> None:
    sac("new", "cart", "--env", "CartPole-v1", cwd=tmp_path)
    assert json.loads((tmp_path / "cart" / "config.json").read_text()) == {"horizon": 500}
    assert "0 errors" in sac("check", "cart/vars.sh", cwd=tmp_path)
    assert re.search(r"^ok +CPUs", call(sys.executable, "-m", "tfagents_system", "doctor", code=0), re.M)


def test_conda_gets_the_versions_of_the_lock() -> None:
    pinned = set(re.findall(r"^ +- \"?([\w.-]+==[^;\"\s]+)", (ROOT / "environment.yml").read_text(), re.M))
    locked = set(re.findall(r"^([\w.-]+==[^;\s]+)", (ROOT / "requirements.lock").read_text(), re.M))
    assert "tensorflow==2.15.1" in pinned and pinned <= locked
