"""Workers that only evaluate, that collect with a fixed policy, and that play without storing, in one run.

They are started as programs of their own, as a user may do without `sac join`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.support.launching import ROOT, UserRun, finish
from tests.support.warm_starts import WarmPopen
from tfagents_system.cluster.join import gateway_address
from tfagents_system.envs.specs import load_specs
from tfagents_system.errors import EXIT_RESUMABLE
from tfagents_system.replay.ring import Ring
from tfagents_system.run_files.metrics import read_rows
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.transport.segments import Layout

pytestmark = pytest.mark.slow

HORIZON, ITERATIONS, EPISODES = 10, 150, 1500
EVAL_SLOT, EXPERT_SLOT, TEST_SLOT = 1, 2, 3

PARAMS = f"""
import os, time
import gymnasium
import numpy as np
from tfagents_system.train_params_base import TrainParamsBase

KIND = os.environ.get("SAC_WORKER_ROLE", "collect")


class Env(gymnasium.Env):
    '''Observation: the worker. In an evaluating worker a step is worth 1, in a planned one nothing.'''

    observation_space = gymnasium.spaces.Box(-1, 10, (1,))
    action_space = gymnasium.spaces.Box(-2.0, 6.0, (1,))

    def __init__(self, worker, pace):
        self.worker, self.pace = worker, pace

    def reset(self, *, seed=None, options=None):
        return np.full(1, self.worker, np.float32), {{}}

    def step(self, action):
        time.sleep(self.pace())
        return np.full(1, self.worker, np.float32), float(KIND == "eval"), False, False, {{}}


class TrainParams(TrainParamsBase):
    num_iter = {ITERATIONS}
    updates_per_iter = 2
    num_train_episodes_per_iter = 1
    num_initial_episodes = 1
    buffer_size = {EPISODES * HORIZON}
    num_eval_episodes = 3
    eval_period_iters = 5
    checkpoint_period_iters = 1_000_000
    batch_size = 8
    actor_fc_layer_params = (8,)
    critic_joint_fc_layer_params = (8,)

    def env_ctor(self, worker):
        return Env(worker, lambda: 0.001 if os.path.exists("{{folder}}/fast") else 0.1)

    def collect_env_args_kwargs(self, id):
        return (id,), {{}}

    def eval_env_args_kwargs(self, id):
        return (id,), {{}}

    def expert_policy_ctor(self):
        return lambda observation: np.full(1, 4.0)
"""


def start_worker(run, kind, number):
    """One that joins through the gateway, with what `sac join` would have put into its folder."""
    folder = run.exp_dir / "joined" / kind
    (folder / "heartbeats").mkdir(parents=True)
    for name in ("params.py", "config.json", "specs.pbtxt"):
        shutil.copy(run.exp_dir / name, folder / name)
    content = json.loads((run.exp_dir / "run.json").read_text())
    port = json.loads((run.exp_dir / "gateway.json").read_text())["port"]
    own = {"server": f"localhost:{port}", "worker_role": kind, "credentials_dir": str(run.exp_dir / "credentials")}
    content["start"]["variables"] |= own
    (folder / "run.json").write_text(json.dumps(content))
    environ = os.environ | {"SAC_EXP_DIR": str(folder), "SLURM_PROCID": str(number), "PYTHONPATH": str(ROOT)}
    with (folder / "log.txt").open("w") as log:
        command = [sys.executable, "-m", "tfagents_system.sac_collect"]
        return WarmPopen(command, env=environ, stdout=log, stderr=subprocess.STDOUT, cwd=run.folder)


def num_evaluations(run):
    return sum(row["eval_return"] is not None for row in read_rows(run.exp_dir / "metrics.csv"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run in which one of each kind has joined, and the exit codes of these."""
    folder = tmp_path_factory.mktemp("kinds")
    params = PARAMS.replace("{folder}", str(folder))
    variables = {"num_collect_workers": 1, "max_workers": 4, "gateway_port": 0, "straggler_secs": 360}
    run = UserRun(folder, params, {"horizon": HORIZON}, **variables)
    with (folder / "output.txt").open("w") as output:
        process = run.start(stdout=output)
    workers = {}
    try:
        run.wait_until(process, lambda: num_evaluations(run) > 0 and gateway_address(RunPaths(run.exp_dir)))
        for slot, kind in ((EVAL_SLOT, "eval"), (EXPERT_SLOT, "expert"), (TEST_SLOT, "test")):
            workers[kind] = start_worker(run, kind, 0)
            heartbeat = run.exp_dir / "heartbeats" / f"worker_{slot}.json"
            run.wait_until(process, heartbeat.exists)

        def all_have_worked():
            logs = {kind: (run.exp_dir / "joined" / kind / "log.txt").read_text() for kind in workers}
            path = run.exp_dir / "heartbeats" / f"worker_{EXPERT_SLOT}.json"
            expert = json.loads(path.read_text())
            rows = read_rows(run.exp_dir / "metrics.csv")
            returns = [row["eval_return"] for row in rows if row["eval_return"] is not None]
            return "policy of iteration" in logs["test"] and expert.get("episodes", 0) > 3 and max(returns) > 0

        run.wait_until(process, all_have_worked)
        workers["eval"].terminate()
        workers["eval"].wait(60.0)
        evaluations = num_evaluations(run)
        # The first of them may have been complete before. Whoever waited for the worker that said goodbye would
        # do so for SAC_STRAGGLER_SECS, 360.
        run.wait_until(process, lambda: num_evaluations(run) >= evaluations + 2, 300.0)
        (folder / "fast").touch()
        code, _ = finish(process)
        assert code == 0, (folder / "output.txt").read_text() + run.logs()
        codes = {kind: worker.wait(60.0) for kind, worker in workers.items()}
    finally:
        for one in (*workers.values(), process):
            if one.poll() is None:
                one.terminate()
                deadline = time.monotonic() + 60.0
                while one.poll() is None and time.monotonic() < deadline:
                    time.sleep(0.1)
    return run, codes


