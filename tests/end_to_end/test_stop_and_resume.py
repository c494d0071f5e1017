"""A run that is stopped goes on at the same update; a role that is killed comes back; nothing is left behind."""

import json
import os
import re
import signal

import psutil
import pytest

from tests.support.launching import UserRun, finish
from tests.support.tracked_runs import history
from tests.support.waiting import until
from tfagents_system.run_files import run_checkpoints
from tfagents_system.run_files.metrics import read_metrics

pytestmark = pytest.mark.slow

PARAMS = """
import time

import gymnasium
from tfagents_system.train_params_base import TrainParamsBase


class Slow(gymnasium.Wrapper):
    '''An iteration takes a second on any machine: kills come in the midst of the run.'''

    def step(self, action):
        time.sleep(0.02)
        return self.env.step(action)


class TrainParams(TrainParamsBase):
    num_iter = 40
    num_steps_per_iter = 50
    n_buffer_init_episodes = 2
    n_episodes_in_buffer = 500
    n_eval_episodes = 2
    eval_period_itrs = 10
    checkpoint_period_itrs = 5
    train_batch_size = 16
    actor_fc_layer_params = (8,)
    critic_joint_fc_layer_params = (8,)

    def env_ctor(self, *args, seed=None, **kwargs):
        return Slow(gymnasium.make("Pendulum-v1"))
"""
ITERATIONS, UPDATES, STEPS_PER_ITERATION, INIT_STEPS = 40, 50, 2 * 50, 2 * 50


def processes_of(run):
    """Processes that work in the run directory."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("SAC_EXP_DIR") == str(run.exp_dir):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def pid_of(run, role):
    return run.status()["roles"][role]["pid"]


def saved_step(run):
    """The train step of the newest checkpoint."""
    return run_checkpoints.newest_complete(run.exp_dir / "checkpoints").train_step


def refuses_a_second_start(run):
    """While the run is at work in its directory."""
    code, output = run.finish(60.0)
    assert code == 2
    lock = json.loads((run.exp_dir / "run.lock").read_text())
    assert f"SAC_EXP_DIR={run.exp_dir} is in use by the run with pid {lock['pid']} on {lock['host']}" in output
    assert psutil.pid_exists(lock["pid"])
    assert "Traceback" not in output


def one_of_two_starts(run):
    """Two with different settings at once: one is refused. Returns the other and its train_batch_size."""
    starts = {size: run.start("--set", f"train_batch_size={size}") for size in (96, 160)}
    until(lambda: any(process.poll() is not None for process in starts.values()), 120.0, "one is refused")
    ((refused, process),) = [each for each in starts.items() if each[1].poll() is not None]
    code, output = finish(starts.pop(refused))
    assert code == 2 and ("is in use by the run with" in output or "another start has prepared" in output), output
    assert "Traceback" not in output
    ((size, process),) = starts.items()
    return process, size


def test_stop_resume_kill_and_finish(tmp_path):
    mlflow = f"file://{tmp_path}/mlflow"
    run = UserRun(tmp_path, PARAMS, {"horizon": 50}, report=1, wandb="offline", mlflow_uri=mlflow)

    # Stopped in mid-run: everything is saved.
    process, size = one_of_two_starts(run)
    run.wait_until(process, lambda: (run.trainer().get("train_step") or 0) >= 4 * UPDATES)
    process.send_signal(signal.SIGINT)
    code, output = finish(process)
    assert code == 75, f"{output}\n{run.logs()}"
    assert f"settings: train_batch_size={size}" in output
    assert json.loads((run.exp_dir / "overrides.json").read_text())["params"] == {"train_batch_size": size}
    assert json.loads((run.exp_dir / "resolved.json").read_text())["params"]["train_batch_size"] == size
    assert "the same command goes on" in output
    assert processes_of(run) == []
    stopped_at = run.trainer()["train_step"]
    assert saved_step(run) == stopped_at
    assert 4 * UPDATES <= stopped_at < ITERATIONS * UPDATES
    stored = run.status()["roles"]["replay"]["env_steps"]

    # Resumed at that update, with that replay; then every role is killed once.
    process = run.start()
    run.wait_until(process, lambda: (run.trainer().get("train_step") or 0) > stopped_at)
    assert run.trainer()["resumed_at_step"] == stopped_at
    assert f"{stored} env steps so far" in run.log("replay")
    assert run.log("worker_0").count("steps again") == 0
    refuses_a_second_start(run)
    for role in ("tracker", "worker_1", "trainer", "replay"):
        before = run.trainer()["train_step"]
        os.kill(pid_of(run, role), signal.SIGKILL)
        run.wait_until(process, lambda role=role: run.status()["roles"][role]["restarts"] == 1)
        if role != "replay":
            run.wait_until(process, lambda before=before: (run.trainer().get("train_step") or 0) > before)
    code, output = finish(process)
    assert code == 0, f"{output}\n{run.logs()}"
    assert processes_of(run) == []

    # As many updates and iterations as if nothing had happened; of experience, no less.
    assert run.trainer()["train_step"] == ITERATIONS * UPDATES
    resumed = [int(step) for step in re.findall(r"resumed at train step (\d+)", run.log("trainer"))]
    assert resumed[0] == stopped_at
    # gRPC may crash in a client whose server is killed: a restart like any other, and told as what it is.
    crashed = len(re.findall("trainer ended with SIG(?:ABRT|SEGV)", run.log("trainer")))
    assert len(resumed) == 2 + crashed, run.logs()
    env_steps = run.status()["roles"]["replay"]["env_steps"]
    whole = INIT_STEPS + ITERATIONS * STEPS_PER_ITERATION
    # Lost or added: parts of the episodes that killed and stopped workers were in.
    assert whole - 50 <= env_steps <= whole + 6 * 50, env_steps
    rows = read_metrics(run.exp_dir / "metrics.csv")
    iterations = [row["iteration"] for row in rows if row["critic_loss"] is not None]
    assert iterations == sorted(set(iterations)), "no row twice"
    assert iterations[-1] == ITERATIONS
    assert (run.exp_dir / "learning_curve.png").stat().st_size > 10_000
    assert len(list((run.exp_dir / "videos").glob("*.mp4"))) == 1
    is_sent_once(run, rows, mlflow)


def is_sent_once(run: UserRun, rows: list[dict[str, float | None]], mlflow: str) -> None:
    """Each row of metrics.csv is at both places, once and in order."""
    from mlflow import MlflowClient

    trained = [row["env_steps"] for row in rows if row["critic_loss"] is not None]
    (folder,) = (run.exp_dir / "wandb").glob("offline-run-*")
    _, sent = history(folder)
    assert [row["env_steps"] for row in sent if "critic_loss" in row] == trained
    client = MlflowClient(mlflow)
    experiment = client.get_experiment_by_name("tfagents_system")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    steps = [metric.step for metric in client.get_metric_history(found.info.run_id, "critic_loss")]
    assert steps == sorted(set(steps)) and steps[-1] == trained[-1] and found.info.status == "FINISHED"
    kinds = [file.path for file in client.list_artifacts(found.info.run_id)]
    assert sorted(kinds) == ["policy", "settings", "videos"]
