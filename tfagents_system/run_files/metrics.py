"""The metrics of a run: one CSV file, and the same numbers in TensorBoard."""

from __future__ import annotations

import csv
import io
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.machine.files import replacing
from tfagents_system.run_files.heartbeat import read_json
from tfagents_system.run_files.resets import agents_before
from tfagents_system.run_files.run_paths import RunPaths

_COLUMNS = (
    "train_step",
    "iteration",
    "env_steps",
    "wall_time_s",
    "train_return",
    "train_success",
    "eval_return",
    "eval_return_std",
    "eval_episodes",
    "eval_success",
    "critic_loss",
    "actor_loss",
    "alpha_loss",
    "alpha",
    "q_mean",
    "updates_per_s",
    "env_steps_per_s",
)
_NO_SUMMARY = ("train_step", "wall_time_s")  # TensorBoard has both by itself: its step and its time.


class MetricsLog:
    """Appends rows to metrics.csv and to TensorBoard summaries under `train/` and `eval/`.

    `edits` counts how often the run has taken edited files (`--take_edits`), and `reset` how often its agent was
    replaced (`--reset_training`), where it has.

    A row of a log period has the training columns, a row of an evaluation the `eval` ones; missing values are empty.
    Columns that appear later (an environment's `log/...` values) widen the header. TensorBoard's tags are the names of
    the columns, its step is `train_step`. A full disk ends no training: it is reported once on standard error, and
    the rows are written as soon as that is possible again.

    Args:
      paths: The run directory.
      curriculum_names: Parameters with a column `curriculum/<name>` of their own.
    """

    def __init__(self, paths: RunPaths, curriculum_names: Sequence[str]) -> None:
        self._path = paths.metrics_csv
        self._folders = {"train": paths.train_summaries, "eval": paths.eval_summaries}
        self._writers: dict[str, Any] = {}
        self._complained = False
        self._edits = len((read_json(paths.run_json) or {}).get("edits", []))
        self._agents_before = agents_before(paths)
        rows = read_metrics(self._path)
        known = [*_COLUMNS, *(f"curriculum/{name}" for name in curriculum_names)]
        self._columns = list(dict.fromkeys([*known, *(name for row in rows for name in row)]))
        self._continue_clock(rows)
        self._unwritten: list[Mapping[str, Any]] = []  # Only these are kept: a long run has many rows.
        self._replacement: Sequence[Mapping[str, Any]] | None = (
            None  # Of all rows in the file, where that could not be written.
        )
        # Always rewritten: a line that a crash tore must not run into the next one.
        self._must_rewrite = True
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._write_rows()

    def write(self, row: Mapping[str, float]) -> dict[str, float]:
        """Adds a row; `wall_time_s`, the seconds that the run has been trained for, is filled in.

        Args:
          row: Numbers by column; `train_step` must be there. What is None, NaN or infinite is left empty.

        Returns:
          The row as in `rows`: with numbers rounded as in the file, and without empty values.
        """
        full = {**_numbers(row), "wall_time_s": time.monotonic() - self._began}
        if self._edits:
            full["edits"] = self._edits
        if self._agents_before:
            full["reset"] = self._agents_before
        new = [name for name in full if name not in self._columns]
        self._columns += new
        self._unwritten.append(full)
        self._must_rewrite |= bool(new)
        self._write_rows()
        self._summarize(full)
        return {name: float(_cell(value)) for name, value in full.items()}

    def rows(self) -> list[Mapping[str, Any]]:
        """All rows, including those that a full disk has not taken yet."""
        written = read_metrics(self._path) if self._replacement is None else self._replacement
        return [*written, *self._unwritten]

    def rows_of_agent(self) -> list[Mapping[str, Any]]:
        """Those of the agent that is trained now."""
        return of_agent(self.rows(), self._agents_before)

    def rewind(self, train_step: int) -> None:
        """Drops rows of this agent beyond `train_step`: the run was resumed there, and they come again.

        TensorBoard does the same by itself when a tag's step goes back.
        """
        rows = self.rows()
        kept = [
            row
            for row in rows
            if (row.get("train_step") or 0) <= train_step or (row.get("reset") or 0) < self._agents_before
        ]
        if len(kept) < len(rows):
            self._continue_clock(kept)
            self._replacement, self._unwritten, self._must_rewrite = kept, [], True
            self._write_rows()

    def close(self) -> None:
        """Flushes the summaries."""
        for writer in self._writers.values():
            writer.close()

    def _continue_clock(self, rows: Sequence[Mapping[str, Any]]) -> None:
        trained_secs = max((row.get("wall_time_s") or 0.0 for row in rows), default=0.0)
        self._began = time.monotonic() - trained_secs

    def _write_rows(self) -> None:
        """Appends what is not written yet in one write, or replaces the whole file where that is not enough."""
        try:
            if self._must_rewrite:
                rows = self._replacement if self._replacement is not None else read_metrics(self._path)
                self._rewrite([*rows, *self._unwritten])
            elif self._unwritten:
                with self._path.open("a", encoding="utf-8", newline="") as file:
                    file.write("".join(self._line(row) for row in self._unwritten))
            self._replacement, self._unwritten, self._must_rewrite = None, [], False
        except OSError as error:
            self._must_rewrite = True  # The next row comes with this one, and with a whole line before it.
            self._complain(error)

    def _rewrite(self, rows: Sequence[Mapping[str, Any]]) -> None:
        header = dict(zip(self._columns, self._columns, strict=True))
        with replacing(self._path) as file:
            file.write("".join(self._line(row) for row in [header, *rows]).encode())
            file.flush()
            os.fsync(file.fileno())  # It replaces the only copy of the rows.

    def _line(self, row: Mapping[str, Any]) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow([_cell(row.get(name)) for name in self._columns])
        return text.getvalue()

    def _summarize(self, row: Mapping[str, float]) -> None:
        import tensorflow as tf

        try:
            for name, value in row.items():
                if name not in _NO_SUMMARY:
                    with self._writer(name).as_default():
                        tf.summary.scalar(name, value, step=int(row["train_step"]))
            for writer in self._writers.values():
                writer.flush()
        except tf.errors.OpError as error:
            self._complain(error)

    def _writer(self, name: str) -> Any:
        import tensorflow as tf

        side = "eval" if name.startswith(("eval_", "eval/")) else "train"
        if side not in self._writers:
            self._writers[side] = tf.summary.create_file_writer(str(self._folders[side]))
        return self._writers[side]

    def _complain(self, error: Exception) -> None:
        if not self._complained:
            print(f"metrics can't be written: {error}", file=sys.stderr, flush=True)
        self._complained = True


def read_metrics(path: Path) -> list[dict[str, float | None]]:
    """Rows of a metrics.csv, also while it is written; empty cells are None.

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
            rows.append({name: float(cell) if cell else None for name, cell in zip(lines[0], line, strict=True)})
        except ValueError:
            continue
    return rows


def of_agent(rows: Sequence[Mapping[str, Any]], agents_before: int) -> list[Mapping[str, Any]]:
    """Rows of the agent that has so many before it."""
    return [row for row in rows if (row.get("reset") or 0) == agents_before]


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The values of a row that can be written: whole numbers stay whole, NumPy's become Python's."""
    whole = {
        name: value if isinstance(value, int) else float(value) for name, value in row.items() if value is not None
    }
    return {name: value for name, value in whole.items() if math.isfinite(value)}


def _cell(value: float | str | None) -> str:
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.8g}"
    return "" if value is None else str(value)
