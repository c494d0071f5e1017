"""Which episodes are held out: collected and stored like all others, never trained on, measured only."""

from __future__ import annotations

import fractions
import math
import random


class HeldOutEpisodes:
    """Decides for each episode of one worker, before it begins, whether it is held out.

    Of each 1 / share episodes in a row one is, at random: not every so many-th, which might always be in the same one
    of several environments. Episode 0 never is, so that there is something to train on.

    Args:
      share: Of the episodes, in [0, 0.5].
      seed: Decides which; the same seed and number decide in the same way.

    Attributes:
      number: Of the next episode, from 0.
    """

    def __init__(self, share: float, seed: int) -> None:
        self._share = fractions.Fraction(str(share))  # As it was written: 0.1 makes groups of 10.
        self._seed = seed
        self.number = 0

    def is_next(self) -> bool:
        """Whether the episode that begins now is held out."""
        number, self.number = self.number, self.number + 1
        if not self._share:
            return False
        group = math.floor(self._share * number)
        first, behind = (math.ceil(bound / self._share) for bound in (group, group + 1))
        return number == random.Random(f"{self._seed} {group}").randrange(max(1, first), behind)
