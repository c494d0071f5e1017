"""A run in lock-step that starts a worker to evaluate and an expert: they and the replay server are killed once.

The expert's experience enters the run's own ring.
"""

import os
import re
import signal

import numpy as np
import pytest

from tests.support.launching import UserRun, finish
from tfagents_system.envs.specs import load_specs
from tfagents_system.machine.processes import processes_of_run
from tfagents_system.replay.ring import Ring
from tfagents_system.run_files.heartbeat import read_heartbeat
from tfagents_system.run_files.metrics import read_metrics
from tfagents_system.run_files.run_paths import REPLAY
from tfagents_system.transport.segments import Layout

pytestmark = pytest.mark.slow

ITERATIONS, PERIOD, EPISODES, HORIZON, EPISODES_IN_BUFFER = 400, 5, 3, 10, 3000
COLLECTOR, EXPERT, EVALUATOR = "worker_0", "worker_1", "worker_2"

PARAMS = f"""
import os, time
import gymnasium
import numpy as np
from tfagents_system.train_params_base import TrainParamsBase


class Env(gymnasium.Env):
    '''Observation: the worker.'''

    observation_space = gymnasium.spaces.Box(-1, 10, (1,))
    action_space = gymnasium.spaces.Box(-2.0, 6.0, (1,))

    def __init__(self, worker, reward, secs):
        self.worker, self.reward, self.secs = worker, reward, secs

    def reset(self, *, seed=None, options=None):
        return np.full(1, self.worker, np.float32), {{}}

    def step(self, action):
        if not os.path.exists("FOLDER/fast"):
            time.sleep(self.secs)
        return np.full(1, self.worker, np.float32), self.reward, False, False, {{}}


class TrainParams(TrainParamsBase):
    num_iter = {ITERATIONS}
    num_steps_per_iter = 2
    n_train_episodes_per_iter = 1
    n_buffer_init_episodes = 1
    n_episodes_in_buffer = {EPISODES_IN_BUFFER}
    n_eval_episodes = {EPISODES}
    eval_period_itrs = {PERIOD}
    checkpoint_period_itrs = 1_000_000
    train_batch_size = 8
    actor_fc_layer_params = (8,)
    critic_joint_fc_layer_params = (8,)

    def env_ctor(self, *args):
        return Env(*args)

    def collect_env_args_kwargs(self, id):
        with open("FOLDER/collecting_" + str(id), "a") as file:
            file.write(os.environ.get("SAC_WORKER_ROLE", "collect") + "\\n")
        return (id, 0.0, 0.02), {{}}

    def eval_env_args_kwargs(self, id):
        with open("FOLDER/evaluating_" + str(id), "a") as file:
            file.write(os.environ.get("SAC_WORKER_ROLE", "collect") + "\\n")
        return (id, 1.0, 0.1), {{}}

    def expert_policy_ctor(self):
        return lambda observation: np.full(1, 4.0)
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The run, its status while it trained, and what it printed."""
    folder = tmp_path_factory.mktemp("evaluators_and_experts")
    params = PARAMS.replace("FOLDER", str(folder))
    run = UserRun(folder, params, {"horizon": HORIZON}, num_collect_workers=1, eval_workers=1, expert_workers=1)

    def evaluations():
        return sum(row["eval_return"] is not None for row in read_metrics(run.exp_dir / "metrics.csv"))

    def beat(worker):
        return read_heartbeat(run.exp_dir / "heartbeats" / f"{worker}.json") or {}

    def expert_has_played(other_than=None):
        return beat(EXPERT).get("pid") != other_than and beat(EXPERT).get("episodes", 0) > 3

    with (folder / "output.txt").open("w") as output:
        process = run.start(stdout=output)
    try:
        run.wait_until(process, lambda: evaluations() >= 1 and expert_has_played())
        killed = beat(EXPERT)["pid"]
        os.kill(killed, signal.SIGKILL)
        run.wait_until(process, lambda: beat(EVALUATOR).get("state") == "evaluating")
        os.kill(beat(EVALUATOR)["pid"], signal.SIGKILL)
        os.kill(beat(REPLAY)["pid"], signal.SIGKILL)
        before = evaluations()
        run.wait_until(process, lambda: evaluations() > before + 1 and expert_has_played(other_than=killed))
        status = run.status()
        (folder / "fast").touch()
        code, _ = finish(process)
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
    built = {path.name: set(path.read_text().split()) for path in run.folder.glob("evaluating_*")}
    assert built["evaluating_2"] == {"eval"} and "evaluating_1" not in built
    # One is built by the check before the start, which is no worker.
    assert (run.folder / "evaluating_0").read_text().split() == ["collect"]
    # Nor does an evaluator build any to collect in.
    collecting = {path.name for path in run.folder.glob("collecting_*")}
    assert collecting == {"collecting_0", "collecting_1"}


def test_every_evaluation_is_whole_and_training_does_not_wait_for_any(finished):
    run, _, _ = finished
    rows = [row for row in read_metrics(run.exp_dir / "metrics.csv") if row["eval_return"] is not None]
    assert {(row["eval_episodes"], row["eval_return"]) for row in rows} == {(EPISODES, HORIZON)}
    assert rows[0]["iteration"] == 0 and rows[-1]["iteration"] == ITERATIONS
    left_out = sum(row["eval_left_out"] for row in rows)
    assert left_out > 0, "a policy that was due was passed over while the one before was evaluated"
    assert len(rows) + left_out == 1 + ITERATIONS // PERIOD


def test_both_store_experience_the_expert_as_its_policy_says(finished):
    run, _, _ = finished
    layout = Layout.from_specs(*load_specs(run.exp_dir / "specs.pbtxt"))
    ring = Ring.open(run.exp_dir / "replay", layout, EPISODES_IN_BUFFER * (HORIZON + 1))
    rows = np.flatnonzero(ring.steps_left[: ring.filled_rows] > 0)
    worker, action = ring.observation[0][rows, 0], ring.action[0][rows, 0]
    assert set(worker) == {0, 1}, "an evaluator stores nothing"
    own, of_expert = action[worker == 0], action[worker == 1]
    np.testing.assert_allclose(of_expert, 0.5, atol=1e-6)  # 4 within [-2, 6]
    assert np.std(own) > 0.05
    assert 0.5 * len(own) < len(of_expert) <= len(own) and len(of_expert) % HORIZON == 0
    assert ring.env_steps == len(action)


def test_those_that_are_killed_come_back(finished):
    run, status, text = finished
    # gRPC may crash in a client whose server is killed: a restart like any other, and told as what it is.
    restarts = {
        role: beat["restarts"] - len(re.findall(f"{role} ended with SIG(?:ABRT|SEGV)", run.log(role)))
        for role, beat in status["roles"].items()
        if role.startswith("worker_")
    }
    assert restarts == {COLLECTOR: 0, EXPERT: 1, EVALUATOR: 1}
    for role in (EVALUATOR, EXPERT):
        assert f"{role} ended with SIGKILL" in text
    assert not list(processes_of_run(run.exp_dir))


def test_the_status_names_them(finished):
    _, status, text = finished
    kinds = {role: beat.get("kind") for role, beat in status["roles"].items()}
    assert kinds == {"replay": None, "trainer": None, COLLECTOR: None, EXPERT: "expert", EVALUATOR: "eval"}
    assert f"{EXPERT} (expert)" in text
