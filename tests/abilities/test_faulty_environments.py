"""Simulators that raise, hang and leave programs behind, in the Python of SAC_ENV_PYTHON: the run continues."""

from __future__ import annotations

import re
import sys
from typing import Any

import psutil
import pytest

from tests.abilities.support import SMALL, Project, column, status

pytestmark = pytest.mark.slow

HORIZON, ITERATIONS = 10, 6

ENVIRONMENT = """
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np


class Faulty(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 100.0, (2,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    mass = 0.0

    def __init__(self, worker, folder):
        self.worker, self.folder, self.episode = worker, Path(folder), 0
        self.simulator = subprocess.Popen(["sleep", "86399"])

    def set_state(self, state):
        self.mass = state["mass"]

    def once(self, name):
        try:
            (self.folder / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.steps = self.episode + 1, 0
        return np.array([0.0, self.mass], np.float32), {}

    def step(self, action):
        self.steps += 1
        may_fail = self.episode > 2 and self.worker == 1  # A start's check has the environment of worker 0.
        if may_fail and self.once("raised"):
            raise ZeroDivisionError("the motor is off")  # the line that raises
        if may_fail and self.once("hung"):
            while True:
                time.sleep(1.0)  # the line that hangs
        return np.array([self.steps, self.mass], np.float32), 1.0, False, False, {"log/mass": self.mass}
"""

PARAMS = f"""
from faulty import Faulty
from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    {SMALL}
    num_iter = {ITERATIONS}
    num_train_episodes_per_iter = 2

    def env_ctor(self, worker=9):
        return Faulty(worker, "FOLDER")

    def collect_env_args_kwargs(self, id):
        return (id,), {{}}
"""
CURRICULUM = {"mass": {"iters": [0, 1], "range": [1.0, 2.0]}}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = tmp_path_factory.mktemp("faults")
    (folder / "faulty.py").write_text(ENVIRONMENT)
    variables: dict[str, Any] = {"ENV_PYTHON": sys.executable, "STEP_TIMEOUT_SECS": 8}
    variables |= {"MAX_RESTARTS": 0, "NUM_COLLECT_WORKERS": 2}
    project = Project(folder, PARAMS, {"horizon": HORIZON, "curriculum": CURRICULUM}, **variables)
    project.train()
    return project


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(ENVIRONMENT.splitlines(), 1) if text in line)


def log(project: Project, role: str) -> str:
    return (project.run / "logs" / f"{role}.log").read_text()


def test_faults_are_told_by_the_users_line_and_environments_built_again(project: Project) -> None:
    told = f"ZeroDivisionError: the motor is off (faulty.py, line {line_of('the line that raises')})"
    assert told in log(project, "worker_1") and "environment fault" in project.output()
    assert project.train_step() == ITERATIONS * 4
    assert sum(beat.get("env_faults", 0) for beat in status(project.run)["roles"].values()) == 2
    assert set(column(project.run, "train/mass")) <= {1.0, 1.5, 2.0} and column(project.run, "train/mass")[-1] == 2.0
    left = [process for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"] == ["sleep", "86399"]]
    assert left == [], "programs of simulators are ended"


def test_a_simulator_that_hangs_is_killed_in_its_own_python(project: Project) -> None:
    hung = line_of("the line that hangs")
    assert re.search(rf"has not returned for 8 s .*\(faulty.py, line {hung}\)", log(project, "worker_1"))
    assert all(status(project.run)["roles"][f"worker_{number}"]["restarts"] == 0 for number in range(2))
