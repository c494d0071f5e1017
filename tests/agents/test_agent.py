"""Networks that can't be used are told when an agent is built; alpha and the actor's period are as the params say."""

import functools

import numpy as np
import pytest
from tf_agents.networks.actor_distribution_network import ActorDistributionNetwork
from tf_agents.networks.normal_projection_network import NormalProjectionNetwork

from tests.support.fakes import agent_of
from tests.support.tiny_agents import ACTION, OBSERVATION, LinearCritic, Minibatch, TinyParams
from tests.support.updates import update_once
from tfagents_system.agents import algorithms
from tfagents_system.errors import UserError


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
