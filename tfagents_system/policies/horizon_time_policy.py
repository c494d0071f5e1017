"""A policy that knows how far a mini-race is (agents' observations have `horizon_time`), acting at its beginning."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tf_agents.policies import tf_policy
from tf_agents.trajectories import policy_step
from tf_agents.typing import types

from tfagents_system.envs.history import has_horizon_time, with_horizon_time, without_horizon_time


def of_environments(policy: tf_policy.TFPolicy) -> tf_policy.TFPolicy:
    """The policy for observations without `horizon_time`; the policy itself if it takes none."""
    return HorizonTimePolicy(policy) if has_horizon_time(policy.time_step_spec.observation) else policy


class HorizonTimePolicy(tf_policy.TFPolicy):
    """Acts with `horizon_time` 0, the beginning of a mini-race: all of its time is to come.

    Args:
      policy: Takes observations with a `horizon_time`.

    Attributes:
      timed: That policy.
    """

    def __init__(self, policy: tf_policy.TFPolicy) -> None:
        super().__init__(
            policy.time_step_spec._replace(observation=without_horizon_time(policy.time_step_spec.observation)),
            policy.action_spec,
            policy_state_spec=policy.policy_state_spec,
            info_spec=policy.info_spec,
            clip=False,
            automatic_state_reset=False,
            validate_args=False,
        )
        self.timed = policy

    def _variables(self) -> Any:
        return self.timed.variables()

    def _get_initial_state(self, batch_size: int) -> types.NestedTensor:
        return self.timed.get_initial_state(batch_size)

    def _action(
        self, time_step: Any, policy_state: types.NestedTensor, seed: types.Seed | None
    ) -> policy_step.PolicyStep:
        return self.timed.action(_at_beginning(time_step), policy_state, seed)

    def _distribution(self, time_step: Any, policy_state: types.NestedTensor) -> policy_step.PolicyStep:
        return self.timed.distribution(_at_beginning(time_step), policy_state)


def _at_beginning(time_step: Any) -> Any:
    zeros = tf.zeros_like(time_step.reward)[:, None]
    return time_step._replace(observation=with_horizon_time(time_step.observation, zeros))
