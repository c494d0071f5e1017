"""TF-Agents' own environments, as `env_ctor` of a user returns them: from suites, written by the user, wrapped."""

from pathlib import Path

import pytest

from tests.support.launching import UserRun, finish
from tfagents_system.run_files.metrics import read_rows

pytestmark = pytest.mark.slow

PARAMS = """
import numpy as np
from tf_agents.environments import py_environment, suite_gym, suite_pybullet, wrappers
from tf_agents.specs import array_spec
from tf_agents.trajectories import time_step as ts

from tfagents_system.train_params_base import TrainParamsBase


class Walk(py_environment.PyEnvironment):
    def observation_spec(self):
        return array_spec.ArraySpec((1,), np.float32)

    def action_spec(self):
        return array_spec.BoundedArraySpec((1,), np.float32, -1.0, 1.0)

    def _reset(self):
        self._place, self._is_over = 0.0, False
        return ts.restart(np.zeros(1, np.float32))

    def _step(self, action):
        if self._is_over:
            return self.reset()
        self._place += float(action[0])
        self._is_over = abs(self._place) > 3.0
        step = ts.termination if self._is_over else ts.transition
        return step(np.array([self._place], np.float32), -abs(self._place))

    def render(self, mode="rgb_array"):
        return np.zeros((32, 32, 3), np.uint8)


ENVIRONMENTS = {
    "suite_gym": lambda: suite_gym.load("Pendulum-v1"),
    "suite_pybullet": lambda: suite_pybullet.load("InvertedPendulumBulletEnv-v0"),
    "wrapped": lambda: wrappers.TimeLimit(Walk(), 12),
}


class TrainParams(TrainParamsBase):
    num_iter = 3
    num_train_episodes_per_iter = 1
    updates_per_iter = 5
    num_initial_episodes = 1
    num_eval_episodes = 1
    batch_size = 16
    actor_fc_layer_params = (8,)
    critic_joint_fc_layer_params = (8,)

    def env_ctor(self, *args, seed=None):
        return ENVIRONMENTS[self.env_config["environment"]]()
"""


@pytest.mark.parametrize("environment", ["suite_pybullet", "wrapped"])
def test_environments_of_tf_agents_are_ready_to_start(tmp_path: Path, environment: str) -> None:
    run = UserRun(tmp_path, PARAMS, {"horizon": 20, "environment": environment}, num_collect_workers=1)
    code, output = finish(run.start("--check"))
    assert code == 0 and "0 errors" in output, output


def test_a_run_trains_in_an_environment_of_a_suite(tmp_path: Path) -> None:
    run = UserRun(tmp_path, PARAMS, {"horizon": 20, "environment": "suite_gym"}, num_collect_workers=1)
    code, output = run.finish()
    assert code == 0, f"{output}\n{run.logs()}"
    lengths = [row["eval/episode_length"] for row in read_rows(run.exp_dir / "metrics.csv")]
    assert {length for length in lengths if length is not None} == {20.0}
