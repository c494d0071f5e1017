"""Collects a worker's share of an iteration and hands its steps to the replay server.

With SAC_DETERMINISTIC=1 another start of the worker repeats the episode under way up to where this one has left it. It
follows from its number, which seeds the environment, and from the actions: the journal has both.
"""

from __future__ import annotations

import contextlib
import dataclasses
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
from absl import logging

from tfagents_system.agents.iteration_counts import steps_of_worker
from tfagents_system.policies.worker_policy import LaneSteps
from tfagents_system.replay.ring import INIT_ITERATION
from tfagents_system.role import COLLECT_STREAM, GREEDY_STREAM, HELD_OUT_STREAM, Role
from tfagents_system.transport.episode_reports import TRAIN, Episode, Report, eval_share
from tfagents_system.transport.segments import Column, Layout, Segment
from tfagents_system.worker.actors import Actor, EpisodeShare
from tfagents_system.worker.episode_runner import COLLECTING, EpisodeRunner
from tfagents_system.worker.newest_policy import NewestPolicy
from tfagents_system.worker.recording import BestOfWorker, EpisodeRecorder, callables, observed, takers_of
from tfagents_system.worker.rollout import Rollout, SegmentBuilder, segment_builder
from tfagents_system.worker.sender import SegmentSender

_MOST_EPISODES = 1 << 20  # Of a deterministic run's worker, in an iteration.


