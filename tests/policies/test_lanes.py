"""One inference for all lanes of a vector environment gives each the action that it would have had alone."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tree
from tf_agents.specs import tensor_spec

from tests.support.fakes import FakeParams, agent_of
from tfagents_system.envs.history import stacked_spec
from tfagents_system.policies.lane_steps import LaneSteps
from tfagents_system.policies.worker_policy import make_worker_policy
from tfagents_system.worker.actors import GreedyActorOfLanes, PolicyActor

LANES = 5
VECTOR = tf.TensorSpec((3,), tf.float32)
NEST = {"camera": tf.TensorSpec((2, 2, 3), tf.uint8), "speed": tf.TensorSpec((2,), tf.float32)}
BIG_NEST = {**NEST, "camera": tf.TensorSpec((17, 17, 1), tf.uint8)}
ACTION = tensor_spec.BoundedTensorSpec((2,), tf.float32, -1.0, 1.0)
KINDS = {
    "vector": (VECTOR, {}, "numpy"),
    "nest": (NEST, {}, "numpy"),
    "normalised": (VECTOR, {"normalize_observations": True}, "numpy"),
    "recurrent": (VECTOR, {"recurrent": True}, "numpy"),
    "stacked": (NEST, {"frame_stack": 2}, "numpy"),
    "stacked vectors": (NEST, {"frame_stack": {"speed": 3, "camera": 2}}, "numpy"),
    "stacked vector": (VECTOR, {"frame_stack": {"observation": 3}, "normalize_observations": True}, "numpy"),
    "stacked, recurrent": (NEST, {"frame_stack": {"speed": 3}, "recurrent": True}, "numpy"),
    "encoded": (BIG_NEST, {"frame_stack": {"speed": 3, "camera": 2}}, "tensorflow session"),
}


def lane_steps(spec, seed, is_first):
    rng = np.random.default_rng(seed)
    leaves = [
        (rng.random((LANES, *leaf.shape)) * (255 if leaf.dtype == tf.uint8 else 1)).astype(leaf.dtype.as_numpy_dtype)
        for leaf in tf.nest.flatten(spec)
    ]
    numpy_spec = tree.map_structure(lambda leaf: leaf.name, spec)
    types = np.where(is_first, 0, 1).astype(np.int32)
    return LaneSteps(types, np.zeros(LANES, np.float32), np.ones(LANES, np.float32), leaves, numpy_spec)


def policy_of(kind, num_envs):
    spec, attributes, inference = KINDS[kind]
    agent = agent_of(FakeParams, stacked_spec(spec, attributes.get("frame_stack", 1)), ACTION, **attributes)
    tf.random.set_seed(1)
    policy = make_worker_policy(agent, 3, num_envs, attributes.get("frame_stack", 1))
    assert policy.inference == inference
    return spec, policy


@pytest.mark.parametrize("kind", KINDS)
def test_each_lane_has_its_own_action_and_memory(kind):
    spec, policy = policy_of(kind, 2 * LANES)
    batches = GreedyActorOfLanes(policy, LANES)  # The lanes behind those that act one by one.
    batches.reset_lanes(range(LANES))
    for lane in range(LANES):
        policy.reset(lane)
    for step in range(4):
        is_first = np.full(LANES, step == 0)
        if step == 2:  # Episodes begin anew in two lanes.
            is_first[[1, 3]] = True
            batches.reset_lanes([1, 3])
            policy.reset(1)
            policy.reset(3)
        steps = lane_steps(spec, step, is_first)
        (found,) = batches.batch(steps)
        expected = policy.actions({lane: steps.of_lane(lane) for lane in range(LANES)}, greedy=True)
        assert found.shape == (LANES, 2) and found.dtype == np.float32
        for lane in range(LANES):
            np.testing.assert_allclose(found[lane], expected[lane], atol=1e-5)


def test_samples_differ_by_lane_follow_the_seed_and_new_weights_count():
    spec, policy = policy_of("vector", LANES)
    actor = PolicyActor(policy, greedy=False)
    steps = lane_steps(spec, 0, np.ones(LANES, bool))
    steps.observation[0][:] = steps.observation[0][0]
    (before,) = actor.batch(steps)
    assert len({tuple(action) for action in before.tolist()}) == LANES
    policy.reseed(9)
    first = actor.batch(steps)[0]
    policy.reseed(9)
    np.testing.assert_array_equal(actor.batch(steps)[0], first)
    agent = agent_of(FakeParams, spec, ACTION)
    from tfagents_system.policies.weights import named_variables, read_weights

    greedy = policy.batch(steps, greedy=True)[0]
    weights = {name: array + 0.1 for name, array in read_weights(named_variables(agent.collect_policy)).items()}
    policy.assign(weights)
    changed = policy.batch(steps, greedy=True)[0]
    assert np.abs(changed - greedy).max() > 1e-3
    np.testing.assert_allclose(changed[0], policy.action(steps.of_lane(0), greedy=True), atol=1e-5)
