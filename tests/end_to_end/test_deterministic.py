"""With SAC_DETERMINISTIC=1 the seed decides every weight, bit by bit, whatever stops or kills the run."""

import os
import signal

import numpy as np
import pytest
import tensorflow as tf

from tests.support.launching import UserRun, finish
from tfagents_system.experience import data_sets
from tfagents_system.experience.data_sets import NamedEpisode
from tfagents_system.run_files import kept_checkpoints

pytestmark = pytest.mark.slow

ITERATIONS, UPDATES = 12, 20

PARAMS = f"""
import os
import time

import gymnasium
import numpy as np

from tfagents_system.train_params_base import TrainParamsBase


class Goals(gymnasium.Wrapper):
    '''The pendulum is to be at an angle, which is drawn; a curriculum says how near.'''

    def __init__(self, env):
        super().__init__(env)
        box, whole = gymnasium.spaces.Box(-1.0, 1.0, (2,)), env.observation_space
        parts = (("observation", whole), ("achieved_goal", box), ("desired_goal", box))
        self.observation_space, self.tolerance = gymnasium.spaces.Dict(parts), 1.0

    def reset(self, **options):
        seen, info = self.env.reset(**options)
        angle = self.env.unwrapped.np_random.uniform(-np.pi, np.pi)
        self.goal = np.array([np.cos(angle), np.sin(angle)], np.float32)
        return self.parts(seen), info

    def step(self, action):
        seen, _, *ends, info = self.env.step(action)
        return self.parts(seen), float(self.compute_reward(seen[:2], self.goal, info)), *ends, info

    def parts(self, seen):
        return dict(observation=seen, achieved_goal=np.clip(seen[:2], -1.0, 1.0), desired_goal=self.goal)

    def compute_reward(self, achieved_goal, desired_goal, info):
        return -(np.linalg.norm(achieved_goal - desired_goal, axis=-1) > self.tolerance).astype(np.float32)


class Faulty(gymnasium.Wrapper):
    '''Fails now and then, at moments that its seed decides.'''

    def step(self, action):
        is_worker = "SLURM_PROCID" in os.environ  # The check before the start must pass.
        if is_worker and self.env.unwrapped.np_random.random() < {{RATE}}:
            raise RuntimeError("on purpose")
        time.sleep(is_worker * {{SECS}})
        return self.env.step(action)


class TrainParams(TrainParamsBase):
    num_iter = {ITERATIONS}
    env_steps_per_iter, updates_per_env_step, n_step = {2 * UPDATES + 1}, 0.5, 3
    frame_stack = {{{{"observation": 3}}}}  # What a worker remembers of an episode survives, too.
    hindsight_share = 0.8
    prior_data, offline_updates, behaviour_cloning_weight = "demos.npz", 5, 0.4
    num_initial_episodes = 3
    buffer_size = 720  # A quarter more may come after a checkpoint: little more than an iteration.
    num_eval_episodes = 2
    eval_period_iters = 4
    checkpoint_period_iters = 3
    batch_size = 32
    critic_learning_rate = dict(points=[[0, 1e-3], [600, 1e-4]], interpolation="exponential")
    actor_fc_layer_params = (32, 32)
    critic_joint_fc_layer_params = (32, 32)

    def env_ctor(self, *args, seed=None, **kwargs):
        return Faulty(Goals(gymnasium.make("Pendulum-v1")))
"""


CURRICULUM = {"tolerance": {"iters": [0, 4, 8], "range": [0.9, 0.3]}}  # Of goals, for workers and for minibatches.


def user_run(folder):
    folder.mkdir()
    # Iterations are short: they must not all be over before a process is killed, or without any fault.
    params = PARAMS.format(SECS=0.02, RATE=0.004)
    numbers = np.random.default_rng(1).uniform(-1, 1, (31, 9))
    parts = {"observation": numbers[:, :3], "achieved_goal": numbers[:, 5:7], "desired_goal": numbers[:, 7:]}
    demonstration = NamedEpisode(parts, {"": numbers[:30, 3:4]}, numbers[:30, 4], is_terminated=False)
    data_sets.write_npz(folder / "demos.npz", [demonstration])
    config = {"horizon": 30, "curriculum": CURRICULUM}
    return UserRun(folder, params, config, num_collect_workers=2, seed=3, deterministic=1)


def weights_of(run):
    """All numbers of the last checkpoint: weights, moments of the optimizers, counters."""
    checkpoint = kept_checkpoints.newest_complete(run.exp_dir / "checkpoints")
    assert checkpoint.iteration == ITERATIONS and checkpoint.train_step // ITERATIONS == UPDATES
    reader = tf.train.load_checkpoint(str(checkpoint.agent))
    types = reader.get_variable_to_dtype_map()
    return {name: reader.get_tensor(name) for name, dtype in types.items() if dtype != tf.string}


def kill(run, role):
    """False where status.json, which is a second old, names a process that was restarted with the others since."""
    pid = run.status()["roles"][role].get("pid")  # None until the role has said something since its start.
    if pid is None:
        return False
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.timeout(600)
def test_a_run_that_is_stopped_and_killed_again_and_again_gives_the_same_weights(tmp_path):
    whole = user_run(tmp_path / "whole")
    beside = whole.start()  # Both runs wait much of their time.

    run = user_run(tmp_path / "user")
    process = run.start()
    run.wait_until(process, lambda: (run.trainer().get("train_step") or 0) >= 2 * UPDATES)
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 75
    process = run.start()
    for role, after in (("worker_1", 4), ("trainer", 5), ("replay", 7)):
        run.wait_until(process, lambda step=after * UPDATES: (run.trainer().get("train_step") or 0) >= step)
        run.wait_until(process, lambda role=role: kill(run, role))
        run.wait_until(process, lambda role=role: run.status()["roles"][role]["restarts"] >= 1)
    run.wait_until(process, lambda: (run.trainer().get("train_step") or 0) >= 9 * UPDATES)
    process.kill()  # and with it everything
    finish(process)
    code, output = run.finish()
    assert code == 0, f"{output}\n{run.logs()}"
    for worker in ("worker_0", "worker_1"):
        # Of its stop and its kills, one may have fallen on the end of an episode.
        assert "an episode continues where iteration" in run.log(worker), "it was in the middle of one"

    code, output = finish(beside)
    assert code == 0, f"{output}\n{whole.logs()}"
    expected = weights_of(whole)
    assert "on purpose" in whole.log("worker_0") + whole.log("worker_1"), "environments were built again"
    found = weights_of(run)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
