"""The policy that a worker collects with, and which of the published ones it is."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tfagents_system.policies import weights
from tfagents_system.policies.worker_policy import WorkerPolicy
from tfagents_system.transport import tables
from tfagents_system.transport.connection import Connection


class NewestPolicy:
    """A policy with the weights that the trainer has published last, as far as they were taken.

    Args:
      connection: To the replay server.
      policy: Computes the actions. Another one takes its place if its first trained weights show that it is not exact.

    Attributes:
      policy: Computes the actions.
      session: Of the trainer that published it: it may have gone back to an earlier version.
      version: Iterations that it was trained for; -1: none was published yet.
      train_step: Updates that it was trained for.
    """

    def __init__(self, connection: Connection, policy: WorkerPolicy) -> None:
        self._reader = connection.newest(tables.WEIGHTS)
        self.policy = policy
        self.session = 0
        self.version = -1
        self.train_step = 0
        self._weights: dict[str, np.ndarray] = {}
        self._is_checked = False

    def is_behind(self, progress: tables.Progress | None) -> bool:
        """Whether the trainer has published a newer one."""
        return progress is not None and (progress.session, progress.iteration) > (self.session, self.version)

    def take(self) -> None:
        """Takes the newest weights."""
        arrays = self._reader.get()
        if arrays is not None:
            self.session, self.version, self.train_step = (int(value) for value in arrays[0])
            self._weights = weights.from_arrays(arrays[1:])
            self.assign(self._weights, self.train_step)

    def assign(self, policy_weights: Mapping[str, np.ndarray], train_step: int) -> None:
        """Gives the policy these weights, until `take_back`. Checks the first that were trained against its network."""
        self.policy.assign(policy_weights)
        if train_step > 0 and not self._is_checked:
            self.policy, self._is_checked = self.policy.checked(policy_weights), True

    def take_back(self) -> None:
        """Gives the policy the newest weights again."""
        if self._weights:
            self.policy.assign(self._weights)
