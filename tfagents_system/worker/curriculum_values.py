"""The curriculum's values in a worker's environments: those they have, and those they are to have next."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from absl import logging

from tfagents_system.envs.curriculum import Curriculum

Value = tuple[str, Any]
"""A parameter's name and its value."""


@dataclasses.dataclass(frozen=True)
class Place:
    """One of a worker's places for environments.

    Attributes:
      is_eval: For evaluation rather than collecting.
      index: From 0.
    """

    is_eval: bool
    index: int

    @property
    def name(self) -> str:
        """`environment 0`, `evaluation environment 0`."""
        return f"{'evaluation ' if self.is_eval else ''}environment {self.index}"


class CurriculumValues:
    """What each place's environment was set to, and what it is to be set to before its next episode.

    Args:
      curriculum: The run's.

    Attributes:
      is_shared: Evaluations use the collect environments: what they set there is set back before the next episode that
        is collected. What only training sets stays as it is in evaluations.
    """

    def __init__(self, curriculum: Curriculum) -> None:
        self._curriculum = curriculum
        self.is_shared = False
        self._iteration = 0
        self._due: dict[Place, list[Value]] = {}
        self._of_evaluation: dict[str, Any] = {}
        self._set: dict[Place, dict[str, Any]] = {}

    def own(self, place: Place) -> Place:
        """The place whose environment is used there."""
        return Place(False, place.index) if self.is_shared else place

    def set_due(self, iteration: int, places: Sequence[Place]) -> None:
        """These are to have the values of this iteration from their next episode on."""
        if iteration < self._iteration:  # What was due later no longer is; the rest of it is found to differ.
            self._due.clear()
            self._of_evaluation = {}
        self._iteration = iteration
        for name, value in self._curriculum.due(iteration):
            logging.info("iteration %d: %s = %s", iteration, name, value)
            for place in places:
                self._due.setdefault(place, []).append((name, value))

    def due(self, place: Place) -> list[Value]:
        """What is to be set before an episode begins there."""
        if place.is_eval:
            return []
        due = self._due.get(place, [])
        names = {name for name, _ in due}
        # What an evaluation there has set is set back.
        return due + [each for each in self._differing(place, self._wanted(place)) if each[0] not in names]

    def set_evaluated(self, iteration: int) -> None:
        """A policy of this iteration is evaluated."""
        self._of_evaluation = self._curriculum.values_at(iteration, is_eval=True)

    def evaluated(self, place: Place) -> list[Value]:
        """What is to be set for that in an evaluation environment."""
        return self._differing(place, self._of_evaluation)

    def all(self, place: Place) -> list[Value]:
        """What a new environment there is to be set to; nothing more is due."""
        self._due.pop(place, None)
        self._set.pop(self.own(place), None)
        return list(self._wanted(place).items())

    def was_set(self, place: Place, name: str, value: Any) -> None:
        """The environment there has this value now."""
        self._set.setdefault(self.own(place), {})[name] = value

    def taken(self, place: Place) -> list[Value]:
        """What is due there, from now on not any more."""
        due = self.due(place)
        self._due.pop(place, None)
        return due

    def _wanted(self, place: Place) -> dict[str, Any]:
        """What the environment there is to have."""
        of_training = self._curriculum.values if self.is_shared or not place.is_eval else {}
        return of_training | (self._of_evaluation if place.is_eval else {})

    def _differing(self, place: Place, wanted: dict[str, Any]) -> list[Value]:
        now = self._set.get(self.own(place), {})
        return [(name, value) for name, value in wanted.items() if now.get(name) != value]
