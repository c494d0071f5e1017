"""A sweep of real runs: stopped, resumed by the same command, and compared."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.launching import ROOT, UserRun, finish
from tfagents_system.report.status import read_status
from tfagents_system.run_files.metrics import read_metrics
from tfagents_system.run_files.run_paths import RunPaths

pytestmark = pytest.mark.slow

PARAMS = """
import time
from pathlib import Path

import gymnasium
from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    num_iter = 500
    num_steps_per_iter = 10
    n_buffer_init_episodes = 1
    n_episodes_in_buffer = 500
    n_eval_episodes = 1
    eval_period_itrs = 5
    checkpoint_period_itrs = 50
    train_batch_size = 32
    actor_fc_layer_params = (16, 16)
    critic_joint_fc_layer_params = (16, 16)

    def env_ctor(self, *args, seed=None, **kwargs):
        return Unhurried(gymnasium.make("Pendulum-v1"))


class Unhurried(gymnasium.Wrapper):
    '''So that no run ends before the other one has begun.'''

    def step(self, action):
        if not (Path(__file__).parent / "fast").exists():
            time.sleep(0.05)
        return super().step(action)
"""
ITERATIONS = 40


def start(run: UserRun) -> subprocess.Popen[str]:
    """Not by WarmPopen: its tasks start as a user's do, whose fork servers `prepare` starts."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SAC_", "SLURM_"))}
    command = [
        sys.executable,
        "-P",
        "-m",
        "tfagents_system",
        "sweep",
        str(run.vars_file),
        "--grid",
        "grid.json",
        "--parallel",
        "2",
    ]
    command += ["--set", f"num_iter={ITERATIONS}", "--set", "config.horizon=10"]
    return subprocess.Popen(
        command,
        cwd=run.folder,
        env={**environ, "VIRTUAL_ENV": sys.prefix, "PYTHONPATH": str(ROOT)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def train_step(paths: RunPaths) -> int:
    status = read_status(paths.status_json) or {"roles": {}}
    return status["roles"].get("trainer", {}).get("train_step") or 0


def test_a_sweep_is_stopped_resumed_and_compared(tmp_path: Path) -> None:
    run = UserRun(tmp_path, PARAMS, {"horizon": 20}, num_collect_workers=1)
    (tmp_path / "grid.json").write_text('{"train_batch_size": [16, 32], "SAC_SEED": [3]}')
    tasks = [RunPaths(tmp_path / f"run_task_{number}") for number in range(2)]
    logs = [paths.log("sweep") for paths in tasks]

    process = start(run)
    deadline = time.monotonic() + 400.0
    while not all(train_step(paths) for paths in tasks):
        if process.poll() is not None or time.monotonic() > deadline:
            process.send_signal(signal.SIGTERM)
            raise AssertionError(f"{finish(process)[1]}\n{[log.read_text() for log in logs if log.exists()]}")
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    code, output = finish(process)
    assert code == 75, output
    assert "task 0 (train_batch_size=16): stopped" in output
    stopped_at = [train_step(paths) for paths in tasks]
    ends = [(read_status(paths.status_json) or {})["roles"]["trainer"]["state"] for paths in tasks]
    assert ends == ["stopped"] * 2, "the trainers' last words tell how far they came"
    assert all(0 < step < ITERATIONS * 10 for step in stopped_at)
    plans = [(read_status(paths.status_json) or {})["plan"] for paths in tasks]
    if len(os.sched_getaffinity(0)) > 1:  # Each run has CPUs of its own.
        used = [{cpu for ids in plan.values() for cpu in ids} for plan in plans]
        assert not used[0] & used[1]

    (tmp_path / "fast").touch()
    code, output = finish(start(run))
    assert code == 0, f"{output}\n{[log.read_text() for log in logs]}"
    for number, paths in enumerate(tasks):
        overrides = json.loads(paths.overrides.read_text())
        assert overrides["params"] == {"train_batch_size": (16, 32)[number], "num_iter": ITERATIONS}
        assert overrides["config"] == {"horizon": 10} and overrides["variables"]["SAC_SEED"] == "3"
        assert json.loads(paths.run_json.read_text())["seed"] == 3
        assert train_step(paths) == ITERATIONS * 10
        trainer = (read_status(paths.status_json) or {})["roles"]["trainer"]
        assert trainer["resumed_at_step"] == stopped_at[number]
        # The horizon of 10 instead of 20: one step of experience for each update, one episode at the beginning, and
        # what there was of the episode in which it was stopped.
        steps = max(row["env_steps"] or 0 for row in read_metrics(paths.metrics_csv))
        assert ITERATIONS * 10 + 10 <= steps < ITERATIONS * 10 + 20

    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tfagents_system.report", "compare", *(str(paths.exp_dir) for paths in tasks)]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "compare.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["runs"], row["unfinished"]) for row in rows] == [("1", "0")] * 2
    assert ["train_batch_size=16" in row["group"] for row in rows] == [True, False]
