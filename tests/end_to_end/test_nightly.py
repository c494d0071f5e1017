"""Whole runs that learn for minutes, against the record in benchmarks/learning: `./run_tests.sh -m nightly`, an hour.

CI leaves them out. Seeds are those of the record. When a worker gets which policy differs from run to run, and so do
returns: the last evaluation may be worse than the record's worst one by its spread.
"""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pytest

from benchmarks.learning import algorithms
from benchmarks.learning.tasks import OURS, TASKS, Variant
from tests.support.launching import UserRun
from tfagents_system.machine.cpus import usable_gpus

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3600)]

RECORD = algorithms.read_record(algorithms.FOLDER / "results" / "algorithms.csv")
VARIANTS = ["sac", "redq x5", "droq x5", "tqc", "crossq", "simba"]


def lowest_to_expect(task: str, variant: str, steps: int, margin: float) -> float:
    """The worst evaluation of the record around that step, less what runs differ by, at least the margin."""
    period = TASKS[task].eval_steps
    found = [
        line.eval_return
        for line in RECORD
        if (line.task, line.variant) == (task, variant) and abs(line.env_steps - steps) < period
    ]
    assert found, f"the record lacks {variant} on {task} at {steps} steps"
    return min(found) - max(margin, float(np.std(found)))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("variant", VARIANTS)
def test_pendulum(variant: str, seed: int) -> None:
    task = TASKS["pendulum"]
    evaluations = algorithms.train(task, OURS[variant], seed, "")
    assert evaluations[-1][1] > lowest_to_expect("pendulum", variant, task.steps, margin=40.0), evaluations


def test_half_cheetah_after_30_000_steps() -> None:
    task = dataclasses.replace(TASKS["half_cheetah"], steps=30_000)
    evaluations = algorithms.train(task, OURS["sac"], 0, "")
    assert evaluations[-1][1] > lowest_to_expect("half_cheetah", "sac", task.steps, margin=500.0), evaluations


def test_pendulum_in_bfloat16() -> None:
    variant = Variant({"matmul_precision": "bfloat16"})
    assert algorithms.train(TASKS["pendulum"], variant, 0, "")[-1][1] > -250.0


@pytest.mark.skipif(not usable_gpus(os.environ), reason="there is no GPU here")
def test_pendulum_on_a_gpu(tmp_path) -> None:
    variables = {"params": "tfagents_system/examples/pendulum/params.py", "train_gpus": 1}
    run = UserRun(tmp_path, None, {"horizon": 200}, **variables)
    code, output = run.finish(1800.0)
    assert code == 0, output
    assert run.trainer()["eval_return"] > -250.0
