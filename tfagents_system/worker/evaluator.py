"""Evaluates the policies that the trainer publishes for it: a worker's share of each evaluation."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence

from tfagents_system.envs.curriculum import EvaluatedTask
from tfagents_system.policies import weights
from tfagents_system.role import EVAL_STREAM
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport import tables
from tfagents_system.transport.connection import Connection
from tfagents_system.transport.episode_reports import EVAL, Episode, Report
from tfagents_system.worker.actors import Actor, PolicyActor
from tfagents_system.worker.episode_runner import EVALUATING, EpisodeRunner
from tfagents_system.worker.newest_policy import NewestItem, NewestPolicy
from tfagents_system.worker.recording import EpisodeRecord, EpisodeRecorder, callables, observed, takers_of
from tfagents_system.worker.sender import SegmentSender

_TELL_AGAIN_SECS = 5.0  # What an evaluation was like, to a trainer that may wait for it.
_PUT_SECS = 0.2


@dataclasses.dataclass(eq=False)
class Evaluator:
    """Evaluates for one worker.

    Attributes:
      params: The user's TrainParams.
      worker_id: The worker.
      episodes: The numbers of each evaluation's episodes that are the worker's; without any it evaluates nothing.
      connection: Takes the reports.
      sender: Sends them, in turn with the segments.
      table: EVAL_WEIGHTS.
      runner: Runs the episodes.
      policy: Acts, with the weights to be evaluated.
      on_play: Called before episodes begin.
    """

    params: TrainParamsBase
    worker_id: int
    episodes: range
    connection: Connection
    sender: SegmentSender
    table: NewestItem
    runner: EpisodeRunner
    policy: NewestPolicy
    on_play: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._observers = list(self.params.eval_observers_ctor())
        self._evaluated = (0, -1)  # (trainer's session, version) of the last evaluation.
        self._last: Report | None = None  # That was sent.
        self._told_at = -math.inf

    def evaluate_if_due(self, progress: tables.Progress | None) -> None:
        """Runs the worker's share of the newest evaluation, with the policy that it is of, or tells of the last one.

        Raises:
          StoppedError, EnvironmentFault, TooLargeError: See `play`.
        """
        self.tell_again()
        if not self.episodes or progress is None or progress.eval_iteration < 0:
            return  # None to evaluate since the trainer has begun: the server is not asked while waiting for one.
        if (progress.session, progress.eval_iteration) <= self._evaluated:
            return
        arrays = self.table.get()
        if arrays is None or int(arrays[0][0]) != progress.session:
            return
        session, version, train_step = (int(value) for value in arrays[0])
        episodes: list[Episode] = []

        def on_episode(episode: Episode) -> None:
            episodes.append(episode)
            results = observed(self._observers)
            self.tell(Report(EVAL, session, self.worker_id, version, train_step, version, episodes, results))

        with self.policy.acting_with(weights.from_arrays(arrays[1:])):
            self.play(version, train_step, self.episodes, on_episode, repeats=True)
        self._evaluated = (session, version)

    def play(
        self,
        version: int,
        train_step: int,
        numbers: Sequence[int],
        on_episode: Callable[[Episode], None],
        *,
        repeats: bool = False,
    ) -> None:
        """Episodes of the policy, greedily, in the evaluation environments.

        Args:
          version: Of the policy: it decides the curriculum's values.
          train_step: Of the policy.
          numbers: Of the episodes, of which the environments are told.
          on_episode: Called after each of them.
          repeats: In a deterministic run their random numbers follow from the version.

        Raises:
          StoppedError, EnvironmentFault: See EpisodeRunner.
          TooLargeError: The worker has grown too large; all of them have been told of.
        """
        self.on_play()
        runner = self.runner
        with runner.activity.spend(EVALUATING):
            runner.activity.beat(EVALUATING, iteration=version)
            runner.environments.set_evaluated(min(version, self.params.num_iter - 1))
            if repeats:  # After `set_state`, which may draw numbers, and is not called for values that are set already.
                runner.repeat(EVAL_STREAM, version)
            # Evaluations may come between two parts of an episode, whose memory must not be lost.
            actor = PolicyActor(self.policy.policy.with_lanes(runner.environments.eval_lanes), greedy=True)
            rollout = runner.rollout(
                actor,
                is_eval=True,
                observers=callables(self._observers),
                on_episode=on_episode,
                new_record=self._new_record(actor, version, train_step),
                numbers=numbers,
            )
            with runner.stepping(is_eval=True):
                rollout.episodes(len(numbers))
        runner.environments.memory.check()  # Not before: what is cut off here begins anew, and might never end.

    def _new_record(self, actor: Actor, version: int, train_step: int) -> Callable[[int], EpisodeRecord] | None:
        """Records the episodes of a policy where an observer asks for it."""
        takers = takers_of(self._observers)
        if not takers:
            return None
        recorder = EpisodeRecorder(self.worker_id, self.runner.env_id, takers, lambda: train_step)
        recorder.actor, recorder.iteration = actor, version
        recorder.curriculum = EvaluatedTask(self.params.env_config, self.params.num_iter).stage(version)
        return recorder.begin

    def tell(self, report: Report) -> None:
        """Sends a report on an evaluation."""
        arrays = report.to_wire()
        self.sender.call(lambda: self.connection.put(tables.REPORTS, arrays))
        self._last, self._told_at = report, time.monotonic()

    def tell_again(self) -> None:
        """Now and then, between two iterations or while waiting: the trainer may wait for a report that was lost.

        The streams of a trainer that was killed live on in the server until each has taken one more, and a server that
        is killed takes with it those that were not read.
        """
        if self._last is not None and time.monotonic() >= self._told_at + _TELL_AGAIN_SECS:
            arrays = self._last.to_wire()
            self.sender.call(lambda: self.connection.try_put(tables.REPORTS, arrays, _PUT_SECS))
            self._told_at = time.monotonic()
