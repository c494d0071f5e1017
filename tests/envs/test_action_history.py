"""The last actions of an episode are part of its observations."""

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import array_spec

from tests.support.fakes import CounterEnv, DictEnv, FakeParams
from tfagents_system.envs import loading
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError


def test_they_come_oldest_first_in_minus_one_one_and_begin_with_zeros():
    env = TrainingEnvironment(CounterEnv(truncate_at=3), horizon=10, action_history=2)
    tf.nest.assert_same_structure(env.observation_spec(), {"observation": 0, "action_history": 0})
    assert env.observation_spec()["action_history"] == array_spec.ArraySpec(
        (4,), np.float32, "observation/action_history"
    )
    for _ in range(2):
        steps = [env.reset()]
        steps += [env.step(np.array(action, np.float32)) for action in ([0.5, -0.25], [0.75, 3.0], [-1.0, 1.0])]
        histories = [step.observation["action_history"].tolist() for step in steps]
        assert histories == [[0, 0, 0, 0], [0, 0, 0.5, -0.25], [0.5, -0.25, 0.75, 1.0], [0.75, 1.0, -1.0, 1.0]]
        assert [step.observation["observation"].tolist() for step in steps] == [[0, 1], [1, 1], [2, 1], [3, 1]]
    array_spec.check_arrays_nest(steps[-1].observation, env.observation_spec())
    assert steps[-1].is_last()
    assert env.step(np.ones(2, np.float32)).observation["action_history"].tolist() == [0, 0, 0, 0], "another episode"


def test_actions_in_environment_units_are_scaled_back():
    inner = CounterEnv()  # [-2, 2] and [0, 1]
    env = TrainingEnvironment(inner, horizon=10, action_history=1)
    env.reset()
    step = env.step_in_environment_units(np.array([-1.5, 0.25], np.float32))
    assert inner.actions[0].tolist() == [-1.5, 0.25]
    assert step.observation["action_history"].tolist() == [-0.75, -0.5]


def test_what_has_one_value_only_is_0_in_training_as_in_playing():
    class Locked(CounterEnv):
        action_space = gymnasium.spaces.Box(np.array([0.5, 0.0]), np.array([0.5, 1.0]), dtype=np.float64)

    env = TrainingEnvironment(Locked(), horizon=10, action_history=1)
    env.reset()
    trained = env.step(np.array([0.75, -0.5], np.float32)).observation["action_history"]
    played = env.step_in_environment_units(np.array([0.5, 0.25])).observation["action_history"]
    assert trained.tolist() == played.tolist() == [0.0, -0.5]


def test_dictionaries_get_one_more_key():
    env = TrainingEnvironment(DictEnv(), horizon=10, action_history=3)
    env.reset()
    observation = env.step(np.array([0.5], np.float32)).observation
    assert sorted(observation) == ["action_history", "camera", "joints", "parts"]
    assert observation["action_history"].tolist() == [0.0, 0.0, 0.5] and observation["camera"].dtype == np.uint8


def test_a_key_of_the_environments_own_is_not_hidden():
    class Own(DictEnv):
        observation_space = DictEnv.observation_space.__class__(
            {**DictEnv.observation_space.spaces, "action_history": DictEnv.observation_space["joints"]}
        )

    with pytest.raises(UserError, match='a part "action_history" of its own: rename it'):
        TrainingEnvironment(Own(), horizon=10, action_history=1)


def test_runs_have_it_by_the_attribute():
    params = type("TrainParams", (FakeParams,), {"action_history": 5})({"horizon": 10})
    env = loading.make_collect_env(params, 0, 0)
    assert env.observation_spec()["action_history"].shape == (10,)
    assert env.reset().observation["action_history"].tolist() == [0.0] * 10
