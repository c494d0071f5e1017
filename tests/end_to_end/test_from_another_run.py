"""A run begins with what another one has: its best agent, its experience, or all of it and its counters."""

from __future__ import annotations

import pytest

from tests.support.launching import UserRun, finish
from tfagents_system.replay.stored_ring import StoredRing
from tfagents_system.run_files.metrics import read_rows
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.run_files.taken import taken_by

pytestmark = pytest.mark.slow

PARAMS = """
import gymnasium
from tfagents_system.train_params_base import TrainParamsBase

class TrainParams(TrainParamsBase):
    num_iter = 4
    updates_per_iter = 5
    num_initial_episodes = 4
    buffer_size = 8000
    batch_size = 16
    actor_fc_layer_params = (8,)
    critic_joint_fc_layer_params = (8,)
    eval_period_iters = 2
    num_eval_episodes = 2
    checkpoint_period_iters = 2

    def env_ctor(self, *args, seed=None, **kwargs):
        return gymnasium.make("Pendulum-v1")
"""


def train(run, *options):
    code, output = finish(run.start(*options), 400.0)
    assert code == 0, output + run.logs()
    return output


def user(folder):
    folder.mkdir()
    return UserRun(folder, PARAMS, {"horizon": 20}, num_collect_workers=1)


def test_a_run_goes_on_as_another_one_and_begins_anew_with_its_own_experience(tmp_path):
    run = user(tmp_path / "first")
    train(run)
    first = StoredRing(run.exp_dir)

    other = user(tmp_path / "other")
    asked = ("--from", str(run.exp_dir), "--take", "all", "--set", "num_iter=7", "--set", "buffer_size=9000")
    output = train(other, *asked)
    assert "another run: " in output and "actor, " in output
    rows = read_rows(RunPaths(other.exp_dir).metrics_csv)
    assert [row["iteration"] for row in rows if row.get("critic_loss")] == [5, 6, 7], "it counts on"
    assert rows[-1]["train_step"] == 35 and max(row["env_steps"] for row in rows) == first.env_steps + 3 * 20
    assert StoredRing(other.exp_dir).steps == first.steps + 3 * 20, "without random steps"

    best = user(tmp_path / "best")
    train(best, "--from", f"{run.exp_dir}@best", "--set", "num_iter=1")
    taken = taken_by(RunPaths(best.exp_dir))
    assert taken is not None and str(taken.checkpoint).startswith("policies/checkpoints/policy_checkpoint_")
    assert StoredRing(best.exp_dir).steps == 20
    assert read_rows(RunPaths(best.exp_dir).metrics_csv)[-1]["train_step"] == 5

    paths = RunPaths(run.exp_dir)
    train(run, "--fresh", "--from", str(run.exp_dir), "--take", "replay", "--set", "num_iter=2")
    assert StoredRing(paths.exp_dir).steps == first.steps + 2 * 20
    assert read_rows(paths.metrics_csv)[-1]["env_steps"] == 2 * 20
    taken = taken_by(paths)
    assert taken is not None and taken.run.endswith("run_before_1")
