"""episodes.csv: returns and lengths of single training episodes, where metrics.csv has their means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from tfagents_system.run_files.metrics import is_before
from tfagents_system.run_files.rows_file import RowsFile, numbers_of, read_rows
from tfagents_system.run_files.run_paths import RunPaths

MOST_OF_A_ROW = 100
_COLUMNS = ("train_step", "iteration", "env_steps", "wall_time_s", "worker", "return", "length", "success")
_NEEDED = _COLUMNS[:-1]


class EpisodeOfWorker(NamedTuple):
    """One training episode."""

    worker: int
    episode_return: float
    length: int
    success: bool | None


class EpisodeRows:
    """Appends the episodes that a row of metrics.csv is the mean of.

    Of more than MOST_OF_A_ROW only every second, third, ... one, so that the file grows no faster than metrics.csv. A
    run that goes on from a checkpoint drops those after it: they come again.
    """

    def __init__(self, paths: RunPaths) -> None:
        self._file = RowsFile(paths.episodes_csv, _COLUMNS, "episodes")

    def write(self, row: Mapping[str, float], episodes: Iterable[EpisodeOfWorker]) -> None:
        """Adds the episodes of a row of metrics.csv."""
        known = list(episodes)
        where = {name: row[name] for name in _COLUMNS[:4] if name in row}
        every = -(-len(known) // MOST_OF_A_ROW) or 1
        self._file.add([numbers_of({**where, **_columns(each)}) for each in known[::every]])

    def rewind(self, train_step: int, iteration: int) -> None:
        """Drops episodes beyond a checkpoint's train step and iteration."""
        self._file.keep(lambda row: is_before(row, train_step, iteration))


def _columns(episode: EpisodeOfWorker) -> dict[str, float | None]:
    success = None if episode.success is None else int(episode.success)
    return {
        "worker": episode.worker,
        "return": episode.episode_return,
        "length": episode.length,
        "success": success,
    }


def read_episodes(path: Path) -> list[dict[str, float]]:
    """The rows of an episodes.csv that are whole, without empty values; none where there is no such file."""
    rows = [{name: value for name, value in row.items() if value is not None} for row in read_rows(path)]
    return [row for row in rows if all(name in row for name in _NEEDED)]
