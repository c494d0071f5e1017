"""metrics.csv with TensorBoard's copy of it, and episodes.csv: rows of numbers that stay whole through crashes."""

from __future__ import annotations

import contextlib
import csv
import io
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tfagents_system.machine.files import held, write_atomically
from tfagents_system.run_files.run_paths import RunPaths

# Columns of every metrics.csv, in this order; docs/reference/metrics.md is made from these.
METRIC_COLUMNS: Mapping[str, str] = {
    "train_step": "updates so far",
    "iteration": "iterations so far",
    "env_steps": "environment steps so far, of all workers together, random ones included",
    "wall_time_s": "training time in seconds, over all starts",
    "train_return": "undiscounted return of training episodes, which explore: mean since the last row",
    "train_success": "share of training episodes that the environment calls a success",
    "eval_return": "undiscounted return of the greedy policy: mean over the evaluation's episodes",
    "eval_return_std": "standard deviation of that return over the episodes",
    "eval_episodes": "episodes of the evaluation",
    "eval_faults": "episodes that a fault of the environment ended; their return up to there counts",
    "eval_success": "share of the episodes that the environment calls a success",
    "critic_loss": "loss of the critics, summed over them (`flash_sac`: mean): mean over updates",
    "actor_loss": "loss of the actor",
    "alpha_loss": "loss of the entropy coefficient; empty while alpha is fixed",
    "alpha": "entropy coefficient",
    "q_mean": "mean value of the critics; if it is far beyond the returns, they overestimate",
    "updates_per_s": "updates per second since the last row",
    "env_steps_per_s": "environment steps per second since the last row",
}

# Where a run has what they are about.
FURTHER_COLUMNS: Mapping[str, str] = {
    "curriculum/<name>": "value of a curriculum's parameter (docs/how_to/iterations.md)",
    "train/episode_length": "mean length of training episodes in steps",
    "eval/episode_length": "mean length of evaluation episodes in steps",
    "train/policy_lag": "largest lag of a training episode's policy in iterations",
    "policy_age_updates": "with `asynchronous`: age of a policy in updates when its steps arrive",
    "reward_scale": "with `normalize_rewards`: divisor of rewards; losses and `q_mean` are of divided rewards",
    "clipped_mass": "with categorical critics: share of target probability beyond `value_range`; 0.1 is much",
    "grad_norm": "with discrete actions: gradient norm before clipping",
    "validation/<loss>": "loss on held-out episodes (docs/explanations/experience.md)",
    "schedule/<attribute>": "value of a scheduled attribute, in training rows (docs/how_to/iterations.md)",
    "network_resets": "resets of networks so far (`reset_period_updates`)",
    "train/<name>": "mean over training episodes of your environment's `info[\"log/<name>\"]`, or an observer's result",
    "eval/<name>": "the same for evaluation episodes",
    "train/late_steps": "in real time (docs/tutorials/real_robot.md): late actions, summed over workers",
    "train/step_ms_p99": "with RealTimeEnvironment: 99th percentile of milliseconds from one action to the next",
    "train/inference_ms_p99": "with RealTimeEnvironment: 99th percentile of milliseconds between two steps",
    "train/dropped_steps": "in real time: steps dropped because the replay server did not take them",
}

_NO_SUMMARY = ("train_step", "wall_time_s")  # TensorBoard has both by itself: its step and its time.
MOST_OF_A_ROW = 100
_COLUMNS = ("train_step", "iteration", "env_steps", "wall_time_s", "worker", "return", "length", "success")
_NEEDED = _COLUMNS[:-1]


