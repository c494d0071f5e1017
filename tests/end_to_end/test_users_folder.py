"""A user's own folder, outside of the repository and of where commands are given: what is typed is trained.

One run from its first mistakes to its last edit, by the launchers alone.
"""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.support.launching import ROOT, UserRun, finish
from tests.support.warm_starts import WarmPopen
from tfagents_system.run_files import run_checkpoints
from tfagents_system.run_files.metrics import read_metrics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HORIZON, UPDATES = 10, 5
CALM, WINDY = 10.0, -20.0  # Returns without wind and with a wind of 0.3, where SCALE is 1.

PARAMS = f"""
import os

import gymnasium
import numpy as np

import arm
from tfagents_system.train_params_base import TrainParamsBase


class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    wind = 0.0

    def set_state(self, state):
        self.wind = state["wind"]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {{}}

    def step(self, action):
        return np.zeros(1, np.float32), arm.reward(self.wind), False, False, {{}}


class Breaking(Env):
    # As simulators do now and then: only while a worker collects.
    def step(self, action):
        if "SLURM_PROCID" in os.environ and self.np_random.random() < 0.01:
            raise RuntimeError("the arm is stuck")
        return super().step(action)


class TrainParams(TrainParamsBase):
    num_iter = 4
    num_steps_per_iter = {UPDATES}
    n_train_episodes_per_iter = 3
    n_buffer_init_episodes = 4
    n_eval_episodes = 2
    eval_period_itrs = 1
    train_batch_size = 8
    actor_fc_layer_params = (8,)
    critic_joint_fc_layer_params = (8,)

    def env_ctor(self, is_collecting):
        return Breaking() if is_collecting else Env()

    def collect_env_args_kwargs(self, id):
        return (True,), {{}}

    def eval_env_args_kwargs(self, id):
        return (False,), {{}}
"""
ARM = "SCALE = 1.0\n\n\ndef reward(wind):\n    return SCALE - 10.0 * wind\n"
CONFIG = {"horizon": HORIZON, "curriculum": {"wind": {"iters": [0, 2], "range": [0.0, 0.3], "apply_to_eval": True}}}


@pytest.fixture(scope="module")
def user(tmp_path_factory):
    """The folder, and another one from where all commands are given."""
    folder = tmp_path_factory.mktemp("robot")
    run = UserRun(folder, PARAMS, CONFIG)
    (folder / "arm.py").write_text(ARM)
    run.elsewhere = tmp_path_factory.mktemp("elsewhere")
    return run


def start(run, *arguments):
    """Starts the run from elsewhere, by a path that is not relative to the vars file's folder."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SAC_", "SLURM_"))}
    environ |= {"VIRTUAL_ENV": sys.prefix, "SAC_ALLOW_LOGIN": "1"}
    vars_file = os.path.relpath(run.vars_file, run.elsewhere)
    return WarmPopen(
        [str(ROOT / "run_script.sh"), vars_file, *arguments],
        exp_dir=run.exp_dir,
        cwd=run.elsewhere,
        env=environ,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def test_a_launcher_that_does_not_start_says_why(tmp_path):
    """Of the tests' own way to start launchers: never exit code 0 and nothing said."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    for command, cwd, why in (("/nope/launcher", tmp_path, "/nope/launcher"), (sys.executable, "/nope", "/nope")):
        process = WarmPopen([command], exp_dir=tmp_path / "run", cwd=cwd, env={}, **pipes)
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 127 and f"No such file or directory: '{why}'" in out, out


def refused(run, *arguments):
    code, output = finish(start(run, *arguments), 90.0)
    assert code == 2, output
    assert "Traceback" not in output
    return output


def evaluations(run):
    """The return of the evaluated policy of each iteration."""
    rows = [row for row in read_metrics(run.exp_dir / "metrics.csv") if row["eval_return"] is not None]
    return {int(row["iteration"]): row["eval_return"] for row in rows}


