"""Runs episodes in a worker's lanes: each is a single environment, or all are those of a vector environment."""

from __future__ import annotations

import contextlib
import copy
import math
import numbers
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import tree
from tf_agents.trajectories import policy_step, trajectory
from tf_agents.trajectories import time_step as ts

from tfagents_system.envs.faults import EnvironmentFault
from tfagents_system.envs.gym_driver import LOG_PREFIX, SUCCESS_KEYS
from tfagents_system.envs.training_environment import Infos, StepNews, TrainingEnvironment, lanes_of
from tfagents_system.policies.worker_policy import LaneSteps
from tfagents_system.transport.episode_reports import Episode
from tfagents_system.transport.segments import Layout
from tfagents_system.worker.actors import Actor
from tfagents_system.worker.recording import EpisodeRecord, Observer
from tfagents_system.worker.segment_builder import LaneColumns, SegmentBuilder

_FIRST, _MID, _LAST = np.int32(ts.StepType.FIRST), np.int32(ts.StepType.MID), np.int32(ts.StepType.LAST)
_UNKNOWN = -1  # Whether an episode is a success.


class StepTimes:
    """Seconds spent in the policy and in the simulator. A clock around every step costs 0.3 us."""

    def __init__(self) -> None:
        self.policy = self.simulator = 0.0

    def take(self) -> tuple[float, float]:
        """The seconds of policy and simulator since the last call."""
        taken = self.policy, self.simulator
        self.policy = self.simulator = 0.0
        return taken


class EpisodeLogs:
    """Return, length, success and `log/...` means of the episode under way in each lane.

    Args:
      num_lanes: N.
    """

    def __init__(self, num_lanes: int) -> None:
        self._return = np.zeros(num_lanes)
        self._length = np.zeros(num_lanes, np.int64)
        self._success = np.full(num_lanes, _UNKNOWN, np.int8)
        self._sums: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # and how many numbers they are of.
        self._ignored: set[Any] = set()

    def begin(self, lane: int) -> None:
        """An episode begins."""
        self._return[lane], self._length[lane] = 0.0, 0
        self._success[lane] = _UNKNOWN
        for sums, counts in self._sums.values():
            sums[lane] = counts[lane] = 0

    def add(self, rewards: np.ndarray) -> None:
        """Steps of all lanes, with their rewards `[steps, N]`: many at once, since each call costs a microsecond."""
        self._return += rewards.sum(axis=0, dtype=np.float64)
        self._length += len(rewards)

    def add_infos(self, infos: Infos) -> None:
        """What the environment has said in a step."""
        for info, lanes in infos:
            for key in info:
                if key not in self._ignored:
                    self._add_entry(key, info, lanes)

    def _add_entry(self, key: Any, info: Any, lanes: np.ndarray | int | None) -> None:
        values = info[key]
        if isinstance(key, str) and key.startswith(LOG_PREFIX):
            sums, counts = self._sums.setdefault(
                key, (np.zeros_like(self._return), np.zeros(len(self._return), np.int64))
            )
            if isinstance(lanes, int):
                if _is_finite_number(values):
                    sums[lanes] += float(values)
                    counts[lanes] += 1
                return
            values = np.asarray(values)
            if values.shape != self._return.shape or values.dtype.kind not in "iufb":
                return  # Of another form, or words.
            is_number = _both(np.isfinite(values), _both(lanes, info.get(f"_{key}")))
            np.add(sums, values, out=sums, where=is_number)
            np.add(counts, 1, out=counts, where=is_number)
        elif key not in SUCCESS_KEYS:
            self._ignored.add(key)
        elif isinstance(lanes, int):
            self._success[lanes] = bool(values)
        else:
            mask = _both(lanes, info.get(f"_{key}"))
            np.copyto(self._success, np.asarray(values).astype(bool), where=True if mask is None else mask)

    def episode(self, lane: int, *, has_failed: bool = False) -> Episode:
        """The lane's episode, which has ended."""
        means = {
            key.removeprefix(LOG_PREFIX): float(sums[lane] / counts[lane])
            for key, (sums, counts) in self._sums.items()
            if counts[lane]
        }
        success = None if self._success[lane] == _UNKNOWN else bool(self._success[lane])
        return Episode(float(self._return[lane]), int(self._length[lane]), success, means, has_failed)


