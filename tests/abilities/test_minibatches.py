"""What reaches a user's own agent in one run: histories, n-step returns, priorities, goals and the data of others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.abilities.support import SMALL, Project, sac

pytestmark = pytest.mark.slow

HORIZON, DISCOUNT, N_STEP, BATCH, UPDATES = 12, 0.5, 3, 16, 40

PARAMS = f"""
import collections
from pathlib import Path

import gymnasium
import numpy as np
import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.policies import actor_policy

from tfagents_system.train_params_base import TrainParamsBase

HERE = Path("FOLDER")


class Walk(gymnasium.Env):
    '''Counts its steps, and shows the count in a picture. The last step terminates where the episode is odd.'''

    observation_space = gymnasium.spaces.Dict(
        observation=gymnasium.spaces.Box(-10.0, 1e6, (3,)),
        achieved_goal=gymnasium.spaces.Box(-100.0, 100.0, (1,)),
        desired_goal=gymnasium.spaces.Box(-100.0, 100.0, (1,)),
        camera=gymnasium.spaces.Box(0, 255, (2, 2, 1), np.uint8),
    )
    action_space = gymnasium.spaces.Box(-2.0, 6.0, (1,))

    def __init__(self, worker):
        self.worker, self.episode = worker, -1

    def observe(self):
        return dict(
            observation=np.array([self.worker, self.episode, self.steps], np.float32),
            achieved_goal=np.array([self.steps], np.float32),
            desired_goal=np.array([50.0], np.float32),
            camera=np.full((2, 2, 1), 10 * self.steps, np.uint8),
        )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.steps = self.episode + 1, 0
        return self.observe(), {{}}

    def step(self, action):
        self.steps += 1
        now = self.observe()
        reward = float(self.compute_reward(now["achieved_goal"][None], now["desired_goal"][None], {{}})[0])
        return now, reward, False, False, {{}}

    def compute_reward(self, achieved_goal, desired_goal, info):
        return np.where(np.abs(achieved_goal - desired_goal)[..., 0] < 0.5, 100.0, 1.0).astype(np.float32)


Extra = collections.namedtuple("Extra", "mean_reward")


class Recording(tf_agent.TFAgent):
    '''No algorithm at all: an actor that stays as it is, and each minibatch goes into a file.'''

    def __init__(self, time_step_spec, action_spec, actor, train_step):
        tf.Module.__init__(self)
        policy = actor_policy.ActorPolicy(time_step_spec, action_spec, actor)
        super().__init__(time_step_spec, action_spec, policy, policy, None, train_step_counter=train_step)

    def _train(self, experience, weights):
        self.train_step_counter.assign_add(write(self.train_step_counter, "batch", experience))
        return self._loss(experience, weights, True)

    def _loss(self, experience, weights, training):
        reward = tf.reduce_mean(experience[2].reward)
        if not training:
            reward += 0.0 * tf.cast(write(self.train_step_counter, "held_out", experience), tf.float32)
        return tf_agent.LossInfo(reward, Extra(reward))


def write(number, name, experience):
    time_steps, policy_steps, next_time_steps = experience
    leaves = dict(
        reward=next_time_steps.reward,
        discount=next_time_steps.discount,
        action=policy_steps.action,
        **{{f"now_{{name}}": leaf for name, leaf in time_steps.observation.items()}},
        **{{f"then_{{name}}": leaf for name, leaf in next_time_steps.observation.items()}},
    )

    def save(number, *values):
        np.savez(HERE / f"{{name}}_{{int(number):04d}}", **dict(zip(leaves, values)))
        return np.int64(1)

    return tf.reshape(tf.numpy_function(save, [number, *leaves.values()], tf.int64), ())


class TrainParams(TrainParamsBase):
    {SMALL}
    train_batch_size = {BATCH}
    num_iter = 10
    num_steps_per_iter = {UPDATES // 10}
    discount = {DISCOUNT}
    n_step = {N_STEP}
    frame_stack = 2
    action_history = 1
    hindsight_share = 0.25
    validation_share = 0.3
    prior_data = "demos.npz"
    prior_data_share = 0.25

    def env_ctor(self, worker=0):
        return Walk(worker)

    def collect_env_args_kwargs(self, id):
        return (id,), {{}}

    def agent_ctor(self, time_step_spec, action_spec, train_step):
        actor = self.actor_ctor(time_step_spec.observation, action_spec)
        return Recording(time_step_spec, action_spec, actor, train_step)

    def expert_policy_ctor(self):
        return lambda observation: np.full(1, 4.0)
"""


def demonstrations(path: Path) -> None:
    """One episode of worker 77: 12 steps, a goal that none of them achieves."""
    steps = np.arange(HORIZON + 1, dtype=np.float32)[:, None]
    observed = {
        "observation": np.concatenate([np.full_like(steps, 77), np.zeros_like(steps), steps], 1),
        "achieved_goal": steps,
        "desired_goal": np.full_like(steps, 50.0),
        "action_history": np.zeros_like(steps),
        "camera": np.tile(10 * steps.astype(np.uint8)[:, None, None], (1, 2, 2, 1)),
    }
    now = {f"observations/{name}": leaf[:-1] for name, leaf in observed.items()}
    then = {f"next_observations/{name}": leaf[1:] for name, leaf in observed.items()}
    ends = np.arange(HORIZON) == HORIZON - 1
    actions = np.zeros((HORIZON, 1), np.float32)
    flags = {"rewards": np.ones(HORIZON), "terminations": np.zeros(HORIZON, bool), "truncations": ends}
    np.savez(path, actions=actions, **now, **then, **flags)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = tmp_path_factory.mktemp("minibatches")
    demonstrations(folder / "demos.npz")
    project = Project(folder, PARAMS.replace("FOLDER", str(folder)), {"horizon": HORIZON}, EXPERT_WORKERS=1)
    project.train()
    return project


def test_x(project):
    b = np.load(project.folder / "batch_0010.npz")
    for k in b: print(k, b[k].shape, b[k].dtype)
    print(project.output())
    assert 0
