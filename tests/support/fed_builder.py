"""Gives a SegmentBuilder the steps of an episode one at a time, as a rollout in one lane does."""

from __future__ import annotations

from typing import Any

import numpy as np
import tree
from tf_agents.trajectories import time_step as ts

from tfagents_system.worker.rollout import LaneColumns, SegmentBuilder


class FedEpisode:
    """An episode under way.

    Args:
      builder: Cuts it.
      first: Its first time step.
    """

    def __init__(self, builder: SegmentBuilder, first: ts.TimeStep) -> None:
        self._builder = builder
        self._columns = LaneColumns(builder.layout, 1, builder.most_rows, builder.gamma)
        self._write(0, first)
        self._columns.begin(0)
        builder.begin(self._columns, 0)

    def _write(self, row: int, time_step: ts.TimeStep) -> None:
        for column, leaf in zip(self._columns.observation, tree.flatten(time_step.observation), strict=True):
            column[row, 0] = leaf

    def add(self, action: Any, following: ts.TimeStep) -> None:
        """A step."""
        columns = self._columns
        if self._builder.room <= 0:
            self._builder.cut(goes_on=True)
        if columns.row >= columns.capacity:
            columns.move([self._builder])
        self._write(columns.row + 1, following)
        columns.reward[columns.row], columns.discount[columns.row] = following.reward, following.discount
        columns.add([np.asarray(leaf)[None] for leaf in tree.flatten(action)], np.zeros(1, bool))

    def pause(self) -> None:
        """Hands over the steps so far."""
        self._builder.cut(goes_on=True)

    def finish(self, *, ends_episode: bool = True, end_of_iteration: bool = False) -> None:
        """Hands over what is left."""
        self._builder.cut(ends_episode=ends_episode, end_of_iteration=end_of_iteration)
