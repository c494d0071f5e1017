"""Runs episodes in a worker's lanes, keeps their steps in columns, and cuts an episode's into segments.

Each lane is a single environment, or all are those of a vector environment.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import tree
from absl import logging
from tf_agents.trajectories import policy_step, trajectory
from tf_agents.trajectories import time_step as ts

from tfagents_system.checks.schedules import initial_value
from tfagents_system.envs.faults import EnvironmentFault
from tfagents_system.envs.gym_driver import LOG_PREFIX, SUCCESS_KEYS, one_number
from tfagents_system.envs.training_environment import (
    MAX_FLOAT32,
    Infos,
    StepColumns,
    StepNews,
    TrainingEnvironment,
    lanes_of,
)
from tfagents_system.errors import shown
from tfagents_system.policies.worker_policy import LaneSteps
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport.episode_reports import Episode
from tfagents_system.transport.segments import Layout, Segment
from tfagents_system.worker.actors import Actor
from tfagents_system.worker.recording import EpisodeRecord, Observer

_NO_NEWS = StepNews()
_FIRST, _MID, _LAST = np.int32(ts.StepType.FIRST), np.int32(ts.StepType.MID), np.int32(ts.StepType.LAST)
_ROOMY_BYTES = 64 * 2**20
_MOST_LOGS = 1000  # Of a report.
_left_out = set[str]()  # Keys of infos, by this process: logs are made anew for each iteration.


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
        self._success = np.full(num_lanes, np.nan)  # NaN: unknown.
        # Sums, and how many numbers they are of: `[2, N]`.
        self._sums = collections.defaultdict[str, np.ndarray](lambda: np.zeros((2, num_lanes)))
        self._ignored: set[Any] = set()

    def begin(self, lane: int) -> None:
        """An episode begins."""
        self._return[lane], self._length[lane] = 0.0, 0
        self._success[lane] = np.nan
        for sums in self._sums.values():
            sums[:, lane] = 0.0

    def add(self, rewards: np.ndarray) -> None:
        """Steps of all lanes, with their rewards `[steps, N]`: many at once, since each call costs a microsecond."""
        self._return += rewards.sum(axis=0, dtype=np.float64)
        self._length += len(rewards)

    def add_infos(self, infos: Infos) -> None:
        """What the environment has said in a step."""
        for info, lanes in infos:
            for key in info:
                if key in self._ignored:
                    continue
                is_log = isinstance(key, str) and key.startswith(LOG_PREFIX)
                if not (key in SUCCESS_KEYS or (is_log and (key in self._sums or len(self._sums) < _MOST_LOGS))):
                    self._ignored.add(key)
                elif isinstance(lanes, int):
                    self._add_of_lane(key, info[key], lanes)
                else:
                    self._add_of_lanes(key, np.asarray(info[key]), (lanes, info.get(f"_{key}")))

    def _add_of_lane(self, key: str, value: Any, lane: int) -> None:
        number = one_number(value)
        if number is not None and abs(number) <= MAX_FLOAT32:
            if key in SUCCESS_KEYS:
                self._success[lane] = bool(number)
            else:
                self._sums[key][:, lane] += number, 1.0
        elif key not in _left_out:
            _left_out.add(key)
            logging.warning("info[%r] is %s, no number up to %g: left out of metrics", key, shown(value), MAX_FLOAT32)

    def _add_of_lanes(self, key: str, values: np.ndarray, masks: Iterable[Any]) -> None:
        is_meant = np.ones(self._return.shape, bool)
        for mask in masks:
            if mask is not None:
                is_meant &= np.asarray(mask, bool)
        if values.shape[:1] != is_meant.shape:  # One for all lanes.
            values = np.broadcast_to(values, (*is_meant.shape, *values.shape))
        if values.ndim > 1 or values.dtype.kind not in "iufb" or not (np.abs(values[is_meant]) <= MAX_FLOAT32).all():
            for lane in np.flatnonzero(is_meant).tolist():
                self._add_of_lane(key, values[lane], lane)
        elif key in SUCCESS_KEYS:
            np.copyto(self._success, values.astype(bool), where=is_meant)
        else:
            self._sums[key] += np.where(is_meant, (values, np.ones_like(values)), 0.0)

    def episode(self, lane: int, *, has_failed: bool = False) -> Episode:
        """The lane's episode, which has ended."""
        sums = {key.removeprefix(LOG_PREFIX): sums[:, lane].tolist() for key, sums in self._sums.items()}
        means = {name: total / count for name, (total, count) in sums.items() if count}
        success = None if np.isnan(self._success[lane]) else bool(self._success[lane])
        return Episode(float(self._return[lane]), int(self._length[lane]), success, means, has_failed)


