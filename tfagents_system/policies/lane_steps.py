"""What a policy is asked for in all lanes of a vector environment at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tree
from tf_agents.trajectories import time_step as ts


class LaneSteps(NamedTuple):
    """Time steps of N lanes, in columns.

    Attributes:
      step_type: `[N]` int32.
      reward, discount: `[N]` float32: what led to the observations.
      observation: Leaves `[N, ...]` of the flattened nest.
      spec: The nest of an observation's specs.
    """

    step_type: np.ndarray
    reward: np.ndarray
    discount: np.ndarray
    observation: Sequence[np.ndarray]
    spec: Any

    def of_lane(self, lane: int) -> ts.TimeStep:
        """One lane's, unbatched."""
        observation = tree.unflatten_as(self.spec, [leaf[lane] for leaf in self.observation])
        return ts.TimeStep(self.step_type[lane], self.reward[lane], self.discount[lane], observation)
