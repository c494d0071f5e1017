"""A run in lock-step that starts a worker to evaluate, which is killed once in the middle of an evaluation."""

import os
import signal

import pytest

from tests.support.launching import UserRun, finish
from tfagents_system.run_files.heartbeat import read_heartbeat
from tfagents_system.run_files.metrics import read_metrics

pytestmark = pytest.mark.slow

ITERATIONS, PERIOD, EPISODES, HORIZON = 300, 5, 3, 10
COLLECTOR, EVALUATOR = "worker_0", "worker_1"

PARAMS = f"""
import os, time
import gymnasium
import numpy as np
from tfagents_system.train_params_base import TrainParamsBase


class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def __init__(self, reward, secs):
        self.reward, self.secs = reward, secs

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {{}}

    def step(self, action):
        if not os.path.exists("FOLDER/fast"):
            time.sleep(self.secs)
        return np.zeros(1, np.float32), self.reward, False, False, {{}}


class TrainParams(TrainParamsBase):
    num_iter = {ITERATIONS}
    num_steps_per_iter = 2
    n_buffer_init_episodes = 1
    n_episodes_in_buffer = 3000
    n_eval_episodes = {EPISODES}
    eval_period_itrs = {PERIOD}
    checkpoint_period_itrs = 1_000_000
    train_batch_size = 8
    actor_fc_layer_params = (8,)
    critic_joint_fc_layer_params = (8,)

    def env_ctor(self, reward, secs):
        return Env(reward, secs)

    def collect_env_args_kwargs(self, id):
        return (0.0, 0.005), {{}}

    def eval_env_args_kwargs(self, id):
        with open("FOLDER/evaluating_" + str(id), "a") as file:
            file.write(os.environ.get("SAC_WORKER_ROLE", "collect") + "\\n")
        return (1.0, 0.05), {{}}
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The run, its status while it trained, and what it printed."""
    folder = tmp_path_factory.mktemp("evaluators")
    params = PARAMS.replace("FOLDER", str(folder))
    run = UserRun(folder, params, {"horizon": HORIZON}, num_collect_workers=1, eval_workers=1)
    heartbeat = run.exp_dir / "heartbeats" / f"{EVALUATOR}.json"

    def evaluations():
        return sum(row["eval_return"] is not None for row in read_metrics(run.exp_dir / "metrics.csv"))

    with (folder / "output.txt").open("w") as output:
        process = run.start(stdout=output)
    try:
        run.wait_until(process, lambda: evaluations() == 1)
        run.wait_until(process, lambda: (read_heartbeat(heartbeat) or {}).get("state") == "evaluating")
        os.kill(read_heartbeat(heartbeat)["pid"], signal.SIGKILL)
        before = evaluations()
        run.wait_until(process, lambda: evaluations() > before + 1)
        status = run.status()
        (folder / "fast").touch()
        code, _ = finish(process, 120.0)
    finally:
        if process.poll() is None:
            process.terminate()
            finish(process, 90.0)
    text = (folder / "output.txt").read_text()
    assert code == 0, text + run.logs()
    return run, status, text


def test_collecting_workers_have_no_part_in_evaluations(finished):
    run, status, _ = finished
    roles = run.status()["roles"]
    assert "evaluating" not in roles[COLLECTOR]["time_shares"] and "evaluating" in roles[EVALUATOR]["time_shares"]
    assert status["roles"][EVALUATOR]["kind"] == "eval" and "kind" not in status["roles"][COLLECTOR]
    built = {path.name: set(path.read_text().split()) for path in run.folder.glob("evaluating_*")}
    assert built["evaluating_1"] == {"eval"}
    # One is built by the check before the start, which is no worker.
    assert (run.folder / "evaluating_0").read_text().split() == ["collect"]


def test_every_evaluation_is_whole_and_training_does_not_wait_for_any(finished):
    run, _, _ = finished
    rows = [row for row in read_metrics(run.exp_dir / "metrics.csv") if row["eval_return"] is not None]
    assert {(row["eval_episodes"], row["eval_return"]) for row in rows} == {(EPISODES, HORIZON)}
    assert rows[0]["iteration"] == 0 and rows[-1]["iteration"] == ITERATIONS
    left_out = sum(row["eval_left_out"] for row in rows)
    assert left_out > 0, "a policy that was due was passed over while the one before was evaluated"
    assert len(rows) + left_out == 1 + ITERATIONS // PERIOD


def test_the_evaluator_that_is_killed_comes_back(finished):
    _, status, text = finished
    assert status["roles"][EVALUATOR]["restarts"] == 1 and status["roles"][COLLECTOR]["restarts"] == 0
    assert f"{EVALUATOR} ended with SIGKILL" in text
