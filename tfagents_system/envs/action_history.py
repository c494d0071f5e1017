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
    """The last actions of an episode, oldest first; before its first action zeros, or the default action.

    Args:
      length: Number of actions.
      actions: Nest of LeafActions.
      default_action: An agent's: what acts in real time before the first action; None: zeros.

    Attributes:
      size: Numbers of an action.
    """

    def __init__(self, length: int, actions: Any, default_action: Any = None) -> None:
        self._leaves = tree.flatten(actions)
        self.size = sum(leaf.encoded_size for leaf in self._leaves)
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
        """Adds an agent's action, a nest of arrays; see LeafActions.encode."""
        self._values[: -self.size] = self._values[self.size :]
        self._values[-self.size :] = self.encoded(tree.flatten(action))

    def encoded(self, leaves: Sequence[Any]) -> np.ndarray:
        """Actions `[..., size]` as `add` adds them, from those of each leaf, `[..., *shape]`."""
        parts = [actions.encode(leaf) for actions, leaf in zip(self._leaves, leaves, strict=True)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)

    def joined(self, observation: Any) -> Any:
        """An observation of the environment with a copy of the history."""
        return _joined(observation, self._values.copy())


def _joined(observation: Any, history: Any) -> dict[str, Any]:
    parts = observation if isinstance(observation, Mapping) else {OBSERVATION: observation}
    return {**parts, KEY: history}
