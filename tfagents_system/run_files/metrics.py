"""The metrics of a run: one CSV file, and the same numbers in TensorBoard."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.machine.files import held
from tfagents_system.run_files import metric_columns
from tfagents_system.run_files.rows_file import RowsFile, cell, numbers_of, read_rows
from tfagents_system.run_files.run_paths import RunPaths

_NO_SUMMARY = ("train_step", "wall_time_s")  # TensorBoard has both by itself: its step and its time.


class MetricsLog:
    """Appends rows to metrics.csv and to TensorBoard summaries under `train/` and `eval/`.

    A row of a log period has the training columns, a row of an evaluation the `eval` ones; missing values are empty.
    Columns that appear later (an environment's `log/...` values) widen the header. TensorBoard's tags are the names of
    the columns, its step is `train_step`. A full disk ends no training: it is reported once on standard error, and
    the rows are written as soon as that is possible again.

    Args:
      paths: The run directory.
      curriculum_names: Parameters with a column `curriculum/<name>` of their own.
    """

    def __init__(self, paths: RunPaths, curriculum_names: Sequence[str]) -> None:
        self._folders = {"train": paths.train_summaries, "eval": paths.eval_summaries}
        self._writers: dict[str, Any] = {}
        self._held = contextlib.ExitStack()  # The folders that they write into.
        names = (f"curriculum/{name}" for name in curriculum_names)
        self._file = RowsFile(paths.metrics_csv, [*metric_columns.ALWAYS, *names], "metrics")
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


def read_metrics(path: Path) -> list[dict[str, float | None]]:
    """Rows of a metrics.csv, also while it is written; empty cells are None.

    A last line that a crash has torn is left out.
    """
    return read_rows(path)


def is_before(row: Mapping[str, Any], train_step: int, iteration: int) -> bool:
    """Whether a row does not come again where training goes back to a checkpoint.

    Iterations may have no update: then its train step is also that of later ones.

    Args:
      train_step, iteration: Of the checkpoint.
    """
    return (row.get("train_step") or 0, row.get("iteration") or 0) <= (train_step, iteration)
