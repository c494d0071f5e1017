"""Runs episodes and tells of them: steps as segments, returns and the environment's numbers as an Episode."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import tree
from tf_agents.trajectories import policy_step, trajectory
from tf_agents.trajectories import time_step as ts

from tfagents_system.envs.faults import EnvironmentFault
from tfagents_system.envs.info_keys import LOG_PREFIX, SUCCESS_KEYS
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.report.episodes import Episode
from tfagents_system.transport.segments import Layout, Segment

Observer = Callable[[Any], None]
_LARGEST = float(np.finfo(np.float32).max)


class SegmentBuilder:
    """Gathers consecutive steps of one episode and cuts them into segments.

    Args:
      layout: The environment's columns.
      iteration: The iteration that the episode belongs to.
      max_steps: Steps of a segment, at most.
      send: Takes each segment when it is full, or when the episode ends.
      held_out: The episode is never trained on.
      history: Observations before a segment's first transition that go with it, at most.
      gamma: Discount of a step, for the returns, where the layout has them.
    """

    def __init__(
        self,
        layout: Layout,
        iteration: int,
        max_steps: int,
        send: Callable[[Segment], None],
        held_out: bool = False,
        history: int = 0,
        gamma: float = 1.0,
    ) -> None:
        self._layout = layout
        self._iteration = iteration
        self._max_steps = max_steps
        self._gamma = gamma
        self._return = 0.0  # Of the episode, up to the last step that was sent.
        self._send = send
        self._held_out = held_out
        self._history = history
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
        """Sends the steps that it holds."""
        last = len(self._observations) - 1
        history = last - len(self._rewards)
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
            held_out=self._held_out,
            history=history,
            returns=self._returns() if self._layout.returns else None,
        )
        del self._observations[: max(0, last - self._history)]
        for column in (self._actions, self._rewards, self._discounts):
            column.clear()
        self._starts_episode = False
        self._send(segment)

    def _returns(self) -> np.ndarray:
        """Of each step, the discounted sum of rewards up to it: R_t = gamma R_(t-1) + r_t, 0 before an episode."""
        returns = []
        for reward in self._rewards:
            self._return = self._gamma * self._return + float(reward)
            returns.append(self._return)
        return np.clip(returns, -_LARGEST, _LARGEST).astype(np.float32)


class EpisodeLog:
    """The return, length, success and `log/...` means of one episode."""

    def __init__(self) -> None:
        self._return = 0.0
        self._length = 0
        self._sums: dict[str, tuple[float, int]] = {}
        self._success: bool | None = None
        self._ignored: set[Any] = set()

    def add(self, reward: Any, info: Mapping[str, Any]) -> None:
        """One step's reward and info."""
        self._return += float(reward)
        self._length += 1
        for key in info:
            if key not in self._ignored:
                self._add_entry(key, info[key])

    def _add_entry(self, key: Any, value: Any) -> None:
        if isinstance(key, str) and key.startswith(LOG_PREFIX):
            if _is_finite_number(value):
                total, count = self._sums.get(key, (0.0, 0))
                self._sums[key] = (total + float(value), count + 1)
        elif key in SUCCESS_KEYS:
            self._success = bool(value)
        else:
            self._ignored.add(key)

    def episode(self) -> Episode:
        means = {key.removeprefix(LOG_PREFIX): total / count for key, (total, count) in self._sums.items()}
        return Episode(self._return, self._length, self._success, means)


class Actor(Protocol):
    """Chooses actions, in [-1, 1], for environments numbered from 0."""

    def reset(self, env: int) -> None:
        """An episode begins in an environment."""

    def action(self, time_step: ts.TimeStep) -> Any:
        """The action in environment 0."""

    def actions(self, time_steps: Mapping[int, ts.TimeStep]) -> Mapping[int, Any]:
        """The actions in several environments."""


class StepTimes:
    """Seconds spent in the policy and in the simulator. A clock around every step costs 0.3 us."""

    def __init__(self) -> None:
        self.policy = self.simulator = 0.0

    def take(self) -> tuple[float, float]:
        """The seconds of policy and simulator since the last call."""
        taken = self.policy, self.simulator
        self.policy = self.simulator = 0.0
        return taken


