"""The policy that a worker collects with, and which of the published ones it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tfagents_system.policies import weights
from tfagents_system.policies.shared_weights import SharedWeightsReader, open_shared
from tfagents_system.policies.worker_policy import WorkerPolicy
from tfagents_system.transport import tables
from tfagents_system.worker.actors import GreedyEpisodes, PolicyActor
from tfagents_system.worker.background import AnyConnection, look
from tfagents_system.worker.progress import place

# Within an episode the replay server is asked so seldom: 1,000 workers may do it, and a slow one must not hold them up.
_LOOK_SECS, _LOOK_SHARE = 1.0, 0.05


class NewestPolicy:
    """A policy with the weights that the trainer has published last, as far as they were taken.

    They come from the memory that the trainer shares with the workers on its machine, else from the replay server.

    Args:
      connection: To the replay server.
      policy: Computes the actions.
      progress: How far the trainer is, as far as that is known; asked within episodes.

    Attributes:
      policy: Computes the actions.
      session: Of the trainer that published it: it may have gone back to an earlier version.
      version: Iterations that it was trained for; -1: none was published yet.
      train_step: Updates that it was trained for.
    """

    def __init__(
        self,
        connection: AnyConnection,
        policy: WorkerPolicy,
        progress: Callable[[], tables.Progress | None] = lambda: None,
    ) -> None:
        self._reader = connection.newest(tables.WEIGHTS)
        self.policy = policy
        self.session = 0
        self.version = -1
        self.train_step = 0
        self._weights: dict[str, np.ndarray] = {}
        self._progress = progress
        self._memory: SharedWeightsReader | None = None
        self._memory_of: tuple[int, tuple[int, int]] = (0, (0, 0))  # The trainer's session, and where that shares.
        self._number = 0  # Of the policy that was read there last.
        self._look_at = 0.0

    def actor(self, refresh_steps: int | None, greedy: GreedyEpisodes | None = None) -> PolicyActor:
        """Explores with these weights, but in the greedy episodes.

        Args:
          refresh_steps: It looks for newer weights every so many steps; None: it does not.
          greedy: Episodes without exploration; None: there are none.
        """
        return PolicyActor(self.policy, greedy or False, self.refresh, refresh_steps)

    def follow(self, progress: tables.Progress | None) -> None:
        """Takes the newest weights if the trainer has published newer ones than these."""
        if progress is None or place(progress) <= (self.session, self.version, self.train_step):
            return
        self._open_memory(progress)
        if not self._take_from_memory():
            arrays = look(self._reader)
            if arrays is not None:
                self._take(arrays)

    def may_collect(self, oldest: int, progress: tables.Progress, *, lock_step: bool) -> bool:
        """Whether iteration `oldest`, or a later one, is published and taken.

        In lock-step what a trainer has published before it went back does not count, even of a later iteration.
        """
        if lock_step and self.session != progress.session:
            return False
        # An evaluation that is due comes with the progress, which the policy itself may be ahead of.
        return min(progress.iteration, self.version) >= oldest

    def refresh(self) -> None:
        """Takes newer weights within an episode, if there are any; waits for nothing where memory is shared.

        A recurrent policy keeps its state.
        """
        if self._memory is not None and self._memory.newest != self._number:
            self._take_from_memory()
            return
        began = time.monotonic()
        if began >= self._look_at:  # Without shared memory; and a new trainer shares other memory.
            self.follow(self._progress())
            now = time.monotonic()
            self._look_at = now + max(_LOOK_SECS, (now - began) / _LOOK_SHARE)

    def _open_memory(self, progress: tables.Progress) -> None:
        """Of the trainer that tells of its progress; what another run's trainer shares there is none."""
        if self._memory_of == (progress.session, progress.memory):
            return
        self._memory_of, self._number = (progress.session, progress.memory), 0
        self._memory = open_shared(progress.memory)
        found = self._memory.read() if self._memory is not None else None
        if found is None or int(found[1][0][0]) != progress.session:
            self._memory = None

    def _take_from_memory(self) -> bool:
        """Takes the newest weights of the memory; False where there are none."""
        found = self._memory.read() if self._memory is not None else None
        if found is None:
            return False
        self._number, arrays = found
        self._take(arrays)
        return True

    def _take(self, arrays: Sequence[np.ndarray]) -> None:
        self.session, self.version, self.train_step = (int(value) for value in arrays[0])
        self._weights = weights.from_arrays(arrays[1:])
        self.policy.assign(self._weights)

    def assign(self, policy_weights: Mapping[str, np.ndarray]) -> None:
        """Gives the policy these weights, until `take_back`."""
        self.policy.assign(policy_weights)

    def take_back(self) -> None:
        """Gives the policy the newest weights again."""
        if self._weights:
            self.policy.assign(self._weights)
