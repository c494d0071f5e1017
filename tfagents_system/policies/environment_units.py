"""Policies in the environment's own units: agents are trained with actions in [-1, 1]."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.policies import tf_policy
from tf_agents.trajectories import policy_step
from tf_agents.typing import types
from tf_agents.utils import common


class EnvironmentUnitsPolicy(tf_policy.TFPolicy):
    """Scales actions from [-1, 1], the agents' range, to the bounds of the environment.

    Args:
      policy: The policy to scale.
      environment_action_spec: Bounds, shape and dtype of the environment's own actions.
    """

    def __init__(self, policy: tf_policy.TFPolicy, environment_action_spec: Any) -> None:
        super().__init__(
            policy.time_step_spec,
            environment_action_spec,
            policy_state_spec=policy.policy_state_spec,
            info_spec=policy.info_spec,
            clip=False,
            automatic_state_reset=False,
            validate_args=False,
        )
        self._policy = policy
        # Traced once for all functions of a SavedModel: tracing how actions are drawn takes long.
        specs = tf.nest.map_structure(_batched, (policy.time_step_spec, policy.policy_state_spec))
        self._act = common.function(self._scaled_action).get_concrete_function(*specs)

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

    def _scaled_action(self, time_step: Any, policy_state: types.NestedTensor) -> policy_step.PolicyStep:
        step = self._policy.action(time_step, policy_state)
        return step._replace(action=tf.nest.map_structure(scale_to_bounds, step.action, self.action_spec))

    def _distribution(self, time_step: Any, policy_state: types.NestedTensor) -> policy_step.PolicyStep:
        raise NotImplementedError("only actions are in the environment's units")


def _batched(spec: Any) -> tf.TensorSpec:
    return tf.TensorSpec([None, *spec.shape], spec.dtype)


def scale_to_bounds(action: tf.Tensor, spec: Any) -> tf.Tensor:
    """From [-1, 1] to the bounds and dtype of the environment's own action spec."""
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
