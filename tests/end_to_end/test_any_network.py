"""Environments and agents off the beaten path, each through the whole system."""

import pytest

from tests.support.launching import UserRun
from tfagents_system.run_files.metrics import read_metrics

pytestmark = pytest.mark.slow

COMMON = """
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


class Common(TrainParamsBase):
    num_iter = 4
    num_steps_per_iter = 6
    n_buffer_init_episodes = 2
    n_eval_episodes = 2
    eval_period_itrs = 2
    train_batch_size = 8
    actor_fc_layer_params = (16,)
    critic_joint_fc_layer_params = (16,)
"""

PIXELS_ASYNCHRONOUS = (
    COMMON
    + """
class TrainParams(Common):
    asynchronous = True
    max_updates_per_env_step = 0.25

    def env_ctor(self, **kwargs):
        return Camera()
"""
)

RECURRENT = (
    COMMON
    + """
class TrainParams(Common):
    recurrent = True
    recurrent_sequence_length = 5
    recurrent_lstm_units = 8
    recurrent_burn_in = 2
    action_history = 2
    normalize_observations = True
    normalize_rewards = True
    validation_share = 0.3
    n_train_episodes_per_iter = 4
    max_policy_lag = 0

    def env_ctor(self, **kwargs):
        return gymnasium.make("Pendulum-v1")
"""
)


def finished(tmp_path, params, inference, **variables):
    run = UserRun(tmp_path, params, {"horizon": 20}, **variables)
    code, output = run.finish()
    assert code == 0, f"{output}\n{run.logs()}"
    assert run.trainer()["train_step"] == 24
    assert run.status()["roles"]["worker_0"]["inference"] == inference
    return run


def test_images_in_a_dictionary_collected_asynchronously(tmp_path):
    run = finished(tmp_path, PIXELS_ASYNCHRONOUS, "numpy")
    # A quarter of an update for each step after the two random episodes of 20.
    assert 0.25 * (run.status()["roles"]["replay"]["env_steps"] - 40) >= 24
    evaluations = [row for row in read_metrics(run.exp_dir / "metrics.csv") if row["eval_return"] is not None]
    assert evaluations[-1]["eval_success"] == 1.0


def test_recurrent_networks_with_all_that_sequences_can_have_from_several_environments_a_worker(tmp_path):
    run = finished(tmp_path, RECURRENT, "numpy", envs_per_worker=3)
    rows = read_metrics(run.exp_dir / "metrics.csv")
    assert rows[-1]["iteration"] == 4
    # A report that comes late is told of in the next row: how many rows have it says nothing.
    assert {row["train/policy_lag"] for row in rows if row["train/policy_lag"] is not None} == {0}
    # Pendulum's rewards are between -16.3 and 0: returns of 20 steps between -297 and 0.
    assert all(1 < row["reward_scale"] < 149 for row in rows if row["critic_loss"] is not None)
    assert any(row["validation/critic_loss"] is not None for row in rows)
    roles = run.status()["roles"]
    # 2 random episodes, and 4 in each of 4 iterations from each of 2 workers, of 20 steps all.
    assert roles["replay"]["env_steps"] == 20 * (2 + 4 * 4 * 2)
    shares = roles["worker_0"]["time_shares"]
    assert shares["simulator"] > 0 and shares["policy"] > 0 and shares["evaluating"] > 0
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-6)
