"""Runs episodes and tells of them: steps as segments, returns and the environment's numbers as an Episode."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tree
from tf_agents.trajectories import policy_step, trajectory
from tf_agents.trajectories import time_step as ts

from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.replay.segments import Layout, Segment
from tfagents_system.report.episodes import SUCCESS_KEYS, Episode

ActionFn = Callable[[ts.TimeStep], Any]
Observer = Callable[[Any], None]

_LOG_PREFIX = "log/"


class SegmentBuilder:
    """Gathers consecutive steps of one episode and cuts them into segments.

    Args:
      layout: The environment's columns.
      iteration: The iteration that the episode belongs to.
      max_steps: Steps of a segment, at most.
      send: Takes each segment when it is full, or when the episode ends.
    """

    def __init__(self, layout: Layout, iteration: int, max_steps: int, send: Callable[[Segment], None]) -> None:
        self._layout = layout
        self._iteration = iteration
        self._max_steps = max_steps
        self._send = send
        self._starts_episode = True
        self._observations: list[Any] = []
        self._actions: list[Any] = []
        self._rewards: list[Any] = []
        self._discounts: list[Any] = []

    def start(self, time_step: ts.TimeStep) -> None:
        """The episode's first time step."""
        self._observations = [time_step.observation]

    def add(self, action: Any, next_time_step: ts.TimeStep) -> None:
        """An action and what it led to. A full segment is cut off; the last one waits for `finish`."""
        if len(self._rewards) >= self._max_steps:
            self._cut(ends_episode=False, end_of_iteration=False)
        _, reward, discount, observation = next_time_step
        self._actions.append(action)
        self._observations.append(observation)
        self._rewards.append(reward)
        self._discounts.append(discount)

    def finish(self, *, ends_episode: bool, end_of_iteration: bool) -> None:
        """Sends what is left.

        Args:
          ends_episode: False where the worker stops in mid-episode.
          end_of_iteration: Nothing more follows in this iteration.
        """
        if self._rewards:
            self._cut(ends_episode=ends_episode, end_of_iteration=end_of_iteration)

    def _cut(self, *, ends_episode: bool, end_of_iteration: bool) -> None:
        segment = Segment(
            worker_id=0,  # This and the next two are filled in by the SegmentSender.
            incarnation=0,
            number=0,
            iteration=self._iteration,
            end_of_iteration=end_of_iteration,
            starts_episode=self._starts_episode,
            ends_episode=ends_episode,
            observation=_stack(self._observations, self._layout.observation),
            action=_stack(self._actions, self._layout.action),
            reward=np.array(self._rewards, np.float32),
            discount=np.array(self._discounts, np.float32),
        )
        self._observations = self._observations[-1:]
        self._actions, self._rewards, self._discounts = [], [], []
        self._starts_episode = False
        self._send(segment)


class EpisodeLog:
    """The return, length, success and `log/...` means of one episode."""

    def __init__(self) -> None:
        self._return = 0.0
        self._length = 0
        self._sums: dict[str, tuple[float, int]] = {}
        self._success: bool | None = None

    def add(self, reward: Any, info: Mapping[str, Any]) -> None:
        """One step's reward and info."""
        self._return += float(reward)
        self._length += 1
        for key, value in info.items():
            if not isinstance(key, str):
                continue
            if key.startswith(_LOG_PREFIX) and _is_finite_number(value):
                total, count = self._sums.get(key, (0.0, 0))
                self._sums[key] = (total + float(value), count + 1)
            elif key in SUCCESS_KEYS:
                self._success = bool(value)

    def episode(self) -> Episode:
        means = {key.removeprefix(_LOG_PREFIX): total / count for key, (total, count) in self._sums.items()}
        return Episode(self._return, self._length, self._success, means)


def run_episode(
    env: TrainingEnvironment,
    action_fn: ActionFn,
    *,
    builder: SegmentBuilder | None = None,
    observers: Sequence[Observer] = (),
    on_step: Callable[[], None] = lambda: None,
) -> Episode:
    """Runs one episode from reset to its end.

    Args:
      env: The environment.
      action_fn: The action for a time step, in [-1, 1].
      builder: Takes the steps.
      observers: Take a Trajectory for every step.
      on_step: Called before every step; may raise to end the episode early.
    """
    log = EpisodeLog()
    time_step = env.reset()
    if builder:
        builder.start(time_step)
    while time_step.step_type != ts.StepType.LAST:  # TimeStep.is_last() takes 10 us: it asks for tensors first.
        on_step()
        action = action_fn(time_step)
        next_time_step = env.step(action)
        if builder:
            builder.add(action, next_time_step)
        log.add(next_time_step.reward, env.info)
        if observers:
            _observe(observers, time_step, action, next_time_step)
        time_step = next_time_step
    return log.episode()


def _observe(observers: Iterable[Observer], time_step: ts.TimeStep, action: Any, next_time_step: ts.TimeStep) -> None:
    step = trajectory.from_transition(time_step, policy_step.PolicyStep(action), next_time_step)
    for observer in observers:
        observer(step)


def _is_finite_number(value: Any) -> bool:
    is_number = isinstance(value, numbers.Real) or (isinstance(value, np.ndarray) and value.ndim == 0)
    return is_number and math.isfinite(value)


def _stack(rows: list[Any], columns: Sequence[Any]) -> list[np.ndarray]:
    if len(columns) == 1 and isinstance(rows[0], np.ndarray):
        return [np.array(rows, np.dtype(columns[0].dtype))]
    leaves = zip(*map(tree.flatten, rows), strict=True)
    return [np.array(values, np.dtype(column.dtype)) for column, values in zip(columns, leaves, strict=True)]
