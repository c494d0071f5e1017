"""Policies in the environment's own units: agents are trained with actions of their own (envs/actions.py)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import config as tf_config
from tf_agents.policies import actor_policy, tf_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step
from tf_agents.typing import types
from tf_agents.utils import common

from tfagents_system.agents.noise import UnsupportedActorError, mean_and_std
from tfagents_system.envs.actions import LeafActions


class EnvironmentUnitsPolicy(tf_policy.TFPolicy):
    """Gives an agent's actions as the environment takes them.

    Args:
      policy: The agent's policy.
      actions: Nest of LeafActions.
    """

    def __init__(self, policy: tf_policy.TFPolicy, actions: Any) -> None:
        super().__init__(
            policy.time_step_spec,
            tf.nest.map_structure(lambda leaf: tensor_spec.from_spec(leaf.environment_spec), actions),
            policy_state_spec=policy.policy_state_spec,
            info_spec=policy.info_spec,
            clip=False,
            automatic_state_reset=False,
            validate_args=False,
        )
        self._policy = policy
        self._actions = actions
        # Traced once for all functions of a SavedModel: tracing how actions are drawn takes long.
        specs = tf.nest.map_structure(_batched, (policy.time_step_spec, policy.policy_state_spec))
        self._act = common.function(self._action_in_units).get_concrete_function(*specs)

    def _variables(self) -> Any:
        return self._policy.variables()

    def _get_initial_state(self, batch_size: int) -> types.NestedTensor:
        return self._policy.get_initial_state(batch_size)

    def _action(
        self, time_step: Any, policy_state: types.NestedTensor, seed: types.Seed | None
    ) -> policy_step.PolicyStep:
        if seed is not None:
            raise ValueError("the saved policies draw unseeded noise")
        return self._act(time_step, policy_state)

    def _action_in_units(self, time_step: Any, policy_state: types.NestedTensor) -> policy_step.PolicyStep:
        with _drawing_anew():
            step = _act(self._policy, time_step, policy_state)
        return step._replace(action=tf.nest.map_structure(in_environment_units, step.action, self._actions))

    def _distribution(self, time_step: Any, policy_state: types.NestedTensor) -> policy_step.PolicyStep:
        raise NotImplementedError("only actions are in the environment's units")


@contextlib.contextmanager
def _drawing_anew() -> Iterator[None]:
    """Lets random operations of the graph that is traced draw other numbers in each process that loads it.

    They would contain the trainer's global seed, and each load of a SavedModel would repeat one sequence.
    """
    graph, is_deterministic = tf.compat.v1.get_default_graph(), tf_config.is_op_determinism_enabled()
    seed, graph.seed = graph.seed, None
    if is_deterministic:  # Where the graph would be run, operations without a seed are refused.
        tf_config.disable_op_determinism()
    try:
        yield
    finally:
        graph.seed = seed
        if is_deterministic:
            tf_config.enable_op_determinism()


def _act(policy: tf_policy.TFPolicy, time_step: Any, policy_state: types.NestedTensor) -> policy_step.PolicyStep:
    """What `policy.action` does, traced in a seventh of its time where actions are tanh-squashed Gaussians."""
    if type(policy) is actor_policy.ActorPolicy and not policy.info_spec:
        step = policy.distribution(time_step, policy_state)
        with contextlib.suppress(UnsupportedActorError):
            return step._replace(action=tf.nest.map_structure(_drawn, step.action))
    return policy.action(time_step, policy_state)


def _drawn(distribution: Any) -> tf.Tensor:
    mean, std = mean_and_std(distribution)
    squashed = tf.tanh(mean + std * tf.random.normal(tf.shape(mean)))
    return distribution.action_magnitudes * squashed + distribution.action_means


def _batched(spec: Any) -> tf.TensorSpec:
    return tf.TensorSpec([None, *spec.shape], spec.dtype)


def in_environment_units(action: tf.Tensor, actions: LeafActions) -> tf.Tensor:
    """From an agent's actions `[B, ...]` of one leaf to those of the environment, `[B, *environment_spec.shape]`."""
    if actions.rows is not None:
        return tf.gather(tf.constant(actions.rows), action)
    return _scaled_to_bounds(action, actions.environment_spec)


def _scaled_to_bounds(action: tf.Tensor, spec: Any) -> tf.Tensor:
    low, high = tf.cast(spec.minimum, action.dtype), tf.cast(spec.maximum, action.dtype)
    scaled = low + (action + 1.0) * 0.5 * (high - low)
    # Rounding may exceed the bounds by one unit in the last place.
    return tf.cast(tf.clip_by_value(scaled, *_bounds_within(spec, action.dtype.as_numpy_dtype)), spec.dtype)


def _bounds_within(spec: Any, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """The lowest and the highest number of `dtype` within the bounds: 0.1 of 32 bits is above that of 64."""
    low, high = (np.asarray(bound, dtype) for bound in (spec.minimum, spec.maximum))
    low = np.where(low < spec.minimum, np.nextafter(low, dtype(np.inf)), low)
    high = np.where(high > spec.maximum, np.nextafter(high, dtype(-np.inf)), high)
    return low, high