@pytest.fixture(scope="module")
def stored(finished):
    """[n, 2]: worker and action of each stored step."""
    run, _ = finished
    layout = Layout.from_specs(*load_specs(run.exp_dir / "specs.pbtxt"))
    ring = Ring.open(run.exp_dir / "replay", layout, (EPISODES + 1) * (HORIZON + 1))
    rows = np.flatnonzero(ring.steps_left[: ring.filled_rows] > 0)
    return np.stack([ring.observation[0][rows, 0], ring.action[0][rows, 0]], axis=1)


def test_they_end_with_the_run(finished):
    assert finished[1] == {"eval": EXIT_RESUMABLE, "expert": 0, "test": 0}, "the one that evaluates was told to stop"


def test_only_those_that_collect_are_stored(stored):
    assert set(stored[:, 0]) == {0.0, EXPERT_SLOT}


def test_an_expert_acts_as_its_policy_says_and_as_often_as_the_others(stored):
    expert = stored[stored[:, 0] == EXPERT_SLOT]
    np.testing.assert_allclose(expert[:, 1], 0.5, atol=1e-6)  # 4 within [-2, 6]
    assert len(expert) % HORIZON == 0
    assert len(expert) <= len(stored[stored[:, 0] == 0]), "in lock-step it runs ahead of nobody"
    assert np.std(stored[stored[:, 0] == 0][:, 1]) > 0.05


def test_evaluations_have_another_share_of_the_same_size(finished):
    rows = [row for row in read_rows(finished[0].exp_dir / "metrics.csv") if row["eval_return"] is not None]
    returns = [row["eval_return"] for row in rows]
    whole = HORIZON / 2  # 3 episodes of 0 and 3 of 10
    joined, left = returns.index(whole), len(returns) - returns[::-1].index(whole)
    assert joined > 0 and set(returns[:joined]) == {0.0}, "it had not joined yet"
    assert set(returns[joined:left]) == {whole}
    while_it_left, *afterwards = returns[left:]
    assert while_it_left in [10.0 * episodes / (3 + episodes) for episodes in (0, 1, 2)], "those that it had played"
    assert set(afterwards) == {0.0}, "it has left"


def test_experts_stay_out_of_the_returns_that_are_reported(finished):
    rows = read_rows(finished[0].exp_dir / "metrics.csv")
    lags = {row["train/policy_lag"] for row in rows if row.get("train/policy_lag") is not None}
    assert lags and lags <= {0.0, 1.0}


def test_a_testing_worker_tells_what_it_played(finished):
    text = (finished[0].exp_dir / "joined/test/log.txt").read_text()
    played = re.findall(r"policy of iteration (\d+) \(train step (\d+)\): return 0, 10 steps", text)
    assert len(played) > 3
    assert all(int(step) == 2 * int(iteration) for iteration, step in played)
    assert int(played[-1][0]) > int(played[0][0])
