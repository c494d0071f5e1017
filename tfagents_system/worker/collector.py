"""Collects a worker's share of an iteration and hands its steps to the replay server.

With SAC_DETERMINISTIC=1 another start of the worker repeats the episode under way up to where this one has left it. It
follows from its number, which seeds the environment, and from the actions: the journal has both.
"""

from __future__ import annotations

import contextlib
import dataclasses
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from absl import logging

from tfagents_system.envs.curriculum import Curriculum
from tfagents_system.policies.worker_policy import LaneSteps
from tfagents_system.replay.ring import INIT_ITERATION
from tfagents_system.role import COLLECT_STREAM, GREEDY_STREAM, HELD_OUT_STREAM, Role
from tfagents_system.transport.episode_reports import Episode, KeptEpisode, eval_share
from tfagents_system.transport.segments import Column, Layout, Segment
from tfagents_system.worker.actors import Actor, EpisodeShare
from tfagents_system.worker.episode_runner import COLLECTING, EpisodeRunner
from tfagents_system.worker.newest_policy import NewestPolicy
from tfagents_system.worker.recording import BestOfWorker, EpisodeRecorder, callables, observed, takers_of
from tfagents_system.worker.rollout import Rollout
from tfagents_system.worker.segment_builder import SegmentBuilder, segment_builder
from tfagents_system.worker.sender import BackgroundSender, SegmentSender

_MOST_EPISODES = 1 << 20  # Of a deterministic run's worker, in an iteration.


