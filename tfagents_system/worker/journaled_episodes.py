"""Episodes that another start of the worker repeats up to where this one has left them (SAC_DETERMINISTIC=1).

An episode follows from its number, which seeds the environment, and from the actions. The journal has both.
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from absl import logging

from tfagents_system.envs.faults import EnvironmentFault
from tfagents_system.policies.worker_policy import WorkerPolicy
from tfagents_system.run_files.episodes import Cut, EpisodeJournal, EpisodeUnderWay, JournalError
from tfagents_system.transport.layout import Column
from tfagents_system.transport.segments import Segment
from tfagents_system.worker.episode_runner import EpisodeRunner
from tfagents_system.worker.held_out import HeldOutEpisodes
from tfagents_system.worker.rollout import Rollout
from tfagents_system.worker.segment_builder import EpisodeNumbers, SegmentBuilder


class Record:
    """What is kept of an episode under way.

    Args:
      number: Of the episode.
      begun: Iteration that it began in.
      action_dtype: Of its actions.
    """

    def __init__(self, number: int, begun: int, action_dtype: str) -> None:
        self.number, self.begun = number, begun
        self._actions: list[np.ndarray] = []  # Of this iteration.
        self._explored: list[np.ndarray] = []
        self._action_dtype = action_dtype
        self._checksums = dict[str, int]()

    @property
    def checksum(self) -> int:
        """Of all that the environment has returned, however it was cut into segments."""
        return zlib.crc32(struct.pack(f"<{len(self._checksums)}I", *self._checksums.values()))

    def add(self, segment: Segment) -> None:
        """The next steps of the episode."""
        taken = slice(segment.lead, None)
        observed = slice(segment.history + segment.lead + bool(self._checksums), None)
        self._actions.append(segment.action[0][taken])
        if segment.explored is not None:
            self._explored.append(segment.explored[taken])
        for name, column in enumerate(segment.observation):
            self._check(f"observation {name}", column[observed])
        self._check("reward", segment.reward[taken])
        self._check("discount", segment.discount[taken])

    def _check(self, name: str, values: np.ndarray) -> None:
        self._checksums[name] = zlib.crc32(np.ascontiguousarray(values).data, self._checksums.get(name, 0))

    def to_write(self, memory: Sequence[np.ndarray]) -> EpisodeUnderWay:
        """For the journal; the next iteration begins."""
        actions = np.concatenate(self._actions) if self._actions else np.zeros(0)
        explored = np.concatenate(self._explored) if self._explored else np.zeros(0, np.uint8)
        self.forget()
        return EpisodeUnderWay(
            self.number,
            self.begun,
            len(actions),
            actions.astype(self._action_dtype).tobytes(),
            self.checksum,
            [state.astype(np.float32).tobytes() for state in memory],
            explored.tobytes() if explored.any() else b"",
        )

    def forget(self) -> None:
        """The actions so far are in the journal."""
        self._actions.clear()
        self._explored.clear()


class JournaledEpisodes:
    """A worker's episodes in iterations of steps, one after another in its only environment, and its journal of them.

    Args:
      journal: The worker's.
      worker_id: The worker.
      runner: Seeds the environments.
      policy: The one that collects now.
      held_out: Counts the episodes.
      action: The only column of actions.
      segments: Makes a SegmentBuilder of `send`, `held_out` and `number`; see `segment_builder`.
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
        self._record: Record | None = None  # Of the newest episode.
        self._iteration = 0
        self._is_repeating = False

    def follow(self, rollout: Rollout, iteration: int, first_number: int) -> None:
        """Takes over a new rollout before an iteration, with the episode that was under way at the end of the last.

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
            cut, parts = self._journal.at(iteration - 1)
        except JournalError as error:
            logging.error("%s: other episodes begin, and the weights are not those of an uninterrupted run", error)
            return
        self._is_repeating = True
        try:
            if parts:
                self._repeat(rollout, parts)
        finally:
            self._is_repeating = False
        if rollout.has_episodes:
            logging.info("an episode goes on where iteration %d has left it", iteration - 1)
        self._held_out.number = cut.next_number

    def begin(self, iteration: int) -> None:
        """An iteration begins."""
        self._iteration = iteration
        self._runner.repeat_steps(iteration)

    def on_start(self, env: int) -> None:
        """An episode begins; `new_builder` is called next."""
        self.seed = self._runner.repeat_episode(env, self._held_out.number)

    def new_builder(self) -> SegmentBuilder:
        """Takes the steps of the episode that begins."""
        record = self._record = Record(self._held_out.number, self._iteration, self._action.dtype)
        number = self._numbers.of(self._iteration, self._held_out.number)
        send = functools.partial(self._send, record)
        return self._segments(send=send, held_out=self._held_out.is_next(), number=number)

    def _repeat(self, rollout: Rollout, parts: list[tuple[int, EpisodeUnderWay]]) -> None:
        """Repeats an episode from its beginning to the end of the last part's iteration."""
        _, episode = parts[-1]
        self._held_out.number = episode.number
        self._runner.set_due(episode.begun)
        self.begin(episode.begun)
        rollout.repeat(self._actions(parts))
        if rollout.has_episodes:
            self._policy().remember(0, [np.frombuffer(state, np.float32) for state in episode.memory])

    def _actions(self, parts: list[tuple[int, EpisodeUnderWay]]) -> Iterator[Sequence[tuple[np.ndarray, bool]]]:
        """The actions of each part, and whether each explored.

        Then the environment must have returned the same as at the first time.
        """
        for iteration, part in parts:
            if iteration > part.begun:
                self._runner.repeat_steps(iteration)
            record = self._record
            assert record is not None
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
        return EnvironmentFault(self._worker_id, 0, 0, error, "environment 0", where)

    def _send(self, record: Record, segment: Segment) -> None:
        record.add(segment)
        if self._is_repeating:
            return
        if segment.end_of_iteration:
            self._write()
        self._send_on(segment)

    def _write(self) -> None:
        """Before the iteration's last segment: whoever starts after it is stored needs this."""
        assert self._rollout is not None
        episode = None
        if self._record is not None and self._rollout.has_episodes:
            episode = self._record.to_write(self._policy().memory(0))
        self._journal.append(Cut(self._iteration, self._held_out.number, episode))
