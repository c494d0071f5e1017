"""Episodes that another start of the worker repeats up to where this one has left them (SAC_DETERMINISTIC=1).

An episode follows from its number, which seeds the environment, and from the actions. The journal has both.
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tree
from absl import logging
from tf_agents.trajectories import time_step as ts

from tfagents_system.envs.faults import EnvironmentFault
from tfagents_system.policies.worker_policy import WorkerPolicy
from tfagents_system.run_files.episodes import Cut, EpisodeJournal, EpisodeUnderWay, JournalError
from tfagents_system.transport.layout import Column
from tfagents_system.transport.segments import Segment
from tfagents_system.worker.episode_runner import EpisodeRunner
from tfagents_system.worker.held_out import HeldOutEpisodes
from tfagents_system.worker.rollout import Rollout
from tfagents_system.worker.segment_builder import EpisodeNumbers, SegmentBuilder

_NUMBERS = struct.Struct("<iff")


class Record:
    """What is kept of an episode under way.

    Args:
      env: Its environment.
      number: Of the episode.
      begun: Iteration that it began in.
      action_dtype: Of its actions.
    """

    def __init__(self, env: int, number: int, begun: int, action_dtype: str) -> None:
        self.env, self.number, self.begun = env, number, begun
        self.actions: list[np.ndarray] = []  # Of this iteration.
        self.explored: list[bool] = []
        self._action_dtype = action_dtype
        self._checksum = 0

    @property
    def checksum(self) -> int:
        """Of all that the environment has returned."""
        return self._checksum

    def see(self, time_step: ts.TimeStep) -> None:
        """What the environment has returned."""
        step_type, reward, discount, observation = time_step
        crc = zlib.crc32(_NUMBERS.pack(step_type, reward, discount), self._checksum)
        for leaf in tree.flatten(observation):
            crc = zlib.crc32(np.ascontiguousarray(leaf).data, crc)
        self._checksum = crc

    def to_write(self, memory: Sequence[np.ndarray]) -> EpisodeUnderWay:
        """For the journal; the next iteration begins."""
        steps, actions = len(self.actions), np.array(self.actions, self._action_dtype).tobytes()
        explored = np.array(self.explored, np.uint8).tobytes() if any(self.explored) else b""
        self.forget()
        memories = [each.astype(np.float32).tobytes() for each in memory]
        return EpisodeUnderWay(self.env, self.number, self.begun, steps, actions, self._checksum, memories, explored)

    def forget(self) -> None:
        """The actions so far are in the journal."""
        self.actions.clear()
        self.explored.clear()


class JournaledBuilder(SegmentBuilder):
    """Builds the segments of an episode, and keeps its record.

    Args:
      record: Of the episode.
      under_way: Has the record while the episode is under way, by environment.
      *args, **kwargs: As of SegmentBuilder.
    """

    def __init__(self, record: Record, under_way: dict[int, Record], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._record = record
        self._under_way = under_way

    def start(self, time_step: ts.TimeStep, potential: float = 0.0) -> None:
        self._under_way[self._record.env] = self._record
        self._record.see(time_step)
        super().start(time_step, potential)

    def add(self, action: Any, next_time_step: ts.TimeStep, explored: bool = False, potential: float = 0.0) -> None:
        self._record.actions.append(action)
        self._record.explored.append(explored)
        self._record.see(next_time_step)
        super().add(action, next_time_step, explored, potential)

    def finish(self, *, ends_episode: bool, end_of_iteration: bool) -> None:
        self._under_way.pop(self._record.env, None)  # Before the last segment is sent.
        super().finish(ends_episode=ends_episode, end_of_iteration=end_of_iteration)


class JournaledEpisodes:
    """A worker's episodes in iterations of steps, and its journal of them.

    Args:
      journal: The worker's.
      worker_id: The worker.
      runner: Seeds the environments.
      policy: The one that collects now.
      held_out: Counts the episodes.
      action: The only column of actions.
      segments: Makes a SegmentBuilder of `send`, `held_out`, `make` and `number`; see `segment_builder`.
      numbers: Of the episodes, in their segments.
      send: Takes the segments.

    Attributes:
      seed: Of the episode that has begun last.
    """

    seed: int | None = None

    def __init__(
        self,
        journal: EpisodeJournal,
        worker_id: int,
        runner: EpisodeRunner,
        policy: Callable[[], WorkerPolicy],
        held_out: HeldOutEpisodes,
        action: Column,
        segments: Callable[..., SegmentBuilder],
        numbers: EpisodeNumbers,
        send: Callable[[Segment], None],
    ) -> None:
        self._journal = journal
        self._worker_id = worker_id
        self._runner = runner
        self._policy = policy
        self._held_out = held_out
        self._action = action
        self._segments = segments
        self._numbers = numbers
        self._send_on = send
        self._rollout: Rollout | None = None
        self._under_way: dict[int, Record] = {}
        self._iteration = 0
        self._env = 0  # Where an episode begins.
        self._is_repeating = False

    def follow(self, rollout: Rollout, iteration: int, first_number: int) -> None:
        """Takes over a new rollout before an iteration, with the episodes that were under way at the end of the last.

        Args:
          rollout: Of `on_start` and `new_builder`.
          iteration: The first that it collects.
          first_number: Of its next episode, if nothing was written of the iteration before.
        """
        self._rollout = rollout
        self._held_out.number = first_number
        if iteration == 0:
            return
        try:
            cut, episodes = self._journal.at(iteration - 1)
            if any(parts[-1][1].env >= rollout.num_envs for parts in episodes):
                raise JournalError(f"the worker now has {rollout.num_envs} environments")
        except JournalError as error:
            logging.error("%s: other episodes begin, and the weights are not those of an uninterrupted run", error)
            return
        self._is_repeating = True
        try:
            for parts in episodes:
                self._repeat(rollout, parts)
        finally:
            self._is_repeating = False
        logging.info("%d episodes go on where iteration %d has left them", len(self._under_way), iteration - 1)
        rollout.turn = cut.turn
        self._held_out.number = cut.next_number

    def begin(self, iteration: int) -> None:
        """An iteration begins."""
        self._iteration = iteration
        self._runner.repeat_steps(iteration)

    def on_start(self, env: int) -> None:
        """An episode begins in an environment; `new_builder` is called next."""
        self._env = env
        self.seed = self._runner.repeat_episode(env, self._held_out.number)

    def new_builder(self) -> SegmentBuilder:
        """Takes the steps of the episode that begins."""
        record = Record(self._env, self._held_out.number, self._iteration, self._action.dtype)
        make = functools.partial(JournaledBuilder, record, self._under_way)
        number = self._numbers.of(self._iteration, self._held_out.number)
        return self._segments(send=self._send, held_out=self._held_out.is_next(), make=make, number=number)

    def _repeat(self, rollout: Rollout, parts: list[tuple[int, EpisodeUnderWay]]) -> None:
        """Repeats an episode from its beginning to the end of the last part's iteration."""
        _, episode = parts[-1]
        self._held_out.number = episode.number
        self._runner.set_due(episode.begun)
        self.begin(episode.begun)
        rollout.repeat(episode.env, self._actions(parts))
        if episode.env in self._under_way:
            self._policy().remember(episode.env, [np.frombuffer(each, np.float32) for each in episode.memory])

    def _actions(self, parts: list[tuple[int, EpisodeUnderWay]]) -> Iterator[Sequence[tuple[np.ndarray, bool]]]:
        """The actions of each part, and whether each explored.

        Then the environment must have returned the same as at the first time.
        """
        for iteration, part in parts:
            if iteration > part.begun:
                self._runner.repeat_steps(iteration)
            record = self._under_way[part.env]
            actions = np.frombuffer(part.actions, self._action.dtype).reshape(part.steps, *self._action.shape)
            explored = np.frombuffer(part.explored, np.uint8) if part.explored else np.zeros(part.steps, np.uint8)
            yield list(zip(actions, explored.astype(bool).tolist(), strict=True))
            record.forget()
            if record.checksum != part.checksum:
                raise self._departure(part)

    def _departure(self, episode: EpisodeUnderWay) -> EnvironmentFault:
        error = RuntimeError(
            "it has not returned what it returned before, for the same seed and actions. The weights are no longer "
            "those of an uninterrupted run: make its episodes depend on the seed of reset() alone, not on earlier "
            "episodes, clocks or other random numbers; or set SAC_DETERMINISTIC=0"
        )
        where = f"repeating episode {episode.number} after a restart"
        return EnvironmentFault(self._worker_id, 0, 0, error, f"environment {episode.env}", where)

    def _send(self, segment: Segment) -> None:
        if self._is_repeating:
            return
        if segment.end_of_iteration:
            self._write()
        self._send_on(segment)

    def _write(self) -> None:
        """Before the iteration's last segment: whoever starts after it is stored needs this."""
        assert self._rollout is not None
        records = sorted(self._under_way.values(), key=lambda record: record.number)
        policy = self._policy()
        episodes = [record.to_write(policy.memory(record.env)) for record in records]
        self._journal.append(Cut(self._iteration, self._held_out.number, self._rollout.turn, episodes))
