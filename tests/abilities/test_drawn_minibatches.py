"""What reaches a user's own agent in one run: histories, n-step returns, priorities, goals and the data of others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.abilities.support import SMALL, Project

pytestmark = pytest.mark.slow

HORIZON, DISCOUNT, N_STEP, BATCH, UPDATES, DEMONSTRATOR = 12, 0.5, 3, 16, 40, 77

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
    '''Counts its steps, and shows the count in a picture. '''

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
    batch_size = {BATCH}
    num_iter = 10
    updates_per_iter = {UPDATES // 10}
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
        "observation": np.concatenate([np.full_like(steps, DEMONSTRATOR), np.zeros_like(steps), steps], 1),
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
    project = Project(folder, PARAMS, {"horizon": HORIZON}, EXPERT_WORKERS=1)
    project.train()
    return project


def joined(project: Project, kind: str) -> dict[str, np.ndarray]:
    """All minibatches, one after the other."""
    batches = [np.load(path) for path in sorted(project.folder.glob(f"{kind}_*.npz"))]
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0].files}


@pytest.fixture(scope="module")
def drawn(project: Project) -> dict[str, np.ndarray]:
    return joined(project, "batch")


def of_each_batch(values: np.ndarray) -> np.ndarray:
    return values.reshape(-1, BATCH).sum(axis=1)


def test_an_agent_of_ones_own_is_trained_by_its_own_train(project: Project, drawn: dict[str, np.ndarray]) -> None:
    assert project.train_step() == UPDATES and project.role("trainer")["update"] == "generic"
    assert len(drawn["reward"]) == UPDATES * BATCH
    assert np.all(np.abs(drawn["action"]) <= 1.0), "of -2 to 6, as agents see them"


def test_histories_of_pictures_vectors_and_actions_are_those_of_the_episode(drawn: dict[str, np.ndarray]) -> None:
    assert drawn["now_camera"].dtype == np.uint8
    for when in ("now", "then"):
        step = drawn[f"{when}_observation"][:, 2]
        frames = drawn[f"{when}_camera"][:, 0, 0, :]
        expected = np.stack([10 * np.maximum(step - 1, 0), 10 * step], axis=1)
        np.testing.assert_array_equal(frames, expected, "two frames, the first of an episode twice")
    begins = drawn["now_observation"][:, 2] == 0
    assert begins.any() and not drawn["now_action_history"][begins].any()
    goes_on = ~begins & (drawn["now_observation"][:, 0] != DEMONSTRATOR)
    assert np.all(drawn["now_action_history"][goes_on] != 0.0)


def test_rewards_of_three_steps_are_summed_and_held_out_episodes_never_drawn(
    project: Project, drawn: dict[str, np.ndarray]
) -> None:
    now, then = drawn["now_observation"], drawn["then_observation"]
    steps = (then - now)[:, 2].astype(int)
    np.testing.assert_array_equal(steps, np.minimum(N_STEP, HORIZON - now[:, 2]), "shorter at an episode's end")
    own_goal = drawn["now_desired_goal"][:, 0] == 50.0
    sums = np.array([sum(DISCOUNT**k for k in range(count)) for count in steps])
    np.testing.assert_allclose(drawn["reward"][own_goal], sums[own_goal], rtol=1e-6)
    # TF-Agents multiplies the next value by the discount once more; a time limit does not set it to 0.
    np.testing.assert_allclose(drawn["discount"], DISCOUNT ** (steps - 1.0), rtol=1e-6)
    held_out = joined(project, "held_out")
    episodes = [set(map(tuple, part["now_observation"][:, :2])) for part in (drawn, held_out)]
    assert episodes[1] and not episodes[0] & episodes[1]


def test_a_share_of_each_minibatch_has_goals_that_were_achieved(drawn: dict[str, np.ndarray]) -> None:
    goal = drawn["now_desired_goal"][:, 0]
    changed = goal != 50.0
    np.testing.assert_array_equal(drawn["then_desired_goal"][:, 0], goal)
    assert np.mean(changed) == pytest.approx(0.25, abs=0.05)
    later = goal[changed] - drawn["now_observation"][changed, 2]
    assert np.all(later >= 1) and np.all(goal[changed] <= HORIZON), "what the episode achieves later"
    reached = (later >= 1) & (later <= (drawn["then_observation"] - drawn["now_observation"])[changed, 2])
    extra = np.where(reached, 99.0 * DISCOUNT ** (later - 1), 0.0)
    steps = (drawn["then_observation"] - drawn["now_observation"])[changed, 2]
    sums = np.array([sum(DISCOUNT**k for k in range(int(count))) for count in steps])
    np.testing.assert_allclose(drawn["reward"][changed], sums + extra, rtol=1e-6, err_msg="by compute_reward")


def test_a_share_of_each_minibatch_is_prior_data(drawn: dict[str, np.ndarray]) -> None:
    is_prior = drawn["now_observation"][:, 0] == DEMONSTRATOR
    assert set(of_each_batch(is_prior)) == {BATCH // 4}
    np.testing.assert_allclose(drawn["action"][is_prior], -0.5, err_msg="0 of -2 to 6")


def test_experts_act_by_their_policy_in_the_runs_own_experience(drawn: dict[str, np.ndarray]) -> None:
    is_expert = drawn["now_observation"][:, 0] == 1
    assert is_expert.sum() > UPDATES and np.all(drawn["action"][is_expert] == 0.5), "4 of -2 to 6"
    own = drawn["now_observation"][:, 0] == 0
    assert len(np.unique(drawn["action"][own])) > 20, "sampled"
