"""The steps of all lanes of a vector environment, in preallocated columns, of which segments are cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfagents_system.transport.layout import Layout
from tfagents_system.worker.segment_builder import EpisodeCuts, as_returns

_ROOMY_BYTES = 64 * 2**20


class LaneColumns:
    """Rows of steps, each of N lanes: row t has the observations before step t, and what step t was and gave.

    When the rows are full, those that are still held move to the beginning.

    Args:
      layout: Of a lane.
      num_lanes: N.
      most_rows: Observations of a lane that are held at most.

    Attributes:
      row: Steps taken since row 0: `observation[...][row]` are the newest observations.
      observation, action: Leaves `[rows + 1, N, ...]` and `[rows, N, ...]`.
      reward, discount: `[rows, N]` float32.
      returns: `[rows, N]` float64, where the layout has them.
      explored, potential: `[rows, N]` uint8 and `[rows + 1, N]` float32, likewise.
      uncounted: Lanes whose newest step is not handed over yet.
    """

    def __init__(self, layout: Layout, num_lanes: int, most_rows: int) -> None:
        step_bytes = layout.step_bytes * num_lanes
        self._rows = most_rows + max(most_rows // 4, min(most_rows, _ROOMY_BYTES // step_bytes), 16)
        self._layout = layout
        self.observation = [_empty(self._rows + 1, num_lanes, column) for column in layout.observation]
        self.action = [_empty(self._rows, num_lanes, column) for column in layout.action]
        self.reward, self.discount = np.empty((2, self._rows, num_lanes), np.float32)
        self.returns = np.zeros((self._rows, num_lanes)) if layout.returns else None
        self.explored = np.zeros((self._rows, num_lanes), np.uint8) if layout.explored else None
        self.potential = np.zeros((self._rows + 1, num_lanes), np.float32) if layout.potential else None
        self._return = np.zeros(num_lanes)  # Of each episode so far: R_t = gamma R_(t-1) + r_t.
        self.row = 0
        self.uncounted: frozenset[int] = frozenset()

    @property
    def capacity(self) -> int:
        """Steps that there are rows for."""
        return self._rows

    @property
    def is_full(self) -> bool:
        """Whether `move` must be called before the next step."""
        return self.row >= self._rows

    def move(self, held: Sequence[LaneRows]) -> None:
        """Makes room: the oldest row that is held becomes row 0."""
        first = min([self.row, *(rows.first_observation for rows in held)])
        end = self.row
        for observations in (*self.observation, *_present(self.potential)):
            observations[: end + 1 - first] = observations[first : end + 1]
        for of_steps in (*self.action, self.reward, self.discount, *_present(self.returns, self.explored)):
            of_steps[: end - first] = of_steps[first:end]
        self.row -= first
        for rows in held:
            rows.moved(first)

    @property
    def newest(self) -> list[np.ndarray]:
        """Leaves `[N, ...]`: the observations before the next step."""
        return [column[self.row] for column in self.observation]

    @property
    def following(self) -> list[np.ndarray]:
        """Leaves `[N, ...]`: where the observations behind the next step are to be written."""
        return [column[self.row + 1] for column in self.observation]

    def add(
        self,
        action: Sequence[np.ndarray],
        reward: np.ndarray,
        discount: np.ndarray,
        gamma: float,
        explored: np.ndarray | None = None,
        potential: np.ndarray | None = None,
    ) -> None:
        """The step that `following` is behind; `explored` and the potential behind it `[N]`, if there are columns."""
        row = self.row
        for column, leaf in zip(self.action, action, strict=True):
            column[row] = leaf
        self.reward[row] = reward
        self.discount[row] = discount
        if self.returns is not None:
            self._return *= gamma
            self._return += reward
            self.returns[row] = self._return
        if self.explored is not None:
            self.explored[row] = explored
        if self.potential is not None:
            self.potential[row + 1] = potential
        self.row = row + 1

    def begin(self, lane: int, first: Sequence[np.ndarray] | None, potential: np.ndarray | None = None) -> LaneRows:
        """An episode begins in a lane.

        Args:
          lane: From 0.
          first: Leaves `[N, ...]`, of which this lane's is its first observation; None: the newest one is.
          potential: Those of the first observations `[N]`, where there is a column.
        """
        if first is not None:
            for column, leaf in zip(self.observation, first, strict=True):
                column[self.row, lane] = leaf[lane]
        if self.potential is not None and potential is not None:
            self.potential[self.row, lane] = potential[lane]
        self._return[lane] = 0.0
        return LaneRows(self, lane)


def _present(*columns: np.ndarray | None) -> list[np.ndarray]:
    return [column for column in columns if column is not None]


def _empty(rows: int, num_lanes: int, column: Any) -> np.ndarray:
    return np.empty((rows, num_lanes, *column.shape), column.dtype)


class LaneRows:
    """The rows of one lane's episode that are held for its next segments; see HeldRows.

    Args:
      columns: Of all lanes.
      lane: From 0; its episode begins with the newest observation.

    Attributes:
      first_observation: Row of the oldest observation.
    """

    def __init__(self, columns: LaneColumns, lane: int) -> None:
        self._columns = columns
        self._lane = lane
        self.first_observation = self._first_step = columns.row

    @property
    def _end(self) -> int:
        return self._columns.row - (self._lane in self._columns.uncounted)

    @property
    def steps(self) -> int:
        return self._end - self._first_step

    @property
    def observations(self) -> int:
        return self._end + 1 - self.first_observation

    def columns(self) -> dict[str, Any]:
        """See HeldRows."""
        lane, columns = self._lane, self._columns
        seen, taken = slice(self.first_observation, self._end + 1), slice(self._first_step, self._end)
        return {
            "observation": [column[seen, lane].copy() for column in columns.observation],
            "action": [column[taken, lane].copy() for column in columns.action],
            "reward": columns.reward[taken, lane].copy(),
            "discount": columns.discount[taken, lane].copy(),
            "returns": None if columns.returns is None else as_returns(columns.returns[taken, lane]),
            "explored": None if columns.explored is None else columns.explored[taken, lane].copy(),
            "potential": None if columns.potential is None else columns.potential[seen, lane].copy(),
        }

    def drop(self, steps: int, observations: int) -> None:
        """See HeldRows."""
        self._first_step += steps
        self.first_observation += observations

    def moved(self, rows: int) -> None:
        """All rows have moved by so many."""
        self._first_step -= rows
        self.first_observation -= rows


class LaneEpisode:
    """An episode under way in a lane.

    Args:
      rows: Its steps.
      cuts: Cuts them into segments; None: they are not stored.
    """

    def __init__(self, rows: LaneRows, cuts: EpisodeCuts | None) -> None:
        self.rows = rows
        self._cuts = cuts

    @property
    def room(self) -> int:
        """Steps that it may take until its segment is full."""
        assert self._cuts is not None
        return self._cuts.max_steps - (self.rows.steps - self._cuts.lead)

    @property
    def has_unsent_steps(self) -> bool:
        """Whether there are steps to hand over."""
        return self._cuts is not None and self.rows.steps > self._cuts.lead

    def pause(self, *, end_of_iteration: bool) -> None:
        """Hands over the steps so far; the episode continues."""
        if self._cuts is not None and self.has_unsent_steps:
            self._cuts.cut(self.rows, goes_on=True, end_of_iteration=end_of_iteration)

    def finish(self, *, ends_episode: bool, end_of_iteration: bool = False) -> None:
        """Hands over what is left."""
        if self._cuts is not None and self.has_unsent_steps:
            self._cuts.cut(self.rows, ends_episode=ends_episode, end_of_iteration=end_of_iteration)
