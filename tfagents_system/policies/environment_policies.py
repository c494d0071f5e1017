"""Policies of agents as TensorFlow policies for environments: in the environment's own units, of single frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.policies import tf_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step
from tf_agents.typing import types
from tf_agents.utils import common

from tfagents_system.envs.actions import LeafActions
from tfagents_system.envs.history import (
    frames_in,
    horizon_time_leaf,
    single_frame_spec,
    with_horizon_time,
    without_horizon_time,
)
from tfagents_system.hyperparameters import FrameStack

_FRAMES, _IS_UNDER_WAY, _OWN = "frames", "is_under_way", "policy"


def of_single_frames(policy: tf_policy.TFPolicy, frame_stack: FrameStack) -> tf_policy.TFPolicy:
    """The policy for what environments give: single frames, no `horizon_time`; the policy itself if it takes that."""
    spec = policy.time_step_spec.observation
    if horizon_time_leaf(spec) is None and max(frames_in(spec, frame_stack), default=1) == 1:
        return policy
    return SingleFramesPolicy(policy, frame_stack)


class SingleFramesPolicy(tf_policy.TFPolicy):
    """Takes what environments give: leaves that are single frames `[B, ..., size]`, and no `horizon_time`.

    Where leaves are stacked, its state holds the previous frames of each of them and the agent's policy's state. In an
    episode's first time step, one of type FIRST or with a state of zeros, the first frame stands in for the previous
    ones. A `horizon_time` is 0, the beginning of a mini-race: all of its time is to come.

    Args:
      policy: The agent's, which takes stacked leaves `[B, ..., frames * size]`, oldest frame first.
      frame_stack: The hyperparameter.

    Attributes:
      agent_policy: That policy.
      frames: Of each leaf of the observation that it takes; empty where none is stacked.
    """

    def __init__(self, policy: tf_policy.TFPolicy, frame_stack: FrameStack) -> None:
        spec = policy.time_step_spec.observation
        self.agent_policy = policy
        self._is_timed = horizon_time_leaf(spec) is not None
        single = single_frame_spec(without_horizon_time(spec) if self._is_timed else spec, frame_stack)
        self._frames = frames_in(single, frame_stack)
        self._is_stacking = max(self._frames, default=1) > 1
        self.frames = frames_in(spec, frame_stack) if self._is_stacking else ()
        state_spec = policy.policy_state_spec
        if self._is_stacking:
            leaves = zip(tf.nest.flatten(single), self._frames, strict=True)
            state_spec = {
                _FRAMES: [_earlier(leaf, count) for leaf, count in leaves if count > 1],
                _IS_UNDER_WAY: tf.TensorSpec((), tf.int32, _IS_UNDER_WAY),
                _OWN: state_spec,
            }
        super().__init__(
            policy.time_step_spec._replace(observation=single),
            policy.action_spec,
            policy_state_spec=state_spec,
            info_spec=policy.info_spec,
            clip=False,
            automatic_state_reset=False,
            validate_args=False,
        )

    def _variables(self) -> Any:
        return self.agent_policy.variables()

    def _get_initial_state(self, batch_size: int) -> types.NestedTensor:
        own = self.agent_policy.get_initial_state(batch_size)
        if not self._is_stacking:
            return own
        frames = [tf.zeros((batch_size, *spec.shape), spec.dtype) for spec in self.policy_state_spec[_FRAMES]]
        return {_FRAMES: frames, _IS_UNDER_WAY: tf.zeros((batch_size,), tf.int32), _OWN: own}

    def _action(
        self, time_step: Any, policy_state: types.NestedTensor, seed: types.Seed | None
    ) -> policy_step.PolicyStep:
        return self._step(lambda *args: self.agent_policy.action(*args, seed), time_step, policy_state)

    def _distribution(self, time_step: Any, policy_state: types.NestedTensor) -> policy_step.PolicyStep:
        return self._step(self.agent_policy.distribution, time_step, policy_state)

    def _step(self, function: Callable[..., Any], time_step: Any, policy_state: Any) -> policy_step.PolicyStep:
        own, kept = policy_state, None
        if self._is_stacking:
            own = policy_state[_OWN]
            time_step, kept = self._stack(time_step, policy_state)
        if self._is_timed:
            zeros = tf.zeros_like(time_step.reward)[:, None]
            time_step = time_step._replace(observation=with_horizon_time(time_step.observation, zeros))
        step = function(time_step, own)
        return step if kept is None else step._replace(state={**kept, _OWN: step.state})

    def _stack(self, time_step: Any, policy_state: Any) -> tuple[Any, dict[str, Any]]:
        """The time step with stacked leaves, and the frames for the next one."""
        is_first = tf.logical_or(time_step.is_first(), tf.equal(policy_state[_IS_UNDER_WAY], 0))
        leaves, kept, remaining = [], [], iter(policy_state[_FRAMES])
        specs = tf.nest.flatten(self.time_step_spec.observation)
        for leaf, spec, frames in zip(tf.nest.flatten(time_step.observation), specs, self._frames, strict=True):
            if frames > 1:
                is_repeated = tf.reshape(is_first, [-1] + [1] * len(spec.shape))
                repeated = tf.tile(leaf, [1] * len(spec.shape) + [frames - 1])
                leaf = tf.concat([tf.where(is_repeated, repeated, next(remaining)), leaf], axis=-1)
                kept.append(leaf[..., spec.shape[-1] :])
            leaves.append(leaf)
        observation = tf.nest.pack_sequence_as(time_step.observation, leaves)
        state = {_FRAMES: kept, _IS_UNDER_WAY: tf.ones_like(policy_state[_IS_UNDER_WAY])}
        return time_step._replace(observation=observation), state


def _earlier(spec: tf.TensorSpec, frames: int) -> tf.TensorSpec:
    """The frames of a leaf before the newest."""
    *others, size = spec.shape
    return tf.TensorSpec((*others, size * (frames - 1)), spec.dtype, spec.name)


def innermost(policy: tf_policy.TFPolicy) -> tf_policy.TFPolicy:
    """The inverse of `of_single_frames`: the agent's policy."""
    return policy.agent_policy if isinstance(policy, SingleFramesPolicy) else policy


class EnvironmentUnitsPolicy(tf_policy.TFPolicy):
    """Gives an agent's greedy actions as the environment takes them.

    Args:
      policy: The agent's greedy policy.
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
        # Traced once for all functions of a SavedModel.
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
            raise ValueError("a greedy policy draws no noise")
        return self._act(time_step, policy_state)

    def _action_in_units(self, time_step: Any, policy_state: types.NestedTensor) -> policy_step.PolicyStep:
        step = self._policy.action(time_step, policy_state)
        return step._replace(action=tf.nest.map_structure(in_environment_units, step.action, self._actions))

    def _distribution(self, time_step: Any, policy_state: types.NestedTensor) -> policy_step.PolicyStep:
        raise NotImplementedError("only actions are in the environment's units")


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
