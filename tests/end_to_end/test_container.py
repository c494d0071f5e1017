"""Images and vectors in a dictionary, collected asynchronously, in a container that drops the environment."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from tests.support.launching import UserRun
from tfagents_system.run_files.metrics import read_rows

pytestmark = pytest.mark.slow

PARAMS = """
import os
import time
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces
from tfagents_system.train_params_base import TrainParamsBase


class Camera(gymnasium.Env):
    observation_space = spaces.Dict(
        camera=spaces.Box(0, 255, (8, 8, 3), np.uint8), speed=spaces.Box(-1, 1, (2,), np.float64)
    )
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        time.sleep(0.005)  # Or thousands of steps are collected while the trainer starts.
        return self.observation_space.sample(), float(-np.sum(action**2)), False, False, {"is_success": True}


class TrainParams(TrainParamsBase):
    num_iter = 4
    updates_per_iter = 6
    num_initial_episodes = 2
    num_eval_episodes = 2
    eval_period_iters = 2
    batch_size = 8
    actor_fc_layer_params = (16,)
    critic_joint_fc_layer_params = (16,)
    asynchronous = True
    updates_per_env_step = 0.25

    def env_ctor(self, **kwargs):
        with (Path(__file__).parent / "built").open("a") as file:
            file.write(f"{os.environ.get('INSIDE')} {os.environ.get('VIRTUAL_ENV')}\\n")
        return Camera()
"""


def has_bubblewrap() -> bool:
    command = ["bwrap", "--dev-bind", "/", "/", "true"]
    return shutil.which("bwrap") is not None and subprocess.run(command, capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run in a container, where there can be one."""
    inside = "--setenv INSIDE 1 --setenv HOME /root --setenv PATH /usr/bin:/bin"
    prefix = f"'bwrap --dev-bind / / --proc /proc --die-with-parent --clearenv {inside}'"
    variables = {"exec_prefix": prefix} if has_bubblewrap() else {}
    run = UserRun(tmp_path_factory.mktemp("container"), PARAMS, {"horizon": 20}, num_collect_workers=1, **variables)
    code, output = run.finish()
    assert code == 0, f"{output}\n{run.logs()}"
    return run


def test_images_in_a_dictionary_are_collected_asynchronously(finished):
    roles = finished.status()["roles"]
    assert roles["trainer"]["train_step"] == 24 and roles["worker_0"]["inference"] == "numpy"
    # A quarter of an update for each step after the two random episodes of 20.
    assert 0.25 * (roles["replay"]["env_steps"] - 40) >= 24
    evaluations = [row for row in read_rows(finished.exp_dir / "metrics.csv") if row["eval_return"] is not None]
    assert evaluations[-1]["eval_success"] == 1.0


@pytest.mark.skipif(not has_bubblewrap(), reason="bubblewrap is not installed, or not allowed here")
def test_a_run_trains_in_a_container_with_an_environment_of_its_own(finished):
    built = [line.split() for path in finished.folder.rglob("built") for line in path.read_text().splitlines()]
    assert len(built) >= 2, "for the check and the worker"
    assert {tuple(words) for words in built} == {("1", "None")}
    assert json.loads((finished.exp_dir / "run.json").read_text())["attributes"]["num_iter"] == 4
