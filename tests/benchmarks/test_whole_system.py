"""What is compared in the whole-system benchmark, and how its numbers come from the metrics of a run."""

import argparse
import json
import time

import numpy as np
import pytest

from benchmarks import whole_system
from benchmarks.half_cheetah import environment
from benchmarks.outcome import Outcome
from benchmarks.whole_system import OURS, Measurement, Task
from tfagents_system.settings.load_params import load_params


def arguments(**changes):
    defaults = {"quick": False, "full": False, "steps": None, "step_ms": None, "rounds": 1, "peers_python": "/p"}
    return argparse.Namespace(**{**defaults, **changes})


def row(iteration, wall_time_s, train_return):
    return {"train_step": 1000.0 * iteration, "wall_time_s": wall_time_s, "train_return": train_return}


def test_rate_leaves_out_the_warm_up():
    rows = [row(1, 30.0, -1.0), row(2, 40.0, -2.0), row(3, 44.0, -3.0), row(4, 48.0, -4.0), row(5, 99.0, -5.0)]
    measurement = whole_system.measure_rows(rows, 2)
    assert measurement.steps_per_s == 2000.0 / 8.0
    assert measurement.returns == [-1.0, -2.0], "after as many updates as the others did"


def test_iterations_are_whole_episodes_of_all_workers():
    assert whole_system.n_iterations(Task(2000)) == 2
    assert whole_system.n_iterations(Task(2000, 20.0, False, horizon=250, n_envs=8)) == 1
    assert whole_system.n_iterations(Task(10)) == 1


@pytest.mark.parametrize("n_envs", [1, 8])
def test_params_do_an_update_a_step(n_envs):
    config = whole_system.config_of(Task(2000, 5.0, True, horizon=250, n_envs=n_envs))
    params = load_params(whole_system.ROOT / "benchmarks" / "half_cheetah" / "params.py", config)
    assert params.updates_per_iter == n_envs * params.num_train_episodes_per_iter * params.horizon
    assert params.env_steps_per_iter is None
    assert params.num_initial_episodes * params.horizon == 1000
    assert params.collect_env_args_kwargs() == ((), {"step_ms": 5.0, "busy": True})
    assert params.eval_env_args_kwargs() == ((), {}), "evaluation does not wait for slow steps"


def test_iterations_of_steps_have_an_update_a_step():
    task = Task(2000, block=50)
    params = load_params(whole_system.ROOT / "benchmarks" / "half_cheetah" / "params.py", whole_system.config_of(task))
    assert (params.env_steps_per_iter, params.updates_per_env_step) == (50, 1.0)
    assert whole_system.n_iterations(task) == 40


def test_our_run_has_the_tasks_seed_and_workers_and_all_cpus_for_updates():
    variables = whole_system.variables_of(Task(2000, 5.0, True, horizon=250, n_envs=2, seed=3))
    assert variables == {"SAC_SEED": 3, "SAC_NUM_COLLECT_WORKERS": 2, "SAC_TRAIN_CPUS": 2}


def test_who_takes_part():
    everybody = set(whole_system.contestants_of(Task(2000), arguments()))
    assert everybody == {*whole_system.TARGETS_OF_OURS, *whole_system.TARGETS, "SBX, 50 updates after 50 steps"}
    slow = Task(1000, 5.0)
    assert set(whole_system.contestants_of(slow, arguments())) == {OURS, "SBX"}
    assert set(whole_system.contestants_of(slow, arguments(full=True))) == {OURS, *whole_system.TARGETS}
    assert set(whole_system.contestants_of(Task(2000), arguments(quick=True))) == {OURS, "SBX"}


def test_report_divides_medians(capsys):
    outcome = Outcome("Fast.")
    ours = [Measurement(speed, [1.0, 3.0]) for speed in (100.0, 300.0, 200.0)]
    whole_system.report(outcome, Task(30_000), {OURS: ours, "SBX": [Measurement(50.0, [])]})
    outcome.print()
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert printed["ratios"] == [{"name": "ours over SBX, bare simulator", "value": 4.0, "target": 1.5}]
    values = {row["name"]: row["value"] for row in printed["rows"]}
    name = f"{OURS}, last 6 training episodes of 30000 steps"
    assert (values[f"{name}: mean return"], values[f"{name}: standard deviation"]) == (2.0, 1.0)


def test_limit_of_a_slow_simulator_is_told(capsys):
    outcome = Outcome("Fast.")
    whole_system.report(outcome, Task(2000, 20.0, True, 250, 2), {OURS: [Measurement(80.0, [])]})
    outcome.print()
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert [row["value"] for row in rows if row["name"].startswith("all CPUs")] == [100.0]


@pytest.mark.parametrize(("busy", "clock"), [(True, time.thread_time), (False, time.perf_counter)])
def test_slow_steps_take_their_time(busy, clock):
    env = environment.make(step_ms=20.0, busy=busy, horizon=5)
    env.reset(seed=0)
    cpu, began = time.thread_time(), clock()
    truncated = [env.step(np.zeros(6, np.float32))[3] for _ in range(5)]
    assert clock() - began >= 0.1
    used_secs = time.thread_time() - cpu
    assert used_secs >= 0.1 if busy else used_secs < 0.05
    assert truncated == [False] * 4 + [True]
