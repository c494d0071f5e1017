"""The kinds of workers: what SAC_WORKER_ROLE may be.

collect   collects experience with the newest policy; planned workers also evaluate (worker.py)
eval      evaluates only
expert    collects experience with a policy that no update changes
test      plays the newest policy, and stores nothing
"""

from __future__ import annotations

from typing import Any

from absl import logging

from tfagents_system.envs import specs
from tfagents_system.errors import UserError
from tfagents_system.machine import claims
from tfagents_system.policies.files import load_policy
from tfagents_system.policies.worker_policy import FixedPolicy, WorkerPolicy
from tfagents_system.role import Role
from tfagents_system.transport import tables
from tfagents_system.transport.episode_reports import EVAL, Episode, Report, extra_episodes
from tfagents_system.worker.activity import EVALUATING
from tfagents_system.worker.actors import Actor
from tfagents_system.worker.worker import Worker

POLICY = "SAC_EXPERT_POLICY"


class EvalWorker(Worker):
    """Evaluates every policy that the trainer publishes for it, and collects nothing.

    The run's own (SAC_EVAL_WORKERS) divide each evaluation among them, and the planned workers have no share of it;
    where these are more than an evaluation has episodes, the last ones have nothing to do. One that has joined takes
    nothing of the others' shares: it adds one of its own, as large as the largest of theirs, to each evaluation that
    begins after it has joined. From then on an evaluation is complete when its share is, too.
    """

    collects = False
    _announced_to = 0  # Session of the trainer that knows of it.

    def _begin(self) -> None:
        pass

    def _go_on(self) -> None:
        progress = self._progress.get()
        if progress is not None:
            if progress.session != self._announced_to:
                self._announced_to = progress.session
                # At once, whatever its first episodes are like: those with short ones must not count more.
                report = Report(EVAL, progress.session, self._id, -1, 0, -1, [])
                self._connection.put(tables.REPORTS, report.to_wire())
            self._evaluator.evaluate_if_due(progress)
        self._idle()

    def _eval_episodes(self) -> range:
        sharing = self._role.slots.sharing_evaluations
        if self._id in sharing:
            return super()._eval_episodes()
        return extra_episodes(self._params.num_eval_episodes, sharing)


class TestingWorker(Worker):
    """Plays episode after episode of the newest policy, greedily, in its evaluation environment.

    Their returns are in its own log. The run learns nothing of them.
    """

    collects = False
    _played = 0

    def _begin(self) -> None:
        pass

    def _go_on(self) -> None:
        self._policy.follow(self._progress.get())
        if self._policy.version < 0:
            self._idle()
            return
        with self._activity.spend(EVALUATING):
            self._evaluator.play(self._policy.version, [self._played], self._log)
            self._played += 1
        self._end.check()

    def _eval_episodes(self) -> range:
        return range(1)

    def _log(self, episode: Episode) -> None:
        self._activity.ended_episode(episode.episode_return)
        success = "" if episode.success is None else f", {'success' if episode.success else 'no success'}"
        success += ", ended by a fault" * episode.has_failed
        logging.info(
            "policy of iteration %d (train step %d): return %.5g, %d steps%s",
            self._policy.version,
            self._policy.train_step,
            episode.episode_return,
            episode.length,
            success,
        )


class ExpertWorker(Worker):
    """Collects with the policy of SAC_EXPERT_POLICY, or the one that `TrainParams.expert_policy_ctor` returns.

    Its steps are stored like any other's, and at the same pace: in lock-step so many episodes in each iteration. What
    is published is not for it. Its returns stay out of the run's metrics: its own log and heartbeat have them.
    """

    _alone_secs = 0.0

    def _make_policy(self, time_step_spec: Any, action_spec: Any, seed: int, num_lanes: int) -> WorkerPolicy:
        del time_step_spec, action_spec, seed
        path, function = self._role.variables.expert_policy, self._params.expert_policy_ctor()
        if path is None and function is None:
            raise UserError(
                f"a worker of kind expert needs a policy: set {POLICY} to a SavedModel, a policy checkpoint or an "
                "exported file, or have TrainParams.expert_policy_ctor return one"
            )
        policy = load_policy(path, POLICY) if path is not None else function
        return FixedPolicy(policy, specs.load_actions(self._role.paths.specs), num_lanes)

    def _exploring(self) -> Actor:
        return self._policy.actor(None, self._collector.greedy)

    def _report_collected(self, report: Report) -> None:
        policy = self._policy.policy
        if isinstance(policy, FixedPolicy) and policy.inexact:
            logging.info(
                "%.1f%% of %d actions are no row of action_table: the nearest row was played and stored",
                100.0 * policy.inexact / policy.chosen,
                policy.chosen,
            )


_CLASSES: dict[str, type[Worker]] = {
    claims.COLLECT: Worker,
    claims.EVAL: EvalWorker,
    claims.EXPERT: ExpertWorker,
    claims.TEST: TestingWorker,
}


def make_worker(role: Role) -> Worker:
    """Builds a worker of the role's kind.

    Raises:
      UserError: What the kind needs is missing.
    """
    return _CLASSES[role.kind](role)
