"""A policy that no update changes, as workers run it: from a SavedModel, or a function of the user's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.policies import policy_loader, py_policy
from tf_agents.trajectories import time_step as ts

from tfagents_system.envs.specs import to_agent_units
from tfagents_system.errors import UserError
from tfagents_system.policies.worker_policy import WorkerPolicy

_MODEL = "greedy_policy"  # Of a run: what its checkpoints of weights belong to.


def load_policy(path: Path) -> py_policy.PyPolicy:
    """Loads a SavedModel (`policies/greedy_policy` of a run), or weights (`.../checkpoints/policy_checkpoint_<n>`).

    Raises:
      UserError: It is neither.
    """
    is_checkpoint = not (path / "saved_model.pb").is_file()
    model = path.parent.parent / _MODEL if is_checkpoint else path
    if not (model / "saved_model.pb").is_file():
        raise UserError(
            f"SAC_EXPERT_POLICY={path} is neither a SavedModel nor a policy checkpoint of a run: give a folder such as "
            "logs/pendulum/policies/greedy_policy or logs/pendulum/policies/checkpoints/policy_checkpoint_0000010000"
        )
    try:
        return policy_loader.load(str(model), str(path) if is_checkpoint else None)
    except (OSError, ValueError, tf.errors.OpError) as error:
        raise UserError(f"SAC_EXPERT_POLICY={path} can't be loaded: {error}") from None


class FixedPolicy(WorkerPolicy):
    """Acts in the environment's own units; what workers get is scaled to [-1, 1].

    Args:
      policy: A PyPolicy, or a function from an observation to an action.
      action_spec: Nest of the environment's own action specs, with their bounds.
      num_envs: Environments that it acts in.
    """

    def __init__(self, policy: py_policy.PyPolicy | Callable[[Any], Any], action_spec: Any, num_envs: int = 1) -> None:
        self._policy = policy
        self._action_spec = action_spec
        self._states: list[Any] = [()] * num_envs
        self.inference = "saved model" if isinstance(policy, py_policy.PyPolicy) else "function of the params"

    def assign(self, weights: Mapping[str, np.ndarray]) -> None:
        """Stays as it is."""

    def reset(self, env: int = 0) -> None:
        if isinstance(self._policy, py_policy.PyPolicy):
            self._states[env] = self._policy.get_initial_state(1)

    def action(self, time_step: ts.TimeStep, greedy: bool) -> Any:
        return self._action(0, time_step)

    def actions(self, time_steps: Mapping[int, ts.TimeStep], greedy: bool) -> dict[int, Any]:
        return {env: self._action(env, time_step) for env, time_step in time_steps.items()}

    def close(self) -> None:
        """Has nothing to free."""

    def _action(self, env: int, time_step: ts.TimeStep) -> Any:
        if isinstance(self._policy, py_policy.PyPolicy):
            step = self._policy.action(time_step, self._states[env])
            self._states[env], action = step.state, step.action
        else:
            action = self._policy(time_step.observation)
        return tf.nest.map_structure(to_agent_units, action, self._action_spec)
