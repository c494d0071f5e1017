"""Seeds an episode, so that it can be repeated."""

from __future__ import annotations

import random
from typing import Protocol

import numpy as np

from tfagents_system.envs.hooks import SEED_LIMIT


class Seeded(Protocol):
    """An environment of either kind."""

    def reseed(self, seed: int) -> None:
        """Seeds the next episode and those after it."""


def seed_episode(env: Seeded, seed: int) -> None:
    """What is random in the next episode follows from the seed, of 32 bits.

    So do Python's and NumPy's own generators, from which a user's environment may take numbers; an environment with a
    process of its own seeds those there with what it gets.
    """
    env.reseed(seed % SEED_LIMIT)
    random.seed(seed)
    np.random.seed(seed)