@dataclasses.dataclass(eq=False)
class Collector:
    """Collects for one worker.

    Attributes:
      role: The process.
      start: Tells the worker's starts apart: another one holds out other episodes, unless the run is deterministic.
      incarnation: Of this process; episodes are numbered from it on, unless the run is deterministic.
      runner: Runs the episodes.
      sender: Sends their segments.
      layout: Of the segments.
      policy: Collects.
      greedy: Of the actor: whether the episode that begins is collected without exploration.
      number: Of the next episode, among all of the worker's. In a deterministic run it decides what is random in the
        episode, whichever start of the worker collects it.
    """

    role: Role
    start: int
    incarnation: int
    runner: EpisodeRunner
    sender: SegmentSender
    layout: Layout
    policy: NewestPolicy

    def __post_init__(self) -> None:
        role, params = self.role, self.role.params
        self._params, self._activity = params, self.runner.activity
        if role.deterministic:
            self.start = 0
        self.number = 0
        held_out_seed, greedy_seed = (
            role.derived_seed(stream, role.worker_id, self.start) for stream in (HELD_OUT_STREAM, GREEDY_STREAM)
        )
        # Episode 0 is never held out: there is something to train on.
        self._held_out = EpisodeShare(params.validation_share, held_out_seed, first=1)
        greedy = EpisodeShare(params.greedy_episode_share, greedy_seed)
        self.greedy: bool | Callable[[], bool] = False
        if params.greedy_episode_share:
            self.greedy = lambda: greedy.has(self.number)
        self._observers = list(params.train_observers_ctor())
        self._best = BestOfWorker(params.keep_best_episodes)
        takers = takers_of(self._observers)
        if params.keep_best_episodes:
            takers.append(self._best.take)
        self._recorder = EpisodeRecorder(role.worker_id, self.runner.env_id, takers, lambda: self.policy.train_step)
        self._new_record = self._recorder.begin if takers else None
        self._iteration = INIT_ITERATION
        self._rollout: Rollout | None = None  # Of iterations of steps, with the episodes under way.

    def collect(self, iteration: int, actor: Actor) -> Report:
        """Collects the worker's share of an iteration; returns what its episodes were like.

        Raises:
          StoppedError, EnvironmentFault, TooLargeError: As of `collect_episodes`.
        """
        params = self._params
        self._take_metrics()  # Those of an evaluation.
        if params.env_steps_per_iter is None:
            episodes = self.collect_episodes(iteration, params.num_train_episodes_per_iter, actor)
        else:
            workers = self.role.variables.num_collect_workers
            share = steps_of_worker(self.role.worker_id, iteration, params.env_steps_per_iter, workers)
            episodes = self.collect_steps(iteration, share, actor)
        return Report(
            TRAIN,
            session=0,
            worker_id=self.role.worker_id,
            iteration=iteration,
            train_step=self.policy.train_step,
            policy_iteration=self.policy.version,
            episodes=episodes,
            observed=observed(self._observers),
            curriculum=self.runner.environments.curriculum.values,
            device=self._take_metrics(),
            kept=self._best.pop(),
        )

    def _take_metrics(self) -> dict[str, float]:
        return self.runner.environments.take_metrics() | self.sender.take_metrics()

    def collect_random(self, count: int, actor: Actor) -> None:
        """Collects so many of the first random episodes, or steps where `initial_collect_steps` counts them.

        Episodes that are under way after these steps are given up.

        Raises:
          StoppedError, EnvironmentFault, TooLargeError: As of `collect_episodes`.
        """
        if self._params.initial_collect_steps is None:
            self.collect_episodes(INIT_ITERATION, count, actor)
            return
        self.runner.repeat(COLLECT_STREAM, INIT_ITERATION)
        self.collect_steps(INIT_ITERATION, count, actor)
        self._rollout = None

    def collect_episodes(self, iteration: int, count: int, actor: Actor) -> list[Episode]:
        """Collects so many whole episodes; all of their steps are sent, and may not be stored yet.

        Raises:
          StoppedError, EnvironmentFault: See EpisodeRunner.
          TooLargeError: The worker's process has grown too large.
        """
        if self.role.deterministic:
            self.number = (iteration - INIT_ITERATION) * self._params.num_train_episodes_per_iter
        self.runner.repeat(COLLECT_STREAM, iteration)
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
        self.runner.repeat(COLLECT_STREAM, iteration, reseeds_environments=False)
        with self._collecting(iteration, actor):
            return self._rollout.steps(count, goes_on=iteration != INIT_ITERATION)

    def _begin_steps(self, iteration: int, actor: Actor) -> Rollout:
        """A rollout whose first iteration of steps is this one."""
        return self._new_rollout(actor)

    def give_up_episodes(self) -> None:
        """The episodes under way end here: something else happens in their environments. Their steps are sent."""
        self._rollout = None

    @contextlib.contextmanager
    def _collecting(self, iteration: int, actor: Actor) -> Iterator[None]:
        environments, recorder = self.runner.environments, self._recorder
        environments.set_due(max(0, iteration))
        self._iteration = recorder.iteration = iteration
        recorder.actor, recorder.curriculum = actor, environments.curriculum.values
        self._activity.tell(iteration=iteration)
        with self._activity.spend(COLLECTING):
            with self.runner.stepping(is_eval=False):
                yield
            self.confirm()

    def _new_rollout(self, actor: Actor) -> Rollout:
        return self.runner.rollout(
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
        self._recorder.seed = self.runner.repeat_episode(env, self.number, self.start)

    def _on_episode(self, episode: Episode) -> None:
        self._activity.ended_episode(episode.episode_return)
        self._activity.beat(COLLECTING)
        self.runner.environments.memory.check()

    def confirm(self) -> None:
        """Sends again what is not stored, where it is time to."""
        with self._activity.server_time():
            self.sender.confirm()

    def _new_builder(self) -> SegmentBuilder:
        """Takes the steps of an episode that begins."""
        number, self.number = self.number, self.number + 1
        episode = self._episode_id(number)
        return segment_builder(self._params, self.layout, self._send, self._held_out.has(number), number=episode)

    def _episode_id(self, number: int) -> int:
        """Segment.episode: no other episode of the worker in the run's experience has the same.

        In a deterministic run, where numbers may begin anew with each iteration, any start of the worker gives an
        episode the same; in others those of a later start are larger.
        """
        if self.role.deterministic:
            return (self._iteration + 1) * _MOST_EPISODES + number % _MOST_EPISODES
        return self.incarnation + number

    def _send(self, segment: Segment) -> None:
        with self._activity.server_time():
            self.sender.send(dataclasses.replace(segment, iteration=self._iteration))


# Deterministic runs with iterations of steps.
#
#     journals/worker_0.journal       a line of JSON for each iteration: a `Cut`
#
# An iteration is written there before the replay server gets the last of its steps, so the ring never holds one that
# the journal lacks. A resumed run goes back to a checkpoint, so all of them are kept.


class Cut(msgspec.Struct, frozen=True, array_like=True):
    """The end of an iteration of steps.

    Attributes:
      iteration: The iteration.
      next_number: Of the next episode to begin.
      number: Of the episode that continues, among all of the worker's; -1: none does.
      begun: Iteration that it began in; without one, this iteration.
      actions: Its actions in this iteration, `[steps, ...]` in the dtype of the ring's column.
      explored: Which of them explored, a byte each; empty where none did.
      checksum: CRC-32 of all that the environment has returned since the episode began.
      memory: The policy's, float32 arrays.
    """

    iteration: int
    next_number: int
    number: int
    begun: int
    actions: bytes = b""
    explored: bytes = b""
    checksum: int = 0
    memory: list[bytes] = []


class JournalError(Exception):
    """The journal lacks what is asked for."""


def write_cut(path: Path, cut: Cut) -> None:
    """Adds an iteration to a worker's journal. An error is logged: a run can do without."""
    try:
        path.parent.mkdir(exist_ok=True)  # No parents: a run directory that was moved away may be put back.
        with path.open("ab") as file:  # On a line of its own, whatever a killed process has left half written.
            file.write(b"\n" + msgspec.json.encode(cut))
    except OSError as error:
        logging.error("%s can't be written (%s): a restart may change the weights", path, error.strerror)


def cuts_until(path: Path, iteration: int) -> list[Cut]:
    """The end of an iteration, in a worker's journal, behind those before it that its episode was under way at.

    Raises:
      JournalError: Something of it is not there.
    """
    cuts: dict[int, Cut] = {}
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with contextlib.suppress(msgspec.DecodeError):
            cut = msgspec.json.decode(line, type=Cut)
            while cuts and next(reversed(cuts)) >= cut.iteration:
                cuts.popitem()  # The run has gone back.
            cuts[cut.iteration] = cut
    if iteration not in cuts:
        raise JournalError(f"{path} has nothing of iteration {iteration}")
    first, number = cuts[iteration].begun, cuts[iteration].number
    found = [cuts[past] for past in range(first, iteration + 1) if past in cuts and cuts[past].number == number]
    if len(found) != iteration + 1 - first:
        raise JournalError(f"{path} has not all of the episode that began in iteration {first}")
    return found


class RepeatedActions:
    """An actor that acts as before, in the only lane. Whether an action was greedy is not known any more.

    Args:
      actor: Acts when they are repeated.
      cut: Has the actions.
      column: Theirs.
    """

    q_values = None
    was_greedy = np.zeros(1, np.bool_)

    def __init__(self, actor: Actor, cut: Cut, column: Column) -> None:
        self._actor = actor
        self._actions = np.frombuffer(cut.actions, column.dtype).reshape(-1, 1, *column.shape)
        self.steps = len(self._actions)
        self._explored = np.frombuffer(cut.explored or bytes(self.steps), np.bool_).reshape(-1, 1)
        self._next = 0

    @property
    def explored(self) -> np.ndarray:
        return self._explored[self._next - 1]

    def reset(self, lanes: Sequence[int]) -> None:
        self._actor.reset(lanes)

    def act(self, steps: LaneSteps) -> list[np.ndarray]:
        self._next = min(self._next + 1, self.steps)  # An environment that fails this time takes more steps.
        return [self._actions[self._next - 1]]


class JournaledCollector(Collector):
    """Collects iterations of steps in a worker's only environment, and writes a journal of the episodes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        role = self.role
        self._journal = role.paths.journal(role.name)
        self._first_number = eval_share(
            self._params.num_initial_episodes, range(role.variables.num_collect_workers), role.worker_id
        )
        self._under_way = self._begun = 0  # The newest episode, and the iteration that it began in.
        self._segments: list[Segment] = []  # Its steps of this iteration.
        self._checksum = 0  # Of all that the environment has returned in it.
        self._is_repeating = False

    def _begin_steps(self, iteration: int, actor: Actor) -> Rollout:
        """Continues in the episode that was under way at the end of the iteration before."""
        rollout = super()._begin_steps(iteration, actor)
        if iteration == INIT_ITERATION:
            return rollout
        assert rollout.num_lanes == 1, "others are refused before the start"
        self.number = self._first_number + iteration * (self._params.env_steps_per_iter or 0)
        if iteration == 0:
            return rollout
        try:
            cuts = cuts_until(self._journal, iteration - 1)
        except JournalError as error:
            logging.error("%s: other episodes begin, and the weights are not those of an uninterrupted run", error)
            return rollout
        if cuts[-1].number >= 0 and not self._repeat(rollout, cuts, actor):
            logging.error(
                "the environment has not returned what it returned before, for the same seed and actions. The weights "
                "are no longer those of an uninterrupted run: make its episodes depend on the seed of reset() alone, "
                "not on earlier episodes, clocks or other random numbers; or set SAC_DETERMINISTIC=0"
            )
            rollout = super()._begin_steps(iteration, actor)
        self.policy.policy.remember(0, [np.frombuffer(state, np.float32) for state in cuts[-1].memory])
        self.number = cuts[-1].next_number
        return rollout

    def _repeat(self, rollout: Rollout, cuts: list[Cut], actor: Actor) -> bool:
        """Repeats an episode from its beginning to the last cut.

        Returns:
          Whether the environment has returned the same as at the first time.
        """
        self.number, steps, self._is_repeating = cuts[-1].number, self._activity.steps, True
        for cut in cuts:
            rollout.actor = actions = RepeatedActions(actor, cut, self.layout.action[0])
            self.runner.repeat(COLLECT_STREAM, cut.iteration, reseeds_environments=False)
            with self._collecting(cut.iteration, actions):
                rollout.steps(actions.steps)
            self._segments.clear()
            if self._checksum != cut.checksum:
                break
        self._is_repeating, self._activity.steps = False, steps
        is_same = self._checksum == cuts[-1].checksum
        if is_same:
            logging.info("an episode continues where iteration %d has left it", cuts[-1].iteration)
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
        memory = [state.astype(np.float32).tobytes() for state in self.policy.policy.memory(0)]
        cut = Cut(self._iteration, self.number, number=-1, begun=self._iteration, memory=memory)
        if self._rollout is not None and self._rollout.has_episodes:
            segments = self._segments
            cut = Cut(
                self._iteration,
                self.number,
                self._under_way,
                self._begun,
                actions=b"".join(segment.action[0][segment.lead :].tobytes() for segment in segments),
                explored=b"".join(s.explored[s.lead :].tobytes() for s in segments if s.explored is not None),
                checksum=self._checksum,
                memory=memory,
            )
        self._segments.clear()
        write_cut(self._journal, cut)
