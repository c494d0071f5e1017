"""An update of SAC is one of TF-Agents' SacAgent: same weights, minibatches and noise give the same weights."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step, trajectory
from tf_agents.trajectories import time_step as ts

from tests.support.agent_for_tests import Params, SharedLogPiAgent, copy_weights, networks_of, reference_agent
from tests.support.updates import update_once

B, OBS, ACT, T = 32, 5, 2, 3
OBSERVATION = tf.TensorSpec((OBS,), tf.float32, "observation")
NEST = {"a": OBSERVATION, "b": tf.TensorSpec((2, 2), tf.float32, "b")}
ACTION = tensor_spec.BoundedTensorSpec((ACT,), tf.float32, -1.0, 1.0, "action")
WIDE_ACTION = tensor_spec.BoundedTensorSpec((ACT,), tf.float32, [-2.0, 0.0], [2.0, 0.5], "action")


def build(observation_spec=OBSERVATION, action_spec=ACTION, cls=None, **attributes):
    """Our agent, or one of TF-Agents' with the same networks and attributes."""
    params = Params({"horizon": 10})
    defaults = {"discount": 0.97, "target_update_tau": 0.02, "target_entropy": -2.0, "learning_rate": 3e-3}
    vars(params).update(defaults | attributes)
    if cls is not None:
        return reference_agent(params, observation_spec, action_spec, cls)
    return params.agent_ctor(ts.time_step_spec(observation_spec), action_spec, tf.Variable(0, dtype=tf.int64))


def random_nest(spec, outer, rng, squash=False):
    def leaf(s):
        values = rng.standard_normal((*outer, *s.shape)).astype(np.float32)
        if squash:
            values = np.float32(s.minimum) + (np.tanh(values) + 1) / 2 * np.float32(s.maximum - s.minimum)
        return tf.constant(values.astype(s.dtype.as_numpy_dtype))

    return tf.nest.map_structure(leaf, spec)


def transition(agent, rng):
    observation, next_observation = (random_nest(agent.time_step_spec.observation, (B,), rng) for _ in range(2))
    mid, reward = tf.ones(B, tf.int32), tf.constant(rng.standard_normal(B), tf.float32)
    discount = tf.constant(rng.random(B) > 0.2, tf.float32)
    return trajectory.Transition(
        ts.TimeStep(mid, tf.zeros(B), tf.ones(B), observation),
        policy_step.PolicyStep(random_nest(agent.action_spec, (B,), rng, squash=True)),
        ts.TimeStep(mid, reward, discount, next_observation),
    )


def sequence(agent, rng):
    outer = (B, T + 1)
    step_type = np.ones(outer, np.int32)
    step_type[: B // 2, 0] = 0
    return trajectory.Trajectory(
        tf.constant(step_type),
        random_nest(agent.time_step_spec.observation, outer, rng),
        random_nest(agent.action_spec, outer, rng, squash=True),
        (),
        tf.constant(np.roll(step_type, -1, 1)),
        tf.constant(rng.standard_normal(outer), tf.float32),
        tf.ones(outer),
    )


# Tracing takes longest: options that leave each other visible are compared together.
OPTIONS = {
    "clipped": {
        "gradient_clipping": 0.05,
        "target_update_period": 3,
        "target_update_tau": 0.2,
        "action_spec": WIDE_ACTION,
    },
    "nested": {
        "target_update_tau": 1.0,
        "target_update_period": 7,
        "discount": 0.5,
        "sac_log_alpha": -1.0,
        "critic_optimizer": {"name": "sgd", "momentum": 0.9},
        "learning_rate": 1e-2,
        "observation_spec": NEST,
        "action_spec": (ACTION, WIDE_ACTION),
    },
    "recurrent": {
        "recurrent": {"lstm_units": 4, "sequence_length": T},
        "target_update_tau": 0.5,
        "learning_rate": 1e-2,
    },
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_updates_equal_those_of_sac_agent(kind):
    options, is_recurrent, tolerance = OPTIONS[kind], kind == "recurrent", 2e-5
    updates = 2 if is_recurrent else 20
    tf.keras.utils.set_random_seed(3)
    ours, theirs = build(**options), build(**options, cls=SharedLogPiAgent)
    copy_weights(ours, theirs)
    before = {name: [v.numpy() for v in network.variables] for name, network in networks_of(ours).items()}

    def reference(experience, *noise):
        theirs.noise = list(noise)
        return theirs._train(experience, weights=None)

    our_step, their_step = lambda experience, *noise: update_once(ours, experience, noise), reference
    if not is_recurrent:  # Tracing an unrolled network takes longer than a few updates without it.
        our_step, their_step = (tf.function(step, autograph=False) for step in (our_step, their_step))
    rng, outer = np.random.default_rng(7), (B, T) if is_recurrent else (B,)
    for _ in range(updates):
        experience = (sequence if is_recurrent else transition)(ours, rng)
        leaves = tf.nest.flatten(ours.action_spec)
        noise = [
            [tf.constant(rng.standard_normal((*outer, *leaf.shape)), tf.float32) for leaf in leaves] for _ in range(2)
        ]
        our_losses, their_losses = our_step(experience, *noise), their_step(experience, *noise).extra
    for name in ("critic_loss", "actor_loss", "alpha_loss"):
        np.testing.assert_allclose(our_losses[name][0], getattr(their_losses, name), rtol=2e-4, atol=2e-5, err_msg=name)
    assert abs(float(ours.log_alpha - theirs._log_alpha)) < tolerance
    for name, network in networks_of(ours).items():
        for a, b in zip(network.variables, networks_of(theirs)[name].variables, strict=True):
            np.testing.assert_allclose(a, b, atol=tolerance, err_msg=name)
        moved = max(np.abs(v - old).max() for v, old in zip(network.variables, before[name], strict=True))
        assert moved > 100 * tolerance, f"{name} moved by {moved} only: the comparison says nothing"
    assert int(ours.train_step_counter) == int(theirs.train_step_counter) == updates
