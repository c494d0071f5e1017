"""Runs that are submitted to the tests' own SLURM."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.cluster import SlurmCluster
from tests.support.launching import UserRun

ROOT = Path(__file__).resolve().parents[2]


PARAMS = """
import gymnasium
import beside
from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    num_iter = beside.NUM_ITER
    updates_per_iter = 20
    num_initial_episodes = 2
    num_eval_episodes = 2
    eval_period_iters = 60
    checkpoint_period_iters = 20
    batch_size = 64
    actor_fc_layer_params = (32, 32)
    critic_joint_fc_layer_params = (32, 32)

    def env_ctor(self, *args, seed=None, **kwargs):
        return beside.Paced(gymnasium.make("Pendulum-v1"))
"""
BESIDE = """
import os
import time

import gymnasium

NUM_ITER = {num_iter}


class Paced(gymnasium.Wrapper):
    def step(self, action):
        if not os.path.exists({fast!r}):
            time.sleep({step_secs})
        return self.env.step(action)
"""


def make_run(folder: Path, num_iter: int, step_secs: float = 0.0, **variables: object) -> UserRun:
    """A user's folder, with a module beside the params file; a run that is only watched needs no whole CPUs.

    Steps take `step_secs` until there is a file `fast`.
    """
    beside = BESIDE.format(num_iter=num_iter, step_secs=step_secs, fast=str(folder / "fast"))
    (folder / "beside.py").write_text(beside)
    return UserRun(folder, PARAMS, {"horizon": 50}, num_collect_workers=1, **variables)


def submit(cluster: SlurmCluster, run: UserRun, *options: str, check: bool = False) -> str:
    options = options if check else ("--no_check", *options)
    done = cluster.run(
        str(ROOT / "submit.sh"), str(run.vars_file), "--parsable", "--mem=4G", *options,
        cwd=run.folder, environ={"VIRTUAL_ENV": sys.prefix, "TFAGENTS_CHECK_SECS": "200"}, timeout_secs=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[0]


def outputs(folder: Path) -> str:
    return "\n".join(f"== {path}\n{path.read_text()}" for path in sorted(folder.glob("*/slurm-*.out")))
