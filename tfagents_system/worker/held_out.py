"""Which episodes are held out: collected and stored like all others, never trained on, measured only."""

from __future__ import annotations

import fractions
import math
import random


class EpisodeShare:
    """A share of a worker's episodes, chosen at random by their numbers.

    Of each 1 / share episodes in a row one is chosen: not every so many-th, which might always be in the same one of
    several environments.

    Args:
      share: Of the episodes, in [0, 1].
      seed: Decides which; the same seed and number decide in the same way.
      first: The first episode that may be chosen.
    """

    def __init__(self, share: float, seed: int, first: int = 0) -> None:
        self._share = fractions.Fraction(str(share))  # As it was written: 0.1 makes groups of 10.
        self._seed = seed
        self._first = first

    def has(self, number: int) -> bool:
        """Whether the episode of this number, from 0, is chosen."""
        if not self._share:
            return False
        group = math.floor(self._share * number)
        first, behind = (math.ceil(bound / self._share) for bound in (group, group + 1))
        return number == random.Random(f"{self._seed} {group}").randrange(max(self._first, first), behind)


class HeldOutEpisodes:
    """Decides for each episode of one worker, before it begins, whether it is held out.

    Episode 0 never is, so that there is something to train on.

    Args:
      share: Of the episodes, in [0, 0.5].
      seed: As of EpisodeShare.

    Attributes:
      number: Of the next episode, from 0.
    """

    def __init__(self, share: float, seed: int) -> None:
        self._share = EpisodeShare(share, seed, first=1)
        self.number = 0

    def is_next(self) -> bool:
        """Whether the episode that begins now is held out."""
        number, self.number = self.number, self.number + 1
        return self._share.has(number)