class Collector:
    """Collects for one worker.

    Args:
      role: The process.
      start: Tells the worker's starts apart: another one holds out other episodes, unless the run is deterministic.
      incarnation: Of this process; episodes are numbered from it on, unless the run is deterministic.
      runner: Runs the episodes.
      sender: Sends their segments.
      layout: Of the segments.
      policy: Collects.

    Attributes:
      greedy: Of the actor: whether the episode that begins is collected without exploration.
      number: Of the next episode, among all of the worker's. In a deterministic run it decides what is random in the
        episode, whichever start of the worker collects it.
    """

    def __init__(
        self,
        role: Role,
        start: int,
        incarnation: int,
        runner: EpisodeRunner,
        sender: SegmentSender | BackgroundSender,
        layout: Layout,
        policy: NewestPolicy,
    ) -> None:
        params = self._params = role.params
        self._is_deterministic = role.deterministic
        self._start, self._incarnation = 0 if role.deterministic else start, incarnation
        self._runner, self._activity, self._sender = runner, runner.activity, sender
        self._layout = layout
        self._policy = policy
        self.number = 0
        held_out_seed, greedy_seed = (
            role.derived_seed(stream, role.worker_id, self._start) for stream in (HELD_OUT_STREAM, GREEDY_STREAM)
        )
        # Episode 0 is never held out: there is something to train on.
        self._held_out = EpisodeShare(params.validation_share, held_out_seed, first=1)
        greedy = EpisodeShare(params.greedy_episode_share, greedy_seed)
        self.greedy: bool | Callable[[], bool] = False
        if params.greedy_episode_share:
            self.greedy = lambda: greedy.has(self.number)
        self._curriculum = Curriculum.from_config(params.env_config)
        self._observers = list(params.train_observers_ctor())
        self._best = BestOfWorker(params.keep_best_episodes)
        takers = takers_of(self._observers)
        if params.keep_best_episodes:
            takers.append(self._best.take)
        self._recorder = EpisodeRecorder(role.worker_id, runner.env_id, takers, lambda: policy.train_step)
        self._new_record = self._recorder.begin if takers else None
        self._iteration = INIT_ITERATION
        self._rollout: Rollout | None = None  # Of iterations of steps, with the episodes under way.

    def collect_random(self, count: int, actor: Actor) -> None:
        """Collects so many of the first random episodes, or steps where `initial_collect_steps` counts them.

        Episodes that are under way after these steps are given up.

        Raises:
          StoppedError, EnvironmentFault, TooLargeError: As of `collect_episodes`.
        """
        if self._params.initial_collect_steps is None:
            self.collect_episodes(INIT_ITERATION, count, actor)
            return
        self._runner.repeat(COLLECT_STREAM, INIT_ITERATION)
        self.collect_steps(INIT_ITERATION, count, actor)
        self._rollout = None

    def collect_episodes(self, iteration: int, count: int, actor: Actor) -> list[Episode]:
        """Collects so many whole episodes; all of their steps are sent, and may not be stored yet.

        Raises:
          StoppedError, EnvironmentFault: See EpisodeRunner.
          TooLargeError: The worker's process has grown too large.
        """
        if self._is_deterministic:
            self.number = (iteration - INIT_ITERATION) * self._params.num_train_episodes_per_iter
        self._runner.repeat(COLLECT_STREAM, iteration)
        rollout = self._new_rollout(actor)
        with self._collecting(iteration, actor):
            return rollout.episodes(count)

    def collect_steps(self, iteration: int, count: int, actor: Actor) -> list[Episode]:
        """Collects so many steps, of all of the worker's environments together, in the episodes that are under way.

        Args:
          iteration: Of the steps.
          count: How many.
          actor: Chooses the actions.

        Returns:
          Those that ended.

        Raises:
          StoppedError, EnvironmentFault, TooLargeError: As of `collect_episodes`.
        """
        if self._rollout is None:
            self._rollout = self._begin_steps(iteration, actor)
        self._rollout.actor = actor
        self._runner.repeat(COLLECT_STREAM, iteration, reseeds_environments=False)
        with self._collecting(iteration, actor):
            return self._rollout.steps(count, goes_on=iteration != INIT_ITERATION)

    def _begin_steps(self, iteration: int, actor: Actor) -> Rollout:
        """A rollout whose first iteration of steps is this one."""
        return self._new_rollout(actor)

    def give_up_episodes(self) -> None:
        """The episodes under way do not go on: something else happens in their environments. Their steps are sent."""
        self._rollout = None

    @contextlib.contextmanager
    def _collecting(self, iteration: int, actor: Actor) -> Iterator[None]:
        self._iteration = self._recorder.iteration = iteration
        self._recorder.actor = actor
        self._recorder.curriculum = self._curriculum.values_at(max(0, iteration), is_eval=False)
        self._runner.environments.set_due(max(0, iteration))
        self._activity.tell(iteration=iteration)
        with self._activity.spend(COLLECTING):
            with self._runner.stepping(is_eval=False):
                yield
            self.confirm()

    def _new_rollout(self, actor: Actor) -> Rollout:
        return self._runner.rollout(
            actor,
            is_eval=False,
            new_builder=self._new_builder,
            on_start=self._on_start,
            observers=callables(self._observers),
            on_episode=self._on_episode,
            new_record=self._new_record,
        )

    def _on_start(self, env: int) -> None:
        if self._params.keep_best_episodes:
            self._seed_episode(env)

    def _seed_episode(self, env: int) -> None:
        self._recorder.seed = self._runner.repeat_episode(env, self.number, self._start)

    def _on_episode(self, episode: Episode) -> None:
        self._activity.ended_episode(episode.episode_return)
        self._activity.beat(COLLECTING)
        self._runner.environments.memory.check()

    def take_best(self) -> list[KeptEpisode]:
        """Episodes since the last call that `keep_best_episodes` may keep."""
        return self._best.pop()

    @property
    def observed(self) -> dict[str, float]:
        """Results of the user's observers, by name."""
        return observed(self._observers)

    def confirm(self) -> None:
        """Sends again what is not stored, where it is time to."""
        with self._activity.server_time():
            self._sender.confirm()

    def _new_builder(self) -> SegmentBuilder:
        """Takes the steps of an episode that begins."""
        number, self.number = self.number, self.number + 1
        episode = self._episode_id(number)
        return segment_builder(self._params, self._layout, self._send, self._held_out.has(number), number=episode)

    def _episode_id(self, number: int) -> int:
        """Segment.episode: no other episode of the worker in the run's experience has the same.

        In a deterministic run, where numbers may begin anew with each iteration, any start of the worker gives an
        episode the same; in others those of a later start are larger.
        """
        if self._is_deterministic:
            return (self._iteration + 1) * _MOST_EPISODES + number % _MOST_EPISODES
        return self._incarnation + number

    def _send(self, segment: Segment) -> None:
        with self._activity.server_time():
            self._sender.send(dataclasses.replace(segment, iteration=self._iteration))


