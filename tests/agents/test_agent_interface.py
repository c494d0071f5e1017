"""An agent says how it is updated and with which network it acts; of others their own `train` is the update."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.policies import random_tf_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tests.support.tiny_agents import build
from tfagents_system.agents.agent_interface import OwnTrain, has_fused_update, make_update, sampled_actor
from tfagents_system.agents.block_update import BlockUpdate
from tfagents_system.agents.ensemble import EnsembleAgent
from tfagents_system.agents.fused_update import FusedUpdate
from tfagents_system.agents.noise import UnsupportedAgentError
from tfagents_system.replay.sample_forms import TransitionForm

B, RATE = 4, 0.5


class BanditAgent(tf_agent.TFAgent):
    """Values of two discrete actions in the only state there is: each goes half of the way to the mean reward."""

    def __init__(self):
        tf.Module.__init__(self, name="BanditAgent")
        time_step_spec = ts.time_step_spec(tf.TensorSpec((1,), tf.float32, "observation"))
        action_spec = tensor_spec.BoundedTensorSpec((), tf.int32, 0, 1, "action")
        policy = random_tf_policy.RandomTFPolicy(time_step_spec, action_spec)
        step = tf.Variable(0, dtype=tf.int64)
        super().__init__(time_step_spec, action_spec, policy, policy, 2, train_step_counter=step)
        self.values = tf.Variable([0.0, 8.0])

    def make_update(self, seed, burn_in_steps):
        return BanditUpdate(self)

    def _train(self, experience, weights):
        raise AssertionError("make_update says how it is updated")


class BanditUpdate:
    kind = "fused"

    def __init__(self, agent):
        self._agent = agent

    def step(self, experience, *, weight=None):
        agent, (_, policy_steps, next_time_steps) = self._agent, experience
        taken = tf.one_hot(policy_steps.action, 2)
        mean = tf.math.divide_no_nan(tf.linalg.matvec(taken, next_time_steps.reward, True), tf.reduce_sum(taken, 0))
        errors = tf.where(tf.reduce_any(taken > 0, 0), mean - agent.values, 0.0)
        agent.values.assign_add(RATE * errors)
        agent.train_step_counter.assign_add(1)
        return {"td_error": (tf.reduce_sum(tf.abs(errors)), tf.constant(1.0))}


def test_a_learner_of_discrete_actions_is_updated_as_it_says():
    agent = BanditAgent()
    update = BlockUpdate(agent, B, TransitionForm())
    observation = np.zeros((2, B, 1), np.float32)
    action = np.array([[0, 0, 1, 1], [1, 1, 1, 1]], np.int32)
    reward = np.array([[1, 3, 4, 4], [2, 2, 2, 2]], np.float32)
    told = update([observation, action, reward, np.ones((2, B), np.float32), observation])
    assert update.kind == "fused"
    assert int(agent.train_step_counter) == 2
    # Action 0: 0 -> 1 (mean 2). Action 1: 8 -> 6 (mean 4) -> 4 (mean 2).
    np.testing.assert_allclose(agent.values, [1.0, 4.0])
    assert told == {"td_error": pytest.approx(((2 + 4) + 4) / 2)}


class OwnTraining(EnsembleAgent):
    def _train(self, experience, weights):
        raise AssertionError("not in this test")


class OwnUpdate(OwnTraining):
    def make_update(self, seed=0, burn_in_steps=0):
        return OwnTrain(self)


def of_class(agent_class):
    agent = build(algorithm="tqc")
    agent.__class__ = agent_class
    return agent


def test_a_subclass_with_a_training_of_its_own_is_not_updated_as_its_base():
    assert isinstance(make_update(of_class(EnsembleAgent)), FusedUpdate)
    with pytest.raises(UnsupportedAgentError, match="OwnTraining is not TF-Agents' SacAgent itself"):
        make_update(of_class(OwnTraining))
    assert [has_fused_update(of_class(c)) for c in (EnsembleAgent, OwnTraining, OwnUpdate)] == [True, False, False]
    assert isinstance(make_update(of_class(OwnUpdate)), OwnTrain)


def test_workers_get_the_network_of_the_toolkits_agents_and_of_no_other():
    agent = build(algorithm="tqc")
    assert sampled_actor(agent) is agent._actor_network
    with pytest.raises(UnsupportedAgentError, match="BanditAgent is neither TF-Agents' SacAgent nor"):
        sampled_actor(BanditAgent())
