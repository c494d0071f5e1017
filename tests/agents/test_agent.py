"""An algorithm of one's own is a subclass of Agent; networks that can't be used are told when an agent is built."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks.actor_distribution_network import ActorDistributionNetwork
from tf_agents.networks.normal_projection_network import NormalProjectionNetwork
from tf_agents.policies import random_tf_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tests.support.fakes import FakeParams, agent_of
from tests.support.tiny_agents import ACTION, OBSERVATION, LinearCritic, Minibatch, TinyParams
from tests.support.updates import update_once
from tfagents_system.agents import algorithms
from tfagents_system.agents.agent import Acting, Agent
from tfagents_system.agents.block_update import BlockUpdate
from tfagents_system.errors import UserError
from tfagents_system.replay.sampling import TransitionForm

B, RATE = 4, 0.5


class Bandit(Agent):
    """Values of two discrete actions in the only state there is: each goes half of the way to the mean reward."""

    def __init__(self):
        time_step_spec = ts.time_step_spec(tf.TensorSpec((1,), tf.float32, "observation"))
        action_spec = tensor_spec.BoundedTensorSpec((), tf.int32, 0, 1, "action")
        policy = random_tf_policy.RandomTFPolicy(time_step_spec, action_spec)
        step, params = tf.Variable(0, dtype=tf.int64), FakeParams({"horizon": 1})
        super().__init__(params, time_step_spec, action_spec, step, Acting(None, policy, policy), [], [])
        self.action_values = tf.Variable([0.0, 8.0])

    def update(self, minibatch, noise):
        _, policy_steps, next_time_steps = self.as_transition(minibatch.experience)
        taken = tf.one_hot(policy_steps.action, 2)
        mean = tf.math.divide_no_nan(tf.linalg.matvec(taken, next_time_steps.reward, True), tf.reduce_sum(taken, 0))
        errors = tf.where(tf.reduce_any(taken > 0, 0), mean - self.action_values, 0.0)
        self.action_values.assign_add(RATE * errors)
        self.train_step_counter.assign_add(1)
        return {"td_error": (tf.reduce_sum(tf.abs(errors)), tf.constant(1.0))}


def test_a_learner_of_discrete_actions_is_updated_as_it_says():
    agent = Bandit()
    update = BlockUpdate(agent, B, TransitionForm())
    observation = np.zeros((2, B, 1), np.float32)
    action = np.array([[0, 0, 1, 1], [1, 1, 1, 1]], np.int32)
    reward = np.array([[1, 3, 4, 4], [2, 2, 2, 2]], np.float32)
    told = update([observation, action, reward, np.ones((2, B), np.float32), observation])
    assert update.kind == "fused"
    assert int(agent.train_step_counter) == 2
    # Action 0: 0 -> 1 (mean 2). Action 1: 8 -> 6 (mean 4) -> 4 (mean 2).
    np.testing.assert_allclose(agent.action_values, [1.0, 4.0])
    assert told == {"td_error": pytest.approx(((2 + 4) + 4) / 2)}


def build(cls=TinyParams, **attributes):
    return agent_of(cls, OBSERVATION, ACTION, **attributes)


@pytest.mark.parametrize(("algorithm", "told"), [("sac", r"\['B'\]"), ("redq", r"\['B'\]"), ("tqc", r"\['B', 4\]")])
def test_a_critic_of_another_shape_is_told(algorithm, told):
    class Params(TinyParams):
        def critic_ctor(self, observation_spec, action_spec):
            return LinearCritic((observation_spec, action_spec), num_outputs=3)

    wanted = rf"outputs {told} for algorithm='{algorithm}', found \['B', 3\]: correct critic_ctor"
    with pytest.raises(UserError, match=wanted):
        build(Params, algorithm=algorithm)


def test_an_actor_of_another_distribution_is_told():
    class Params(TinyParams):
        def actor_ctor(self, observation_spec, action_spec):
            projection = functools.partial(NormalProjectionNetwork, state_dependent_std=True, scale_distribution=False)
            return ActorDistributionNetwork(observation_spec, action_spec, continuous_projection_net=projection)

    with pytest.raises(UserError, match="is not a tanh-squashed Gaussian: let actor_ctor return one, or let"):
        build(Params, algorithm="crossq")


def test_a_fixed_alpha_of_plain_sac_never_moves_in_an_update_or_train():
    agent, batch = build(learn_entropy_coef=False), Minibatch()
    actor = agent.actor.trainable_variables[0].numpy()
    assert "alpha_loss" not in update_once(agent, batch.transition())
    agent._train(batch.transition(), weights=None)
    assert float(agent.log_alpha) == -0.5
    assert int(agent.train_step_counter) == 2
    assert not np.array_equal(agent.actor.trainable_variables[0], actor)


@pytest.mark.parametrize("algorithm", ["redq", "droq"])
@pytest.mark.parametrize(
    ("attributes", "period"),
    [
        ({}, 1),
        ({"updates_per_env_step": 20.0}, 20),
        ({"updates_per_env_step": 0.25}, 1),
        ({"asynchronous": True, "updates_per_env_step": 4.0}, 4),
        ({"updates_per_env_step": 20.0, "actor_update_period": 3}, 3),
    ],
)
def test_their_actor_steps_once_for_each_step_of_the_environment(algorithm, attributes, period):
    params = type("Params", (TinyParams,), {"algorithm": algorithm, **attributes})({"horizon": 10})
    assert algorithms.value(params, "actor_update_period") == period