def test_mistakes_are_refused_with_what_was_meant(user):
    params = user.folder / "my_params.py"

    other = user.elsewhere / "my_params.py"
    other.write_text(PARAMS)
    output = refused(user)
    assert str(params) in output and str(other) in output
    other.unlink()

    params.write_text(PARAMS.replace("num_iter = 4", "num_iter = 4\n    learning_rate = 1e-3\n    buffer_size = 100"))
    output = refused(user)
    for theirs, ours in (("learning_rate", "actor_learning_rate"), ("buffer_size", "n_episodes_in_buffer")):
        line = next(line for line in output.splitlines() if f"TrainParams.{theirs}" in line)
        assert ours in line
    params.write_text(PARAMS)

    (user.folder / "arm.py").write_text(
        ARM.replace("    return", "    assert wind < 0.2, 'beyond the joint'\n    return")
    )
    output = refused(user)
    assert "with wind = 0.3 failed in step 1: AssertionError: beyond the joint (arm.py, line 5)" in output
    (user.folder / "arm.py").write_text(ARM)
    assert not (user.exp_dir / "params.py").exists(), "nothing was begun"


def test_a_start_that_trained_nothing_binds_to_nothing(user):
    (user.folder / "arm.py").write_text(ARM.replace("1.0", "7.0"))
    process = start(user)
    user.wait_until(process, (user.exp_dir / "logs").is_dir)
    process.send_signal(signal.SIGINT)
    code, output = finish(process)
    assert code == 75, output
    (user.folder / "arm.py").write_text(ARM)
    assert run_checkpoints.newest_train_step(user.exp_dir / "checkpoints") <= 0, "no update was done"


def test_best_and_faults_are_those_of_the_task_as_it_is(user):
    code, output = finish(start(user))
    assert code == 0, f"{output}\n{user.logs()}"
    assert evaluations(user) == pytest.approx({0: CALM, 1: CALM, 2: WINDY, 3: WINDY, 4: WINDY}), "as the files are now"

    best = json.loads((user.exp_dir / "policies" / "best.json").read_text())
    assert (best["eval_return"], best["curriculum"]) == (pytest.approx(WINDY), {"wind": 0.3})
    play = [sys.executable, str(ROOT / "tfagents_system" / "run.py"), "--exp_dir", str(user.exp_dir), "--no_video"]
    played = subprocess.run([*play, "--checkpoint", "best"], text=True, capture_output=True, timeout=120)
    assert played.returncode == 0, played.stderr
    assert "wind=0.3" in played.stdout.replace(" = ", "=") and "-20" in played.stdout

    faults = [line for line in output.splitlines() if "environment fault" in line]
    assert faults and "the arm is stuck" in faults[-1]
    status = subprocess.run(
        [sys.executable, "-m", "tfagents_system.report.status", str(user.exp_dir)],
        text=True, capture_output=True, timeout=60, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert "the arm is stuck" in status.stdout, status.stdout + status.stderr


def test_a_run_goes_on_with_its_own_files_and_what_it_may_be_told(user):
    (user.folder / "arm.py").write_text(ARM.replace("1.0", "2.0"))
    refusal = refused(user, "--set", "num_iter=6")
    assert "arm.py (line 1). --keep" in next(line for line in refusal.splitlines() if "edited since" in line)
    code, output = finish(start(user, "--keep", "--set", "num_iter=6"))
    assert code == 0, f"{output}\n{user.logs()}"
    assert any("num_iter" in line and "4" in line and "6" in line for line in output.splitlines())
    assert [evaluations(user)[iteration] for iteration in (5, 6)] == pytest.approx([WINDY, WINDY]), "SCALE is 1 there"


def test_edits_are_trained_when_asked_for(user):
    code, output = finish(start(user, "--take_edits", "--set", "num_iter=8"))
    assert code == 0, f"{output}\n{user.logs()}"
    assert [evaluations(user)[iteration] for iteration in (7, 8)] == pytest.approx([WINDY + 10.0, WINDY + 10.0])
    rows = read_metrics(user.exp_dir / "metrics.csv")
    assert [row["edits"] for row in rows if row["iteration"] in (6, 8) and row["eval_return"] is not None] == [None, 1]
    best = json.loads((user.exp_dir / "policies" / "best.json").read_text())
    assert (best["eval_return"], best["edits"]) == (pytest.approx(WINDY + 10.0), 1)
    assert run_checkpoints.newest_complete(user.exp_dir / "checkpoints").train_step == 8 * UPDATES
