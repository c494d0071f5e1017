"""A worker of kind `test`: plays the newest policy and stores nothing."""

from __future__ import annotations

from absl import logging

from tfagents_system.report.episodes import Episode
from tfagents_system.worker.activity import EVALUATING
from tfagents_system.worker.worker import Worker


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
        logging.info(
            "policy of iteration %d (train step %d): return %.5g, %d steps%s",
            self._policy.version,
            self._policy.train_step,
            episode.episode_return,
            episode.length,
            success,
        )
