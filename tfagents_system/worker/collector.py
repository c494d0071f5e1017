"""Collects a worker's share of an iteration and hands its steps to the replay server."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator

from tfagents_system.envs.curriculum import Curriculum
from tfagents_system.replay.ring import INIT_ITERATION
from tfagents_system.role import COLLECT_STREAM, GREEDY_STREAM, HELD_OUT_STREAM, Role
from tfagents_system.run_files.episodes import EpisodeJournal
from tfagents_system.transport.episode_reports import Episode, KeptEpisode, eval_share
from tfagents_system.transport.layout import Layout
from tfagents_system.transport.segments import Segment
from tfagents_system.worker.activity import COLLECTING, Activity
from tfagents_system.worker.actors import Actor, GreedyEpisodes
from tfagents_system.worker.background import AnySender
from tfagents_system.worker.episode_runner import EpisodeRunner
from tfagents_system.worker.held_out import EpisodeShare, HeldOutEpisodes
from tfagents_system.worker.journaled_episodes import JournaledEpisodes
from tfagents_system.worker.newest_policy import NewestPolicy
from tfagents_system.worker.recording import Begun, BestOfWorker, EpisodeRecorder, callables, observed, takers_of
from tfagents_system.worker.rollout import Rollout
from tfagents_system.worker.segment_builder import EpisodeNumbers, SegmentBuilder, segment_builder


class Collector:
    """Collects for one worker.

    Args:
      role: The process.
      worker_id: The worker.
      start: Tells the worker's starts apart: another one holds out other episodes, unless the run is deterministic.
      incarnation: Of this process; episodes are numbered from it on, unless the run is deterministic.
      runner: Runs the episodes.
      sender: Sends their segments.
      layout: Of the segments.
      activity: Told of episodes and of time spent.
      policy: Collects, and may remember something of the episodes under way.

    Attributes:
      greedy: Those of the episodes that are collected without exploration; None: there are none.
    """

    def __init__(
        self,
        role: Role,
        worker_id: int,
        start: int,
        incarnation: int,
        runner: EpisodeRunner,
        sender: AnySender,
        layout: Layout,
        activity: Activity,
        policy: NewestPolicy,
    ) -> None:
        self._params = role.params
        self._is_deterministic = role.deterministic
        # Where deterministic an episode's number decides, whichever start of the worker collects it.
        self._start = 0 if role.deterministic else start
        self._numbers = EpisodeNumbers(None if role.deterministic else incarnation)
        seed = role.derived_seed(HELD_OUT_STREAM, worker_id, self._start)
        self._held_out = HeldOutEpisodes(self._params.validation_share, seed)
        self.greedy = self._greedy_episodes(role.derived_seed(GREEDY_STREAM, worker_id, self._start))
        self._runner = runner
        self._sender = sender
        self._layout = layout
        self._activity = activity
        self._observers = list(self._params.train_observers_ctor())
        self._best = BestOfWorker(self._params.keep_best_episodes, runner.unwatched)
        self._recorder = self._new_recorder(worker_id, policy)
        self._iteration = INIT_ITERATION
        self._seed: int | None = None  # Of the episode that has begun last.
        self._rollout: Rollout | None = None  # Of iterations of steps, with the episodes under way.
        self._journaled: JournaledEpisodes | None = None
        self._first_number = eval_share(self._params.num_initial_episodes, range(role.num_workers), worker_id)
        if role.deterministic and self._params.env_steps_per_iter is not None:
            self._journaled = JournaledEpisodes(
                EpisodeJournal(role.paths.journal(role.name)),
                worker_id,
                runner,
                lambda: policy.policy,
                self._held_out,
                layout.action[0],
                functools.partial(segment_builder, self._params, layout),
                self._numbers,
                self._send,
            )

    def collect_random(self, count: int, actor: Actor) -> None:
        """Collects so many of the first random episodes, or steps where `initial_collect_steps` counts them.

        With iterations of whole episodes, or a journal, those that are under way after these steps are given up.

        Raises:
          StoppedError, EnvironmentFault, TooLargeError: As of `collect_episodes`.
        """
        if self._params.initial_collect_steps is None:
            self.collect_episodes(INIT_ITERATION, count, actor)
            return
        self._runner.repeat(COLLECT_STREAM, INIT_ITERATION)
        goes_on = self._params.env_steps_per_iter is not None and self._journaled is None
        self.collect_steps(INIT_ITERATION, count, actor, goes_on=goes_on)
        if not goes_on:
            self._rollout = None

    def collect_episodes(self, iteration: int, count: int, actor: Actor) -> list[Episode]:
        """Collects so many whole episodes; all of their steps are sent, and may not be stored yet.

        Raises:
          StoppedError, EnvironmentFault: See EpisodeRunner.
          TooLargeError: The worker's process has grown too large.
        """
        if self._is_deterministic:
            self._held_out.number = (iteration - INIT_ITERATION) * self._params.num_train_episodes_per_iter
        self._runner.repeat(COLLECT_STREAM, iteration)
        rollout = self._new_rollout(actor)
        with self._collecting(iteration):
            return rollout.episodes(count)

    def follow(self, iteration: int, actor: Actor) -> None:
        """Takes up the episodes that an earlier start of the worker had under way before an iteration of steps.

        Does nothing in any but a deterministic run, and nothing after the first time.

        Raises:
          StoppedError, EnvironmentFault, TooLargeError: As of `collect_episodes`.
        """
        if self._journaled is None or self._rollout is not None:
            return
        rollout = self._rollout = self._new_rollout(actor, self._journaled)
        assert rollout.num_lanes == 1, "others are refused before the start"
        with self._collecting(iteration):
            first_number = self._first_number + iteration * (self._params.env_steps_per_iter or 0)
            self._journaled.follow(rollout, iteration, first_number)

    def collect_steps(self, iteration: int, count: int, actor: Actor, *, goes_on: bool = True) -> list[Episode]:
        """Collects so many steps, of all of the worker's environments together, in the episodes that are under way.

        Args:
          iteration: Of the steps.
          count: How many.
          actor: Chooses the actions.
          goes_on: Whether the episodes that are under way then go on.

        Returns:
          Those that ended.

        Raises:
          StoppedError, EnvironmentFault, TooLargeError: As of `collect_episodes`.
        """
        if self._rollout is None:
            self._rollout = self._new_rollout(actor)
        self._rollout.actor = actor
        if self._recorder is not None:
            self._recorder.actor = actor
        if self._journaled is not None:
            self._journaled.begin(iteration)
        with self._collecting(iteration):
            return self._rollout.steps(count, goes_on=goes_on)

    def give_up_episodes(self) -> None:
        """The episodes under way do not go on: something else happens in their environments. Their steps are sent."""
        self._rollout = None

    @contextlib.contextmanager
    def _collecting(self, iteration: int) -> Iterator[None]:
        self._iteration = iteration
        self._activity.tell(iteration=iteration)
        with self._activity.spend(COLLECTING):
            with self._runner.stepping(is_eval=False):
                yield
            self.confirm()

    def _new_rollout(self, actor: Actor, journaled: JournaledEpisodes | None = None) -> Rollout:
        if self._recorder is not None:
            self._recorder.actor = actor
        return self._runner.rollout(
            actor,
            is_eval=False,
            new_builder=journaled.new_builder if journaled else self._new_builder,
            on_start=journaled.on_start if journaled else self._on_start,
            observers=callables(self._observers),
            on_episode=self._on_episode,
            new_record=self._recorder.begin if self._recorder is not None else None,
        )

    def _on_start(self, env: int) -> None:
        if self._params.keep_best_episodes:
            self._seed = self._runner.repeat_episode(env, self._held_out.number, self._start)

    def _greedy_episodes(self, seed: int) -> GreedyEpisodes | None:
        share = self._params.greedy_episode_share
        return GreedyEpisodes(EpisodeShare(share, seed), lambda: self._held_out.number) if share else None

    def _new_recorder(self, worker_id: int, policy: NewestPolicy) -> EpisodeRecorder | None:
        """Records episodes where somebody asks for it."""
        takers = takers_of(self._observers)
        if self._params.keep_best_episodes:
            takers.append(self._best.take)
        if not takers:
            return None
        curriculum = Curriculum.from_config(self._params.env_config)

        def begun() -> Begun:
            seed = self._journaled.seed if self._journaled else self._seed
            return Begun(seed, curriculum.values_at(max(0, self._iteration), is_eval=False))

        env_id = self._runner.env_id
        return EpisodeRecorder(worker_id, env_id, takers, begun, lambda: (policy.train_step, self._iteration))

    def _on_episode(self, episode: Episode) -> None:
        self._activity.ended_episode(episode.episode_return)
        self._activity.beat(COLLECTING)
        self._runner.check_own_memory()

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
        number = self._numbers.of(self._iteration, self._held_out.number)
        return segment_builder(self._params, self._layout, self._send, self._held_out.is_next(), number=number)

    def _send(self, segment: Segment) -> None:
        with self._activity.server_time():
            self._sender.send(dataclasses.replace(segment, iteration=self._iteration))
