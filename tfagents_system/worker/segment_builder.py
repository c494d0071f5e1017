"""Keeps the steps of a worker's lanes in columns, and cuts an episode's into segments."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tfagents_system.checks.schedules import initial_value
from tfagents_system.envs.training_environment import StepColumns
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport.segments import Layout, Segment

_LARGEST = float(np.finfo(np.float32).max)
_ROOMY_BYTES = 64 * 2**20


class LaneColumns(StepColumns):
    """The columns of N lanes' steps, as far as they are held: also actions, and what the layout has beside them.

    When the rows are full, those that are still held move to the beginning.

    Args:
      layout: Of a lane.
      num_lanes: N.
      most_rows: Observations of a lane that are held at most.
      gamma: Discount of a step, for the returns, where the layout has them.

    Attributes:
      action: Leaves `[rows, N, ...]`.
      returns: `[rows, N]` float64, where the layout has them.
      explored: `[rows, N]` uint8, likewise.
      capacity: Steps that there are rows for.
      uncounted: Lanes whose newest step is not handed over yet.
    """

    def __init__(self, layout: Layout, num_lanes: int, most_rows: int = 1, gamma: float = 1.0) -> None:
        step_bytes = layout.step_bytes * num_lanes
        rows = self.capacity = most_rows + max(most_rows // 4, min(most_rows, _ROOMY_BYTES // step_bytes), 16)
        super().__init__(layout.observation, num_lanes, rows, has_potential=layout.potential is not None)
        self._gamma = gamma
        self.action = [np.empty((rows, num_lanes, *column.shape), column.dtype) for column in layout.action]
        self.returns = np.zeros((rows, num_lanes)) if layout.returns else None
        self.explored = np.zeros((rows, num_lanes), np.uint8) if layout.explored else None
        self._return = np.zeros(num_lanes)  # Of each episode so far: R_t = gamma R_(t-1) + r_t.
        self.uncounted: frozenset[int] = frozenset()

    def move(self, held: Sequence[SegmentBuilder]) -> None:
        """Makes room: the oldest row that is held becomes row 0."""
        first = min([self.row, *(builder.first_observation for builder in held)])
        end = self.row
        for observations in (*self.observation, *_present(self.potential)):
            observations[: end + 1 - first] = observations[first : end + 1]
        for of_steps in (*self.action, self.reward, self.discount, *_present(self.returns, self.explored)):
            of_steps[: end - first] = of_steps[first:end]
        self.row -= first
        for builder in held:
            builder.moved(first)

    def add(self, action: Sequence[np.ndarray], explored: np.ndarray) -> None:
        """The step that was written into this row: its action, and which lanes explored in it, `[N]` bool."""
        row = self.row
        for column, leaf in zip(self.action, action, strict=True):
            column[row] = leaf
        if self.returns is not None:
            self._return *= self._gamma
            self._return += self.reward[row]
            self.returns[row] = self._return
        if self.explored is not None:
            self.explored[row] = explored
        self.row = row + 1

    def begin(self, lane: int, first: Sequence[np.ndarray] | None, potential: np.ndarray | None = None) -> None:
        """An episode begins in a lane.

        Args:
          lane: From 0.
          first: Leaves `[N, ...]`, of which this lane's is its first observation; None: the newest one is.
          potential: Those of `first`, `[N]`, where there is a column.
        """
        if first is not None:
            for column, leaf in zip(self.observation, first, strict=True):
                column[self.row, lane] = leaf[lane]
        if self.potential is not None and potential is not None:
            self.potential[self.row, lane] = potential[lane]
        self._return[lane] = 0.0


def _present(*columns: np.ndarray | None) -> list[np.ndarray]:
    return [column for column in columns if column is not None]


class SegmentBuilder:
    """Cuts one episode into segments.

    However the episode is cut, its samples are those of the whole episode (transport/segments.py).

    Args:
      layout: The environment's columns.
      max_steps: New steps of a segment, at most.
      send: Takes each segment when it is full, or when the episode ends.
      held_out: The episode is never trained on.
      history: Observations before a segment's first transition that go with it, at most.
      gamma: Discount of a step, for the returns, where the layout has them.
      look_ahead: Steps behind its first one that a sample needs.
      look_back: Steps before its first one that a sample needs.
      number: Of the episode, as of Segment.episode.

    Attributes:
      layout, gamma: As above.
      first_observation: Row of the oldest observation that is held for the next segment.
    """

    def __init__(
        self,
        layout: Layout,
        max_steps: int,
        send: Callable[[Segment], None],
        held_out: bool = False,
        history: int = 0,
        gamma: float = 1.0,
        look_ahead: int = 0,
        look_back: int = 0,
        number: int = 0,
    ) -> None:
        self.layout = layout
        self.gamma = gamma
        self._max_steps = max_steps
        self._send = send
        self._held_out = held_out
        self._history = history
        self._look_ahead = look_ahead
        self._look_back = look_back
        self._number = number
        self._dropped = 0  # Observations of the episode that are not held any more.
        self._starts_episode = True
        self._lead = 0  # Steps held that were sent already.
        self._context = 0  # Steps of the lead at which no sample starts any more.

    def begin(self, columns: LaneColumns, lane: int) -> None:
        """The episode begins in a lane, with the newest observation."""
        self._columns, self._lane = columns, lane
        self.first_observation = self._first_step = columns.row

    def moved(self, rows: int) -> None:
        """All rows have moved by so many."""
        self._first_step -= rows
        self.first_observation -= rows

    @property
    def _end(self) -> int:
        return self._columns.row - (self._lane in self._columns.uncounted)

    @property
    def most_rows(self) -> int:
        """Observations that are held at most."""
        return self._history + self._look_ahead + self._look_back + self._max_steps + 1

    @property
    def room(self) -> int:
        """Steps that the episode may take until its segment is full."""
        return self._max_steps - (self._end - self._first_step - self._lead)

    @property
    def has_unsent_steps(self) -> bool:
        """Whether it holds steps that no segment has brought yet."""
        return self._end - self._first_step > self._lead

    def cut(self, *, goes_on: bool = False, ends_episode: bool = False, end_of_iteration: bool = False) -> None:
        """Sends the steps since the last cut, if there are any.

        Args:
          goes_on: The episode continues: what its next segment begins with is kept.
          ends_episode: The environment has ended it; otherwise the worker breaks it off.
          end_of_iteration: Nothing more follows in this iteration.
        """
        if not self.has_unsent_steps:
            return
        lane, columns, end = self._lane, self._columns, self._end
        steps = end - self._first_step
        seen, taken = slice(self.first_observation, end + 1), slice(self._first_step, end)
        deferred = min(self._look_ahead, steps - self._context) if goes_on else 0
        history = self._first_step - self.first_observation
        segment = Segment(
            worker_id=0,  # This and the next three are filled in when it is sent.
            incarnation=0,
            number=0,
            iteration=0,
            end_of_iteration=end_of_iteration,
            starts_episode=self._starts_episode,
            ends_episode=ends_episode,
            held_out=self._held_out,
            history=history,
            lead=self._lead,
            context=self._context,
            deferred=deferred,
            episode=np.array([[self._number, self._dropped]], np.int64) if self.layout.episode else None,
            observation=[column[seen, lane].copy() for column in columns.observation],
            action=[column[taken, lane].copy() for column in columns.action],
            reward=columns.reward[taken, lane].copy(),
            discount=columns.discount[taken, lane].copy(),
            returns=None if columns.returns is None else _as_float32(columns.returns[taken, lane]),
            explored=None if columns.explored is None else columns.explored[taken, lane].copy(),
            potential=None if columns.potential is None else columns.potential[seen, lane].copy(),
        )
        given_up = max(0, steps - deferred - self._look_back)
        dropped = max(0, history + given_up - self._history)
        self._first_step += given_up
        self.first_observation += dropped
        self._dropped += dropped
        self._lead = steps - given_up
        self._context = self._lead - deferred
        self._starts_episode &= given_up == 0
        self._send(segment)


def _as_float32(returns: np.ndarray) -> np.ndarray:
    return np.clip(returns, -_LARGEST, _LARGEST).astype(np.float32)


def segment_builder(
    params: TrainParamsBase,
    layout: Layout,
    send: Callable[[Segment], None],
    held_out: bool,
    number: int = 0,
) -> SegmentBuilder:
    """Cuts an episode so that whatever the parameters ask for can be drawn from its segments."""
    form = params.sample_form_ctor()
    look_back, look_ahead = form.reach
    return SegmentBuilder(
        layout,
        layout.max_segment_steps(form.sequence_length),
        send,
        held_out=held_out,
        history=layout.history_rows(params.frame_stack),
        gamma=initial_value(params.discount),
        look_ahead=look_ahead,
        look_back=look_back,
        number=number,
    )
