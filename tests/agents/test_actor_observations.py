"""Actors see the parts of the observation that `actor_observations` names, critics all of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tree
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step, trajectory
from tf_agents.trajectories import time_step as ts

from tests.support.acting import action
from tests.support.agents_to_begin_with import normalizations_of
from tests.support.fakes import FakeParams
from tests.support.updates import noise_of, update_once
from tfagents_system.agents.agent import make_agent, make_worker_agent, unique_variables
from tfagents_system.agents.minibatch import Steps
from tfagents_system.agents.normalization import update_statistics
from tfagents_system.agents.sac import ACTIONS
from tfagents_system.envs.history import leaves_seen_by_actor, policy_time_step_spec, seen_by_actor
from tfagents_system.policies import weights
from tfagents_system.policies.worker_policy import WorkerPolicy, make_worker_policy

B = 8
ACTION = tensor_spec.BoundedTensorSpec((2,), tf.float32, -1.0, 1.0, "action")
CHOICE = tensor_spec.BoundedTensorSpec((), tf.int32, 0, 3, "action")
SPEC = {
    "above": tf.TensorSpec((4,), tf.float32),
    "body": {"joints": tf.TensorSpec((3,), tf.float32), "masses": tf.TensorSpec((3,), tf.float32)},
    "touch": tf.TensorSpec((2,), tf.float32),
}
CAMERAS = {
    "above": tf.TensorSpec((12, 12, 1), tf.uint8),
    "eye": tf.TensorSpec((12, 12, 1), tf.uint8),
    "touch": tf.TensorSpec((2,), tf.float32),
}
NAMES = ("touch", "body/joints")
KINDS: dict[str, dict[str, Any]] = {
    "sac": {"behaviour_cloning_weight": 0.4, "offline_updates": 1, "prior_data": ["demonstrations"]},
    "recurrent": {"recurrent": {"lstm_units": 4, "sequence_length": 3, "burn_in": 1}},
    "mini-races": {"mini_race": {"steps": 5}, "discount": 1.0, "normalize_observations": True},
    "frames": {"frame_stack": {"touch": 2, "above": 3}},
    "images": {"spec": CAMERAS, "actor_observations": ["touch", "eye"], "normalize_observations": True},
    "images, recurrent": {
        "spec": CAMERAS,
        "actor_observations": ["touch", "eye"],
        "recurrent": {"lstm_units": 4, "sequence_length": 3, "burn_in": 1},
    },
    "images for all, recurrent": {
        "spec": CAMERAS,
        "actor_observations": None,
        "recurrent": {"lstm_units": 4, "sequence_length": 3, "burn_in": 1},
    },
    "sac_discrete of images": {
        "algorithm": "sac_discrete",
        "action": CHOICE,
        "spec": CAMERAS,
        "actor_observations": ["eye", "touch"],
        "normalize_observations": True,
    },
}


class Params(FakeParams):
    actor_fc_layer_params = (16,)
    critic_joint_fc_layer_params = (16,)
    image_encoder_layers = (2, 2)
    image_encoder_features = 3
    batch_size = B
    actor_observations: Any = NAMES


def built(kind: str) -> tuple[Params, Any, Any]:
    """Params, the environment's observation spec, and the agent."""
    attributes = dict(KINDS[kind])
    spec, action = attributes.pop("spec", SPEC), attributes.pop("action", ACTION)
    params = type("TrainParams", (Params,), attributes)({"horizon": 20})
    tf.keras.utils.set_random_seed(1)
    return params, spec, make_agent(params, spec, action, tf.Variable(0, dtype=tf.int64))


def numbers(spec: Any, rng: np.random.Generator, outer: tuple[int, ...] = ()) -> Any:
    def of_leaf(leaf: Any) -> Any:
        shape = (*outer, *leaf.shape)
        return rng.integers(0, 256, shape, np.uint8) if leaf.dtype == tf.uint8 else rng.normal(5.0, 2.0, shape)

    return tf.nest.map_structure(lambda leaf: of_leaf(leaf).astype(leaf.dtype.as_numpy_dtype), spec)


def hidden(observation: Any, params: Params, rng: np.random.Generator) -> Any:
    """The observation with other numbers in all parts that the actor does not see."""
    seen = leaves_seen_by_actor(observation, params.actor_observations)
    leaves = tree.flatten(observation)
    changed = [
        leaf if k in seen else (leaf + rng.integers(1, 9, leaf.shape)).astype(leaf.dtype)
        for k, leaf in enumerate(leaves)
    ]
    return tree.unflatten_as(observation, changed)


def test_parts_are_named_like_those_of_frame_stack() -> None:
    nest = {"a": 1, "b": {"c": 2, "d": {"e": 3}}, "action_history": 4, "horizon_time": 5, "f": (6, 7)}
    own = {"action_history": 4, "horizon_time": 5}
    assert seen_by_actor(nest, ["b"]) == {"b": {"c": 2, "d": {"e": 3}}, **own}
    assert seen_by_actor(nest, ["b/d", "f"]) == {"b": {"d": {"e": 3}}, "f": (6, 7), **own}
    assert seen_by_actor(nest, None) is nest and seen_by_actor(3, None) == 3
    assert leaves_seen_by_actor(nest, ["b/d", "f"]) == [1, 3, 4, 5, 6]
    assert leaves_seen_by_actor(nest, None) == list(range(7)) and leaves_seen_by_actor(3, None) == [0]


