"""The last actions as part of the observation: a policy needs them in a system that acts with a delay.

An action of numbers is in it as it is, in [-1, 1]; one of n is n numbers, 1 for the chosen one and 0 for the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tree
from tf_agents.specs import array_spec

from tfagents_system.errors import UserError

KEY = "action_history"
OBSERVATION = "observation"  # Key of the environment's own observation if that is not a dictionary.


class ActionHistory:
    """The last actions of each lane's episode, oldest first; before its first action zeros, or the default action.

    Args:
      length: Number of actions.
      actions: Nest of LeafActions.
      default_action: An agent's: what acts in real time before the first action; None: zeros.
      num_lanes: N.

    Attributes:
      size: Numbers of an action.
      values: `[N, length * size]` float32.
    """

    def __init__(self, length: int, actions: Any, default_action: Any = None, num_lanes: int = 1) -> None:
        self._leaves = tree.flatten(actions)
        self.size = sum(leaf.encoded_size for leaf in self._leaves)
        self.values = np.zeros((num_lanes, length * self.size), np.float32)
        if default_action is not None:
            for _ in range(length):
                self.add(tree.flatten(default_action))
        self._first = self.values.copy()

    def spec(self, observation_spec: Any) -> Any:
        """The spec of observations with the history: `[length * size]` float32 under its own key.

        Raises:
          UserError: The environment's observation already has this key.
        """
        if isinstance(observation_spec, Mapping) and KEY in observation_spec:
            raise UserError(
                f'the observation has a part "{KEY}" of its own: rename it, or set TrainParams.action_history = 0'
            )
        parts = observation_spec if isinstance(observation_spec, Mapping) else {OBSERVATION: observation_spec}
        return {**parts, KEY: array_spec.ArraySpec(self.values.shape[1:], np.float32, f"{OBSERVATION}/{KEY}")}

    def clear(self, lanes: Any = slice(None)) -> None:
        """Episodes begin in these lanes."""
        self.values[lanes] = self._first[lanes]

    def add(self, leaves: Sequence[Any]) -> None:
        """Adds an agent's actions: leaves `[N, ...]`, or one action of all lanes; see LeafActions.encode."""
        self.values[:, : -self.size] = self.values[:, self.size :]
        parts = [actions.encode(leaf) for actions, leaf in zip(self._leaves, leaves, strict=True)]
        self.values[:, -self.size :] = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
