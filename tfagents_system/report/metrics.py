"""The metrics of a run: one CSV file, and the same numbers in TensorBoard."""

from __future__ import annotations

import csv
import io
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.launch.run_paths import RunPaths

_COLUMNS = (
    "train_step",
    "iteration",
    "env_steps",
    "wall_time_s",
    "train_return",
    "train_success",
    "eval_return",
    "eval_return_std",
    "eval_success",
    "critic_loss",
    "actor_loss",
    "alpha_loss",
    "alpha",
    "updates_per_s",
    "env_steps_per_s",
)
_COUNTERS = ("train_step", "iteration", "env_steps", "wall_time_s")


class MetricsLog:
    """Appends rows to metrics.csv and to TensorBoard summaries under `train/` and `eval/`.

    A row of a log period has the training columns, a row of an evaluation the `eval` ones; what a row has not is empty.
    Columns that appear later (an environment's `log/...` values) widen the header. TensorBoard's step is the train step.

    Args:
      paths: The run directory.
      curriculum_names: Parameters with a column `curriculum/<name>` of their own.
    """

    def __init__(self, paths: RunPaths, curriculum_names: Sequence[str]) -> None:
        self._path = paths.metrics_csv
        self._folders = {"train": paths.train_summaries, "eval": paths.eval_summaries}
        self._writers: dict[str, Any] = {}
        self._rows = read_metrics(self._path)
        known = [*_COLUMNS, *(f"curriculum/{name}" for name in curriculum_names)]
        self._columns = list(dict.fromkeys([*known, *(name for row in self._rows for name in row)]))
        self._began = time.monotonic() - max((row.get("wall_time_s") or 0.0 for row in self._rows), default=0.0)
        self._rewrite()

    def write(self, row: Mapping[str, float]) -> None:
        """Adds a row; `wall_time_s`, the seconds that the run has been trained for, is filled in.

        Args:
          row: Numbers by column; `train_step` must be there.
        """
        full = {**row, "wall_time_s": time.monotonic() - self._began}
        self._rows.append(dict(full))
        new = [name for name in full if name not in self._columns]
        if new:
            self._columns += new
            self._rewrite()
        else:
            with self._path.open("a", encoding="utf-8", newline="") as file:
                file.write(self._line(full))
        self._summarize(full)

    def rewind(self, train_step: int) -> None:
        """Drops rows beyond `train_step`: the run was resumed there, and they come again."""
        kept = [row for row in self._rows if (row.get("train_step") or 0) <= train_step]
        if len(kept) < len(self._rows):
            self._rows = kept
            self._began = time.monotonic() - max((row.get("wall_time_s") or 0.0 for row in kept), default=0.0)
            self._rewrite()

    def close(self) -> None:
        """Flushes the summaries."""
        for writer in self._writers.values():
            writer.close()

    def _rewrite(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".tmp")
        header = dict(zip(self._columns, self._columns, strict=True))
        temporary.write_text("".join(self._line(row) for row in [header, *self._rows]), encoding="utf-8")
        os.replace(temporary, self._path)

    def _line(self, row: Mapping[str, Any]) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow([_cell(row.get(name)) for name in self._columns])
        return text.getvalue()

    def _summarize(self, row: Mapping[str, float]) -> None:
        import tensorflow as tf

        for name, value in row.items():
            if name in _COUNTERS or value is None:
                continue
            side = "eval" if name.startswith("eval") else "train"
            if side not in self._writers:
                self._writers[side] = tf.summary.create_file_writer(str(self._folders[side]))
            with self._writers[side].as_default():
                tf.summary.scalar(name, value, step=int(row["train_step"]))
        for writer in self._writers.values():
            writer.flush()


def read_metrics(path: Path) -> list[dict[str, float | None]]:
    """Rows of a metrics.csv; empty cells are None. A last line that was torn by a crash is left out."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    whole = text[: text.rfind("\n") + 1]
    header, *lines = csv.reader(io.StringIO(whole)) or [[]]
    rows = []
    for line in lines:
        if len(line) == len(header):
            rows.append({name: float(cell) if cell else None for name, cell in zip(header, line, strict=True)})
    return rows


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.8g}"
    return str(value)
