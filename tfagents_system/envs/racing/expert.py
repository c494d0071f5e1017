"""The driver as a policy, a function of the observation.

Runs under SAC_ENV_PYTHON as well: NumPy and Gymnasium are needed, Python 3.9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from tfagents_system.envs.racing.environment import RacingEnvironment
from tfagents_system.errors import UserError


class Expert:
    """PurePursuit in whichever environment has returned the observation: the driver knows more than observations tell.

    Args:
      environments: Returns the environments of this process.
    """

    def __init__(self, environments: Callable[[], Iterable[RacingEnvironment]]) -> None:
        self._environments = environments

    def __call__(self, observation: Mapping[str, Any]) -> np.ndarray:
        """Gas, brake and steer, `[3]` float32.

        Raises:
          UserError: No environment of this process has returned the observation.
        """
        for env in self._environments():
            own = env.observation  # Empty before its first episode.
            whole = [name for name in own if own[name].shape == observation[name].shape]  # Not what was made smaller.
            if whole and all(np.array_equal(own[name], observation[name]) for name in whole):
                return env.driver_action()
        raise UserError(
            "the driver of the racing environment needs an environment in its own process: unset SAC_ENV_PYTHON, "
            "or set SAC_EXPERT_POLICY to a saved policy"
        )