@dataclasses.dataclass(eq=False)
class Rollout:
    """Episodes in the lanes of a worker: whole ones, or so many steps of them at a time.

    All lanes step together. Those of a vector environment do so even without an episode that counts; what these do is
    dropped. So `steps` may take more steps than it hands over: fewer than one for each lane, which belong to the next
    call.

    Attributes:
      envs: The environments: single ones, or one vector environment.
      actor: Gives actions for all lanes at once; may be replaced between two calls.
      new_builder: Makes the builder that takes an episode's steps. Only the last segment of a call ends the iteration.
      observers: Take a Trajectory for every step, in order. Of several lanes they see one episode after another, each
        when it has ended.
      on_step: Called with the number of episodes under way before they step; may raise to end all of them early.
      on_episode: Called after each episode; may raise to end all episodes early.
      on_start: Called with an environment's index before it is reset; may replace the environment.
      on_fault: Called when an environment has failed: replaces it, and episodes begin again in the new one, or raises
        to end all episodes. The steps before the fault have been handed over, as episodes that were truncated, which
        count; the step that failed is dropped with all its values. None: every fault is raised.
      must_restart: Whether `steps` is to end all episodes of a vector environment, as cut short, and reset it.
      times: Counts the time of policy and simulator.
      new_record: Called with a lane when an episode begins in it: makes what records its steps.
      num_lanes: N.
    """

    envs: Sequence[TrainingEnvironment]
    actor: Actor
    _: dataclasses.KW_ONLY
    new_builder: Callable[[], SegmentBuilder] | None = None
    observers: Sequence[Observer] = ()
    on_step: Callable[[int], None] = lambda steps: None
    on_episode: Callable[[Episode], None] = lambda episode: None
    on_start: Callable[[int], None] = lambda env: None
    on_fault: Callable[[int, EnvironmentFault], None] | None = None
    must_restart: Callable[[], bool] = lambda: False
    times: StepTimes = dataclasses.field(default_factory=StepTimes)
    new_record: Callable[[int], EpisodeRecord] | None = None

    def __post_init__(self) -> None:
        self._lanes = lanes_of(self.envs)
        count = self.num_lanes = self._lanes.num_lanes
        self._spec, self._action_spec = self._lanes.observation_spec(), self._lanes.action_spec()
        self._columns: LaneColumns | None = None
        self._full_at = 0  # The row at which the next segment may be full.
        self._is_begun = False  # A vector environment was reset, and did not fail since.
        self._running = list[int]()  # Lanes with an episode under way that counts, in order,
        self._builders = dict[int, SegmentBuilder]()  # what takes their steps, if they are stored,
        self._records = dict[int, EpisodeRecord]()  # what records them,
        self._unseen = dict[int, list[Any]]()  # and what observers have not seen of them.
        self._waiting = list[int]()  # Lanes whose newest step is not handed over yet.
        self._logs = EpisodeLogs(count)
        self._types = np.full(count, _LAST)  # Of steps in mid-episode.
        zeros, ones = np.zeros(count, np.float32), np.ones(count, np.float32)
        self._steps = LaneSteps(self._types, zeros, ones, [], self._spec)  # The newest time steps, for the policy.
        self._logged = 0  # Rows whose rewards the logs have.
        self._news: StepNews | None = None  # Of the newest step.
        self._faults = dict[int, EnvironmentFault]()
        self._failed = list[Episode]()  # That count.
        self._missing = 0  # Of `episodes`.

    def episodes(self, count: int) -> list[Episode]:
        """Runs exactly `count` episodes, at least 1, from reset to their ends; returns them as they ended.

        No episode is started that is not counted: short episodes are not preferred to long ones. In the end some lanes
        have nothing to do.
        """
        ended: list[Episode] = []
        with self._handing_over():
            self._give_up()
            while (missing := count - len(ended)) > 0:
                self._missing = missing
                self._start(missing)
                self._advance()
                over = self._ended_of(self._running)
                ended += self._hand_over(over, is_last=len(over) + len(self._failed) == missing)
                self._waiting = []
                self._begin_next(count - len(ended) - len(self._failed))
                ended += self._answer_faults()
        return ended

    def steps(self, count: int, *, goes_on: bool = True) -> list[Episode]:
        """Runs exactly `count` steps, of all lanes together, and hands all of them over.

        Episodes under way continue in the next call; without `goes_on` there is none, and samples may start at their
        last steps. Returns those that ended in this one.
        """
        ended: list[Episode] = []
        with self._handing_over():
            if self._is_begun and self.must_restart():
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
                ended += self._answer_faults()
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
            self.on_step(len(self._running))
            began = perf_counter()
            actions = self.actor.act(self._steps)
            self.times.policy += perf_counter() - began
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
        before = copy.copy(self._steps) if self.observers else None
        began = perf_counter()
        news = self._news = self._lanes.step_lanes(action, columns, self._running)
        self.times.simulator += perf_counter() - began
        for lane, fault in news.faults.items():
            self._fail(fault, lane)
        columns.add(action, explored)
        steps, row = self._steps, columns.row
        steps.step_type, steps.observation = self._types, [leaf[row] for leaf in columns.observation]
        steps.reward, steps.discount = columns.reward[row - 1], columns.discount[row - 1]
        if news.infos:
            self._logs.add_infos(news.infos)
        if self._records or before is not None:
            self._show(before, action, news)
        return bool(news.ended) or news.began is not None

    def _show(self, before: LaneSteps | None, action: Sequence[np.ndarray], news: StepNews) -> None:
        """A step for those who record or watch the lanes' episodes."""
        for lane in self._running:
            taken = tree.unflatten_as(self._action_spec, [leaf[lane, ...].copy() for leaf in action])
            if before is not None:
                first, second = (tree.map_structure(np.array, steps.row(lane)) for steps in (before, self._steps))
                second = second._replace(step_type=np.array(_LAST if lane in news.ended else _MID))
                self._unseen[lane].append(trajectory.from_transition(first, policy_step.PolicyStep(taken), second))
                if self.num_lanes == 1:
                    self._tell(lane)
            if lane in self._records:
                self._records[lane].add(taken, self._steps.reward[lane], news.records_of(lane))

    def _tell(self, lane: int) -> None:
        """The observers see what they have not seen of the lane's episode."""
        for step in self._unseen.get(lane, ()):
            for observer in self.observers:
                observer(step)
        self._unseen[lane] = []

    def _log_rewards(self) -> None:
        """The logs get the rewards of the steps since the last call."""
        if self._columns is not None and self._columns.row > self._logged:
            self._logs.add(self._columns.reward[self._logged : self._columns.row])
            self._logged = self._columns.row

    def _make_room(self) -> None:
        """Cuts off what is full, and moves the columns if they are."""
        columns, builders = self._columns, list(self._builders.values())
        assert columns is not None
        for lane in sorted(self._builders):
            if self._builders[lane].room <= 0:
                self._builders[lane].cut(goes_on=True)
        if columns.row >= columns.capacity:
            self._log_rewards()
            steps = self._steps
            steps.reward, steps.discount = steps.reward.copy(), steps.discount.copy()  # Their row may go.
            columns.move(builders)
            steps.observation = [leaf[columns.row] for leaf in columns.observation]
            self._logged = columns.row
        self._full_at = min([columns.capacity, *(columns.row + builder.room for builder in builders)])

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
        self.on_start(env)
        if self._lanes.begins_episodes:
            self._lanes = lanes_of(self.envs)  # It may have been replaced.
        counting = lanes[: most - len(self._running)]
        builders = {lane: self._begin_acting(lane, counts=lane in counting) for lane in lanes}
        columns = self._columns or self._make_columns(builders[lanes[0]])
        if not self._running:
            self._log_rewards()
            columns.row = self._full_at = self._logged = 0
        try:
            self._lanes.reset_lanes(columns, lanes)
        except EnvironmentFault as fault:
            self._fail(fault, env)
            return
        self._is_begun = self._lanes.begins_episodes
        for lane, builder in builders.items():
            self._begin(lane, builder, counts=lane in counting)

    def _begin_acting(self, lane: int, *, counts: bool) -> SegmentBuilder | None:
        self.actor.reset([lane])
        return self.new_builder() if counts and self.new_builder is not None else None

    def _make_columns(self, builder: SegmentBuilder | None) -> LaneColumns:
        if builder is None:
            self._columns = LaneColumns(Layout.from_specs(self._spec, self._action_spec), self.num_lanes)
        else:
            self._columns = LaneColumns(builder.layout, self.num_lanes, builder.most_rows, builder.gamma)
        return self._columns

    def _begin(self, lane: int, builder: SegmentBuilder | None, *, counts: bool, news: StepNews = _NO_NEWS) -> None:
        """An episode begins in a lane, with the newest observation, or the news' first one."""
        assert self._columns is not None
        self._columns.begin(lane, news.first, news.first_potential)
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
        self._unseen[lane] = []
        if builder is not None:
            builder.begin(self._columns, lane)
            self._builders[lane] = builder
            self._full_at = min(self._full_at, self._columns.row + builder.room)
        if self.new_record is not None:
            self._records[lane] = self.new_record(lane)

    def _begin_next(self, most: int) -> None:
        """Begins episodes in lanes whose next one a vector environment has begun, up to so many under way."""
        news = self._news
        if not self._is_begun or news is None or news.began is None:
            return
        for lane in np.flatnonzero(news.began).tolist():
            counts = len(self._running) < most
            self._begin(lane, self._begin_acting(lane, counts=counts), counts=counts, news=news)
        self._news = None

    # Episodes end.

    def _ended_of(self, lanes: Sequence[int]) -> list[int]:
        """Those of some lanes whose episode has ended with the newest step."""
        ended = self._news.ended if self._news is not None else ()
        return [lane for lane in lanes if lane in ended] if ended else []

    def _hand_over(self, over: Sequence[int], *, is_last: bool, goes_on: bool = True) -> list[Episode]:
        """Hands over what is left of episodes that have ended, and at the call's last step of all others.

        It does so before the first of them is told: that may raise.

        Args:
          over: Lanes of those that have ended.
          is_last: The last segment ends the iteration.
          goes_on: The others continue.
        """
        others = [self._builders[lane] for lane in sorted(self._builders) if is_last and lane not in over]
        under_way = [builder for builder in others if builder.has_unsent_steps]
        last = len(over) if is_last and not under_way else 0
        ended = [self._end(lane, end_of_iteration=number == last) for number, lane in enumerate(over, 1)]
        for number, builder in enumerate(under_way, 1):
            builder.cut(goes_on=goes_on, end_of_iteration=number == len(under_way))
        for episode in ended:
            self.on_episode(episode)
        return ended

    def _end(self, lane: int, *, end_of_iteration: bool) -> Episode:
        if (builder := self._forget(lane)) is not None:
            builder.cut(ends_episode=True, end_of_iteration=end_of_iteration)
        self._tell(lane)
        self._log_rewards()
        episode = self._logs.episode(lane)
        if (record := self._records.pop(lane, None)) is not None:
            record.end(episode)
        return episode

    def _forget(self, lane: int) -> SegmentBuilder | None:
        """No episode is under way in a lane any more; returns what has its steps."""
        self._running = [other for other in self._running if other != lane]
        if not self._lanes.begins_episodes:
            self._types[lane] = _LAST
        return self._builders.pop(lane, None)

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
        for lane in sorted(self._builders):
            self._builders[lane].cut()
        self._give_up()

    def _give_up(self) -> None:
        """Forgets the episodes under way; all lanes are to be reset."""
        if self._columns is not None:
            self._columns.uncounted = frozenset()
        self._builders.clear()
        self._records.clear()
        self._running, self._waiting, self._news, self._is_begun = [], [], None, False
        self._types[:] = _LAST

    # Faults.

    def _fail(self, fault: EnvironmentFault, lane: int = 0) -> None:
        """An environment has failed; the steps before are handed over; episodes that have some count."""
        self._faults.setdefault(lane, fault)
        self._log_rewards()
        is_vector = self._lanes.begins_episodes
        for other in list(self._running) if is_vector else {lane}.intersection(self._running):
            builder, episode = self._builders.get(other), self._logs.episode(other, has_failed=True)
            if builder.has_unsent_steps if builder is not None else episode.length or not is_vector:
                fault.counts |= episode.length > 0
                self._failed.append(episode)
                if builder is not None:
                    builder.cut(ends_episode=True, end_of_iteration=len(self._failed) == self._missing)
        if self._lanes.begins_episodes:
            self._break_off()
            return
        self._records.pop(lane, None)
        if (builder := self._forget(lane)) is not None:
            builder.cut()

    def _answer_faults(self) -> list[Episode]:
        """Returns the episodes that count; none is told of where a fault ends the worker."""
        while self._faults:
            env, fault = self._faults.popitem()
            if self.on_fault is None:
                raise fault
            self.on_fault(env, fault)
        failed, self._failed = self._failed, []
        for episode in failed:
            self.on_episode(episode)
        return failed


