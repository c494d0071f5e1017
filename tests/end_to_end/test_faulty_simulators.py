"""Simulators that raise, hang, grow, die and lie, each for real: the run continues, and what was wrong is told."""

import re

import numpy as np
import pytest

from tests.support.launching import UserRun
from tfagents_system.envs.specs import load_specs
from tfagents_system.replay.ring import Ring
from tfagents_system.transport.segments import Layout

pytestmark = pytest.mark.slow

HORIZON, ITERATIONS, WORKERS = 20, 8, 4

ENVIRONMENT = '''
import os
import time
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces

HERE = Path(__file__).parent
IN_WORKER = "SLURM_PROCID" in os.environ  # The check of a start finds nothing wrong.


def once(name):
    """Whether this has not happened yet in this run."""
    try:
        (HERE / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class Faulty(gymnasium.Env):
    """Observes [worker, step of episode, mass]; each worker has a weakness of its own."""

    observation_space = spaces.Box(np.array([0.0, 0.0, 0.0]), np.array([9.0, 100.0, 5.0]), dtype=np.float64)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    render_mode = "rgb_array"

    def __init__(self, worker, dies):
        self.worker, self.dies = worker, dies
        self.mass, self.episodes, self.grows, self.kept = 0.5, 0, False, []

    def set_state(self, state):
        self.mass = state["mass"]

    def render(self):
        return np.full((32, 48, 3), 10 * self.steps, np.uint8)

    def observe(self):
        return np.array([self.worker, self.steps, self.mass])

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        self.episodes += 1
        return self.observe(), {}

    def step(self, action):
        self.steps += 1
        if IN_WORKER and self.episodes > 3 and self.steps == 7:
            self.misbehave()
        if self.grows and len(self.kept) < 43:  # Not all at once: a slow machine would take it for a step that hangs.
            self.kept.append(np.ones(10 << 20, np.uint8))
        wrong = IN_WORKER and self.worker == 0 and self.episodes == 3 and self.steps == 12
        return (self.observe() * 99.0 if wrong else self.observe()), float(self.steps), False, False, {}

    def misbehave(self):
        if self.worker == 1:
            raise ZeroDivisionError("the motor is off")
        if self.worker == 2 and once("hung"):
            while True:
                time.sleep(1)  # the line where it hangs
        if self.worker == 3 and self.dies and once("died"):
            os._exit(5)
        elif self.worker == 3 and once("grown"):
            self.grows = True


class AlwaysFaulty(Faulty):
    def step(self, action):
        if IN_WORKER:
            raise ZeroDivisionError("the motor is always off")
        return super().step(action)
'''

PARAMS = f"""
from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    num_iter = {ITERATIONS}
    updates_per_iter = 5
    num_train_episodes_per_iter = 2
    num_initial_episodes = {WORKERS}
    buffer_size = {500 * HORIZON}
    num_eval_episodes = 3
    eval_period_iters = 4
    batch_size = 8
    actor_fc_layer_params = (8,)
    critic_joint_fc_layer_params = (8,)
    strict_observation_bounds = True

    def env_ctor(self, worker):
        import faulty

        kind = faulty.AlwaysFaulty if worker == self.env_config["always"] else faulty.Faulty
        return kind(worker, self.env_config["dies"])

    def collect_env_args_kwargs(self, id):
        return (id,), {{}}

    def eval_env_args_kwargs(self):
        return (9,), {{}}
"""
CURRICULUM = {"mass": {"iters": [0, 3], "range": [1.0, 2.0]}}


def start(folder, *, always, dies, **variables):
    (folder / "faulty.py").write_text(ENVIRONMENT)
    config = {"horizon": HORIZON, "always": always, "dies": dies, "curriculum": CURRICULUM}
    # A hang must be noticed before the others continue without that worker: the run would be over.
    return UserRun(folder, PARAMS, config, num_collect_workers=WORKERS, straggler_secs=9, **variables)


def check_ring(run):
    """Everything that is stored was really observed, in order, and nothing of a fault is."""
    layout = Layout.from_specs(*load_specs(run.exp_dir / "specs.pbtxt"))
    ring = Ring.open(run.exp_dir / "replay", layout, 501 * (HORIZON + 1))
    rows = np.flatnonzero(ring.steps_left[: ring.filled_rows] > 0)
    now, after = ring.observation[0][rows], ring.observation[0][rows + 1]
    np.testing.assert_array_equal(after[:, :2], now[:, :2] + [0, 1])
    np.testing.assert_array_equal(ring.reward[rows], after[:, 1])
    assert (ring.discount[rows] == 1.0).all()
    assert set(now[:, 2]) <= {1.0, 2.0}, "environments that were built again have the curriculum's values"
    return now


def line_of(text):
    return next(number for number, line in enumerate(ENVIRONMENT.splitlines(), 1) if text in line)


def test_a_run_survives_simulators_that_raise_lie_hang_and_grow(tmp_path):
    run = start(tmp_path, always=1, dies=False, max_restarts=1, step_timeout_secs=3, worker_memory_mb=450)
    # The check at the start steps worker 0's environment only.
    code, output = run.finish()
    assert code == 0, f"{output}\n{run.logs()}"
    status = run.status()
    assert status["roles"]["trainer"]["train_step"] == ITERATIONS * 5

    # Worker 0 observed what is out of bounds in every third episode: built again, nothing lost.
    log = run.log("worker_0")
    assert "worker 0: environment 0 failed in step 12 of episode 3" in log
    assert re.search(r"observation\[1\] is 1188, above its high of 100: correct the observation", log)
    assert status["roles"]["worker_0"]["restarts"] == 0
    assert status["roles"]["worker_0"]["env_faults"] >= 2
    assert "step 12" in status["roles"]["worker_0"]["last_env_fault"]

    # Worker 1 failed always: given up, while the others went on, and everybody is told.
    log = run.log("worker_1")
    assert len(re.findall(r"^error: .* 3 faults in a row end the worker$", log, re.MULTILINE)) == 2
    assert f"(faulty.py, line {line_of('the motor is always off')})" in log
    assert status["roles"]["worker_1"]["given_up"] is True
    assert "worker_1: given up after 1 restarts: exit code 1 (error: worker 1: environment 0 failed in step 1" in output
    # Of worker 1 both lives count, each to its last fault.
    faults = sum(beat.get("env_faults", 0) for beat in status["roles"].values())
    assert faults >= status["roles"]["worker_0"]["env_faults"] + 6
    assert re.search(rf"^{faults} environment faults .*last: worker \d: environment 0 failed", output, re.MULTILINE)
    assert re.search(r"^final evaluation: return ", output, re.MULTILINE)

    # Worker 2 hung once: its line, and ours before it.
    log = run.log("worker_2")
    ours = re.search(r"worker 2: environment 0 \(about step \d+ of episode \d+\) has not returned for 3 s\n", log)
    assert ours is not None, log
    assert f'faulty.py", line {line_of("# the line where it hangs")} in misbehave' in log[ours.end() :]
    assert "worker 2: environment 0" in output
    assert status["roles"]["worker_2"]["restarts"] == 1 and not status["roles"]["worker_2"]["given_up"]

    # Worker 3 grew too large once.
    assert re.search(r"worker 3: its processes take [\d,]+ MiB, more than SAC_WORKER_MEMORY_MB", run.log("worker_3"))
    assert status["roles"]["worker_3"]["given_up"] is False

    observed = check_ring(run)
    assert set(observed[:, 0]) == {0.0, 2.0, 3.0}
