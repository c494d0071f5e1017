"""A worker that collects experience with a policy that stays as it is."""

from __future__ import annotations

from typing import Any

from absl import logging

from tfagents_system.envs import specs
from tfagents_system.errors import UserError
from tfagents_system.policies.files import load_policy
from tfagents_system.policies.worker_policy import FixedPolicy, WorkerPolicy
from tfagents_system.report.episodes import Report
from tfagents_system.worker.actors import Actor
from tfagents_system.worker.worker import Worker

POLICY = "SAC_EXPERT_POLICY"


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
