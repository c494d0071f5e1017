"""A run in a container that drops the environment: trained inside, to its end."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.launching import UserRun

pytestmark = pytest.mark.slow

PARAMS = """
import os

import gymnasium
from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    num_iter = 5
    num_steps_per_iter = 5
    n_buffer_init_episodes = 1
    n_eval_episodes = 1
    train_batch_size = 16
    actor_fc_layer_params = (8,)
    critic_joint_fc_layer_params = (8,)

    def env_ctor(self, *args, seed=None, **kwargs):
        assert os.environ["INSIDE"] == "1" and "VIRTUAL_ENV" not in os.environ
        return gymnasium.make("Pendulum-v1")
"""


def has_bubblewrap() -> bool:
    command = ["bwrap", "--dev-bind", "/", "/", "true"]
    return shutil.which("bwrap") is not None and subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.skipif(not has_bubblewrap(), reason="bubblewrap is not installed, or not allowed here")
def test_a_run_trains_in_a_container_with_an_environment_of_its_own(tmp_path: Path) -> None:
    inside = "--setenv INSIDE 1 --setenv HOME /root --setenv PATH /usr/bin:/bin"
    prefix = f"'bwrap --dev-bind / / --proc /proc --die-with-parent --clearenv {inside}'"
    run = UserRun(tmp_path, PARAMS, {"horizon": 20}, exec_prefix=prefix, num_collect_workers=1)
    code, output = run.finish()
    assert code == 0, f"{output}\n{run.logs()}"
    assert run.trainer()["train_step"] == 25
    assert json.loads((run.exp_dir / "run.json").read_text())["num_iter"] == 5
