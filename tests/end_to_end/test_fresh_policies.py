"""Asynchronous workers act with policies that are a few updates old, in mid-episode, and after a trainer's death."""

import contextlib
import os
import signal
from pathlib import Path

import pytest

from tests.support.launching import UserRun, finish
from tfagents_system.policies.shared_weights import open_shared
from tfagents_system.run_files.metrics import read_metrics

pytestmark = pytest.mark.slow

HORIZON, UPDATES, PERIOD = 600, 500, 10

PARAMS = f"""
import time

import gymnasium
import numpy as np

from tfagents_system.train_params_base import TrainParamsBase


class Slow(gymnasium.Env):
    '''Its episodes take longer than four iterations of two workers' run.'''

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {{}}

    def step(self, action):
        time.sleep(0.002)
        return self.np_random.uniform(-1.0, 1.0, 3).astype(np.float32), 1.0, False, False, {{}}


class TrainParams(TrainParamsBase):
    asynchronous = True
    updates_per_env_step = 2.0
    publish_period_updates = {PERIOD}
    policy_refresh_steps = {PERIOD}
    num_iter = 1_000_000  # The test stops it.
    num_steps_per_iter = {UPDATES}
    n_buffer_init_episodes = 1
    buffer_size = {20 * HORIZON}
    n_eval_episodes = 1
    train_batch_size = 16
    actor_fc_layer_params = (16,)
    critic_joint_fc_layer_params = (16,)

    def env_ctor(self, *args, seed=None, **kwargs):
        return Slow()
"""


def test_they_stay_fresh_within_episodes_and_when_the_trainer_is_killed(tmp_path):
    run = UserRun(tmp_path, PARAMS, {"horizon": HORIZON})
    process = run.start()
    run.wait_until(process, lambda: bool(ages(run, after=6)))
    trainer = run.status()["roles"]["trainer"]["pid"]
    (descriptor, memory), *_ = shared_policies(trainer)
    place = (trainer, descriptor)
    assert open_shared(place) is not None and trainer in holders(memory)
    os.kill(trainer, signal.SIGKILL)
    before = ages(run, after=6)
    # The next trainer does the newest iterations anew, and workers look for its memory once a second, in which it may
    # do five.
    run.wait_until(process, lambda: bool(ages(run, after=max(before) + 6)))
    after = ages(run, after=max(before) + 6)
    process.send_signal(signal.SIGTERM)
    code, output = finish(process)
    assert code == 75, f"{output}\n{run.logs()}"
    assert open_shared(place) is None and not holders(memory)
    assert max([*before.values(), *after.values()]) < UPDATES / 2, (before, after)


def shared_policies(pid: int) -> list[tuple[int, int]]:
    """Descriptor and inode of each file of shared policies that a process has open."""
    found = []
    with contextlib.suppress(OSError):  # The process is gone.
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # It was closed meanwhile.
                if "sac_weights" in os.readlink(entry):
                    found.append((int(entry.name), entry.stat().st_ino))
    return found


def holders(memory: int) -> set[int]:
    """Processes that have the file of shared policies with this inode open."""
    pids = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    return {pid for pid in pids if any(inode == memory for _, inode in shared_policies(pid))}


def ages(run: UserRun, after: int) -> dict[int, float]:
    """Of the policies at the ends of episodes, during each of which 2400 updates are done, by iteration."""
    path = run.exp_dir / "metrics.csv"
    rows = read_metrics(path) if path.exists() else []
    told = [(int(row["iteration"] or 0), row.get("policy_age_updates")) for row in rows]
    return {iteration: age for iteration, age in told if age is not None and iteration > after}
