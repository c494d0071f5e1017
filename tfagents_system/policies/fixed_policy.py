"""A policy that no update changes, as workers run it: from disk, or a user's function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tree
from tf_agents.policies import py_policy
from tf_agents.trajectories import time_step as ts

from tfagents_system.envs.actions import is_finite
from tfagents_system.policies.parts_of_observation import parts_for
from tfagents_system.policies.policy_interface import WorkerPolicy


class FixedPolicy(WorkerPolicy):
    """Acts in the environment's own units; workers get the agent's actions.

    A PyPolicy gets the parts of observations that it asks for, a function all of them.

    Args:
      policy: A PyPolicy, or a function from an observation to an action.
      actions: Nest of LeafActions.
      num_envs: Environments that it acts in.

    Attributes:
      chosen, inexact: Actions so far, and those among them that the agent does not have: it got the nearest ones.
    """

    def __init__(self, policy: py_policy.PyPolicy | Callable[[Any], Any], actions: Any, num_envs: int = 1) -> None:
        self._policy = policy
        self._actions = actions
        self.chosen = self.inexact = 0
        self._states: list[Any] = [()] * num_envs
        is_from_disk = isinstance(policy, py_policy.PyPolicy)
        self._source = "the policy from disk" if is_from_disk else "the expert (expert_policy_ctor)"
        self.inference = getattr(policy, "inference", "saved model") if is_from_disk else "function of the params"

    def assign(self, weights: Mapping[str, np.ndarray]) -> None:
        """Does nothing."""

    def reset(self, env: int = 0) -> None:
        if isinstance(self._policy, py_policy.PyPolicy):
            self._states[env] = self._policy.get_initial_state(1)

    def actions(self, time_steps: Mapping[int, ts.TimeStep], greedy: bool) -> dict[int, Any]:
        return {env: self._action(env, time_step) for env, time_step in time_steps.items()}

    def _action(self, env: int, time_step: ts.TimeStep) -> Any:
        """The agent's action.

        Raises:
          FloatingPointError: The policy's own is not finite.
        """
        if isinstance(self._policy, py_policy.PyPolicy):
            seen = parts_for(time_step.observation, self._policy.time_step_spec.observation)
            step = self._policy.action(time_step._replace(observation=seen), self._states[env])
            self._states[env], action = step.state, step.action
        else:
            action = self._policy(time_step.observation)
        if not all(map(is_finite, tree.flatten(action))):
            raise FloatingPointError(f"the action of {self._source} is not finite ({action}): correct that policy")
        self.chosen += 1
        is_exact = tree.map_structure(lambda leaf, own: leaf.is_exact(own), self._actions, action)
        self.inexact += not all(tree.flatten(is_exact))
        return tree.map_structure(lambda leaf, own: leaf.to_agent(own), self._actions, action)