class RowsFile:
    """Appends rows; columns that appear later widen the header, missing values are empty.

    A full disk ends nothing: it is reported once on standard error, and the rows are written as soon as that is
    possible again.

    Args:
      columns: Those that it has at least, in their order.
      what: Names the rows in a report.
    """

    def __init__(self, path: Path, columns: Sequence[str], what: str) -> None:
        self._path, self._what = path, what
        self._complained = False
        self._columns = list(dict.fromkeys([*columns, *(name for row in read_rows(path) for name in row)]))
        # Rows that are not in the file yet, in its place if `_replaces`: a long run has too many to keep all.
        self._pending, self._replaces = list[Mapping[str, Any]](), False
        self._is_whole = False  # Else it is rewritten: a line that a crash tore must not run into the next one.
        self._write()

    def add(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Adds rows of finite numbers."""
        new = dict.fromkeys(name for row in rows for name in row if name not in self._columns)
        self._is_whole &= not new
        self._columns += new
        self._pending += rows
        self._write()

    def rows(self) -> list[Mapping[str, Any]]:
        """All rows, including those that a full disk has not taken yet."""
        return [*([] if self._replaces else read_rows(self._path)), *self._pending]

    def keep(self, is_kept: Callable[[Mapping[str, Any]], bool]) -> list[Mapping[str, Any]] | None:
        """Drops all other rows. Returns those that stay; None where that are all."""
        rows = self.rows()
        kept = [row for row in rows if is_kept(row)]
        if len(kept) == len(rows):
            return None
        self._pending, self._replaces, self._is_whole = [*kept], True, False
        self._write()
        return kept

    def complain(self, error: Exception) -> None:
        """Reports the first error."""
        if not self._complained:
            print(f"{self._what} can't be written: {error}", file=sys.stderr, flush=True)
        self._complained = True

    def _write(self) -> None:
        try:
            if not (self._is_whole and self._path.exists()):
                header = dict(zip(self._columns, self._columns, strict=True))
                text = self._text([header, *self.rows()])
                write_atomically(self._path, text.encode())
            elif self._pending:
                self._append(self._text(self._pending))
            self._pending, self._replaces, self._is_whole = [], False, True
        except OSError as error:
            self.complain(error)

    def _append(self, text: str) -> None:
        """Raises:
        OSError: There is no room: the file is as it was before.
        """
        size_bytes = self._path.stat().st_size
        try:
            with self._path.open("a", encoding="utf-8", newline="") as file:
                file.write(text)
        except OSError:
            os.truncate(self._path, size_bytes)  # Rows that have come so far will come once more.
            raise

    def _text(self, rows: Iterable[Mapping[str, Any]]) -> str:
        text = io.StringIO()
        lines = ([cell(row.get(name)) for name in self._columns] for row in rows)
        csv.writer(text, lineterminator="\n").writerows(lines)
        return text.getvalue()


def read_rows(path: Path) -> list[dict[str, float | None]]:
    """Rows of such a file, also while it is written; empty cells are None.

    A last line that a crash has torn is left out.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    lines = list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1])))
    rows = []
    for line in lines[1:]:
        try:
            rows.append({name: float(each) if each else None for name, each in zip(lines[0], line, strict=True)})
        except ValueError:
            continue
    return rows


