"""An environment that numbers its steps, from a user's own folder: every step is stored once, in the right place."""

import numpy as np
import pytest

from tests.support.launching import UserRun, finish
from tfagents_system.envs.specs import load_specs
from tfagents_system.replay.ring import Ring
from tfagents_system.run_files.metrics import read_metrics
from tfagents_system.transport.segments import Layout

pytestmark = pytest.mark.slow

HORIZON, WORKERS, ITERATIONS, EPISODES, INIT_EPISODES = 7, 3, 6, 2, 4

ENVIRONMENT = """
import numpy as np


class Box:
    def __init__(self, low, high, shape):
        self.shape, self.dtype = shape, np.dtype(np.float64)
        self.low, self.high = np.full(shape, low), np.full(shape, high)


class NumberedEnv:
    '''Observation [worker, episode, step, mass]; terminates after 4 + (worker + episode) % 5 steps, or never.'''

    observation_space = Box(-1e6, 1e6, (4,))
    action_space = Box(-3.0, 5.0, (1,))

    def __init__(self, worker):
        self.worker, self.episode, self.steps, self.mass = worker, -1, 0, 0.5

    def set_state(self, state):
        self.mass = state["mass"]

    def observation(self):
        return np.array([self.worker, self.episode, self.steps, self.mass])

    def reset(self, seed=None):
        self.episode, self.steps = self.episode + 1, 0
        return self.observation(), {}

    def step(self, action):
        assert -3.0 <= action[0] <= 5.0
        self.steps += 1
        terminated = self.steps == 4 + (self.worker + self.episode) % 5
        return self.observation(), 10.0 * self.steps, terminated, False, {"log/double": 2.0 * self.steps}

    def close(self):
        pass
"""

PARAMS = f"""
from numbered import NumberedEnv
from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    num_iter = {ITERATIONS}
    num_steps_per_iter = 5
    n_train_episodes_per_iter = {EPISODES}
    n_buffer_init_episodes = {INIT_EPISODES}
    buffer_size = {200 * HORIZON}
    n_eval_episodes = 4
    eval_period_itrs = 3
    train_batch_size = 8
    actor_fc_layer_params = (8,)
    critic_joint_fc_layer_params = (8,)

    def env_ctor(self, worker):
        return NumberedEnv(worker)

    def collect_env_args_kwargs(self, id):
        return (id,), {{}}

    def eval_env_args_kwargs(self):
        return (99,), {{}}
"""

CONFIG = {"horizon": HORIZON, "curriculum": {"mass": {"iters": [0, 2, 5], "range": [1.0, 2.0]}}}


def episode_steps(worker, episode):
    """Steps of an episode: it terminates, or the horizon cuts it."""
    return min(HORIZON, 4 + (worker + episode) % 5)


def mass_of(worker, episode):
    """The curriculum's value in an episode, which belongs to the random ones or to an iteration."""
    init = INIT_EPISODES // WORKERS + (worker < INIT_EPISODES % WORKERS)
    iteration = max(0, (episode - 1 - init) // EPISODES)
    return 1.0 if iteration < 2 else 1.5 if iteration < 5 else 2.0


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("user")
    (folder / "numbered.py").write_text(ENVIRONMENT)
    run = UserRun(folder, PARAMS, CONFIG, num_collect_workers=WORKERS)
    code, output = run.finish()
    assert code == 0, f"{output}\n{run.logs()}"
    return run, output


@pytest.fixture(scope="module")
def ring(finished):
    run, _ = finished
    layout = Layout.from_specs(*load_specs(run.exp_dir / "specs.pbtxt"))
    return Ring.open(run.exp_dir / "replay", layout, 200 * (HORIZON + 1))


def test_every_step_of_every_worker_is_stored_once_and_in_order(ring):
    rows = np.flatnonzero(ring.steps_left[: ring.filled_rows] > 0)
    stored = [tuple(int(value) for value in ring.observation[0][row][:3]) for row in rows]
    for worker in range(WORKERS):
        init = INIT_EPISODES // WORKERS + (worker < INIT_EPISODES % WORKERS)
        expected = [
            (worker, episode, step)
            for episode in range(1, 1 + init + ITERATIONS * EPISODES)  # 0 was reset before the first set_state
            for step in range(episode_steps(worker, episode))
        ]
        assert [key for key in stored if key[0] == worker] == expected
    assert len(stored) == ring.env_steps == ring.ring_steps


def test_observation_reward_discount_and_next_observation_belong_together(ring):
    rows = np.flatnonzero(ring.steps_left[: ring.filled_rows] > 0)
    now, after = ring.observation[0][rows], ring.observation[0][rows + 1]
    np.testing.assert_array_equal(after[:, :2], now[:, :2])
    np.testing.assert_array_equal(after[:, 2], now[:, 2] + 1)
    np.testing.assert_array_equal(ring.reward[rows], 10.0 * after[:, 2])
    terminal = after[:, 2] == 4 + (now[:, 0] + now[:, 1]) % 5
    np.testing.assert_array_equal(ring.discount[rows], np.where(terminal, 0.0, 1.0), "a time limit keeps its discount")
    assert (~terminal & (after[:, 2] == HORIZON)).any(), "some episodes are cut by the horizon"
    assert (np.abs(ring.action[0][rows]) <= 1.0).all()


def test_the_curriculum_is_applied_in_its_iterations(ring, finished):
    for worker, episode, _, mass in ring.observation[0][: ring.filled_rows]:
        assert mass == mass_of(int(worker), int(episode)), (worker, episode)
    rows = read_metrics(finished[0].exp_dir / "metrics.csv")
    by_iteration = {row["iteration"]: row["curriculum/mass"] for row in rows if row.get("curriculum/mass")}
    assert by_iteration[1] in (1.0, 1.5)
    assert by_iteration[ITERATIONS] == 2.0


def test_policies_lag_by_at_most_one_iteration(finished):
    rows = read_metrics(finished[0].exp_dir / "metrics.csv")
    lags = {row["train/policy_lag"] for row in rows if row.get("train/policy_lag") is not None}
    assert lags
    assert lags <= {0.0, 1.0}


def test_metrics_have_the_evaluations_and_the_environments_own_numbers(finished):
    run, output = finished
    rows = read_metrics(run.exp_dir / "metrics.csv")
    assert [row["iteration"] for row in rows if row["eval_return"] is not None] == [0, 3, 6]
    returns = [sum(10.0 * step for step in range(1, n + 1)) for n in range(4, HORIZON + 1)]
    assert all(min(returns) <= row["eval_return"] <= max(returns) for row in rows if row["eval_return"] is not None)
    assert any(row.get("train/double") for row in rows)
    assert any(row.get("eval/double") for row in rows)
    assert run.trainer()["train_step"] == ITERATIONS * 5
    assert "my_params.py" in output


def test_a_finished_run_says_so_and_a_changed_file_is_noticed(finished):
    run, _ = finished
    (run.folder / "my_params.py").write_text(PARAMS.replace("train_batch_size = 8", "train_batch_size = 16"))
    code, output = run.finish()
    assert code == 2 and "-    train_batch_size = 8\n" in output and "+    train_batch_size = 16\n" in output, output
    code, output = finish(run.start("--keep"))
    assert code == 0, output
    assert "is finished" in output
    assert "train_batch_size = 8" in (run.exp_dir / "params.py").read_text()
