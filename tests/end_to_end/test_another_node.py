"""A run goes on elsewhere: its directory was moved, and the scratch that its ring lay on is another node's."""

import shutil
import signal

import pytest

from tests.support.launching import UserRun, finish
from tfagents_system.run_files import run_checkpoints

pytestmark = pytest.mark.slow

PARAMS = """
import gymnasium
from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    num_iter = {iterations}
    num_steps_per_iter = {updates}
    n_buffer_init_episodes = 2
    n_episodes_in_buffer = 500
    n_eval_episodes = 2
    eval_period_itrs = 1_000
    train_batch_size = 16
    actor_fc_layer_params = (8,)
    critic_joint_fc_layer_params = (8,)

    def env_ctor(self, *args, seed=None, **kwargs):
        return gymnasium.make("Pendulum-v1")
"""
ITERATIONS, UPDATES, HORIZON = 400, 5, 50


def test_a_run_goes_on_in_a_moved_directory_with_an_empty_scratch(tmp_path):
    params = PARAMS.format(iterations=ITERATIONS, updates=UPDATES)
    run = UserRun(tmp_path, params, {"horizon": HORIZON}, replay_dir=tmp_path / "scratch")
    process = run.start()
    run.wait_until(process, lambda: (run.trainer().get("train_step") or 0) >= 10 * UPDATES)
    process.send_signal(signal.SIGTERM)
    code, output = finish(process)
    assert code == 75, output
    checkpoint = run_checkpoints.newest_complete(run.exp_dir / "checkpoints")
    assert 10 * UPDATES <= checkpoint.train_step < ITERATIONS * UPDATES
    assert any((tmp_path / "scratch").rglob("header.bin"))

    shutil.rmtree(tmp_path / "scratch")
    moved = tmp_path / "elsewhere" / "run"
    moved.parent.mkdir()
    run.exp_dir.rename(moved)
    run.exp_dir = moved
    with run.vars_file.open("a") as file:
        file.write(f"SAC_EXP_DIR={moved}\n")

    process = run.start()
    run.wait_until(process, lambda: (run.trainer().get("train_step") or 0) > checkpoint.train_step)
    assert run.trainer()["resumed_at_step"] == checkpoint.train_step
    # Of two workers' iterations before the checkpoint: what the trainer had drawn from was in it.
    kept = run.status()["roles"]["replay"]["env_steps"]
    assert kept >= checkpoint.train_step // UPDATES * 2 * HORIZON
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] in (0, 75)
