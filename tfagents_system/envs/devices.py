"""What a run asks of an environment that acts in real time: RealTimeEnvironment, rtgym's, or a user's own.

A user's own has an attribute `real_time = True`, and what of the following it needs: `wait()`, `default_action` or
`get_default_action()`, `ep_max_length`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tree

from tfagents_system.envs.env_process import EnvProcess
from tfagents_system.errors import UserError


class Device:
    """The layer of an environment that acts in real time.

    Args:
      layer: The environment, or one that it wraps.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = layer

    @property
    def has_real_clock(self) -> bool:
        """Whether time passes by itself."""
        return bool(getattr(self._layer, "has_real_clock", True))

    def wait(self) -> None:
        """Lets the device rest until the next reset or step."""
        wait = getattr(self._layer, "wait", None)
        if callable(wait):
            wait()

    def limit_steps(self, horizon: int) -> None:
        """An episode ends after so many steps at the latest, and the last action is not sent."""
        own = getattr(self._layer, "ep_max_length", None)
        if hasattr(self._layer, "ep_max_length"):
            self._layer.ep_max_length = horizon if own is None else min(own, horizon)

    def default_action(self, actions: Any) -> Any:
        """What is harmless, as an agent's action; None where the environment does not say.

        Args:
          actions: Nest of LeafActions.

        Raises:
          UserError: It is not one of the environment's actions.
        """
        found = getattr(self._layer, "default_action", None)
        if found is None and hasattr(self._layer, "get_default_action"):
            found = self._layer.get_default_action()
        if found is None:
            return None
        try:
            return tree.map_structure_up_to(actions, lambda leaf, own: leaf.to_agent(own), actions, found)
        except (TypeError, ValueError) as error:
            raise UserError(
                f"the default action {found!r} is not one of the action space ({error}): correct it"
            ) from None


def device_of(env: Any, layers: Iterable[Any]) -> Device | None:
    """The device of an environment, None where its steps wait for the policy.

    Args:
      env: What `env_ctor` returned.
      layers: The environment and those it wraps.
    """
    if isinstance(env, EnvProcess):
        return None
    for layer in layers:
        if getattr(layer, "real_time", False) is True or type(layer).__module__.partition(".")[0] == "rtgym":
            return Device(layer)
    return None
