"""A greedy policy as one function of arrays, for other runtimes."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tf_agents.distributions.utils import SquashToSpecNormal
from tf_agents.policies import tf_policy
from tf_agents.trajectories import time_step as ts

from tfagents_system.envs.actions import LeafActions
from tfagents_system.policies.environment_units import in_environment_units
from tfagents_system.policies.policy_description import Description


def greedy_function(policy: tf_policy.TFPolicy, actions: LeafActions, description: Description) -> Any:
    """A `tf.function` of the observation's arrays and those of the state, n of each, in the order of `description`.

    It returns a dictionary: `action` in the environment's own units, and each part of the next state as
    `next_<its name>`. The time step's other fields are those of a step within an episode: an episode begins with a
    state of zeros.

    Args:
      policy: The agent's, with the weights to use.
      actions: What its actions are in the environment.
      description: From `describe`.
    """
    inputs = [*description["observation"], *description["state"]]
    num_leaves = len(description["observation"])
    observation_spec, state_spec = policy.time_step_spec.observation, policy.policy_state_spec

    def act(*arrays: tf.Tensor) -> dict[str, tf.Tensor]:
        n = tf.shape(arrays[0])[0]
        observation = tf.nest.pack_sequence_as(observation_spec, arrays[:num_leaves])
        state = tf.nest.pack_sequence_as(state_spec, arrays[num_leaves:])
        time_step = ts.TimeStep(tf.fill([n], ts.StepType.MID), tf.zeros([n]), tf.ones([n]), observation)
        step = policy._distribution(time_step, state)
        following = zip(description["state"], tf.nest.flatten(step.state), strict=True)
        return {
            "action": in_environment_units(_mode(step.action), actions),
            **{f"next_{spec['name']}": value for spec, value in following},
        }

    signature = [tf.TensorSpec((None, *spec["shape"]), spec["dtype"], spec["name"]) for spec in inputs]
    return tf.function(act, input_signature=signature, autograph=False)


def _mode(distribution: Any) -> tf.Tensor:
    if isinstance(distribution, SquashToSpecNormal):
        # Its mode() computes shapes of distributions, for which ONNX has no ops.
        mean = distribution.input_distribution.loc
        return distribution.action_magnitudes * tf.tanh(mean) + distribution.action_means
    return distribution.mode()
