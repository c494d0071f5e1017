"""Updates follow the experience exactly, however long episodes are and whatever stops the run or kills its trainer.

Also where a run goes on elsewhere: its directory was moved, and the scratch that its ring lay on is another node's.
"""

import os
import shutil
import signal

import numpy as np
import pytest

from tests.support.launching import UserRun, finish
from tfagents_system.envs import specs
from tfagents_system.replay import ring_header
from tfagents_system.replay.ring import Ring
from tfagents_system.run_files import run_checkpoints
from tfagents_system.run_files.metrics import read_metrics
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.transport.segments import Layout

pytestmark = pytest.mark.slow

ITERATIONS, RATIO, HORIZON, EPISODES_IN_BUFFER = 10, 2.5, 60, 100

PARAMS = f"""
import time

import gymnasium
import numpy as np

from tfagents_system.train_params_base import TrainParamsBase


class Stumbling(gymnasium.Env):
    '''Episodes of 1 to 60 steps.'''

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observation(), {{}}

    def step(self, action):
        time.sleep(0.01)  # An iteration takes a second: signals come in the midst of the run.
        return self._observation(), float(action[0]), bool(self.np_random.random() < 0.03), False, {{}}

    def _observation(self):
        return self.np_random.uniform(-1.0, 1.0, 3).astype(np.float32)


class TrainParams(TrainParamsBase):
    num_iter = {ITERATIONS}
    updates_per_env_step = {RATIO}
    n_step = 3
    validation_share = 0.25
    n_train_episodes_per_iter = 4
    n_buffer_init_episodes = 4
    buffer_size = {EPISODES_IN_BUFFER * HORIZON}
    n_eval_episodes = 2
    eval_period_itrs = 4
    train_batch_size = 16
    actor_fc_layer_params = (8,)
    critic_joint_fc_layer_params = (8,)

    def env_ctor(self, *args, seed=None, **kwargs):
        return Stumbling()
"""


def open_ring(run):
    paths = RunPaths(run.exp_dir)
    layout = Layout.from_specs(*specs.load_specs(paths.specs))
    return Ring.open(paths.replay, layout, EPISODES_IN_BUFFER * (HORIZON + 1))


def move(run, scratch):
    """Another directory; what was on the scratch is gone."""
    assert any(scratch.rglob("header.bin"))
    shutil.rmtree(scratch)
    moved = run.folder / "elsewhere" / "run"
    moved.parent.mkdir()
    run.exp_dir.rename(moved)
    run.exp_dir = moved
    with run.vars_file.open("a") as file:
        file.write(f"SAC_EXP_DIR={moved}\n")


def test_the_ratio_is_exact_after_a_stop_in_mid_iteration_a_move_and_a_killed_trainer(tmp_path):
    run = UserRun(tmp_path, PARAMS, {"horizon": HORIZON}, replay_dir=tmp_path / "scratch")
    process = run.start()
    run.wait_until(process, lambda: (run.trainer().get("train_step") or 0) >= 1000)
    process.send_signal(signal.SIGINT)
    code, output = finish(process)
    assert code == 75, f"{output}\n{run.logs()}"
    stopped = run_checkpoints.newest_complete(run.exp_dir / "checkpoints")
    assert stopped.train_step >= 1000 and stopped.iteration < ITERATIONS
    move(run, tmp_path / "scratch")

    process = run.start()
    run.wait_until(process, lambda: (run.trainer().get("train_step") or 0) > stopped.train_step)
    assert run.trainer()["resumed_at_step"] == stopped.train_step
    # What the trainer had drawn from was in the run directory's copy.
    assert run.status()["roles"]["replay"]["env_steps"] >= stopped.train_step / RATIO
    run.wait_until(process, lambda: (run.trainer().get("iteration") or 0) > stopped.iteration + 1)
    os.kill(run.status()["roles"]["trainer"]["pid"], signal.SIGKILL)
    code, output = finish(process)
    assert code == 0, f"{output}\n{run.logs()}"

    ring = open_ring(run)
    policy_steps = ring.env_steps - ring.init_steps
    assert run.trainer()["train_step"] == int(RATIO * policy_steps)
    rows = read_metrics(run.exp_dir / "metrics.csv")
    trained = {int(row["iteration"]): int(row["train_step"]) for row in rows if row["critic_loss"] is not None}
    assert sorted(trained) == list(range(1, ITERATIONS + 1))
    due = {iteration: int(RATIO * ring.steps_up_to(iteration - 1)) for iteration in trained}
    assert trained == due, "after every iteration, not in the end alone"
    assert len(set(np.diff(list(trained.values())))) > 5, "iterations of different lengths"
    measured = [row["validation/critic_loss"] for row in rows if row.get("validation/critic_loss") is not None]
    assert len(measured) > ITERATIONS / 2 and np.all(np.isfinite(measured))
    assert 0.05 < ring.held_out_steps / ring.ring_steps < 0.5
    assert ring_header.COUNTED_ITERATIONS > ITERATIONS
