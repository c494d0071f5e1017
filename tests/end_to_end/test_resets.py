"""A run whose agent is replaced keeps its experience, each step once, whatever is killed meanwhile."""

from __future__ import annotations

import json
import signal

import pytest

from tests.support.launching import UserRun, finish
from tfagents_system.replay.stored_ring import StoredRing
from tfagents_system.run_files.metrics import read_metrics

pytestmark = pytest.mark.slow

PARAMS = """
import time
from pathlib import Path

import gymnasium
from tfagents_system.train_params_base import TrainParamsBase

class TrainParams(TrainParamsBase):
    num_iter = 60
    updates_per_iter = 10
    num_initial_episodes = 4
    buffer_size = 8000  # Room for all steps of both agents, whenever the stop comes.
    batch_size = 16
    actor_fc_layer_params = (8,)
    critic_joint_fc_layer_params = (8,)
    eval_period_iters = 30
    num_eval_episodes = 2
    checkpoint_period_iters = 10

    def env_ctor(self, *args, seed=None, **kwargs):
        return Slow(gymnasium.make("Pendulum-v1"))


class Slow(gymnasium.Wrapper):
    def step(self, action):
        if not (Path(__file__).parent / "fast").exists():
            time.sleep(0.015)
        return super().step(action)
"""


def test_a_reset_keeps_each_step_once_and_a_kill_loses_nothing(tmp_path):
    run = UserRun(tmp_path, PARAMS, {"horizon": 20})
    process = run.start()
    run.wait_until(process, lambda: (run.trainer().get("train_step") or 0) >= 150, 300.0)
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 75
    before = run.status()["roles"]["replay"]["env_steps"]
    process = run.start("--reset_training", "--set", "algorithm=redq", "--set", "num_critics=3")
    run.wait_until(process, lambda: "resets" in json.loads((run.exp_dir / "run.json").read_text()), 300.0)
    run.wait_until(process, lambda: (run.trainer().get("train_step") or 0) > 0)
    process.kill()  # Its roles save and end.
    finish(process)
    (tmp_path / "fast").touch()
    code, output = finish(run.start(), 400.0)
    assert code == 0, output + run.logs()
    rows = read_metrics(run.exp_dir / "metrics.csv")
    old, new = ([row for row in rows if (row.get("reset") or 0) == number] for number in (0, 1))
    assert old and new and max(row["train_step"] for row in old) >= 140
    assert new[-1]["train_step"] == 600 and new[-1]["iteration"] == 60, "iterations begin anew, all of them are done"
    collected = max(row["env_steps"] for row in old)
    assert min(row["env_steps"] for row in new) >= collected, "steps go on from those that were kept"
    # 4 random episodes once, then 2 workers * 60 iterations of 20 steps; what a stop cut off is in no iteration.
    steps = run.status()["roles"]["replay"]["env_steps"]
    assert before + 60 * 40 <= steps <= before + 61 * 40 + 2 * 40
    stored = StoredRing(run.exp_dir)
    segments = [(each.observation[0].tobytes(), each.action[0].tobytes()) for each in stored.segments()]
    assert stored.steps == steps and not stored.damaged_steps, "each step that was counted is there"
    # An episode that a stop has cut may be collected again: its beginning is then that of another segment.
    assert len(set(segments)) == len(segments), "and no segment twice"
    assert [each["kind"] for each in json.loads((run.exp_dir / "run.json").read_text())["resets"]] == ["agent"]
    assert list((run.exp_dir / "before_reset_1" / "checkpoints").glob("checkpoint_*"))
    # An evaluation that the kill cut off is made up for by a later policy's.
    evaluated = {row["iteration"] for row in new if row.get("eval_return") is not None and row["iteration"]}
    assert {30, 60} <= {30 if 30 <= iteration < 60 else iteration for iteration in evaluated}
    assert json.loads((run.exp_dir / "policies" / "best.json").read_text())["iteration"] in evaluated