@pytest.mark.parametrize("kind", KINDS)
def test_all_agents_learn_and_no_action_depends_on_what_critics_alone_see(kind: str) -> None:
    params, spec, agent = built(kind)
    rng = np.random.default_rng(0)
    actor = agent.networks()["actor"][0]
    before = [variable.numpy() for variable in actor.trainable_variables]
    losses = step(params, spec, agent, rng)
    assert np.isfinite(list(losses.values())).all() and {"actor_loss", "critic_loss"} <= losses.keys()
    changed = [np.any(old != new.numpy()) for old, new in zip(before, actor.trainable_variables, strict=True)]
    assert all(change for change, old in zip(changed, before, strict=True) if old.ndim > 1)

    worker = make_worker_agent(params, policy_time_step_spec(params, spec), agent.action_spec)
    published = weights.read_weights(weights.named_variables(agent.collect_policy))
    weights.assign_weights(weights.named_variables(worker.collect_policy), published)
    if "images" in kind:  # What a session would take seconds to load.
        policy = worker.policy
    else:
        policy = make_worker_policy(worker, 0, 2, params.frame_stack, params.actor_observations)
        assert policy.inference == "numpy"
    observation = numbers(spec, rng)
    part = "eye" if spec is CAMERAS else "touch"
    seen = {**observation, part: observation[part] + observation[part].dtype.type(3)}
    actions = [_acts(policy, each, params) for each in (observation, hidden(observation, params, rng), seen)]
    np.testing.assert_array_equal(actions[0], actions[1])
    if "discrete" not in kind:
        assert np.any(actions[0] != actions[2])


def step(params: Params, spec: Any, agent: Any, rng: np.random.Generator) -> dict[str, float]:
    """An update of the agent, in which actor and critics step, with random experience; its losses."""
    outer = (B, 4) if params.recurrent else (B,)
    seen_spec = policy_time_step_spec(params, spec).observation
    here, there = (tf.nest.map_structure(tf.constant, numbers(seen_spec, rng, outer)) for _ in range(2))
    mid, zeros, ones = tf.ones(outer, tf.int32), tf.zeros(outer), tf.ones(outer)
    rewards = tf.constant(rng.normal(size=outer), tf.float32)
    is_choice = agent.action_spec.dtype == tf.int32
    action = tf.constant(rng.integers(0, 3, outer) if is_choice else rng.uniform(-0.9, 0.9, (*outer, 2)))
    action = tf.cast(action, agent.action_spec.dtype)
    agent.train_step_counter.assign(59)  # Actors step in every so many updates: in this one.
    experience: Any = trajectory.Trajectory(mid, here, action, (), mid, rewards, ones)
    if not params.recurrent:
        following = ts.TimeStep(mid, rewards, ones, there)
        experience = trajectory.Transition(
            ts.TimeStep(mid, zeros, ones, here), policy_step.PolicyStep(action), following
        )
    measured = update_once(agent, experience, burn_in_steps=params.sample_form_ctor().burn_in)
    return {name: float(value) for name, (value, _) in measured.items()}


def _acts(policy: Any, observation: Any, params: Params) -> Any:
    """The greedy action at an episode's start."""
    if isinstance(policy, WorkerPolicy):
        policy.reset([0])
        return action(policy, ts.restart(observation), True)
    batch = tf.nest.map_structure(lambda leaf: tf.constant(leaf)[None], observation)
    seen = seen_by_actor(batch, params.actor_observations)
    return policy.distribution(ts.restart(seen, 1), policy.get_initial_state(1)).action.mode().numpy()


@pytest.mark.parametrize("kind", ["sac", "images", "images, recurrent"])
def test_no_gradient_of_the_actor_reaches_what_critics_alone_see(kind: str) -> None:
    params, spec, agent = built(kind)
    outer = (B, 4) if params.recurrent else (B,)
    seen_spec = policy_time_step_spec(params, spec).observation
    observation = tf.nest.map_structure(tf.constant, numbers(seen_spec, np.random.default_rng(0), outer))
    leaves, seen = tf.nest.flatten(observation), leaves_seen_by_actor(observation, params.actor_observations)
    time_steps = ts.TimeStep(tf.ones(outer, tf.int32), tf.zeros(outer), tf.ones(outer), observation)
    own, encoders = (unique_variables(agent.networks()[part]) for part in ("actor", "encoder"))
    with tf.GradientTape() as tape:
        tape.watch(leaves)
        steps = Steps(agent._pipeline.encoded(time_steps), None)
        _, log_pi = agent.sample(steps, noise_of(agent).of(ACTIONS), training=True)
    of_leaves, of_own, of_encoders = tape.gradient(log_pi, [leaves, own, encoders])
    floats = [k for k, leaf in enumerate(leaves) if leaf.dtype.is_floating]
    assert [k for k in floats if of_leaves[k] is not None] == [k for k in floats if k in seen]
    assert all(gradient is not None for gradient in of_own)
    assert len(encoders) == (8 if "images" in kind else 0) and of_encoders == [None] * len(encoders)


@pytest.mark.parametrize("kind", ["images", "mini-races", "sac_discrete of images"])
def test_statistics_are_those_of_the_part_and_not_of_one_at_its_place(kind: str) -> None:
    params, spec, agent = built(kind)
    observation = numbers(policy_time_step_spec(params, spec).observation, np.random.default_rng(2), (30,))
    whole = tree.flatten(observation)
    update_statistics(agent, [tf.constant(leaf) for leaf in whole])
    sources = leaves_seen_by_actor(observation, params.actor_observations)
    for part, networks in agent.networks().items():
        for network in networks:
            for layer in normalizations_of(network):
                source = sources[layer.leaf] if part == "actor" else layer.leaf
                assert layer.source == source
                np.testing.assert_allclose(layer.mean, whole[source].mean(0), rtol=1e-4)
    of_actor, of_critics = (agent.networks()[part][0] for part in ("actor", "critics"))
    assert 0 < len(normalizations_of(of_actor)) < len(normalizations_of(of_critics)) or kind != "mini-races"
