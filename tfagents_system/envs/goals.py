"""Environments with goals, by the convention of Gymnasium-Robotics: three keys, and rewards as a function of goals.

Runs under SAC_ENV_PYTHON as well: standard library and NumPy only, Python 3.9, NumPy 1 or 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tfagents_system.envs.faults import EnvironmentDiedError, describe_error
from tfagents_system.errors import UserError

OBSERVATION, ACHIEVED, DESIRED = "observation", "achieved_goal", "desired_goal"
REWARD, TERMINATED = "compute_reward", "compute_terminated"
FUNCTIONS = (REWARD, TERMINATED)


def functions_of(layers: Iterable[Any]) -> dict[str, Callable[..., Any]]:
    """Those of FUNCTIONS that an environment has, by name; each of the outermost layer that has one."""
    layers = list(layers)
    methods = {name: [getattr(layer, name, None) for layer in layers] for name in FUNCTIONS}
    return {name: next(filter(callable, found)) for name, found in methods.items() if any(map(callable, found))}


class GoalFunctions:
    """`compute_reward` and `compute_terminated` of an environment, for many steps in one call.

    Both are called with goals `[N, ...]` as the run stores them (float32 where the space has floats), and an empty
    dictionary as `info`. They must depend on nothing else: they are called in a process of which no worker knows.

    Args:
      layers: The environment and those that it wraps, outermost first.

    Attributes:
      has_reward, has_terminated: Whether the environment has them.
    """

    def __init__(self, layers: Iterable[Any]) -> None:
        self._functions = functions_of(layers)
        self.has_reward, self.has_terminated = (name in self._functions for name in FUNCTIONS)

    def rewards(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        """`[N]` float32: of steps that have achieved these goals, where those were desired.

        Raises:
          UserError: The call raises, or does not return a finite number for each.
        """
        found = self._call(REWARD, achieved, desired)
        if found.shape != (len(achieved),) or not np.isfinite(found).all():
            what = f"shape {found.shape}" if found.shape != (len(achieved),) else "numbers that are not finite"
            raise UserError(
                f"{REWARD} of the environment must return a finite number for each of {len(achieved)} goals, found "
                f"{what}: compute it for arrays of goals, such as -(np.linalg.norm(achieved_goal - desired_goal, "
                "axis=-1) > 0.05)"
            )
        return found.astype(np.float32)

    def terminated(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray | None:
        """`[N]` bool: whether such a step ends its episode; None where the environment does not say. Errors likewise.

        One truth value for all of them is taken for each: environments that never end an episode return it.
        """
        if not self.has_terminated:
            return None
        found = self._call(TERMINATED, achieved, desired)
        wrong = ""
        if found.shape not in ((), (len(achieved),)):
            wrong = f"shape {found.shape}"
        elif not np.isin(found, (0, 1)).all():
            wrong = "None, or other numbers than 0 and 1"
        if wrong:
            raise UserError(
                f"{TERMINATED} of the environment must return a truth value for each of {len(achieved)} goals, found "
                f"{wrong}: compute it for arrays of goals, along their last axis"
            )
        return np.broadcast_to(found.astype(bool), (len(achieved),))

    def _call(self, name: str, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        if name not in self._functions:
            raise UserError(f"the environment has no {name}(achieved_goal, desired_goal, info): give it one")
        try:
            return np.asarray(self._functions[name](achieved, desired, {}), np.float64)
        except EnvironmentDiedError:
            raise  # Another start of this process has another one.
        except Exception as error:
            raise UserError(
                f"{name} of the environment failed for {len(achieved)} goals, info {{}}: {describe_error(error)}"
            ) from error
