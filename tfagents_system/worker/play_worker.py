"""A worker that plays the newest policy and stores nothing."""

from __future__ import annotations

from absl import logging

from tfagents_system.report.episodes import Episode
from tfagents_system.worker.worker import Worker


class PlayWorker(Worker):
    """Plays episode after episode of the newest policy, greedily, in its evaluation environment.

    What they were like stands in its own log. The run learns nothing of it.
    """

    def _begin(self) -> None:
        pass

    def _go_on(self) -> None:
        progress = self._newest_progress()
        if progress is not None and (progress.session, progress.iteration) > (self._session, self._version):
            self._take_weights()
        if self._version < 0:
            self._idle()
            return
        self._apply_curriculum_to_evaluation(self._version)
        self._beat("evaluating", iteration=self._version)
        with self._shares.spend("evaluating"):
            self._play(1, self._log)
        self._end_with_the_run()

    def _eval_share(self) -> int:
        return 1

    def _log(self, episode: Episode) -> None:
        self._episodes += 1
        self._told["last_return"] = episode.episode_return
        success = "" if episode.success is None else f", {'success' if episode.success else 'no success'}"
        logging.info(
            "policy of iteration %d (train step %d): return %.5g, %d steps%s",
            self._version,
            self._train_step,
            episode.episode_return,
            episode.length,
            success,
        )