def run_episodes(
    envs: Sequence[TrainingEnvironment],
    actor: Actor,
    count: int,
    *,
    new_builder: Callable[[], SegmentBuilder] | None = None,
    observers: Sequence[Observer] = (),
    on_step: Callable[[int], None] = lambda steps: None,
    on_episode: Callable[[Episode], None] = lambda episode: None,
    on_start: Callable[[int], None] = lambda env: None,
    on_fault: Callable[[int, EnvironmentFault], None] | None = None,
    times: StepTimes | None = None,
) -> list[Episode]:
    """Runs exactly `count` episodes from reset to their ends, side by side where there are several environments.

    No episode is started that is not counted: short episodes are not preferred to long ones.

    Args:
      envs: The environments. One whose episode has ended takes the next; in the end some have none.
      actor: Gives actions for all environments whose episode goes on, at once.
      count: Episodes in total, at least 1.
      new_builder: Makes the builder that takes an episode's steps. Only the last segment of all ends the iteration.
      observers: Take a Trajectory for every step, in order. Of several environments they see one episode after
        another, each when it has ended.
      on_step: Called with the number of environments before they step; may raise to end all episodes early.
      on_episode: Called after each episode.
      on_start: Called with an environment's index before an episode begins in it; may put another one in its place.
      on_fault: Called when an environment has failed: puts another one in its place, in which the episode is begun
        anew, or raises to end all episodes. The steps before the fault have been handed over, as an episode that was
        cut short; the step that failed is dropped with all its values. None: every fault is raised.
      times: Counts the time of policy and simulator.

    Returns:
      The episodes, in the order in which they ended.
    """
    times = times or StepTimes()
    later = len(envs) > 1
    episodes: list[Episode] = []
    running: dict[int, _Running] = {}
    faults: dict[int, EnvironmentFault] = {}
    started = 0
    try:
        while len(episodes) < count:
            for env in [env for env in range(len(envs)) if env not in running][: count - started]:
                on_start(env)
                actor.reset(env)
                try:
                    running[env] = _Running(envs[env], new_builder and new_builder(), observers, later, times)
                    started += 1
                except EnvironmentFault as fault:
                    faults[env] = fault
            if running:
                step = _step_all if later else _step_one
                for env in step(running, actor, on_step, times, faults):
                    run = running.pop(env)
                    episodes.append(run.end(end_of_iteration=len(episodes) + 1 == count))
                    on_episode(episodes[-1])
            while faults:
                env, failure = faults.popitem()
                if env in running:
                    running.pop(env).break_off()
                    started -= 1
                if on_fault is None:
                    raise failure
                on_fault(env, failure)
    except BaseException:
        # Stopped, or a fault of an environment: the steps before it are true all the same.
        for run in running.values():
            run.break_off()
        raise
    return episodes


def _step_one(
    running: Mapping[int, _Running],
    actor: Actor,
    on_step: Callable[[int], None],
    times: StepTimes,
    faults: dict[int, EnvironmentFault],
) -> list[int]:
    """Runs the episode of the only environment to its end, or to its fault."""
    run = running[0]
    advance, choose = run.advance, actor.action
    try:
        while not run.is_over:
            on_step(1)
            began = perf_counter()
            action = choose(run.time_step)
            times.policy += perf_counter() - began
            advance(action)
    except EnvironmentFault as fault:
        faults[0] = fault
        return []
    return [0]


def _step_all(
    running: Mapping[int, _Running],
    actor: Actor,
    on_step: Callable[[int], None],
    times: StepTimes,
    faults: dict[int, EnvironmentFault],
) -> list[int]:
    """Steps all environments together until an episode ends or an environment fails; returns where one ended."""
    while True:
        on_step(len(running))
        began = perf_counter()
        actions = actor.actions({env: run.time_step for env, run in running.items()})
        times.policy += perf_counter() - began
        for env, run in running.items():
            try:
                run.advance(actions[env])
            except EnvironmentFault as fault:
                faults[env] = fault
        ended = [env for env, run in running.items() if run.is_over]
        if ended or faults:
            return ended


class _Running:
    """An episode under way.

    Args:
      env: Its environment, which is reset.
      builder: Takes the steps.
      observers: Take the trajectories.
      later: They take them when the episode has ended.
      times: Counts the time of the simulator.
    """

    def __init__(
        self,
        env: TrainingEnvironment,
        builder: SegmentBuilder | None,
        observers: Sequence[Observer],
        later: bool,
        times: StepTimes,
    ) -> None:
        self._env = env
        self._builder = builder
        self._observers = observers
        self._later = later
        self._seen: list[Any] = []
        self._times = times
        self._log = EpisodeLog()
        self.is_over = False
        self.time_step = env.reset()
        if builder:
            builder.start(self.time_step)

    def advance(self, action: Any) -> None:
        """Takes one step."""
        began = perf_counter()
        next_time_step = self._env.step(action)
        self._times.simulator += perf_counter() - began
        if self._builder:
            self._builder.add(action, next_time_step)
        self._log.add(next_time_step.reward, self._env.info)
        if self._observers:
            self._observe(action, next_time_step)
        self.time_step = next_time_step
        # TimeStep.is_last() takes 10 us: it asks for tensors first.
        self.is_over = next_time_step.step_type == ts.StepType.LAST

    def end(self, *, end_of_iteration: bool) -> Episode:
        """Hands over what is left of the episode."""
        if self._builder:
            self._builder.finish(ends_episode=True, end_of_iteration=end_of_iteration)
        for step in self._seen:
            self._tell(step)
        return self._log.episode()

    def break_off(self) -> None:
        """Hands over the steps so far."""
        if self._builder:
            self._builder.finish(ends_episode=False, end_of_iteration=False)

    def _observe(self, action: Any, next_time_step: ts.TimeStep) -> None:
        step = trajectory.from_transition(self.time_step, policy_step.PolicyStep(action), next_time_step)
        if self._later:
            self._seen.append(step)
        else:
            self._tell(step)

    def _tell(self, step: Any) -> None:
        for observer in self._observers:
            observer(step)


def _is_finite_number(value: Any) -> bool:
    is_number = isinstance(value, numbers.Real) or (isinstance(value, np.ndarray) and value.ndim == 0)
    return is_number and math.isfinite(value)


def _stack(rows: list[Any], columns: Sequence[Any]) -> list[np.ndarray]:
    if len(columns) == 1 and isinstance(rows[0], np.ndarray):
        return [np.array(rows, np.dtype(columns[0].dtype))]
    leaves = zip(*map(tree.flatten, rows), strict=True)
    return [np.array(values, np.dtype(column.dtype)) for column, values in zip(columns, leaves, strict=True)]