class RepeatedActions:
    """An actor that acts as before, in the only lane. Whether an action was greedy is not known any more.

    Args:
      actor: Acts when they are repeated.
      part: Has the actions.
      column: Theirs.
    """

    q_values = None
    was_greedy = np.zeros(1, np.bool_)

    def __init__(self, actor: Actor, part: EpisodeUnderWay, column: Column) -> None:
        self._actor = actor
        self._actions = np.frombuffer(part.actions, column.dtype).reshape(part.steps, 1, *column.shape)
        self._explored = np.frombuffer(part.explored or bytes(part.steps), np.bool_).reshape(-1, 1)
        self._next = 0

    @property
    def explored(self) -> np.ndarray:
        return self._explored[self._next - 1]

    def reset(self, lanes: Sequence[int]) -> None:
        self._actor.reset(lanes)

    def act(self, steps: LaneSteps) -> list[np.ndarray]:
        self._next = min(self._next + 1, len(self._actions))  # An environment that fails this time takes more steps.
        return [self._actions[self._next - 1]]


class JournaledCollector(Collector):
    """Collects iterations of steps in a worker's only environment, and writes a journal of the episodes."""

    def __init__(self, role: Role, *parts: Any) -> None:
        super().__init__(role, *parts)
        self._journal = EpisodeJournal(role.paths.journal(role.name))
        self._first_number = eval_share(
            self._params.num_initial_episodes, range(role.variables.num_collect_workers), role.worker_id
        )
        self._under_way = self._begun = 0  # The newest episode, and the iteration that it began in.
        self._segments: list[Segment] = []  # Its steps of this iteration.
        self._checksum = 0  # Of all that the environment has returned in it.
        self._is_repeating = False

    def _begin_steps(self, iteration: int, actor: Actor) -> Rollout:
        """Goes on in the episode that was under way at the end of the iteration before."""
        rollout = super()._begin_steps(iteration, actor)
        if iteration == INIT_ITERATION:
            return rollout
        assert rollout.num_lanes == 1, "others are refused before the start"
        self.number = self._first_number + iteration * (self._params.env_steps_per_iter or 0)
        if iteration == 0:
            return rollout
        try:
            cut, parts = self._journal.at(iteration - 1)
        except JournalError as error:
            logging.error("%s: other episodes begin, and the weights are not those of an uninterrupted run", error)
            return rollout
        if parts and not self._repeat(rollout, parts, actor):
            logging.error(
                "the environment has not returned what it returned before, for the same seed and actions. The weights "
                "are no longer those of an uninterrupted run: make its episodes depend on the seed of reset() alone, "
                "not on earlier episodes, clocks or other random numbers; or set SAC_DETERMINISTIC=0"
            )
            rollout = super()._begin_steps(iteration, actor)
        self.number = cut.next_number
        return rollout

    def _repeat(self, rollout: Rollout, parts: list[tuple[int, EpisodeUnderWay]], actor: Actor) -> bool:
        """Repeats an episode from its beginning to the end of the last part's iteration.

        Returns:
          Whether the environment has returned the same as at the first time.
        """
        last, episode = parts[-1]
        self.number, steps, self._is_repeating = episode.number, self._activity.steps, True
        for iteration, part in parts:
            rollout.actor = RepeatedActions(actor, part, self._layout.action[0])
            self._runner.repeat(COLLECT_STREAM, iteration, reseeds_environments=False)
            with self._collecting(iteration, rollout.actor):
                rollout.steps(part.steps)
            self._segments.clear()
            if self._checksum != part.checksum:
                break
        self._is_repeating, self._activity.steps = False, steps
        is_same = self._checksum == episode.checksum
        if is_same:
            self._policy.policy.remember(0, [np.frombuffer(state, np.float32) for state in episode.memory])
            logging.info("an episode goes on where iteration %d has left it", last)
        return is_same

    def _on_start(self, env: int) -> None:
        if self._iteration == INIT_ITERATION:
            super()._on_start(env)
        else:
            self._seed_episode(env)

    def _new_builder(self) -> SegmentBuilder:
        self._under_way, self._begun, self._checksum = self.number, self._iteration, 0
        self._segments.clear()
        return super()._new_builder()

    def _send(self, segment: Segment) -> None:
        if self._iteration != INIT_ITERATION:
            self._segments.append(segment)
            for column in (*segment.observation, segment.reward, segment.discount):
                self._checksum = zlib.crc32(np.ascontiguousarray(column).data, self._checksum)
            if self._is_repeating:
                return
            if segment.end_of_iteration:
                self._write()
        super()._send(segment)

    def _write(self) -> None:
        """Before the iteration's last segment: whoever starts after it is stored needs this."""
        episode = None
        if self._rollout is not None and self._rollout.has_episodes:
            actions = [segment.action[0][segment.lead :] for segment in self._segments]
            explored = [segment.explored[segment.lead :] for segment in self._segments if segment.explored is not None]
            episode = EpisodeUnderWay(
                self._under_way,
                self._begun,
                steps=sum(map(len, actions)),
                actions=b"".join(part.tobytes() for part in actions),
                checksum=self._checksum,
                memory=[state.astype(np.float32).tobytes() for state in self._policy.policy.memory(0)],
                explored=b"".join(part.tobytes() for part in explored),
            )
        self._segments.clear()
        self._journal.append(Cut(self._iteration, self.number, episode))


