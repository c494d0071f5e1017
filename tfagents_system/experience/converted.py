"""The episodes of a data set as runs store them, with notes on what is seldom meant."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from tfagents_system.experience.conversion import Conversion, NamedEpisode, name_of
from tfagents_system.experience.episodes import StoredEpisode

_ROUNDING = 1e-3  # As a share of the bounds' range: data are often stored with fewer digits.


def stored_episodes(
    found: Iterable[NamedEpisode], conversion: Conversion, source: str, tell: Callable[[str], None], what: str = ""
) -> list[StoredEpisode]:
    """Converts the episodes of a data set.

    Args:
      found: The episodes.
      conversion: For the environment.
      source: The data set, named in notes.
      tell: Called with notes: of actions outside of the action space, and of episodes longer than the horizon.
      what: Before `episode 3` in errors.

    Raises:
      UserError: As of `Conversion.to_stored`.
    """
    stored, outside, lengths = list[StoredEpisode](), _Outside(conversion), list[int]()
    for number, episode in enumerate(found):
        stored.append(conversion.to_stored(episode, f"{what}episode {number}"))
        outside.look_at(episode)
        lengths.append(len(episode.rewards))
    if words := outside.in_words():
        tell(f"{source}: {words}")
    horizon = conversion.horizon
    if horizon is not None and (longer := [length for length in lengths if length > horizon]):
        tell(
            f"{source}: {len(longer):,} of {len(lengths):,} episodes are longer than the horizon of {horizon:,} steps, "
            f"the longest has {max(longer):,}: if several episodes follow each other there, mark the end of each in "
            "terminations or truncations"
        )
    return stored


class _Outside:
    """Counts actions outside of an environment's action space."""

    def __init__(self, conversion: Conversion) -> None:
        self._leaves = list(zip(conversion.layout.action, conversion.actions, strict=True))
        self._steps = self._outside = 0
        self._furthest, self._words = 0.0, ""

    def look_at(self, episode: NamedEpisode) -> None:
        steps = len(episode.rewards)
        is_outside = np.zeros(steps, bool)
        for column, leaf in self._leaves:
            spec = leaf.environment_spec
            low, high = np.asarray(spec.minimum, np.float64), np.asarray(spec.maximum, np.float64)
            taken = np.asarray(episode.actions[name_of(column)], np.float64).reshape(steps, *spec.shape)
            beyond = np.maximum(low - taken, taken - high)
            is_far = beyond > _ROUNDING * (high - low)
            is_outside |= is_far.reshape(steps, -1).any(axis=1)
            if is_far.any() and beyond.max() > self._furthest:
                self._furthest = float(beyond.max())
                self._words = f"{column.name} is {taken.ravel()[beyond.argmax()]:g} in [{low.min():g}, {high.max():g}]"
        self._steps += steps
        self._outside += int(is_outside.sum())

    def in_words(self) -> str:
        """Empty where all actions are inside."""
        if not self._outside:
            return ""
        share = 100.0 * self._outside / self._steps
        return (
            f"{self._outside:,} of {self._steps:,} actions ({share:.2g}%) are outside of the action space, the "
            f"furthest {self._words}: they count as the nearest ones inside. Give actions in the environment's units"
        )
