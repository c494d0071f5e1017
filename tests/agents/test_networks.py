"""The default networks: any observation, bounded standard deviation, copies that share nothing."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tests.support.fakes import FakeParams, agent_of

VECTOR = tf.TensorSpec((3,), tf.float32, "observation")
IMAGES = {"camera": tf.TensorSpec((4, 4, 3), tf.uint8, "camera"), "joints": tf.TensorSpec((5,), tf.float32, "joints")}
ACTION = tensor_spec.BoundedTensorSpec((2,), tf.float32, -1.0, 1.0, "action")


class Params(FakeParams):
    actor_fc_layer_params = (8, 8)
    critic_joint_fc_layer_params = (8, 8)


def build(spec, **attributes):
    tf.keras.utils.set_random_seed(1)  # Else all units may be dead.
    return agent_of(Params, spec, ACTION, **attributes)


def q_values(agent, observation, action):
    q, _ = agent.critics[0]((observation, action), step_type=tf.fill([len(action)], 1))
    return q


@pytest.mark.parametrize(("layers", "brightest"), [((), 1.0), ((2, 2, 2), 255.0)], ids=["pictures", "too small"])
def test_pixels_of_pictures_are_divided_by_255_and_all_leaves_reach_actor_and_critic(layers, brightest):
    agent = build(IMAGES, image_encoder_layers=layers)
    assert agent.actor.body.hidden_layers[-1].kernel.shape == (8, 8)
    first_kernel = next(v for v in agent.actor.variables if "kernel" in v.name)
    assert first_kernel.shape[0] == 4 * 4 * 3 + 5
    action = tf.zeros((1, 2))
    joints = tf.ones((1, 5))
    q = [
        q_values(agent, {"camera": tf.fill((1, 4, 4, 3), tf.cast(p, tf.uint8)), "joints": joints}, action)
        for p in (0, 255)
    ]
    assert q[0].shape == (1,)
    assert not np.allclose(q[0], q[1])
    as_float = agent.critics[0].body.encoder
    encoded, _ = as_float({"camera": tf.fill((1, 4, 4, 3), tf.cast(255, tf.uint8)), "joints": joints})
    np.testing.assert_allclose(encoded, [[brightest] * 48 + [1.0] * 5], err_msg="the joints are as they are")


@pytest.mark.parametrize(
    "combiner",
    [
        tf.keras.layers.Concatenate(),
        lambda: tf.keras.layers.Lambda(lambda nest: tf.concat([nest["a"], nest["b"]], axis=-1)),
    ],
    ids=["merging layer", "layer over the nest"],
)
def test_a_preprocessing_combiner_serves_actor_and_both_critics(combiner):
    spec = {"a": tf.TensorSpec((2,), tf.float32, "a"), "b": tf.TensorSpec((3,), tf.float32, "b")}
    agent = build(spec, preprocessing_combiner=combiner)
    first_kernel = next(v for v in agent.actor.variables if "kernel" in v.name)
    assert first_kernel.shape[0] == 5
    observation = {"a": tf.ones((4, 2)), "b": tf.ones((4, 3))}
    assert q_values(agent, observation, tf.zeros((4, 2))).shape == (4,)


def test_twin_critics_start_apart_and_targets_start_as_their_critics():
    agent = build(VECTOR)
    first, second = ([variable.numpy() for variable in critic.variables] for critic in agent.critics)
    assert any(not np.allclose(a, b) for a, b in zip(first, second, strict=True))
    for critic, target in zip(agent.critics, agent.targets, strict=True):
        for a, b in zip(critic.variables, target.variables, strict=True):
            assert a is not b
            np.testing.assert_array_equal(a, b)


def test_the_standard_deviation_is_clipped():
    agent = build(VECTOR)
    bias = agent.actor.projections._projection_layer.bias
    for value, expected in [(50.0, np.exp(2.0)), (-50.0, np.exp(-20.0))]:
        bias.assign([0.0, 0.0, value, value])
        distribution, _ = agent.actor(tf.zeros((1, 3)), step_type=tf.constant([1]), network_state=())
        np.testing.assert_allclose(distribution.input_distribution.stddev(), [[expected] * 2], rtol=1e-5)


def test_target_entropy_is_minus_the_number_of_action_dimensions():
    assert build(VECTOR).target_entropy == -2.0
    assert build(VECTOR, target_entropy=-0.5).target_entropy == -0.5
