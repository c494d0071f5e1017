"""A run in real time: one device a worker, which goes on while the server stalls, and is told to wait last."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from tests.support.launching import UserRun, finish
from tfagents_system.errors import EXIT_RESUMABLE
from tfagents_system.replay.stored_ring import StoredRing
from tfagents_system.run_files.metrics import read_metrics

pytestmark = pytest.mark.slow

STALL_SECS, HORIZON = 30.0, 50
STEP_SECS, FACTOR = 0.02, 200.0  # Late is only who waits for what stalls, however busy the machine is.

PARAMS = """
import os
import time
from pathlib import Path

import gymnasium
import numpy as np

from tfagents_system.envs.real_time import RealTimeEnvironment
from tfagents_system.train_params_base import TrainParamsBase

FOLDER = Path("FOLDER_OF_THE_TEST")


class Device:
    '''Writes down each command with its time, and the control that it sends.'''

    def __init__(self):
        self.file = open(FOLDER / f"device_{os.getpid()}", "a", buffering=1)
        self.control = 0.0
        self.tell("open")

    def tell(self, what):
        self.file.write(f"{what} {time.monotonic():.4f} {self.control!r}\\n")

    def send_control(self, control):
        self.control = float(control[0])
        self.tell("send")

    def get_obs_rew_terminated_info(self):
        return np.array([self.control], np.float32), -abs(self.control), False, {}

    def reset(self, seed=None, options=None):
        self.control = 0.0
        return np.zeros(1, np.float32), {}

    def wait(self):
        self.tell("wait")
        time.sleep(1.5)  # Longer than a worker that is told to stop waits for any other environment.
        self.tell("stands")

    def close(self):
        self.tell("close")

    def get_observation_space(self):
        return gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def get_action_space(self):
        return gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def get_default_action(self):
        return np.zeros(1, np.float32)


class TrainParams(TrainParamsBase):
    num_iter = 10**6
    asynchronous = True
    env_steps_per_iter = 20
    updates_per_env_step = 1.0
    n_buffer_init_episodes = 1
    n_eval_episodes = 1
    keep_best_episodes = 2
    eval_period_itrs = 5
    action_history = 1
    train_batch_size = 16
    actor_fc_layer_params = (8,)
    critic_joint_fc_layer_params = (8,)

    def env_ctor(self, *args, seed=None, **kwargs):
        return RealTimeEnvironment(Device(), STEP_SECS, time_step_timeout_factor=FACTOR)
"""


class Command(NamedTuple):
    what: str
    when: float
    control: float


def commands(folder: Path) -> list[list[Command]]:
    """Those of each process's device."""
    found = []
    for path in sorted(folder.glob("device_*"), key=lambda path: path.stat().st_mtime):
        whole = path.read_text().rpartition("\n")[0]
        found.append(
            [Command(what, float(when), float(number)) for what, when, number in map(str.split, whole.splitlines())]
        )
    return found


def has_learned(row: dict[str, float | None]) -> bool:
    """Whether it is of the evaluation of a policy that was trained: its weights have been checked by then."""
    return row.get("eval_return") is not None and (row["train_step"] or 0) > 0


def of_steps(rows: list[dict[str, float | None]]) -> list[dict[str, float | None]]:
    """Those that say what steps were like."""
    return [row for row in rows if row.get("train/late_steps") is not None]


@pytest.mark.parametrize(("env_python", "stall_secs"), [("", STALL_SECS), (sys.executable, 6.0)])
def test_it_is_built_once_misses_no_step_and_waits_last(tmp_path: Path, env_python: str, stall_secs: float) -> None:
    names = {"FOLDER_OF_THE_TEST": str(tmp_path), "STEP_SECS": str(STEP_SECS), "FACTOR": str(FACTOR)}
    params = PARAMS
    for name, value in names.items():
        params = params.replace(name, value)
    run = UserRun(tmp_path, params, {"horizon": HORIZON}, num_collect_workers=1, env_python=env_python)
    process = run.start()
    metrics = run.exp_dir / "metrics.csv"
    run.wait_until(process, lambda: any(has_learned(row) for row in read_metrics(metrics)))
    server = psutil.Process(int(run.status()["roles"]["replay"]["pid"]))
    server.suspend()
    began = time.monotonic()
    time.sleep(stall_secs)
    ended = time.monotonic()
    server.resume()
    worker = commands(tmp_path)[-1]
    stalled = [command for command in worker if began < command.when < ended]
    sent = [command for command in stalled if command.what == "send"]
    gaps = [later.when - earlier.when for earlier, later in zip(sent, sent[1:], strict=False)]
    assert len(sent) > 0.5 * stall_secs / STEP_SECS and max(gaps) < STEP_SECS * FACTOR
    assert "wait" not in {command.what for command in stalled}, "it did not rest"
    steps = run.trainer()["env_steps"]
    run.wait_until(process, lambda: run.trainer().get("env_steps", 0) > steps + 2 * len(sent))
    run.wait_until(process, lambda: bool(of_steps(read_metrics(metrics))))
    process.send_signal(signal.SIGTERM)
    code, output = finish(process)
    assert code == EXIT_RESUMABLE, output
    checked, worker = commands(tmp_path)
    for told in (checked, worker):
        did = [command.what for command in told]
        assert did.count("open") == did.count("close") == 1, did[-9:]
        assert did[-3:] == ["wait", "stands", "close"], did[-9:]
    assert checked[-1].when < worker[0].when, "one after the other"
    # What was kept has been stored: all but the default action (0), which each reset sends, and steps of evaluations,
    # of which one may have been under way and another one due.
    stored = {float(action) for segment in StoredRing(run.exp_dir).segments() for action in segment.action[0][:, 0]}
    assert sum(command.control not in {*stored, 0.0} for command in sent) <= 2 * HORIZON
    rows = of_steps(read_metrics(metrics))
    sums = {name: sum(row[f"train/{name}"] or 0.0 for row in rows) for name in ("late_steps", "dropped_steps")}
    assert rows and sums == {"late_steps": 0.0, "dropped_steps": 0.0}
    last = rows[-1]
    assert (last["train/step_ms_p99"] or 0.0) >= 1e3 * STEP_SECS and (last["train/inference_ms_p99"] or 0.0) > 0.0
    assert len(list((run.exp_dir / "episodes").glob("*.npz"))) == 2