def _is_finite_number(value: Any) -> bool:
    is_number = isinstance(value, numbers.Real) or (isinstance(value, np.ndarray) and value.ndim == 0)
    return is_number and math.isfinite(value)


def _both(one: Any, other: Any) -> Any:
    """Where two masks are true; None is true everywhere."""
    if one is None or other is None:
        return other if one is None else one
    return np.logical_and(np.asarray(one), np.asarray(other))


class Rollout:
    """Episodes in the lanes of a worker: whole ones, or so many steps of them at a time.

    All lanes step together. Those of a vector environment do so even without an episode that counts; what these do is
    dropped. So `steps` may take more steps than it hands over: fewer than one for each lane, which belong to the next
    call.

    Args:
      envs: The environments: single ones, or one vector environment.
      actor: Gives actions for all lanes at once.
      new_builder: Makes the builder that takes an episode's steps. Only the last segment of a call ends the iteration.
      observers: Take a Trajectory for every step, in order. Of several lanes they see one episode after another, each
        when it has ended.
      on_step: Called with the number of episodes under way before they step; may raise to end all of them early.
      on_episode: Called after each episode; may raise to end all episodes early.
      on_start: Called with an environment's index before it is reset; may replace the environment.
      on_fault: Called when an environment has failed: replaces it, and episodes begin again in the new one, or raises
        to end all episodes. The steps before the fault have been handed over, as episodes that were cut short; the step
        that failed is dropped with all its values. None: every fault is raised.
      counts_faults: An episode of `episodes` that a fault ends counts, with its return up to there.
      must_restart: Whether `steps` is to end all episodes of a vector environment, as cut short, and reset it.
      times: Counts the time of policy and simulator.
      new_record: Called with a lane when an episode begins in it: makes what records its steps.

    Attributes:
      actor: As above; may be replaced between two calls.
      num_lanes: N.
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
        counts_faults: bool = False,
        must_restart: Callable[[], bool] = lambda: False,
        times: StepTimes | None = None,
        new_record: Callable[[int], EpisodeRecord] | None = None,
    ) -> None:
        self.actor = actor
        self._envs = envs
        self._new_builder = new_builder
        self._on_step = on_step
        self._on_episode = on_episode
        self._on_start = on_start
        self._on_fault = on_fault
        self._counts_faults = counts_faults
        self._must_restart = must_restart
        self._times = times or StepTimes()
        self._new_record = new_record
        self._lanes = lanes_of(envs)
        count = self.num_lanes = self._lanes.num_lanes
        self._spec, self._action_spec = self._lanes.observation_spec(), self._lanes.action_spec()
        self._columns: LaneColumns | None = None
        self._full_at = 0  # The row at which the next segment may be full.
        self._is_begun = False  # A vector environment was reset, and did not fail since.
        self._running = list[int]()  # Lanes with an episode under way that counts,
        self._builders: list[SegmentBuilder | None] = [None] * count  # what takes their steps, if they are stored,
        self._records = dict[int, EpisodeRecord]()  # and what records them.
        self._waiting = list[int]()  # Lanes whose newest step is not handed over yet.
        self._logs = EpisodeLogs(count)
        self._watched = _Watched(observers, count) if observers else None
        self._types = np.full(count, _LAST)  # Of steps in mid-episode.
        zeros, ones = np.zeros(count, np.float32), np.ones(count, np.float32)
        self._steps = LaneSteps(self._types, zeros, ones, [], self._spec)  # The newest time steps, for the policy.
        self._logged = 0  # Rows whose rewards the logs have.
        self._news: StepNews | None = None  # Of the newest step.
        self._faults = dict[int, EnvironmentFault]()
        self._failed = list[Episode]()  # That count.

    def episodes(self, count: int) -> list[Episode]:
        """Runs exactly `count` episodes, at least 1, from reset to their ends; returns them as they ended.

        No episode is started that is not counted: short episodes are not preferred to long ones. In the end some lanes
        have nothing to do.
        """
        ended: list[Episode] = []
        with self._handing_over():
            self._give_up()
            while len(ended) < count:
                self._start(count - len(ended))
                self._advance()
                over = self._ended_of(self._running)
                ended += self._end(over, end_of_iteration=len(ended) + len(over) == count)
                self._waiting = []
                self._begin_next(count - len(ended) - len(self._failed))
                self._answer_faults()
                failed, self._failed = self._failed, []
                for episode in failed:  # Not of a fault that ends the worker.
                    self._on_episode(episode)
                ended += failed
        return ended

    def steps(self, count: int, *, goes_on: bool = True) -> list[Episode]:
        """Runs exactly `count` steps, of all lanes together, and hands all of them over.

        Episodes under way continue in the next call; without `goes_on` there is none, and samples may start at their
        last steps. Returns those that ended in this one.
        """
        ended: list[Episode] = []
        with self._handing_over():
            if self._is_begun and self._must_restart():
                self._break_off()
            while count:
                if not self._waiting:
                    self._start(self.num_lanes)
                    count -= self._advance(count)
                counted, self._waiting = self._waiting[:count], self._waiting[count:]  # They are handed over now.
                count -= len(counted)
                if self._columns is not None:
                    self._columns.uncounted = frozenset(self._waiting)
                ended += self._hand_over(self._ended_of(counted), is_last=not count, goes_on=goes_on)
                if not self._waiting:
                    self._begin_next(self.num_lanes)
                self._answer_faults()
        return ended

    @property
    def has_episodes(self) -> bool:
        """Whether episodes are under way."""
        return bool(self._running)

    # Steps.

    def _advance(self, most: float = math.inf) -> int:
        """Steps until an episode ends or begins, an environment fails, or `most` steps are taken or more.

        The newest step of the lanes with an episode waits to be counted.

        Returns:
          How many steps were taken before this one.
        """
        taken = 0
        while self._running or self._is_begun:
            self._on_step(len(self._running))
            began = perf_counter()
            actions = self.actor.act(self._steps)
            self._times.policy += perf_counter() - began
            try:
                has_news = self._step(actions, self.actor.explored)
            except EnvironmentFault as fault:
                self._fail(fault)
            self._waiting = self._running
            if self._faults or has_news or taken + len(self._running) >= most:
                break
            taken += len(self._running)
        return taken

    def _step(self, action: Sequence[np.ndarray], explored: np.ndarray) -> bool:
        """Steps all lanes; returns whether an episode ended or began in one.

        Args:
          action: Leaves `[N, ...]`.
          explored: `[N]` bool.

        Raises:
          EnvironmentFault: The vector environment has failed.
        """
        columns = self._columns
        assert columns is not None
        if columns.row >= self._full_at:
            self._make_room()
        before = None if self._watched is None else copy.copy(self._steps)
        began = perf_counter()
        news = self._news = self._lanes.step_lanes(action, columns, self._running)
        self._times.simulator += perf_counter() - began
        for lane, fault in news.faults.items():
            self._fail(fault, lane)
        columns.add(action, explored)
        steps, row = self._steps, columns.row
        steps.step_type, steps.observation = self._types, [leaf[row] for leaf in columns.observation]
        steps.reward, steps.discount = columns.reward[row - 1], columns.discount[row - 1]
        if news.infos:
            self._logs.add_infos(news.infos)
        if self._records or self._watched is not None:
            self._show(before, action, news)
        return bool(news.ended) or news.began is not None

    def _show(self, before: LaneSteps | None, action: Sequence[np.ndarray], news: StepNews) -> None:
        """A step for those who record or watch the lanes' episodes."""
        for lane in self._running:
            taken = tree.unflatten_as(self._action_spec, [leaf[lane, ...].copy() for leaf in action])
            if self._watched is not None and before is not None:
                self._watched.add(lane, before, taken, self._steps, is_last=lane in news.ended)
            if lane in self._records:
                self._records[lane].add(taken, self._steps.reward[lane], news.records_of(lane))

    def _log_rewards(self) -> None:
        """The logs get the rewards of the steps since the last call."""
        if self._columns is not None and self._columns.row > self._logged:
            self._logs.add(self._columns.reward[self._logged : self._columns.row])
            self._logged = self._columns.row

    def _make_room(self) -> None:
        """Cuts off what is full, and moves the columns if they are."""
        columns = self._columns
        assert columns is not None
        stored = [builder for builder in self._builders if builder is not None]
        for builder in stored:
            if builder.room <= 0:
                builder.cut(goes_on=True)
        if columns.row >= columns.capacity:
            self._log_rewards()
            steps = self._steps
            steps.reward, steps.discount = steps.reward.copy(), steps.discount.copy()  # Their row may go.
            columns.move(stored)
            steps.observation = [leaf[columns.row] for leaf in columns.observation]
            self._logged = columns.row
        self._full_at = min([columns.capacity, *(columns.row + builder.room for builder in stored)])

    # Episodes begin.

    def _start(self, most: int) -> None:
        """Begins episodes in environments that have none, up to so many under way."""
        if self._lanes.begins_episodes and not self._is_begun:
            self._start_in(0, range(self.num_lanes), most)
        elif not self._lanes.begins_episodes and len(self._running) < most:
            for lane in range(self.num_lanes):
                if lane not in self._running and lane not in self._faults and len(self._running) < most:
                    self._start_in(lane, [lane], most)

    def _start_in(self, env: int, lanes: Sequence[int], most: int) -> None:
        """Resets an environment with these lanes, and begins episodes in them, up to so many under way."""
        self._on_start(env)
        if self._lanes.begins_episodes:
            self._lanes = lanes_of(self._envs)  # It may have been replaced.
        first = self._begin_acting(lanes[0], counts=True)
        columns = self._columns or self._make_columns(first)
        if not self._running:
            self._log_rewards()
            columns.row = self._full_at = self._logged = 0
        try:
            self._lanes.reset_lanes(columns, lanes)
        except EnvironmentFault as fault:
            self._fail(fault, env)
            return
        self._is_begun = self._lanes.begins_episodes
        for lane in lanes:
            counts = len(self._running) < most
            builder = first if lane == lanes[0] else self._begin_acting(lane, counts=counts)
            self._begin(lane, builder, None, None, counts=counts)

    def _begin_acting(self, lane: int, *, counts: bool) -> SegmentBuilder | None:
        self.actor.reset([lane])
        return self._new_builder() if counts and self._new_builder is not None else None

    def _make_columns(self, builder: SegmentBuilder | None) -> LaneColumns:
        if builder is None:
            self._columns = LaneColumns(Layout.from_specs(self._spec, self._action_spec), self.num_lanes)
        else:
            self._columns = LaneColumns(builder.layout, self.num_lanes, builder.most_rows, builder.gamma)
        return self._columns

    def _begin(
        self,
        lane: int,
        builder: SegmentBuilder | None,
        first: Sequence[np.ndarray] | None,
        potential: np.ndarray | None,
        *,
        counts: bool,
    ) -> None:
        """An episode begins in a lane; further arguments as of LaneColumns.begin."""
        assert self._columns is not None
        self._columns.begin(lane, first, potential)
        steps = self._steps
        if steps.step_type is self._types:
            steps.step_type, steps.reward, steps.discount = map(np.array, (self._types, steps.reward, steps.discount))
        self._types[lane] = _MID
        steps.step_type[lane], steps.reward[lane], steps.discount[lane] = _FIRST, 0.0, 1.0
        steps.observation = [leaf[self._columns.row] for leaf in self._columns.observation]
        if not counts:
            return
        self._running = sorted([*self._running, lane])
        self._log_rewards()
        self._logs.begin(lane)
        if builder is not None:
            builder.begin(self._columns, lane)
            self._builders[lane] = builder
            self._full_at = min(self._full_at, self._columns.row + builder.room)
        if self._watched is not None:
            self._watched.begin(lane)
        if self._new_record is not None:
            self._records[lane] = self._new_record(lane)

    def _begin_next(self, most: int) -> None:
        """Begins episodes in lanes whose next one a vector environment has begun, up to so many under way."""
        news = self._news
        if not self._is_begun or news is None or news.began is None:
            return
        for lane in np.flatnonzero(news.began).tolist():
            counts = len(self._running) < most
            self._begin(lane, self._begin_acting(lane, counts=counts), news.first, news.first_potential, counts=counts)
        self._news = None

    # Episodes end.

    def _ended_of(self, lanes: Sequence[int]) -> list[int]:
        """Those of some lanes whose episode has ended with the newest step."""
        ended = self._news.ended if self._news is not None else ()
        return [lane for lane in lanes if lane in ended] if ended else []

    def _hand_over(self, over: Sequence[int], *, is_last: bool, goes_on: bool) -> list[Episode]:
        """Hands over what is left of episodes that have ended, and at the call's last step of all others."""
        builders = [builder for lane, builder in enumerate(self._builders) if is_last and lane not in over]
        under_way = [builder for builder in builders if builder is not None and builder.has_unsent_steps]
        ended = self._end(over, end_of_iteration=is_last and not under_way)
        for number, builder in enumerate(under_way, 1):
            builder.cut(goes_on=goes_on, end_of_iteration=number == len(under_way))
        return ended

    def _end(self, over: Sequence[int], *, end_of_iteration: bool) -> list[Episode]:
        """Hands over what is left of episodes that have ended, of all of them before the first is told: that may raise.

        Args:
          over: Their lanes.
          end_of_iteration: The last of them ends it.
        """
        last = len(over) if end_of_iteration else 0
        ended = [self._end_one(lane, end_of_iteration=number == last) for number, lane in enumerate(over, 1)]
        for episode in ended:
            self._on_episode(episode)
        return ended

    def _end_one(self, lane: int, *, end_of_iteration: bool) -> Episode:
        builder = self._builders[lane]
        self._forget(lane)
        if builder is not None:
            builder.cut(ends_episode=True, end_of_iteration=end_of_iteration)
        if self._watched is not None:
            self._watched.tell(lane)
        self._log_rewards()
        episode = self._logs.episode(lane)
        if (record := self._records.pop(lane, None)) is not None:
            record.end(episode)
        return episode

    def _forget(self, lane: int) -> None:
        self._builders[lane] = None
        self._running = [other for other in self._running if other != lane]
        if not self._lanes.begins_episodes:
            self._types[lane] = _LAST

    @contextlib.contextmanager
    def _handing_over(self) -> Iterator[None]:
        """Hands over the steps of all episodes under way where the block ends with an exception.

        Stopped, or a fault of an environment: the steps before it are true all the same.
        """
        try:
            yield
        except BaseException:
            self._break_off()
            raise

    def _break_off(self) -> None:
        """Hands over all steps so far, without those of the next call; all lanes are to be reset."""
        for builder in self._builders:
            if builder is not None:
                builder.cut()
        self._give_up()

    def _give_up(self) -> None:
        """Forgets the episodes under way; all lanes are to be reset."""
        if self._columns is not None:
            self._columns.uncounted = frozenset()
        self._builders = [None] * self.num_lanes
        self._records.clear()
        self._running, self._waiting, self._news, self._is_begun = [], [], None, False
        self._types[:] = _LAST

    # Faults.

    def _fail(self, fault: EnvironmentFault, lane: int = 0) -> None:
        """An environment has failed; the steps before are handed over."""
        self._faults.setdefault(lane, fault)
        if self._counts_faults:
            self._log_rewards()
            lanes = self._running if self._lanes.begins_episodes else {lane}.intersection(self._running)
            failed = [self._logs.episode(other, has_failed=True) for other in lanes]
            # Other lanes of a vector environment that have not stepped yet begin again.
            self._failed += [episode for episode in failed if episode.length or not self._lanes.begins_episodes]
        if self._lanes.begins_episodes:
            self._break_off()
            return
        builder = self._builders[lane]
        self._forget(lane)
        self._records.pop(lane, None)
        if builder is not None:
            builder.cut()

    def _answer_faults(self) -> None:
        while self._faults:
            env, fault = self._faults.popitem()
            if self._on_fault is None:
                raise fault
            self._on_fault(env, fault)


class _Watched:
    """The steps of each lane's episode, for observers.

    Args:
      observers: Take the trajectories: those of the only lane at once, of several lanes when an episode has ended.
      num_lanes: N.
    """

    def __init__(self, observers: Sequence[Observer], num_lanes: int) -> None:
        self._observers = observers
        self._later = num_lanes > 1
        self._seen: list[list[Any]] = [[] for _ in range(num_lanes)]

    def begin(self, lane: int) -> None:
        self._seen[lane] = []

    def add(self, lane: int, before: LaneSteps, action: Any, after: LaneSteps, *, is_last: bool) -> None:
        """A step of a lane."""
        first, second = (tree.map_structure(np.array, steps.row(lane)) for steps in (before, after))
        second = second._replace(step_type=np.array(_LAST if is_last else _MID))
        self._seen[lane].append(trajectory.from_transition(first, policy_step.PolicyStep(action), second))
        if not self._later:
            self.tell(lane)

    def tell(self, lane: int) -> None:
        """The observers see what they have not seen of the lane's episode."""
        for step in self._seen[lane]:
            for observer in self._observers:
                observer(step)
        self._seen[lane] = []
