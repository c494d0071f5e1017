"""Gathers an episode's steps into segments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import tree
from tf_agents.trajectories import time_step as ts

from tfagents_system.checks.schedules import initial_value
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport.layout import Layout
from tfagents_system.transport.segments import Segment

_LARGEST = float(np.finfo(np.float32).max)


class HeldRows(Protocol):
    """The steps of an episode that are held for the next segments.

    Attributes:
      steps: How many there are.
      observations: How many observations: one behind each step, and those before them.
    """

    @property
    def steps(self) -> int: ...

    @property
    def observations(self) -> int: ...

    def columns(self) -> dict[str, Any]:
        """All of them, as a Segment's `observation`, `action`, `reward`, `discount` and those of `Layout.optional`."""

    def drop(self, steps: int, observations: int) -> None:
        """Forgets so many, from the oldest on."""


class EpisodeCuts:
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
      layout, max_steps, gamma: As above.
      lead: Steps held that were sent already.
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
        self.max_steps = max_steps
        self.gamma = gamma
        self._send = send
        self._held_out = held_out
        self._history = history
        self._look_ahead = look_ahead
        self._look_back = look_back
        self._number = number
        self._dropped = 0  # Observations of the episode that are not held any more.
        self._starts_episode = True
        self.lead = 0
        self._context = 0  # Steps of the lead at which no sample starts any more.

    @property
    def most_rows(self) -> int:
        """Observations that are held at most."""
        return self._history + self._look_ahead + self._look_back + self.max_steps + 1

    def cut(
        self, rows: HeldRows, *, goes_on: bool = False, ends_episode: bool = False, end_of_iteration: bool = False
    ) -> None:
        """Sends the steps that are held; if the episode continues, keeps those that the next segment begins with."""
        steps = rows.steps
        deferred = min(self._look_ahead, steps - self._context) if goes_on else 0
        history = rows.observations - 1 - steps
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
            lead=self.lead,
            context=self._context,
            deferred=deferred,
            episode=np.array([[self._number, self._dropped]], np.int64) if self.layout.episode else None,
            **rows.columns(),
        )
        given_up = max(0, steps - deferred - self._look_back)
        dropped = max(0, history + given_up - self._history)
        rows.drop(given_up, dropped)
        self._dropped += dropped
        self.lead = steps - given_up
        self._context = self.lead - deferred
        self._starts_episode &= given_up == 0
        self._send(segment)


class EpisodeNumbers:
    """Numbers a worker's episodes, as of Segment.episode: no other episode of it in the run's experience has the same.

    Args:
      incarnation: Of the worker's process, which is larger for each later start; None: in a deterministic run an
        episode has the same number whichever start collects it.
    """

    def __init__(self, incarnation: int | None) -> None:
        self._incarnation = incarnation

    def of(self, iteration: int, number: int) -> int:
        """Of an episode that begins in this iteration, the `number`-th of this start of the worker."""
        if self._incarnation is not None:
            return self._incarnation + number
        return ((iteration + 1) << 20) + number % (1 << 20)  # Numbers may begin anew with each iteration.


