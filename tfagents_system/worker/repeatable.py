"""Random numbers of deterministic runs: they follow from the place in the run, whatever happened before."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import numpy as np

from tfagents_system.envs.episode_seeds import seed_episode
from tfagents_system.envs.loading import AnyEnvironment
from tfagents_system.role import EPISODE_STREAM, Role
from tfagents_system.worker.newest_policy import NewestPolicy


class RepeatableSeeds:
    """Seeds of one worker with SAC_DETERMINISTIC=1; all but `begin_episode` do nothing in any other run.

    Args:
      role: Its seed decides all of them.
      worker_id: The worker.
      rng: Of its random actions.
      policy: Its noise follows from them, too.
    """

    def __init__(self, role: Role, worker_id: int, rng: np.random.Generator, policy: NewestPolicy) -> None:
        self._role = role
        self._worker_id = worker_id
        self._rng = rng
        self._policy = policy
        self._seeds: Iterator[int] = iter(())  # Of what is left of an iteration.

    def begin(self, stream: int, iteration: int, envs: Sequence[AnyEnvironment]) -> None:
        """From here on all that is random depends on seed, worker, stream and iteration, and on nothing before."""
        if not self._role.deterministic:
            return
        self._seeds = (
            self._role.derived_seed(stream, self._worker_id, 1 + iteration, number) for number in itertools.count()
        )
        self._rng.bit_generator.state = np.random.default_rng(next(self._seeds)).bit_generator.state
        self._policy.policy.reseed(next(self._seeds))
        random.seed(next(self._seeds))  # A user's environment may take numbers from these two.
        np.random.seed(next(self._seeds))
        for env in envs:
            self.reseed(env)

    def begin_episode(self, env: AnyEnvironment, number: int, start: int = 0) -> int:
        """An episode may continue in later iterations: what is random in its environment depends on its number.

        In any run; arguments and result as of EpisodeRunner.repeat_episode.
        """
        further = (start,) if start else ()
        seed = self._role.derived_seed(EPISODE_STREAM, self._worker_id, number, *further)
        seed_episode(env, seed)
        return seed

    def reseed(self, env: AnyEnvironment) -> None:
        """An environment that begins again, or replaces one that failed."""
        if self._role.deterministic:
            env.reseed(next(self._seeds) % 2**31)
