"""The split that is proposed follows from what was measured."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfagents_system.errors import UserError
from tfagents_system.launch.costs import Cost
from tfagents_system.launch.tune import propose

ROOT = Path(__file__).resolve().parents[2]
REPLAY_SECS = 2e-6 + 4e-4  # of a step with one update


def proposed(steps_per_s, updates_per_s, cpus, worker_cpus=1, beside=0):
    """The splits where a step takes one CPU, an update those of the trainer, and a step has one update."""
    updates = {count: Cost(1 / rate, count / rate) for count, rate in updates_per_s.items()}
    return propose(Cost(1 / steps_per_s, 1 / steps_per_s), 1.0, updates, cpus, worker_cpus, beside)


def test_where_updates_are_the_limit_the_trainer_gets_the_cpus():
    best = proposed(5000.0, {1: 100.0, 2: 180.0}, cpus=4)[0]
    assert (best.train_cpus, best.workers, best.is_shared) == (2, 1, False)
    assert best.steps_per_s == pytest.approx(180.0)


def test_where_the_simulator_is_the_limit_the_workers_get_them():
    best = proposed(10.0, {1: 100.0, 2: 180.0}, cpus=16)[0]
    assert (best.train_cpus, best.workers) == (2, 14), "with the replay server among the workers"
    assert best.steps_per_s == pytest.approx(14 / (1 / 10 + REPLAY_SECS))


def test_workers_of_two_cpus_take_two_each_and_evaluators_have_theirs_first():
    splits = proposed(10.0, {1: 1e6}, cpus=8, worker_cpus=2)
    assert max(split.workers for split in splits) == 3
    splits = proposed(10.0, {1: 1e6}, cpus=8, worker_cpus=2, beside=2)
    assert max(split.workers for split in splits) == 1  # 8 CPUs less one of the trainer's and four beside: 3.
    with pytest.raises(UserError, match="with 3 evaluators and experts of as many"):
        proposed(10.0, {1: 1e6}, cpus=8, worker_cpus=2, beside=3)


def test_the_smallest_of_equally_fast_splits_comes_first():
    splits = proposed(1e6, {1: 100.0}, cpus=8)
    assert (splits[0].workers, splits[0].train_cpus) == (1, 1)
    assert all(split.steps_per_s <= 100.1 for split in splits)


def test_one_cpu_does_everything_in_turn():
    (only,) = proposed(1000.0, {1: 100.0}, cpus=1)
    assert only.steps_per_s == pytest.approx(1 / (1 / 1000 + 1 / 100 + REPLAY_SECS))


@pytest.mark.parametrize("worker_cpus", [1, 2])
def test_two_cpus_with_a_cheap_simulator_both_train(worker_cpus) -> None:
    best = proposed(10_000.0, {1: 100.0, 2: 190.0}, cpus=2, worker_cpus=worker_cpus)[0]
    assert (best.train_cpus, best.workers, best.is_shared) == (2, 1, True)
    assert best.steps_per_s == pytest.approx(1 / (1 / 190 + (1 / 10_000 + REPLAY_SECS) / 2))


@pytest.mark.parametrize(("cpus", "worker_cpus"), [(6, 8), (6, 6), (2, 3), (1, 2)])
def test_workers_that_do_not_fit_are_refused_with_the_remedy(cpus, worker_cpus):
    with pytest.raises(UserError, match=f"SAC_COLLECT_WORKER_CPUS={worker_cpus} .* {cpus} CPUs: lower SAC_COLLECT_WO"):
        proposed(10.0, {1: 100.0, 2: 180.0}, cpus, worker_cpus)


def tune(*args, timeout=120, **more):
    command = [sys.executable, "-m", "tfagents_system.launch.tune", *args]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    more = {"cwd": ROOT, "env": environ} | more
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **more)


PARAMS_THAT_TELL = """
import json, os, sys
import beside, exported
import gymnasium
from tfagents_system.train_params_base import TrainParamsBase

print(json.dumps({"gl": os.environ["MUJOCO_GL"], "path": sys.path, "pwd": os.environ["PWD"]}))


class TrainParams(TrainParamsBase):
    num_env_steps = 1000

    def env_ctor(self, *args, seed=None, **kwargs):
        return gymnasium.make("Pendulum-v1")
"""


@pytest.mark.slow
def test_a_users_run_is_measured_in_its_environment_and_lines_for_its_vars_file_come_out(tmp_path):
    """Exports of the vars file, its PYTHONPATH and the folder of the user; what it prints is shown and not read."""
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    for folder in (home, elsewhere):
        folder.mkdir()
    (home / "beside.py").touch()
    (elsewhere / "exported.py").touch()
    (home / "params.py").write_text(PARAMS_THAT_TELL)
    (home / "config.json").write_text('{"horizon": 20}')
    (home / "vars.sh").write_text(
        f"echo SAC_TRAIN_CPUS=none\ncd {elsewhere}\nexport MUJOCO_GL=osmesa PYTHONPATH={elsewhere}\n"
        "SAC_EXP_NAME=x SAC_PARAMS=params.py SAC_CONFIG=config.json\n"
        "SAC_TRAIN_CPUS=1 SAC_REVERB_CPUS=1 SAC_NUM_COLLECT_WORKERS=1 SAC_COLLECT_WORKER_CPUS=1\n"
    )
    done = tune("vars.sh", "--secs", "0.1", "--cpus", "1", cwd=home)
    assert done.returncode == 0 and "SAC_TRAIN_CPUS=none" in done.stderr, done.stderr
    told = json.loads(done.stdout.splitlines()[0])
    assert (told["gl"], told["pwd"]) == ("osmesa", str(home))
    own = [entry for entry in told["path"] if entry in map(str, (ROOT, elsewhere, home))]
    assert own == [str(ROOT), str(elsewhere), str(home)], "in the order of run_script.sh"
    assert "20 steps an episode" in done.stdout and "1 updates for each step" in done.stdout
    assert "SAC_TRAIN_CPUS=1" in done.stdout


def test_a_vars_file_that_fails_or_has_wrong_variables_is_refused_without_a_traceback(tmp_path):
    vars_file = tmp_path / "vars.sh"
    for text, findings in (
        ("exit 0\n", ["fails"]),
        ("SAC_TRAIN_CPUS=none\nSAC_PARAMS=no_such.py\n", ["SAC_TRAIN_CPUS=none must", "SAC_PARAMS=no_such.py must"]),
    ):
        vars_file.write_text(text)
        done = tune(str(vars_file))
        assert done.returncode == 2 and "Traceback" not in done.stderr
        assert all(finding in done.stderr for finding in findings)
