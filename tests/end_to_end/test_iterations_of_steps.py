"""A run that sets no iteration is measured in steps, however many workers there are."""

import pytest

from tests.support.launching import UserRun, finish
from tfagents_system.envs import specs
from tfagents_system.replay.ring import Ring
from tfagents_system.run_files.metrics import read_rows
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.load_params import ENV_STEPS_PER_ITER
from tfagents_system.transport.segments import Layout

pytestmark = pytest.mark.slow

HORIZON, EPISODES_IN_BUFFER = 60, 100

PARAMS = f"""
import gymnasium
import numpy as np

from tfagents_system.train_params_base import TrainParamsBase


class Counting(gymnasium.Env):
    '''Episodes of 1 to 60 steps; an observation tells how many steps its episode has had.'''

    observation_space = gymnasium.spaces.Box(-100.0, 100.0, (2,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.episode = 0, float(self.np_random.uniform(-1.0, 1.0))
        return self._observation(), {{}}

    def step(self, action):
        self.steps += 1
        return self._observation(), 1.0, bool(self.np_random.random() < 0.03), False, {{}}

    def _observation(self):
        return np.array([self.steps, self.episode], np.float32)


class TrainParams(TrainParamsBase):
    n_step = 3
    num_initial_episodes = 4
    buffer_size = {EPISODES_IN_BUFFER * HORIZON}
    num_eval_episodes = 1
    eval_period_iters, log_period_iters = 10, 1
    batch_size = 16
    actor_fc_layer_params = (8,)
    critic_joint_fc_layer_params = (8,)

    def env_ctor(self, *args, seed=None, **kwargs):
        return Counting()
"""


def open_ring(run):
    paths = RunPaths(run.exp_dir)
    layout = Layout.from_specs(*specs.load_specs(paths.specs))
    return Ring.open(paths.replay, layout, (EPISODES_IN_BUFFER + 1) * (HORIZON + 1))


def test_a_run_that_sets_no_iteration_is_measured_in_steps(tmp_path):
    """Iterations of the default's steps, one update a step; random steps, length and two periods by steps."""
    run = UserRun(tmp_path, PARAMS, {"horizon": HORIZON}, num_collect_workers=3)
    settings = ("initial_collect_steps=50", "num_env_steps=1050", "eval_period_env_steps=500")
    settings += ("log_period_iters=2", "checkpoint_period_env_steps=350", "num_iter=1000")
    code, output = finish(run.start(*(word for setting in settings for word in ("--set", setting))))
    assert code == 0 and "finished: num_env_steps=1050 is reached" in output, f"{output}\n{run.logs()}"
    ring = open_ring(run)
    assert ring.init_steps == 50, "exactly so many, shared by the workers"
    steps = 1050 // 20  # A short run has shorter iterations than the default's, and ten evaluations at least.
    assert steps < ENV_STEPS_PER_ITER
    ends = [50 + steps * iteration for iteration in range(1, 21)]
    assert [50 + ring.steps_up_to(iteration) for iteration in range(20)] == ends
    crossed = {every: [end for end in ends if end // every > (end - steps) // every] for every in (350, 500)}
    trained, evaluated = rows_of(run)
    assert [row["env_steps"] for row in trained] == ends[1::2]
    assert [row["train_step"] for row in trained] == [row["env_steps"] - 50 for row in trained]
    assert [row["env_steps"] for row in evaluated] == [0, *crossed[500], ends[-1]] == [0, 518, 1038, 1090]
    names = {path.name for path in (RunPaths(run.exp_dir).policies / "checkpoints").iterdir()}
    for end in crossed[350]:
        assert any(str(end - 50) in name for name in names), (end, names)


def rows_of(run):
    """Those of training, and those of evaluations."""
    rows = read_rows(run.exp_dir / "metrics.csv")
    return [[row for row in rows if row[name] is not None] for name in ("critic_loss", "eval_return")]