class SegmentBuilder:
    """Gathers consecutive steps of one episode, one at a time, and cuts them into segments.

    Arguments as of EpisodeCuts.

    Attributes:
      cuts: Cuts the episode.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.cuts = EpisodeCuts(*args, **kwargs)
        self._layout, self._max_steps, self._gamma = self.cuts.layout, self.cuts.max_steps, self.cuts.gamma
        self._observations: list[Any] = []
        self._actions: list[Any] = []
        self._rewards: list[Any] = []
        self._discounts: list[Any] = []
        self._return = 0.0  # Of the episode so far: R_t = gamma R_(t-1) + r_t.
        self._returns: list[float] = []
        self._explored: list[bool] = []
        self._potentials: list[float] = []

    def start(self, time_step: ts.TimeStep, potential: float = 0.0) -> None:
        """The episode's first time step, and the potential of its observation, where the layout has them."""
        self._observations = [time_step.observation]
        if self._layout.potential:
            self._potentials = [potential]

    @property
    def takes_explored(self) -> bool:
        """Whether `add` wants to know which actions explored."""
        return self._layout.explored is not None

    def add(self, action: Any, next_time_step: ts.TimeStep, explored: bool = False, potential: float = 0.0) -> None:
        """An action and what it led to. A full segment is cut off; the last one waits for `finish`.

        Args:
          action: The agent's.
          next_time_step: Behind it.
          explored: It was another action than the greedy one.
          potential: Of the next observation.
        """
        if len(self._rewards) - self.cuts.lead >= self._max_steps:
            self.cuts.cut(self, goes_on=True)
        _, reward, discount, observation = next_time_step
        self._actions.append(action)
        self._observations.append(observation)
        self._rewards.append(reward)
        self._discounts.append(discount)
        if self._layout.returns:
            self._return = self._gamma * self._return + float(reward)
            self._returns.append(self._return)
        if self._layout.explored:
            self._explored.append(explored)
        if self._layout.potential:
            self._potentials.append(potential)

    @property
    def has_unsent_steps(self) -> bool:
        """Whether it holds steps that no segment has brought yet."""
        return len(self._rewards) > self.cuts.lead

    def pause(self, *, end_of_iteration: bool) -> None:
        """Sends what is left of an iteration; the episode continues."""
        if self.has_unsent_steps:
            self.cuts.cut(self, goes_on=True, end_of_iteration=end_of_iteration)

    def finish(self, *, ends_episode: bool, end_of_iteration: bool) -> None:
        """Sends what is left.

        Args:
          ends_episode: False where the worker stops in mid-episode.
          end_of_iteration: Nothing more follows in this iteration.
        """
        if self.has_unsent_steps:
            self.cuts.cut(self, ends_episode=ends_episode, end_of_iteration=end_of_iteration)

    # What is held.

    @property
    def steps(self) -> int:
        return len(self._rewards)

    @property
    def observations(self) -> int:
        return len(self._observations)

    def columns(self) -> dict[str, Any]:
        """See HeldRows."""
        return {
            "observation": _stack(self._observations, self._layout.observation),
            "action": _stack(self._actions, self._layout.action),
            "reward": np.array(self._rewards, np.float32),
            "discount": np.array(self._discounts, np.float32),
            "returns": as_returns(np.array(self._returns)) if self._layout.returns else None,
            "explored": np.array(self._explored, np.uint8) if self._layout.explored else None,
            "potential": np.array(self._potentials, np.float32) if self._layout.potential else None,
        }

    def drop(self, steps: int, observations: int) -> None:
        """See HeldRows."""
        del self._observations[:observations], self._potentials[:observations]
        for column in (self._actions, self._rewards, self._discounts, self._returns, self._explored):
            del column[:steps]


def as_returns(returns: np.ndarray) -> np.ndarray:
    """Returns of float64 as the layout has them."""
    return np.clip(returns, -_LARGEST, _LARGEST).astype(np.float32)


def segment_builder(
    params: TrainParamsBase,
    layout: Layout,
    send: Callable[[Segment], None],
    held_out: bool,
    make: Callable[..., SegmentBuilder] = SegmentBuilder,
    number: int = 0,
) -> SegmentBuilder:
    """Cuts an episode so that whatever the parameters ask for can be drawn from its segments."""
    form = params.sample_form_ctor()
    look_back, look_ahead = form.reach
    return make(
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


def _stack(rows: list[Any], columns: Sequence[Any]) -> list[np.ndarray]:
    if len(columns) == 1 and isinstance(rows[0], np.ndarray):
        return [np.array(rows, np.dtype(columns[0].dtype))]
    leaves = zip(*map(tree.flatten, rows), strict=True)
    return [np.array(values, np.dtype(column.dtype)) for column, values in zip(columns, leaves, strict=True)]
