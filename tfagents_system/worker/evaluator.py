"""Evaluates the policies that the trainer publishes for it: a worker's share of each evaluation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from tfagents_system.envs.curriculum import EvaluatedTask
from tfagents_system.policies import weights
from tfagents_system.role import EVAL_STREAM
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport import tables
from tfagents_system.transport.episode_reports import EVAL, Episode, Report
from tfagents_system.worker.activity import EVALUATING, Activity
from tfagents_system.worker.actors import Actor, PolicyActor
from tfagents_system.worker.background import AnyConnection, look
from tfagents_system.worker.episode_runner import EpisodeRunner
from tfagents_system.worker.newest_policy import NewestPolicy
from tfagents_system.worker.recording import Begun, EpisodeRecord, EpisodeRecorder, callables, observed, takers_of

_TELL_AGAIN_SECS = 5.0  # What an evaluation was like, to a trainer that may wait for it.
_TELL_RARELY_SECS = 60.0  # The same, where asynchronous and therefore never waiting.
_PUT_SECS = 0.2


class Evaluator:
    """Evaluates for one worker.

    Args:
      params: The user's TrainParams.
      worker_id: The worker.
      episodes: The numbers of each evaluation's episodes that are the worker's; without any it evaluates nothing.
      connection: To the replay server.
      runner: Runs the episodes.
      policy: Acts, with the weights to be evaluated.
      activity: Told of time spent.
      num_lanes: Lanes of the evaluation environments.
      on_play: Called before episodes begin.
    """

    def __init__(
        self,
        params: TrainParamsBase,
        worker_id: int,
        episodes: range,
        connection: AnyConnection,
        runner: EpisodeRunner,
        policy: NewestPolicy,
        activity: Activity,
        num_lanes: int = 1,
        on_play: Callable[[], None] = lambda: None,
    ) -> None:
        self._params = params
        self._worker_id = worker_id
        self._episodes = episodes
        self._connection = connection
        self._reader = connection.newest(tables.EVAL_WEIGHTS)
        self._runner = runner
        self._policy = policy
        self._activity = activity
        self._num_lanes = num_lanes
        self._on_play = on_play
        self._observers = list(params.eval_observers_ctor())
        self._train_step: int | None = None  # Of the policy that is evaluated; None: it is the newest.
        self._evaluated = (0, -1)  # (trainer's session, version) of the last evaluation.
        self._last: Report | None = None  # That was sent.
        self._told_at = -math.inf

    def evaluate_if_due(self, progress: tables.Progress | None) -> None:
        """Runs the worker's share of the newest evaluation, with the policy that it is of.

        Raises:
          StoppedError, EnvironmentFault, TooLargeError: See `play`.
        """
        if not self._episodes or progress is None or progress.eval_iteration < 0:
            return  # None to evaluate since the trainer has begun: the server is not asked while waiting for one.
        if (progress.session, progress.eval_iteration) <= self._evaluated:
            return
        arrays = look(self._reader)
        if arrays is None or int(arrays[0][0]) != progress.session:
            return
        session, version, train_step = (int(value) for value in arrays[0])
        with self._activity.spend(EVALUATING):
            self._policy.assign(weights.from_arrays(arrays[1:]))
            self._train_step = train_step
            self._evaluate(session, version, train_step)
            self._policy.take_back()
        self._evaluated = (session, version)

    def play(
        self, version: int, numbers: Sequence[int], on_episode: Callable[[Episode], None], *, repeats: bool = False
    ) -> None:
        """Episodes of the policy, greedily, in the evaluation environments.

        Args:
          version: Of the policy: it decides the curriculum's values.
          numbers: Of the episodes, of which the environments are told.
          on_episode: Called after each of them.
          repeats: In a deterministic run their random numbers follow from the version.

        Raises:
          StoppedError, EnvironmentFault: See EpisodeRunner.
          TooLargeError: The worker has grown too large; all of them have been told of.
        """
        self._on_play()
        self._activity.beat(EVALUATING, iteration=version)
        self._runner.set_evaluated(min(version, self._params.num_iter - 1))
        if repeats:  # After `set_state`, which may draw numbers, and is not called for values that are set already.
            self._runner.repeat(EVAL_STREAM, version)
        # Evaluations may come between two parts of an episode, whose memory must not be lost.
        actor = PolicyActor(self._policy.policy.with_lanes(self._num_lanes), greedy=True)
        rollout = self._runner.rollout(
            actor,
            is_eval=True,
            observers=callables(self._observers),
            on_episode=on_episode,
            new_record=self._new_record(actor, version),
            numbers=numbers,
        )
        with self._runner.stepping(is_eval=True):
            rollout.episodes(len(numbers))
        self._runner.check_own_memory()  # Not before: what is cut off here begins anew, and might never end.

    def _new_record(self, actor: Actor, version: int) -> Callable[[int], EpisodeRecord] | None:
        """Records the episodes of a policy where an observer asks for it."""
        takers = takers_of(self._observers)
        if not takers:
            return None
        task = EvaluatedTask(self._params.env_config, self._params.num_iter)
        begun = Begun(None, task.stage(version))
        where = self._worker_id, self._runner.env_id

        def policy() -> tuple[int, int]:
            return self._policy.train_step if self._train_step is None else self._train_step, version

        recorder = EpisodeRecorder(*where, takers, lambda: begun, policy)
        recorder.actor = actor
        return recorder.begin

    def tell_again(self, rarely: bool = False) -> None:
        """Now and then, between two iterations or while waiting: the trainer may wait for a report that was lost.

        The streams of a trainer that was killed live on in the server until each has taken one more, and a server that
        is killed takes with it those that were not read.
        """
        after_secs = _TELL_RARELY_SECS if rarely else _TELL_AGAIN_SECS
        if self._last is not None and time.monotonic() >= self._told_at + after_secs:
            self._connection.try_put(tables.REPORTS, self._last.to_wire(), _PUT_SECS)
            self._told_at = time.monotonic()

    def _evaluate(self, session: int, version: int, train_step: int) -> None:
        episodes: list[Episode] = []

        def on_episode(episode: Episode) -> None:
            episodes.append(episode)
            results = observed(self._observers)
            self._tell(Report(EVAL, session, self._worker_id, version, train_step, version, episodes, results))

        self.play(version, self._episodes, on_episode, repeats=True)

    def _tell(self, report: Report) -> None:
        self._connection.put(tables.REPORTS, report.to_wire())
        self._last, self._told_at = report, time.monotonic()
