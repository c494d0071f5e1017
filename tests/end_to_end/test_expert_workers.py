"""A run that starts an expert of its own, which is killed once."""

import os
import signal

import numpy as np
import pytest

from tests.support.launching import UserRun, finish
from tfagents_system.envs.specs import load_specs
from tfagents_system.machine.processes import processes_of_run
from tfagents_system.replay.ring import Ring
from tfagents_system.run_files.heartbeat import read_heartbeat
from tfagents_system.transport.segments import Layout

pytestmark = pytest.mark.slow

HORIZON, EPISODES = 10, 3000
COLLECTOR, EXPERT = 0, 1

PARAMS = """
import os, time
import gymnasium
import numpy as np
from tfagents_system.train_params_base import TrainParamsBase


class Env(gymnasium.Env):
    '''Observation: the worker.'''

    observation_space = gymnasium.spaces.Box(-1, 10, (1,))
    action_space = gymnasium.spaces.Box(-2.0, 6.0, (1,))

    def __init__(self, worker, pace):
        self.worker, self.pace = worker, pace

    def reset(self, *, seed=None, options=None):
        return np.full(1, self.worker, np.float32), {}

    def step(self, action):
        time.sleep(self.pace())
        return np.full(1, self.worker, np.float32), 0.0, False, False, {}


class TrainParams(TrainParamsBase):
    num_iter = 150
    num_steps_per_iter = 2
    n_train_episodes_per_iter = 1
    n_buffer_init_episodes = 1
    n_episodes_in_buffer = 3000
    n_eval_episodes = 1
    eval_period_itrs = 50
    checkpoint_period_itrs = 1_000_000
    train_batch_size = 8
    actor_fc_layer_params = (8,)
    critic_joint_fc_layer_params = (8,)

    def env_ctor(self, worker):
        return Env(worker, lambda: 0.0 if os.path.exists("{folder}/fast") else 0.02)

    def collect_env_args_kwargs(self, id):
        return (id,), {}

    def eval_env_args_kwargs(self, id):
        return (id,), {}

    def expert_policy_ctor(self):
        return lambda observation: np.full(1, 4.0)
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run with one worker and one expert, which was killed at its work, and what it printed."""
    folder = tmp_path_factory.mktemp("experts")
    params = PARAMS.replace("{folder}", str(folder))
    run = UserRun(folder, params, {"horizon": HORIZON}, num_collect_workers=1, expert_workers=1)
    path = run.exp_dir / "heartbeats" / f"worker_{EXPERT}.json"

    def expert_has_played(other_than=None):
        beat = read_heartbeat(path) or {}
        return beat.get("pid") != other_than and beat.get("episodes", 0) > 3

    with (folder / "output.txt").open("w") as output:
        process = run.start(stdout=output)
    try:
        run.wait_until(process, expert_has_played)
        killed = read_heartbeat(path)["pid"]
        os.kill(killed, signal.SIGKILL)
        run.wait_until(process, lambda: expert_has_played(other_than=killed))
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


def test_both_store_experience_the_expert_as_its_policy_says(finished):
    run, _, _ = finished
    layout = Layout.from_specs(*load_specs(run.exp_dir / "specs.pbtxt"))
    ring = Ring.open(run.exp_dir / "replay", layout, EPISODES * (HORIZON + 1))
    rows = np.flatnonzero(ring.steps_left[: ring.filled_rows] > 0)
    worker, action = ring.observation[0][rows, 0], ring.action[0][rows, 0]
    assert set(worker) == {COLLECTOR, EXPERT}
    np.testing.assert_allclose(action[worker == EXPERT], 0.5, atol=1e-6)  # 4 within [-2, 6]
    assert np.std(action[worker == COLLECTOR]) > 0.05
    counts = [np.sum(worker == number) for number in (COLLECTOR, EXPERT)]
    assert 0.5 * counts[0] < counts[1] <= counts[0] and counts[1] % HORIZON == 0


def test_an_expert_that_is_killed_comes_back(finished):
    run, status, text = finished
    assert status["roles"][f"worker_{EXPERT}"]["restarts"] == 1
    assert status["roles"][f"worker_{COLLECTOR}"]["restarts"] == 0
    assert f"worker_{EXPERT} ended with SIGKILL" in text
    assert not list(processes_of_run(run.exp_dir))


def test_the_status_names_it(finished):
    _, status, text = finished
    kinds = {role: beat.get("kind") for role, beat in status["roles"].items()}
    assert kinds == {"replay": None, "trainer": None, "worker_0": None, "worker_1": "expert"}
    assert "worker_1 (expert)" in text
