"""What `run.policy()` returns: a saved policy as a function of observations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tf_agents.policies import py_policy


class Policy:
    """Called with an observation as training's environment gives it, returns the action in the environment's own units.

    A policy with a memory (recurrent networks, stacked frames) remembers the episode until `reset()`.
    """

    def __init__(self, policy: py_policy.PyPolicy) -> None:
        self._policy = policy
        self._state: Any = None
        self.reset()

    def reset(self) -> None:
        """An episode begins."""
        self._is_first, self._state = True, self._policy.get_initial_state(1)

    def __call__(self, observation: Any) -> Any:
        """Action `[...]` of one observation, NumPy arrays of the environment's dtypes.

        Args:
          observation: May have other parts beside those that the actor sees (`actor_observations`). Discrete parts are
            one-hot, as in training, and `action_history` is a part where the params ask for it.

        Raises:
          ValueError: A part is missing, or has another shape.
        """
        from tf_agents.trajectories import time_step as ts

        from tfagents_system.policies.fit import arrays_for

        arrays = arrays_for(observation, self._policy.time_step_spec.observation)
        step = ts.restart(arrays) if self._is_first else ts.transition(arrays, reward=0.0)
        self._is_first = False
        action = self._policy.action(step, self._state)
        self._state = action.state
        return action.action
