"""Agents see how far a mini-race is; policies for environments take what these give, and act at its beginning."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.policies import greedy_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tests.support.fakes import FakeParams, agent_of
from tests.support.numpy_actors import ACTION, as_after_training
from tfagents_system.envs.history import (
    policy_time_step_spec,
    with_horizon_time,
)
from tfagents_system.policies.lane_steps import LaneSteps
from tfagents_system.policies.weights import assign_weights, named_variables
from tfagents_system.policies.worker_policy import make_worker_policy

VECTOR = tf.TensorSpec((3,), tf.float32, "observation")
# Of the last one the time is neither the first nor the last leaf.
NEST = {"camera": tf.TensorSpec((2, 2), tf.uint8), "lidar": tf.TensorSpec((4,), tf.float32)}
CHOICE = tensor_spec.BoundedTensorSpec((), tf.int32, 0, 4, "action")
SMALL = {"actor_fc_layer_params": (16,), "critic_joint_fc_layer_params": (16,), "value_head_units": 8}
RACES = {**SMALL, "mini_race": {"steps": 50}, "n_step": 3, "discount": 1.0}
NORMALISED = {"normalize_observations": True}
KINDS = {
    "sac": (VECTOR, ACTION, {}),
    "sac, nest": (NEST, ACTION, NORMALISED),
    "sac, frames": (NEST, ACTION, {"frame_stack": {"lidar": 3}, **NORMALISED}),
    "iqn": (VECTOR, CHOICE, {"algorithm": "iqn", **NORMALISED}),
    "dqn, nest": (NEST, CHOICE, {"algorithm": "dqn"}),
    "sac_discrete": (NEST, CHOICE, {"algorithm": "sac_discrete"}),
}


def agent_for(kind):
    spec, action, attributes = KINDS[kind]
    params = type("TrainParams", (FakeParams,), {**RACES, **attributes})({"horizon": 100})
    seen = policy_time_step_spec(params, spec).observation
    agent = agent_of(type(params), seen, action)
    values = as_after_training(agent, seed=3)
    for name in values:
        if name.startswith(("exploration_epsilon", "boltzmann_epsilon")):
            values[name] = np.float32(0.0)
    assign_weights(named_variables(agent.collect_policy), values)
    return params, agent, values


def observation_of(spec, rng):
    return tf.nest.map_structure(
        lambda leaf: (rng.standard_normal(leaf.shape) * (1 if leaf.dtype.is_floating else 40) % 255).astype(
            leaf.dtype.as_numpy_dtype
        ),
        spec,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_workers_act_as_the_network_does_at_the_beginning(kind):
    """Greedy actions over an episode, in NumPy where that is possible; scores where actions are chosen by them."""
    params, agent, values = agent_for(kind)
    spec = KINDS[kind][0]
    policy = make_worker_policy(agent, seed=0, frame_stack=params.frame_stack)
    assert policy.inference == "numpy"
    policy.assign(values)
    policy.reset(0)
    rng, frames = np.random.default_rng(1), []
    for step in range(4):
        observation = observation_of(spec, rng)
        found = policy.action(ts.restart(observation) if step == 0 else ts.transition(observation, 0.0), greedy=True)
        if "frames" in kind:
            frames = (frames or [observation["lidar"]] * 3)[1:] + [observation["lidar"]]
            observation = {**observation, "lidar": np.concatenate(frames)}
        timed = with_horizon_time(observation, np.zeros(1, np.float32))
        batched = tf.nest.map_structure(lambda leaf: tf.constant(leaf)[None], timed)
        expected = greedy_policy.GreedyPolicy(agent.policy).action(ts.restart(batched, 1)).action[0].numpy()
        np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("kind", ["sac, nest", "dqn, nest"])
def test_lanes_get_the_same_actions(kind):
    params, agent, values = agent_for(kind)
    spec, rng = KINDS[kind][0], np.random.default_rng(2)
    policy = make_worker_policy(agent, seed=0, num_envs=9, frame_stack=params.frame_stack)
    policy.assign(values)
    observations = [observation_of(spec, rng) for _ in range(9)]
    leaves = [np.stack(parts) for parts in zip(*map(tf.nest.flatten, observations), strict=True)]
    types, ones = np.full(9, ts.StepType.MID), np.ones(9, np.float32)
    (together,) = policy.batch(LaneSteps(types, ones, ones, leaves, spec), greedy=True)
    alone = policy.actions({env: ts.restart(each) for env, each in enumerate(observations)}, greedy=True)
    np.testing.assert_allclose(together, [alone[env] for env in range(9)], atol=1e-5)
