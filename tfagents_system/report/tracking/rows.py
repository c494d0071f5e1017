"""Which rows of metrics.csv a destination does not have yet."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from tfagents_system.run_files.metrics import read_rows
from tfagents_system.run_files.run_paths import RunPaths

TRAIN, EVAL = "train", "eval"
# Each kind has one row of an iteration at most. Rows of several iterations may have the same environment steps: with
# `asynchronous` those grow when a segment arrives.
_ORDER = "iteration"
MARKS = {kind: f"tracked/{kind}_{_ORDER}" for kind in (TRAIN, EVAL)}
_MOST_LATE = 1024  # Rows that are told after one of a later iteration, until the next of a still later one.


def kind_of(row: Mapping[str, float | None]) -> str:
    """An evaluation's row comes after rows of later iterations: each kind has an order of its own."""
    return EVAL if row.get("eval_return") is not None else TRAIN


def to_send(row: Mapping[str, float | None], before: Sent | None = None) -> dict[str, float]:
    """The values of a row, and a mark by which its destination tells how far it has got: `tracked/train_iteration`.

    Args:
      before: What was sent before.
    """
    values = {name: value for name, value in row.items() if value is not None}
    return {**values, MARKS[kind_of(row)]: (before or Sent()).mark_with(row)}


@dataclasses.dataclass
class Sent:
    """How far the rows go that a destination has, by kind.

    Attributes:
      iterations: The last one.
      late: Rows of earlier iterations that came after it: evaluations that were given up, and told after all.
    """

    iterations: dict[str, float] = dataclasses.field(default_factory=dict)
    late: dict[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def told(cls, newest_values: Mapping[str, object]) -> Sent:
        """From the newest values of a destination's metrics, marks among them."""
        found = {kind: newest_values.get(mark) for kind, mark in MARKS.items()}
        marks = {kind: float(value) for kind, value in found.items() if isinstance(value, int | float)}
        late = {kind: round(mark % 1.0 * _MOST_LATE) for kind, mark in marks.items()}
        return cls({k: mark // 1.0 for k, mark in marks.items()}, late)

    def mark_with(self, row: Mapping[str, float | None]) -> float:
        """How far the rows of a kind go with one more: the last iteration, and the late ones as a fraction."""
        iterations, late = self._with(row)
        return iterations + min(late, _MOST_LATE - 1) / _MOST_LATE

    def new(self, rows: Sequence[Mapping[str, float | None]]) -> list[Mapping[str, float | None]]:
        """Rows of later iterations than any of their kind before, and late ones. What a resumed run does again is not
        among them.
        """
        found, newest, reached = [], dict(self.iterations), dict[str, float]()
        late = dict[str, int]()  # Of these rows, since the last iteration that they have reached.
        for row in rows:
            iteration, kind = row.get(_ORDER), kind_of(row)
            if iteration is None:
                continue
            if iteration > reached.get(kind, -1.0):
                reached[kind], late[kind] = iteration, 0
                is_new = iteration > newest.get(kind, -1.0)
                newest[kind] = max(iteration, newest.get(kind, -1.0))
            elif iteration == reached.get(kind, -1.0):
                continue
            else:
                late[kind] += 1
                known = self.late.get(kind, 0) if reached[kind] == self.iterations.get(kind) else 0
                is_new = reached[kind] == newest[kind] and late[kind] > known
            if is_new:
                found.append(row)
        return found

    def add(self, row: Mapping[str, float | None]) -> None:
        """A row is there now."""
        self.iterations[kind_of(row)], self.late[kind_of(row)] = self._with(row)

    def _with(self, row: Mapping[str, float | None]) -> tuple[float, int]:
        """The last iteration and the late rows after one more."""
        iteration, kind = row[_ORDER] or 0.0, kind_of(row)
        last = self.iterations.get(kind, -1.0)
        return (iteration, 0) if iteration > last else (last, self.late.get(kind, 0) + 1)


class MetricsReader:
    """Reads metrics.csv when it has changed.

    Args:
      paths: The run directory.
    """

    def __init__(self, paths: RunPaths) -> None:
        self._path = paths.metrics_csv
        self._seen: tuple[int, int, int] | None = None

    def rows(self) -> list[Mapping[str, float | None]] | None:
        """All rows; None where the file is as it was."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return None
        state = status.st_ino, status.st_size, status.st_mtime_ns
        if state == self._seen:
            return None
        rows = list[Mapping[str, float | None]](read_rows(self._path))
        self._seen = state
        return rows
