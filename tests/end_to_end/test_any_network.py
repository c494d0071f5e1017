"""Images and vectors in a dictionary through the whole system."""

import pytest

from tests.support.launching import UserRun
from tfagents_system.run_files.metrics import read_metrics

pytestmark = pytest.mark.slow

PARAMS = """
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
        return self.observation_space.sample(), float(-np.sum(action**2)), False, False, {"is_success": True}


class TrainParams(TrainParamsBase):
    num_iter = 4
    num_steps_per_iter = 6
    n_buffer_init_episodes = 2
    n_eval_episodes = 2
    eval_period_itrs = 2
    train_batch_size = 8
    actor_fc_layer_params = (16,)
    critic_joint_fc_layer_params = (16,)
    asynchronous = True
    max_updates_per_env_step = 0.25

    def env_ctor(self, **kwargs):
        return Camera()
"""


def test_images_in_a_dictionary_collected_asynchronously(tmp_path):
    run = UserRun(tmp_path, PARAMS, {"horizon": 20})
    code, output = run.finish()
    assert code == 0, f"{output}\n{run.logs()}"
    roles = run.status()["roles"]
    assert roles["trainer"]["train_step"] == 24 and roles["worker_0"]["inference"] == "numpy"
    # A quarter of an update for each step after the two random episodes of 20.
    assert 0.25 * (roles["replay"]["env_steps"] - 40) >= 24
    evaluations = [row for row in read_metrics(run.exp_dir / "metrics.csv") if row["eval_return"] is not None]
    assert evaluations[-1]["eval_success"] == 1.0
