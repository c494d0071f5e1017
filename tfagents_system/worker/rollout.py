"""Runs episodes in a worker's environments, side by side where there are several."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import Any

import tree
from tf_agents.trajectories import policy_step, trajectory
from tf_agents.trajectories import time_step as ts

from tfagents_system.envs.faults import EnvironmentFault
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.policies.worker_policy import LaneSteps
from tfagents_system.report.episodes import Episode
from tfagents_system.worker.actors import Actor
from tfagents_system.worker.episode_log import EpisodeLog
from tfagents_system.worker.recording import EpisodeRecord
from tfagents_system.worker.segment_builder import SegmentBuilder

Observer = Callable[[Any], None]


class StepTimes:
    """Seconds spent in the policy and in the simulator. A clock around every step costs 0.3 us."""

    def __init__(self) -> None:
        self.policy = self.simulator = 0.0

    def take(self) -> tuple[float, float]:
        """The seconds of policy and simulator since the last call."""
        taken = self.policy, self.simulator
        self.policy = self.simulator = 0.0
        return taken


class Rollout:
    """Episodes in some environments: whole ones, or so many steps of them at a time.

    Args:
      envs: The environments. One whose episode has ended takes the next.
      actor: Gives actions for all environments with an episode under way, at once.
      new_builder: Makes the builder that takes an episode's steps. Only the last segment of a call ends the iteration.
      observers: Take a Trajectory for every step, in order. Of several environments they see one episode after
        another, each when it has ended.
      on_step: Called with the number of environments before they step; may raise to end all episodes early.
      on_episode: Called after each episode; may raise to end all episodes early.
      on_start: Called with an environment's index before an episode begins in it; may replace the environment.
      on_fault: Called when an environment has failed: replaces it, and the episode begins again in the new one, or
        raises to end all episodes. The steps before the fault have been handed over, as an episode that was cut short;
        the step that failed is dropped with all its values. None: every fault is raised.
      times: Counts the time of policy and simulator.
      new_record: Called with an environment's index when an episode begins in it: makes what records its steps.

    Attributes:
      actor: As above; may be replaced between two calls.
      turn: The environment that steps first where not all may.
    """

    def __init__(
        self,
        envs: Sequence[TrainingEnvironment],
        actor: Actor,
        *,
        new_builder: Callable[[], SegmentBuilder] | None = None,
        observers: Sequence[Observer] = (),
        on_step: Callable[[int], None] = lambda steps: None,
        on_episode: Callable[[Episode], None] = lambda episode: None,
        on_start: Callable[[int], None] = lambda env: None,
        on_fault: Callable[[int, EnvironmentFault], None] | None = None,
        times: StepTimes | None = None,
        new_record: Callable[[int], EpisodeRecord] | None = None,
    ) -> None:
        self.actor = actor
        self._envs = envs
        self._new_builder = new_builder
        self._observers = observers
        self._on_step = on_step
        self._on_episode = on_episode
        self._on_start = on_start
        self._on_fault = on_fault
        self._times = times or StepTimes()
        self._new_record = new_record
        action_spec = envs[0].action_spec()
        self._action_spec = action_spec if tree.is_nested(action_spec) else None  # None: one array.
        self._running: dict[int, _Running] = {}
        self._faults: dict[int, EnvironmentFault] = {}
        self._steps_left = math.inf
        self.turn = 0

    @property
    def num_envs(self) -> int:
        """How many environments there are."""
        return len(self._envs)

    def episodes(self, count: int) -> list[Episode]:
        """Runs exactly `count` episodes, at least 1, from reset to their ends; returns them as they ended.

        No episode is started that is not counted: short episodes are not preferred to long ones. In the end some
        environments have nothing to do.
        """
        ended: list[Episode] = []
        with self._handing_over():
            while len(ended) < count:
                self._start(count - len(ended) - len(self._running))
                over = self._advance()
                ended += self._end(over, end_of_iteration=len(ended) + len(over) == count)
                self._answer_faults()
        return ended

    def steps(self, count: int, *, goes_on: bool = True) -> list[Episode]:
        """Runs exactly `count` steps, of all environments together, and hands all of them over.

        Episodes under way continue in the next call; without `goes_on` there is none, and samples may start at their
        last steps. Returns those that ended in this one.
        """
        ended: list[Episode] = []
        self._steps_left = count
        with self._handing_over():
            while self._steps_left:
                self._start(len(self._envs))
                over = self._advance()
                paused: list[_Running] = [] if self._steps_left else self._unsent()
                ended += self._end(over, end_of_iteration=not self._steps_left and not paused)
                for number, run in enumerate(paused, 1):
                    hand_over = run.pause if goes_on else run.break_off
                    hand_over(end_of_iteration=number == len(paused))
                self._answer_faults()
        return ended

    def repeat(self, env: int, parts: Iterable[Sequence[tuple[Any, bool]]]) -> None:
        """Begins an episode with actions that were chosen before; it continues in the next call of `steps`.

        Args:
          env: An environment without an episode.
          parts: The actions up to each end of an iteration, where the episode is cut, each with whether it explored. An
            EnvironmentFault that they raise counts as one of the environment.
        """
        with self._handing_over():
            self._begin(env)
            try:
                for actions in parts if env in self._running else ():
                    run = self._running[env]
                    run.record = None  # Its actor was another one.
                    for action, explored in actions:
                        if not run.is_over:
                            self._on_step(0)
                            run.advance(action, explored)
                    run.pause(end_of_iteration=False)
            except EnvironmentFault as fault:
                self._running.pop(env).break_off()
                self._faults[env] = fault
            self._answer_faults()

    def _unsent(self) -> list[_Running]:
        """Episodes under way with steps to hand over."""
        return [run for run in self._running.values() if run.has_unsent_steps]

    @contextlib.contextmanager
    def _handing_over(self) -> Iterator[None]:
        """Hands over the steps of all episodes under way where the block ends with an exception.

        Stopped, or a fault of an environment: the steps before it are true all the same.
        """
        try:
            yield
        except BaseException:
            for run in self._running.values():
                run.break_off()
            raise

    def _start(self, most: int) -> None:
        """Begins up to so many episodes in environments that have none."""
        for env in [env for env in range(len(self._envs)) if env not in self._running][:most]:
            self._begin(env)

    def _begin(self, env: int) -> None:
        self._on_start(env)
        self.actor.reset([env])
        builder = self._new_builder and self._new_builder()
        later = len(self._envs) > 1
        try:
            self._running[env] = _Running(self._envs[env], builder, self._observers, later, self._times)
        except EnvironmentFault as fault:
            self._faults[env] = fault
            return
        if self._new_record is not None:
            self._running[env].record = self._new_record(env)

    def _advance(self) -> list[_Running]:
        """Steps until an episode ends, an environment fails or no step is left; returns the episodes that ended."""
        ended = [self._running.pop(env) for env in (self._step() if self._running else [])]
        for env in self._faults:
            if env in self._running:
                self._running.pop(env).break_off()
        return ended

    def _end(self, over: Sequence[_Running], *, end_of_iteration: bool) -> list[Episode]:
        """Hands over what is left of episodes that have ended, of all of them before the first is told: that may raise.

        Args:
          over: The episodes.
          end_of_iteration: The last of them ends it.
        """
        last = len(over) if end_of_iteration else 0
        ended = [run.end(end_of_iteration=number == last) for number, run in enumerate(over, 1)]
        for episode in ended:
            self._on_episode(episode)
        return ended

    def _answer_faults(self) -> None:
        while self._faults:
            env, fault = self._faults.popitem()
            if self._on_fault is None:
                raise fault
            self._on_fault(env, fault)

    def _step(self) -> list[int]:
        """Steps the environments together; returns those whose episode has ended."""
        faults = self._faults
        while True:
            running = self._running if self._steps_left >= len(self._running) else self._some(int(self._steps_left))
            self._on_step(len(running))
            began = perf_counter()
            envs = sorted(running)
            steps = LaneSteps.of([running[env].time_step for env in envs], envs if len(envs) < self.num_envs else None)
            actions = self.actor.act(steps)
            self._times.policy += perf_counter() - began
            for row, env in enumerate(envs):
                run = running[env]
                action = [leaf[row, ...] for leaf in actions]
                try:
                    run.advance(
                        action[0] if self._action_spec is None else tree.unflatten_as(self._action_spec, action),
                        run.takes_explored and bool(self.actor.explored[env]),
                    )
                    self._steps_left -= 1
                except EnvironmentFault as fault:
                    faults[env] = fault
            ended = [env for env, run in running.items() if run.is_over]
            if ended or faults or not self._steps_left:
                return ended

    def _some(self, count: int) -> dict[int, _Running]:
        """So many of the environments, in turn."""
        envs = sorted(self._running, key=lambda env: (env - self.turn) % len(self._envs))[:count]
        self.turn = (envs[-1] + 1) % len(self._envs)
        return {env: self._running[env] for env in envs}


class _Running:
    """An episode under way.

    Args:
      env: Its environment, which is reset.
      builder: Takes the steps.
      observers: Take the trajectories.
      later: They take them when the episode has ended.
      times: Counts the time of the simulator.

    Attributes:
      record: Records the steps; None: nobody asks for them.
    """

    record: EpisodeRecord | None = None

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
        self.takes_explored = builder is not None and builder.takes_explored
        self.time_step = env.reset()
        if builder:
            builder.start(self.time_step, env.potential)

    def advance(self, action: Any, explored: bool = False) -> None:
        """Takes one step, with an action that may be another one than the greedy one."""
        began = perf_counter()
        next_time_step = self._env.step(action)
        self._times.simulator += perf_counter() - began
        if self._builder:
            self._builder.add(action, next_time_step, explored, self._env.potential)
        self._log.add(next_time_step.reward, self._env.info)
        if self.record is not None:
            self.record.add(action, next_time_step.reward, self._env.info)
        if self._observers:
            self._observe(action, next_time_step)
        self.time_step = next_time_step
        # TimeStep.is_last() takes 10 us: it asks for tensors first.
        self.is_over = next_time_step.step_type == ts.StepType.LAST

    @property
    def has_unsent_steps(self) -> bool:
        """Whether there are steps to hand over."""
        return self._builder is not None and self._builder.has_unsent_steps

    def pause(self, *, end_of_iteration: bool) -> None:
        """Hands over the steps so far; the episode continues."""
        if self._builder:
            self._builder.pause(end_of_iteration=end_of_iteration)

    def end(self, *, end_of_iteration: bool) -> Episode:
        """Hands over what is left of the episode."""
        if self._builder:
            self._builder.finish(ends_episode=True, end_of_iteration=end_of_iteration)
        for step in self._seen:
            self._tell(step)
        episode = self._log.episode()
        if self.record is not None:
            self.record.end(episode)
        return episode

    def break_off(self, *, end_of_iteration: bool = False) -> None:
        """Hands over the steps so far; the episode does not continue."""
        if self._builder:
            self._builder.finish(ends_episode=False, end_of_iteration=end_of_iteration)

    def _observe(self, action: Any, next_time_step: ts.TimeStep) -> None:
        step = trajectory.from_transition(self.time_step, policy_step.PolicyStep(action), next_time_step)
        if self._later:
            self._seen.append(step)
        else:
            self._tell(step)

    def _tell(self, step: Any) -> None:
        for observer in self._observers:
            observer(step)