def numbers_of(row: Mapping[str, Any]) -> dict[str, float]:
    """The values of a row that can be written: whole numbers stay whole, NumPy's become Python's."""
    numbers = {
        name: int(value) if isinstance(value, int) else float(value) for name, value in row.items() if value is not None
    }
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def cell(value: float | str | None) -> str:
    """A value's text in the file."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.8g}"
    return "" if value is None else str(value)


class MetricsLog:
    """Appends rows to metrics.csv and to TensorBoard summaries under `train/` and `eval/`.

    A row of a log period has the training columns, a row of an evaluation the `eval` ones. TensorBoard's tags are the
    names of the columns, its step is `train_step`.

    Args:
      curriculum_names: Parameters with a column `curriculum/<name>` of their own.
    """

    def __init__(self, paths: RunPaths, curriculum_names: Sequence[str]) -> None:
        self._folders = {"train": paths.train_summaries, "eval": paths.eval_summaries}
        self._writers: dict[str, Any] = {}
        self._held = contextlib.ExitStack()  # The folders that they write into.
        names = (f"curriculum/{name}" for name in curriculum_names)
        self._file = RowsFile(paths.metrics_csv, [*METRIC_COLUMNS, *names], "metrics")
        self._continue_clock(self._file.rows())

    def write(self, row: Mapping[str, float]) -> dict[str, float]:
        """Adds a row; `wall_time_s`, the seconds that the run has been trained for, is filled in.

        Args:
          row: Numbers by column; `train_step` must be there. What is None, NaN or infinite is left empty.

        Returns:
          The row as in `rows`: with numbers rounded as in the file, and without empty values.
        """
        full = {**numbers_of(row), "wall_time_s": time.monotonic() - self._began}
        self._file.add([full])
        self._summarize(full)
        return {name: float(cell(value)) for name, value in full.items()}

    def rows(self) -> list[Mapping[str, Any]]:
        """All rows, including those that a full disk has not taken yet."""
        return self._file.rows()

    def rewind(self, train_step: int, iteration: int) -> None:
        """Drops rows beyond a checkpoint's train step and iteration: they come again.

        TensorBoard does the same by itself when a tag's step goes back.
        """
        kept = self._file.keep(lambda row: is_before(row, train_step, iteration))
        if kept is not None:
            self._continue_clock(kept)

    def close(self) -> None:
        """Flushes the summaries."""
        for writer in self._writers.values():
            writer.close()
        self._held.close()

    def _continue_clock(self, rows: Sequence[Mapping[str, Any]]) -> None:
        trained_secs = max((row.get("wall_time_s") or 0.0 for row in rows), default=0.0)
        self._began = time.monotonic() - trained_secs

    def _summarize(self, row: Mapping[str, float]) -> None:
        import tensorflow as tf

        try:
            for name, value in row.items():
                if name not in _NO_SUMMARY:
                    with self._writer(name).as_default():
                        tf.summary.scalar(name, value, step=int(row["train_step"]))
            for writer in self._writers.values():
                writer.flush()
        except (OSError, tf.errors.OpError) as error:
            self._file.complain(error)

    def _writer(self, name: str) -> Any:
        import tensorflow as tf

        side = "eval" if name.startswith(("eval_", "eval/")) else "train"
        if side not in self._writers:
            folder = self._folders[side]
            folder.mkdir(exist_ok=True)  # No parents: a run directory that was moved away may be put back.
            with contextlib.ExitStack() as unless_made:
                path = unless_made.enter_context(held(folder))
                self._writers[side] = tf.summary.create_file_writer(str(path))
                self._held.enter_context(unless_made.pop_all())
        return self._writers[side]


def is_before(row: Mapping[str, Any], train_step: int, iteration: int) -> bool:
    """Whether a row does not come again where training goes back to a checkpoint.

    Iterations may have no update: then its train step is also that of later ones.

    Args:
      train_step, iteration: Of the checkpoint.
    """
    return (row.get("train_step") or 0, row.get("iteration") or 0) <= (train_step, iteration)


class EpisodeOfWorker(NamedTuple):
    """One training episode: the last columns of its row."""

    worker: int
    episode_return: float
    length: int
    success: bool | None


class EpisodeRows:
    """Appends the episodes that a row of metrics.csv is the mean of.

    Of more than MOST_OF_A_ROW only every second, third, ... one, so that the file grows no faster than metrics.csv. A
    run that continues from a checkpoint drops those after it: they come again.
    """

    def __init__(self, paths: RunPaths) -> None:
        self._file = RowsFile(paths.episodes_csv, _COLUMNS, "episodes")

    def write(self, row: Mapping[str, float], episodes: Iterable[EpisodeOfWorker]) -> None:
        """Adds the episodes of a row of metrics.csv."""
        where = {name: row[name] for name in _COLUMNS[:4] if name in row}
        columns: list[dict[str, Any]] = [
            {**where, **dict(zip(_COLUMNS[4:], episode, strict=True))} for episode in episodes
        ]
        self._file.add([numbers_of(row) for row in columns[:: -(-len(columns) // MOST_OF_A_ROW) or 1]])

    def rewind(self, train_step: int, iteration: int) -> None:
        """Drops episodes beyond a checkpoint's train step and iteration."""
        self._file.keep(lambda row: is_before(row, train_step, iteration))


def read_episodes(path: Path) -> list[dict[str, float]]:
    """The rows of an episodes.csv that are whole, without empty values; none where there is no such file."""
    rows = [{name: value for name, value in row.items() if value is not None} for row in read_rows(path)]
    return [row for row in rows if all(name in row for name in _NEEDED)]
