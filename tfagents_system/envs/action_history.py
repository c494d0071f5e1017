"""The last actions as part of the observation: a policy needs them in a system that acts with a delay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tree
from tf_agents.specs import array_spec

from tfagents_system.errors import UserError

KEY = "action_history"
OBSERVATION = "observation"  # Key of the environment's own observation if that is not a dictionary.


class ActionHistory:
    """The last actions of an episode, oldest first; before its first action zeros, or the default action.

    Args:
      length: Number of actions.
      action_spec: Nest of the environment's own action specs, each of one dimension.
      default_action: A nest in [-1, 1]: what acts in real time before the first action; None: zeros.

    Attributes:
      size: Numbers of an action.
    """

    def __init__(self, length: int, action_spec: Any, default_action: Any = None) -> None:
        varies = [np.broadcast_to(spec.maximum > spec.minimum, spec.shape) for spec in tree.flatten(action_spec)]
        self._varies = np.concatenate([each.ravel() for each in varies])
        self.size = len(self._varies)
        self._values = np.zeros(length * self.size, np.float32)
        if default_action is not None:
            for _ in range(length):
                self.add(default_action)
        self._first = self._values.copy()

    def spec(self, observation_spec: Any) -> Any:
        """The spec of observations with the history: `[length * dim]` float32 under its own key.

        Raises:
          UserError: The environment's observation already has this key.
        """
        if isinstance(observation_spec, Mapping) and KEY in observation_spec:
            raise UserError(
                f'the observation has a part "{KEY}" of its own: rename it, or set TrainParams.action_history = 0'
            )
        own = array_spec.ArraySpec(self._values.shape, np.float32, f"{OBSERVATION}/{KEY}")
        return _joined(observation_spec, own)

    def clear(self) -> None:
        """An episode begins."""
        self._values[:] = self._first

    def add(self, action: Any) -> None:
        """Adds an action, a nest of arrays in [-1, 1], clipped to these bounds as the environment's own is.

        A number that can have only one value in the environment becomes 0, as in `to_agent_units`.
        """
        latest = np.concatenate([np.ravel(leaf) for leaf in tree.flatten(action)])
        self._values[: -self.size] = self._values[self.size :]
        self._values[-self.size :] = self.shown(latest)

    def shown(self, actions: np.ndarray) -> np.ndarray:
        """Actions `[..., size]` as `add` adds them."""
        return np.where(self._varies, np.clip(actions, -1.0, 1.0), 0.0)

    def joined(self, observation: Any) -> Any:
        """An observation of the environment with a copy of the history."""
        return _joined(observation, self._values.copy())


def _joined(observation: Any, history: Any) -> dict[str, Any]:
    parts = observation if isinstance(observation, Mapping) else {OBSERVATION: observation}
    return {**parts, KEY: history}