# Segments.


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

    def begin(self, lane: int, first: Sequence[np.ndarray] = (), potential: np.ndarray | None = None) -> None:
        """An episode begins in a lane.

        Args:
          lane: From 0.
          first: Leaves `[N, ...]`, of which this lane's is its first observation; none: the newest one is.
          potential: Those of `first`, `[N]`, where there is a column.
        """
        for column, leaf in zip(self.observation if first else (), first, strict=True):
            column[self.row, lane] = leaf[lane]
        if self.potential is not None and potential is not None:
            self.potential[self.row, lane] = potential[lane]
        self._return[lane] = 0.0


def _present(*columns: np.ndarray | None) -> list[np.ndarray]:
    return [column for column in columns if column is not None]


@dataclasses.dataclass(eq=False)
class SegmentBuilder:
    """Cuts one episode into segments.

    However the episode is cut, its samples are those of the whole episode (transport/segments.py).

    Attributes:
      layout: The environment's columns.
      max_steps: New steps of a segment, at most.
      send: Takes each segment when it is full, or when the episode ends.
      held_out: The episode is never trained on.
      history: Observations before a segment's first transition that go with it, at most.
      gamma: Discount of a step, for the returns, where the layout has them.
      look_ahead: Steps behind its first one that a sample needs.
      look_back: Steps before its first one that a sample needs.
      number: Of the episode, as of Segment.episode.
      first_observation: Row of the oldest observation that is held for the next segment.
    """

    layout: Layout
    max_steps: int
    send: Callable[[Segment], None]
    held_out: bool = False
    history: int = 0
    gamma: float = 1.0
    look_ahead: int = 0
    look_back: int = 0
    number: int = 0

    _dropped = 0  # Observations of the episode that are not held any more.
    _starts_episode = True
    _lead = 0  # Steps held that were sent already.
    _context = 0  # Steps of the lead at which no sample starts any more.

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
        return self.history + self.look_ahead + self.look_back + self.max_steps + 1

    @property
    def room(self) -> int:
        """Steps that the episode may take until its segment is full."""
        return self.max_steps - (self._end - self._first_step - self._lead)

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
        deferred = min(self.look_ahead, steps - self._context) if goes_on else 0
        history = self._first_step - self.first_observation
        segment = Segment(
            worker_id=0,  # This and the next three are filled in when it is sent.
            incarnation=0,
            number=0,
            iteration=0,
            end_of_iteration=end_of_iteration,
            starts_episode=self._starts_episode,
            ends_episode=ends_episode,
            held_out=self.held_out,
            history=history,
            lead=self._lead,
            context=self._context,
            deferred=deferred,
            episode=np.array([[self.number, self._dropped]], np.int64) if self.layout.episode else None,
            observation=[column[seen, lane].copy() for column in columns.observation],
            action=[column[taken, lane].copy() for column in columns.action],
            reward=columns.reward[taken, lane].copy(),
            discount=columns.discount[taken, lane].copy(),
            returns=None if columns.returns is None else _as_float32(columns.returns[taken, lane]),
            explored=None if columns.explored is None else columns.explored[taken, lane].copy(),
            potential=None if columns.potential is None else columns.potential[seen, lane].copy(),
        )
        given_up = max(0, steps - deferred - self.look_back)
        dropped = max(0, history + given_up - self.history)
        self._first_step += given_up
        self.first_observation += dropped
        self._dropped += dropped
        self._lead = steps - given_up
        self._context = self._lead - deferred
        self._starts_episode &= given_up == 0
        self.send(segment)


def _as_float32(returns: np.ndarray) -> np.ndarray:
    return np.clip(returns, -MAX_FLOAT32, MAX_FLOAT32).astype(np.float32)


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
