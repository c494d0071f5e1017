"""Roles as programs of one's own job script, and workers of another machine."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.abilities.support import SMALL, Project, begin, call, column, ended, rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ITERATIONS, HORIZON = 4, 20

PARAMS = f"""
import gymnasium
from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    {SMALL}
    num_iter = {ITERATIONS}
    num_eval_episodes = 1
    eval_period_iters = 2

    def env_ctor(self, *args, seed=None, **kwargs):
        return gymnasium.make("Pendulum-v1", **kwargs)
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def start_programs(project: Project) -> dict[str, subprocess.Popen[str]]:
    """Replay server, trainer and worker 0 of a prepared run, as the job script of a cluster's user starts them."""
    lines = [line.removeprefix(': "${SAC_').removesuffix('}"') for line in project.vars_file.read_text().splitlines()]
    variables: dict[str, Any] = dict(line.split(":=") for line in lines)
    module = [sys.executable, "-m"]
    prepare = [*module, "tfagents_system.launch.prepare", "--vars-file", project.vars_file]
    call(*prepare, cwd=project.folder, **variables)
    variables["EXP_DIR"] = str(project.run)
    started: dict[str, subprocess.Popen[str]] = {}
    for name in ("sac_replay_buffer", "sac_train", "sac_collect"):
        number = {"SLURM_PROCID": "0"} if name == "sac_collect" else {}
        with (project.folder / f"{name}.txt").open("w") as log:
            words = [*module, f"tfagents_system.{name}"]
            started[name] = begin(words, None, project.folder, variables, log, number)
    return started


def test_roles_are_programs_that_take_a_run_and_a_number(tmp_path: Path) -> None:
    project = Project(tmp_path, PARAMS, {"horizon": HORIZON}, REVERB_PORT=free_port(), SEED=0)
    started = start_programs(project)
    try:
        assert started["sac_train"].wait(400) == 0, (tmp_path / "sac_train.txt").read_text()
        for name in ("sac_collect", "sac_replay_buffer"):  # Whoever starts them stops them, as a supervisor does.
            started[name].send_signal(signal.SIGTERM)
            assert started[name].wait(100) == 75, (tmp_path / f"{name}.txt").read_text()
    finally:
        for process in started.values():
            if process.poll() is None:
                process.kill()
    assert rows(project.run)[-1]["train_step"] == 4 * ITERATIONS
    assert rows(project.run)[-1]["env_steps"] == HORIZON * (2 + ITERATIONS)
    assert [row["iteration"] for row in rows(project.run) if "eval_return" in row] == [0, 2, 4]


def test_workers_join_with_a_password_and_leave(tmp_path: Path) -> None:
    """The only worker of this run is one that joins."""
    (tmp_path / "password").write_text("a password of mine\n")
    (tmp_path / "password").chmod(0o600)
    variables: dict[str, Any] = {
        "GATEWAY_PORT": free_port(),
        "PASSWORD_FILE": tmp_path / "password",
        "LOCAL_WORKERS": 0,
    }
    project = Project(tmp_path, PARAMS, {"horizon": HORIZON}, **variables)
    process = project.start()
    try:
        project.wait_until(process, lambda: (project.run / "gateway.json").exists())
        way = [
            "--server",
            f"localhost:{variables['GATEWAY_PORT']}",
            "--credentials",
            str(project.run / "credentials"),
        ]
        words = [
            sys.executable,
            "-m",
            "tfagents_system",
            "join",
            str(project.vars_file),
            *way,
            "--workers",
            "1",
        ]
        (tmp_path / "wrong").write_text("another password\n")
        (tmp_path / "wrong").chmod(0o600)
        refused = call(*words, "--check", cwd=tmp_path, code=2, PASSWORD_FILE=tmp_path / "wrong")
        assert "password" in refused
        metrics = project.run / "metrics.csv"
        assert project.train_step() == 0 and not (metrics.exists() and column(project.run, "critic_loss"))
        joined = begin(words, None, tmp_path, {})
        project.finish(process)
        assert project.role("trainer")["iteration"] == ITERATIONS
        told = ended(joined, 0, 100.0)
        assert "finished" in told or "done" in told
    finally:
        if process.poll() is None:
            process.terminate()
    assert rows(project.run)[-1]["env_steps"] == HORIZON * (2 + ITERATIONS)
