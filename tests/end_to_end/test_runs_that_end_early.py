"""A run that ends early ends as any other does: evaluated, saved, finished; it may go on with other settings."""

import json
import re

import pytest

from tests.support.launching import UserRun, finish
from tfagents_system.run_files import run_checkpoints
from tfagents_system.run_files.metrics import read_metrics

pytestmark = pytest.mark.slow

PARAMS = """
import gymnasium
from tfagents_system.train_params_base import TrainParamsBase


class Windy(gymnasium.Wrapper):
    '''Its return is minus its wind, and each episode a success.'''
    wind = 0.0

    def set_state(self, state):
        self.wind = state["wind"]

    def step(self, action):
        observation, _, terminated, truncated, info = self.env.step(action)
        return observation, -self.wind, terminated, truncated, {**info, "is_success": True}


class TrainParams(TrainParamsBase):
    num_iter = 1000
    num_steps_per_iter = 10
    n_buffer_init_episodes = 2
    n_episodes_in_buffer = 100
    n_eval_episodes = 2
    eval_period_itrs = 4
    checkpoint_period_itrs = 1000
    train_batch_size = 32
    actor_fc_layer_params = (8,)
    critic_joint_fc_layer_params = (8,)
    stop_when = {"eval_success": 0.9, "evaluations": 3}

    def callbacks_ctor(self):
        return [self.watch]

    def watch(self, logged):
        if logged.row["iteration"] >= 30 and logged.moment == "evaluation":
            return "enough"

    def env_ctor(self, *args, seed=None, **kwargs):
        return Windy(gymnasium.make("Pendulum-v1"))
"""
WIND = {"iters": [0, 8], "range": [0.0, 1.0], "apply_to_eval": True}


def evaluations(run):
    return [row for row in read_metrics(run.exp_dir / "metrics.csv") if row["eval_return"] is not None]


def test_an_early_end_is_an_end(tmp_path):
    run = UserRun(tmp_path, PARAMS, {"horizon": 20, "curriculum": {"wind": WIND}})
    code, output = run.finish()
    assert code == 0, output
    why_of_three = (
        r"3 evaluations in a row, from [\d,]+ to [\d,]+ steps, had eval_success of at least 0\.9 \(stop_when\)"
    )
    why = re.findall(f"test is finished early: ({why_of_three})", output)[-1]
    rows = evaluations(run)
    assert [row["iteration"] for row in rows[:5]] == [0, 4, 8, 12, 16], "the first two have another wind"
    assert [row["eval_return"] for row in rows[:5]] == [0, 0, -20, -20, -20]
    end = int(rows[-1]["iteration"])
    assert 16 <= end < 20 and run_checkpoints.newest_complete(run.exp_dir / "checkpoints").iteration == end
    best = json.loads((run.exp_dir / "policies" / "best.json").read_text())
    assert (best["eval_return"], best["curriculum"]) == (-20.0, {"wind": 1.0})
    code, output = run.finish()
    assert code == 0 and f"test is finished early: {why} (" in output and "--set stop_when=null" in output, output
    # Without stop_when it goes on, until the callback says so.
    code, output = finish(run.start("--set", "stop_when=null"))
    assert code == 0 and "test is finished early: enough" in output, output
    assert evaluations(run)[-1]["iteration"] >= 32
    code, output = run.finish()
    assert code == 0 and "test is finished early: enough (" in output, output
