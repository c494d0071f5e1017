"""A worker that only evaluates."""

from __future__ import annotations

from tfagents_system.report.episodes import EVAL, Report, extra_episodes
from tfagents_system.transport import tables
from tfagents_system.worker.worker import Worker


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
