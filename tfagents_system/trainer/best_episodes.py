"""Keeps the best of all episodes that workers have collected (`keep_best_episodes`)."""

from __future__ import annotations

from pathlib import Path

from absl import logging

from tfagents_system.errors import UserError
from tfagents_system.machine.files import write_atomically
from tfagents_system.report.episodes import KeptEpisode, Report
from tfagents_system.run_files.episodes import SUFFIX, load_episode


class BestEpisodes:
    """The files of the episodes with the highest returns; of equal ones those that came first.

    Args:
      folder: `episodes/` of the run directory.
      count: How many are kept; 0: none, and nothing is done.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self._count = count
        self._kept: list[tuple[float, Path]] | None = None  # The best first; None: not looked at yet.

    def add(self, report: Report) -> None:
        """Keeps what a worker has sent, if it is good enough."""
        for episode in report.kept if self._count else ():
            try:
                self._add(report.worker_id, episode)
            except OSError as error:
                logging.error("an episode of return %g is not kept: %s", episode.episode_return, error.strerror)

    def _add(self, worker_id: int, episode: KeptEpisode) -> None:
        kept = self._found() if self._kept is None else self._kept
        path = self._folder / (
            f"return_{episode.episode_return:.6g}_train_step_{episode.train_step:010d}"
            f"_worker_{worker_id}_{episode.number}{SUFFIX}"
        )
        if any(path == other for _, other in kept):  # A deterministic run has collected it again after a restart.
            return
        ranked = sorted([*kept, (episode.episode_return, path)], key=lambda each: -each[0])
        self._kept = ranked[: self._count]
        if any(path == other for _, other in self._kept):
            self._folder.mkdir(exist_ok=True)
            write_atomically(path, episode.file)
        for _, worse in ranked[self._count :]:
            worse.unlink(missing_ok=True)

    def _found(self) -> list[tuple[float, Path]]:
        """Those of earlier starts."""
        found = []
        for path in sorted(self._folder.glob(f"return_*{SUFFIX}")):
            try:
                found.append((load_episode(path, "file").episode_return, path))
            except UserError as error:
                logging.error("%s", error)
        return sorted(found, key=lambda each: -each[0])