# The journal of a deterministic run with iterations of steps.
#
#     journals/worker_0.journal       of each iteration: length and CRC-32 of what follows, and a `Cut` in MessagePack
#
# An iteration is written there before the replay server gets the last of its steps, so the ring never holds one that
# the journal lacks. What a killed process has left half written is cut off.

_HEAD = struct.Struct("<II")


class EpisodeUnderWay(msgspec.Struct, frozen=True, array_like=True):
    """An episode that continues in the next iteration.

    Attributes:
      number: Of the episode, among all of the worker's.
      begun: Iteration that it began in.
      steps: Taken in this iteration.
      actions: Their actions, `[steps, ...]` in the dtype of the ring's column.
      checksum: CRC-32 of all that the environment has returned since the episode began.
      memory: The policy's, float32 arrays.
      explored: Which of the actions explored, a byte each; empty where none did.
    """

    number: int
    begun: int
    steps: int
    actions: bytes
    checksum: int
    memory: list[bytes]
    explored: bytes = b""


class Cut(msgspec.Struct, frozen=True, array_like=True):
    """The end of an iteration of steps.

    Attributes:
      iteration: The iteration.
      next_number: Of the next episode to begin.
      episode: That goes on; None: none does.
    """

    iteration: int
    next_number: int
    episode: EpisodeUnderWay | None


class JournalError(Exception):
    """The journal lacks what is asked for."""


class EpisodeJournal:
    """One worker's journal.

    Args:
      path: The file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        cuts = self._read()
        self._iterations = [cut.iteration for cut, _ in cuts]
        self._offsets = [0, *(end for _, end in cuts)]  # Of the iterations; at last that of the end.

    def append(self, cut: Cut) -> None:
        """Adds an iteration, in place of those that are not earlier. An error is logged: a run can do without."""
        while self._iterations and self._iterations[-1] >= cut.iteration:
            self._iterations.pop()
            self._offsets.pop()
        content = msgspec.msgpack.encode(cut)
        record = _HEAD.pack(len(content), zlib.crc32(content)) + content
        try:
            self._path.parent.mkdir(exist_ok=True)  # No parents: a run directory that was moved away may be put back.
            with self._path.open("ab") as file:
                file.truncate(self._offsets[-1])
                file.write(record)
        except OSError as error:
            logging.error("%s can't be written (%s): a restart may change the weights", self._path, error.strerror)
            return
        self._iterations.append(cut.iteration)
        self._offsets.append(self._offsets[-1] + len(record))

    def at(self, iteration: int) -> tuple[Cut, list[tuple[int, EpisodeUnderWay]]]:
        """The end of an iteration.

        Returns:
          It, and what was written of its episode in each iteration since that began, oldest first.

        Raises:
          JournalError: It is not there.
        """
        cuts = {cut.iteration: cut for cut, _ in self._read()}
        if iteration not in cuts:
            raise JournalError(f"{self._path} has nothing of iteration {iteration}")
        cut = cuts[iteration]
        if cut.episode is None:
            return cut, []
        first, number = cut.episode.begun, cut.episode.number
        between = [(past, cuts[past].episode) for past in range(first, iteration + 1) if past in cuts]
        parts = [(past, part) for past, part in between if part is not None and part.number == number]
        if len(parts) != iteration + 1 - first:
            raise JournalError(f"{self._path} has not all of the episode that began in iteration {first}")
        return cut, parts

    def _read(self) -> list[tuple[Cut, int]]:
        """What is whole, each with the offset of its end."""
        try:
            content = self._path.read_bytes()
        except OSError:
            return []
        cuts: list[tuple[Cut, int]] = []
        offset = 0
        while offset + _HEAD.size <= len(content):
            length, crc = _HEAD.unpack_from(content, offset)
            offset += _HEAD.size + length
            record = content[offset - length : offset]
            if len(record) < length or zlib.crc32(record) != crc:
                break
            cuts.append((msgspec.msgpack.decode(record, type=Cut), offset))
        return cuts
