"""Runs episodes in all lanes of a vector environment, with one inference and one environment step for all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import tree
from tf_agents.trajectories import policy_step, trajectory
from tf_agents.trajectories import time_step as ts

from tfagents_system.envs.batched_environment import BatchedEnvironment, BatchStep
from tfagents_system.envs.faults import EnvironmentFault
from tfagents_system.envs.loading import AnyEnvironment
from tfagents_system.policies.worker_policy import LaneSteps
from tfagents_system.report.episodes import Episode
from tfagents_system.transport.layout import Layout
from tfagents_system.worker.actors import Actor
from tfagents_system.worker.lane_columns import LaneColumns, LaneEpisode
from tfagents_system.worker.lane_logs import LaneLogs
from tfagents_system.worker.lane_records import LaneRecords
from tfagents_system.worker.recording import EpisodeRecord
from tfagents_system.worker.rollout import Observer, Rollout, StepTimes
from tfagents_system.worker.segment_builder import EpisodeCuts, SegmentBuilder


class BatchedRollout:
    """Rollout for a vector environment: the same episodes, segments and statistics, of lanes instead of environments.

    All lanes step together, those without an episode that counts as well; what these do is dropped. `steps` may
    therefore take more steps than it hands over: fewer than one for each lane, which belong to the next call.

    Arguments as of Rollout, except:
      envs: Of one BatchedEnvironment.
      on_start: Called with 0 before all lanes are reset.
      on_fault: Called with 0; episodes begin again in all lanes.
      must_restart: Whether `steps` is to end all episodes under way, as cut short, and begin anew.
    """

    def __init__(
        self,
        envs: Sequence[BatchedEnvironment],
        actor: Actor,
        *,
        new_builder: Callable[[], SegmentBuilder] | None = None,
        observers: Sequence[Observer] = (),
        on_step: Callable[[int], None] = lambda steps: None,
        on_episode: Callable[[Episode], None] = lambda episode: None,
        on_start: Callable[[int], None] = lambda env: None,
        on_fault: Callable[[int, EnvironmentFault], None] | None = None,
        must_restart: Callable[[], bool] = lambda: False,
        times: StepTimes | None = None,
        new_record: Callable[[int], EpisodeRecord] | None = None,
    ) -> None:
        self.actor = actor
        self._envs = envs
        self._new_cuts = (lambda: new_builder().cuts) if new_builder else None
        self._next_cuts: EpisodeCuts | None = None  # Made to learn how many rows are held.
        self._on_step = on_step
        self._on_episode = on_episode
        self._on_start = on_start
        self._on_fault = on_fault
        self._must_restart = must_restart
        self._times = times or StepTimes()
        self._is_stepped = False  # The lanes have been reset, and nothing has failed since.
        self._num_lanes = envs[0].num_lanes
        self._gamma = 1.0
        self._columns = self._make_columns(envs[0])
        self._spec = envs[0].observation_spec()
        self._logs = LaneLogs(self._num_lanes)
        self._watched = _Watched(observers, envs[0], self._num_lanes) if observers else None
        self._records = LaneRecords(new_record, envs[0].action_spec()) if new_record is not None else None
        self._episodes: list[LaneEpisode | None] = [None] * self._num_lanes
        self._running = np.zeros(self._num_lanes, bool)  # Lanes with an episode under way.
        self._is_first = np.ones(self._num_lanes, bool)
        self._reward, self._discount = np.zeros(self._num_lanes, np.float32), np.ones(self._num_lanes, np.float32)
        self._full_at = 0  # The row at which the next segment may be full.
        self._step: BatchStep | None = None  # The newest, while not all of its lanes are handed over,
        self._waiting = np.zeros(0, np.int64)  # and these lanes.

    def _make_columns(self, env: BatchedEnvironment) -> LaneColumns:
        if self._new_cuts is None:
            layout = Layout.from_specs(env.observation_spec(), env.action_spec())
            return LaneColumns(layout, env.num_lanes, 1)
        self._next_cuts = self._new_cuts()
        self._gamma = self._next_cuts.gamma
        return LaneColumns(self._next_cuts.layout, env.num_lanes, self._next_cuts.most_rows)

    def episodes(self, count: int) -> list[Episode]:
        """Runs exactly `count` episodes, at least 1, from reset to their ends; see Rollout.episodes."""
        ended: list[Episode] = []
        with self._handing_over():
            self._is_stepped = False
            while len(ended) < count:
                if not self._is_stepped:
                    self._reset(count - len(ended))
                    continue
                step = self._advance()
                if step is None:
                    continue
                over = np.flatnonzero(step.is_last & self._running)
                ended += self._end(over, end_of_iteration=len(ended) + len(over) == count)
                self._start(step, count - len(ended))
        return ended

    def steps(self, count: int, *, goes_on: bool = True) -> list[Episode]:
        """Hands over exactly `count` steps of all lanes together; see Rollout.steps."""
        ended: list[Episode] = []
        with self._handing_over():
            if self._is_stepped and self._must_restart():
                self._break_off()
            while count:
                if self._step is None:
                    if not self._is_stepped:
                        self._reset(self._num_lanes)
                        continue
                    self._step = self._advance()
                    if self._step is None:
                        continue
                    self._waiting = np.flatnonzero(self._running)
                counted, self._waiting = self._waiting[:count], self._waiting[count:]
                count -= len(counted)
                self._columns.uncounted = frozenset(self._waiting.tolist())
                ended += self._count(self._step, counted, is_last_step=not count, goes_on=goes_on)
        return ended

    def _count(self, step: BatchStep, lanes: np.ndarray, *, is_last_step: bool, goes_on: bool) -> list[Episode]:
        """The steps of these lanes belong to this call; returns the episodes that ended with them."""
        over = lanes[step.is_last[lanes]] if step.is_last.any() else lanes[:0]
        going_on = [e for e in self._going_on(over) if e.has_unsent_steps] if is_last_step else []
        ended = self._end(over, end_of_iteration=is_last_step and not going_on)
        for number, episode in enumerate(going_on, 1):
            is_last = number == len(going_on)
            if goes_on:
                episode.pause(end_of_iteration=is_last)
            else:
                episode.finish(ends_episode=False, end_of_iteration=is_last)
        if not len(self._waiting):
            self._start(step, self._num_lanes)
            self._step = None
        return ended

    def _going_on(self, over: np.ndarray) -> list[LaneEpisode]:
        """Episodes under way in lanes other than these."""
        ended = set(over.tolist())
        return [e for lane, e in enumerate(self._episodes) if e is not None and lane not in ended]

    @contextlib.contextmanager
    def _handing_over(self) -> Iterator[None]:
        """Hands over the steps of all episodes under way where the block ends with an exception."""
        try:
            yield
        except BaseException:
            self._break_off()
            raise

    def _break_off(self) -> None:
        """Hands over all steps so far, without those of the next call; all lanes are to be reset."""
        for episode in filter(None, self._episodes):
            episode.finish(ends_episode=False)
        self._columns.uncounted = frozenset()
        self._episodes = [None] * self._num_lanes
        self._running[:] = False
        self._step, self._waiting = None, self._waiting[:0]
        self._is_stepped = False

    def _reset(self, most: int) -> None:
        """Resets all lanes, and begins up to so many episodes."""
        self._on_start(0)
        self._episodes = [None] * self._num_lanes
        self._running[:] = False
        self._columns.row = self._full_at = 0
        try:
            potential = self._envs[0].reset(self._columns.newest)
        except EnvironmentFault as fault:
            self._answer(fault)
            return
        self._is_stepped = True
        for lane in range(self._num_lanes):
            self._begin(lane, None, potential, counts=lane < most)

    def _begin(
        self, lane: int, first: Sequence[np.ndarray] | None, potential: np.ndarray | None, *, counts: bool
    ) -> None:
        rows = self._columns.begin(lane, first, potential)
        self.actor.reset([lane])
        self._is_first[lane] = True
        self._reward[lane], self._discount[lane] = 0.0, 1.0
        if not counts:
            return
        cuts, self._next_cuts = self._next_cuts, None
        if cuts is None and self._new_cuts is not None:
            cuts = self._new_cuts()
        self._episodes[lane] = LaneEpisode(rows, cuts)
        self._running[lane] = True
        self._logs.begin(lane)
        if self._watched is not None:
            self._watched.begin(lane)
        if self._records is not None:
            self._records.begin(lane)

    def _start(self, step: BatchStep, most: int) -> None:
        """Begins episodes in lanes that have begun them, as long as fewer than `most` are under way."""
        if step.began is None:
            return
        for lane in np.flatnonzero(step.began):
            self._begin(lane, step.first, step.first_potential, counts=int(np.count_nonzero(self._running)) < most)

    def _end(self, over: np.ndarray, *, end_of_iteration: bool) -> list[Episode]:
        """Hands over what is left of the episodes that have ended in these lanes; see `Rollout._end`."""
        last = len(over) if end_of_iteration else 0
        ended = [self._end_one(lane, end_of_iteration=number == last) for number, lane in enumerate(over, 1)]
        for episode in ended:
            self._on_episode(episode)
        return ended

    def _end_one(self, lane: int, *, end_of_iteration: bool) -> Episode:
        episode = self._episodes[lane]
        assert episode is not None
        self._episodes[lane] = None
        self._running[lane] = False
        episode.finish(ends_episode=True, end_of_iteration=end_of_iteration)
        if self._watched is not None:
            self._watched.tell(lane)
        told = self._logs.episode(lane)
        if self._records is not None:
            self._records.end(lane, told)
        return told

    def _advance(self) -> BatchStep | None:
        """Steps all lanes; None if the environment has failed, and was replaced."""
        columns = self._columns
        if columns.row >= self._full_at or columns.is_full:
            self._make_room()
        self._on_step(int(np.count_nonzero(self._running)))
        began = perf_counter()
        types = np.where(self._is_first, ts.StepType.FIRST, ts.StepType.MID)
        steps = LaneSteps(types, self._reward, self._discount, columns.newest, self._spec)
        action = self.actor.act(steps)
        explored = None if columns.explored is None else self.actor.explored
        chosen = perf_counter()
        self._times.policy += chosen - began
        try:
            step = self._envs[0].step(action, columns.following)
        except EnvironmentFault as fault:
            self._answer(fault)
            return None
        self._times.simulator += perf_counter() - chosen
        columns.add(action, step.reward, step.discount, self._gamma, explored, step.potential)
        self._is_first[:] = False
        self._reward, self._discount = step.reward, step.discount
        self._logs.add(step)
        if self._watched is not None:
            self._watched.add(steps, action, step, columns.newest, self._running)
        if self._records is not None:
            self._records.add(action, step, self._running)
        return step

    def _make_room(self) -> None:
        """Cuts off what is full, and moves the columns if they are."""
        stored = [episode for episode in self._episodes if episode is not None and self._new_cuts is not None]
        for episode in stored:
            if episode.room <= 0:
                episode.pause(end_of_iteration=False)
        if self._columns.is_full:
            self._columns.move([episode.rows for episode in stored])
        self._full_at = self._columns.row + min((episode.room for episode in stored), default=self._columns.capacity)

    def _answer(self, fault: EnvironmentFault) -> None:
        """The environment is replaced; what it did before is handed over."""
        self._break_off()
        if self._on_fault is None:
            raise fault
        self._on_fault(0, fault)


AnyRollout = Rollout | BatchedRollout


def new_rollout(
    envs: Sequence[AnyEnvironment], actor: Actor, *, must_restart: Callable[[], bool] = lambda: False, **arguments: Any
) -> AnyRollout:
    """A rollout in environments of either kind; arguments as of Rollout and BatchedRollout."""
    if isinstance(envs[0], BatchedEnvironment):
        return BatchedRollout(envs, actor, must_restart=must_restart, **arguments)
    return Rollout(envs, actor, **arguments)  # type: ignore[arg-type]


class _Watched:
    """The steps of each lane's episode, for observers, which see one episode after another.

    Args:
      observers: Take the trajectories.
      env: For its specs.
      num_lanes: N.
    """

    def __init__(self, observers: Sequence[Observer], env: BatchedEnvironment, num_lanes: int) -> None:
        self._observers = observers
        self._spec = env.observation_spec()
        self._action_spec = env.action_spec()
        self._seen: list[list[Any]] = [[] for _ in range(num_lanes)]

    def begin(self, lane: int) -> None:
        self._seen[lane] = []

    def add(
        self,
        before: LaneSteps,
        action: Sequence[np.ndarray],
        step: BatchStep,
        observation: Sequence[np.ndarray],
        running: np.ndarray,
    ) -> None:
        """A step of the lanes with an episode that counts."""
        types = np.where(step.is_last, ts.StepType.LAST, ts.StepType.MID)
        after = LaneSteps(types, step.reward, step.discount, observation, self._spec)
        for lane in np.flatnonzero(running):
            first, second = (tree.map_structure(np.array, steps.row(lane)) for steps in (before, after))
            taken = policy_step.PolicyStep(tree.unflatten_as(self._action_spec, [leaf[lane].copy() for leaf in action]))
            self._seen[lane].append(trajectory.from_transition(first, taken, second))

    def tell(self, lane: int) -> None:
        """The lane's episode has ended."""
        for step in self._seen[lane]:
            for observer in self._observers:
                observer(step)
        self._seen[lane] = []
