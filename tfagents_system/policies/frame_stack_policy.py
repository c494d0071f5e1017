"""A policy of stacked frames that takes single ones: the previous frames are part of its state."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tf_agents.policies import tf_policy
from tf_agents.trajectories import policy_step
from tf_agents.typing import types

from tfagents_system.checks.frame_stacks import FrameStack, is_stacking
from tfagents_system.envs.history import frames_in, single_frame_spec
from tfagents_system.policies.horizon_time_policy import HorizonTimePolicy, of_environments

_FRAMES, _IS_UNDER_WAY, _OWN = "frames", "is_under_way", "policy"


def of_single_frames(policy: tf_policy.TFPolicy, frame_stack: FrameStack) -> tf_policy.TFPolicy:
    """The policy for what environments give: single frames, no `horizon_time`; the policy itself if it takes that."""
    policy = of_environments(policy)
    if not is_stacking(frame_stack) or max(frames_in(policy.time_step_spec.observation, frame_stack), default=1) == 1:
        return policy
    return FrameStackPolicy(policy, frame_stack)


def innermost(policy: tf_policy.TFPolicy) -> tf_policy.TFPolicy:
    """The inverse: the agent's policy."""
    if isinstance(policy, FrameStackPolicy):
        return innermost(policy.stacked)
    return policy.timed if isinstance(policy, HorizonTimePolicy) else policy


class FrameStackPolicy(tf_policy.TFPolicy):
    """Takes observations whose leaves are single frames `[B, ..., size]`.

    Its state holds the previous frames of each stacked leaf and the inner policy's state. In an episode's first time
    step, one of type FIRST or with a state of zeros, the first frame stands in for the previous ones.

    Args:
      policy: Takes stacked leaves `[B, ..., frames * size]`, oldest frame first.
      frame_stack: The hyperparameter; it stacks a leaf at least.

    Attributes:
      stacked: That policy.
      frames: Of each leaf of the observation.
    """

    def __init__(self, policy: tf_policy.TFPolicy, frame_stack: FrameStack) -> None:
        single = single_frame_spec(policy.time_step_spec.observation, frame_stack)
        self.stacked = policy
        self.frames = frames_in(single, frame_stack)
        leaves = zip(tf.nest.flatten(single), self.frames, strict=True)
        frames = [_earlier(spec, count) for spec, count in leaves if count > 1]
        super().__init__(
            policy.time_step_spec._replace(observation=single),
            policy.action_spec,
            policy_state_spec={
                _FRAMES: frames,
                _IS_UNDER_WAY: tf.TensorSpec((), tf.int32, _IS_UNDER_WAY),
                _OWN: policy.policy_state_spec,
            },
            info_spec=policy.info_spec,
            clip=False,
            automatic_state_reset=False,
            validate_args=False,
        )

    def _variables(self) -> Any:
        return self.stacked.variables()

    def _get_initial_state(self, batch_size: int) -> types.NestedTensor:
        frames = [tf.zeros((batch_size, *spec.shape), spec.dtype) for spec in self.policy_state_spec[_FRAMES]]
        return {
            _FRAMES: frames,
            _IS_UNDER_WAY: tf.zeros((batch_size,), tf.int32),
            _OWN: self.stacked.get_initial_state(batch_size),
        }

    def _action(
        self, time_step: Any, policy_state: types.NestedTensor, seed: types.Seed | None
    ) -> policy_step.PolicyStep:
        stacked, state = self._stack(time_step, policy_state)
        step = self.stacked.action(stacked, policy_state[_OWN], seed)
        return step._replace(state={**state, _OWN: step.state})

    def _distribution(self, time_step: Any, policy_state: types.NestedTensor) -> policy_step.PolicyStep:
        stacked, state = self._stack(time_step, policy_state)
        step = self.stacked.distribution(stacked, policy_state[_OWN])
        return step._replace(state={**state, _OWN: step.state})

    def _stack(self, time_step: Any, policy_state: Any) -> tuple[Any, dict[str, Any]]:
        """The time step with stacked leaves, and the frames for the next one."""
        is_first = tf.logical_or(time_step.is_first(), tf.equal(policy_state[_IS_UNDER_WAY], 0))
        leaves, kept, remaining = [], [], iter(policy_state[_FRAMES])
        specs = tf.nest.flatten(self.time_step_spec.observation)
        for leaf, spec, frames in zip(tf.nest.flatten(time_step.observation), specs, self.frames, strict=True):
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
