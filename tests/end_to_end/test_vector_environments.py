"""Runs whose environment is a vector environment: real processes, a real server, what the ring holds afterwards."""

import numpy as np
import pytest

from tests.support.launching import UserRun, finish
from tfagents_system.envs import specs
from tfagents_system.replay.ring import Ring
from tfagents_system.run_files.metrics import read_metrics
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.transport.segments import Layout

pytestmark = pytest.mark.slow

LANES, ITERATIONS, STEPS, HORIZON, EPISODES_IN_BUFFER = 6, 8, 50, 30, 100

PARAMS = f"""
import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.support.lanes_for_tests import NumberedLane
from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    num_iter = {ITERATIONS}
    env_steps_per_iter = {STEPS}
    updates_per_env_step = 0.5
    n_step = 3
    n_buffer_init_episodes = 4
    buffer_size = {EPISODES_IN_BUFFER * HORIZON}
    n_eval_episodes = 8
    eval_period_itrs = 4
    train_batch_size = 16
    actor_fc_layer_params = (8,)
    critic_joint_fc_layer_params = (8,)

    def env_ctor(self, *args, seed=None, **kwargs):
        lengths = [(5, 17), (40,), (1, 3), (12,), (7,), (40,)]
        ctors = [lambda k=k, own=own: NumberedLane(k, own) for k, own in enumerate(lengths)]
        return SyncVectorEnv(ctors, autoreset_mode=AutoresetMode.SAME_STEP)
"""


def test_a_run_has_its_steps_and_true_last_observations_and_evaluates_in_all_lanes(tmp_path):
    run = UserRun(tmp_path, PARAMS, {"horizon": HORIZON}, num_collect_workers=2)
    code, output = finish(run.start("--set", "network=simba"))
    assert code == 0, f"{output}\n{run.logs()}"
    paths = RunPaths(run.exp_dir)
    layout = Layout.from_specs(*specs.load_specs(paths.specs))
    ring = Ring.open(paths.replay, layout, EPISODES_IN_BUFFER * (HORIZON + 1))
    assert [ring.steps_up_to(iteration) for iteration in range(ITERATIONS)] == [
        STEPS * (iteration + 1) for iteration in range(ITERATIONS)
    ]
    starts = np.flatnonzero(ring.steps_left[: ring.filled_rows] > 0)
    now, then = ring.observation[0][starts], ring.observation[0][starts + 1]
    np.testing.assert_array_equal(then, now + [0, 0, 1], "each transition is a step of one lane's episode")
    np.testing.assert_array_equal(ring.reward[starts], 0.5 * then[:, 2])
    assert set(now[:, 0]) == set(range(LANES))
    lengths = [row["eval/episode_length"] for row in read_metrics(run.exp_dir / "metrics.csv")]
    # Each of two workers evaluates in its lanes 0 to 3, short and long ones; later on in other episodes of these.
    expected = {(5 + HORIZON + 1 + 12) / 4, (17 + HORIZON + 3 + 12) / 4}
    assert {length for length in lengths if length is not None} == expected
