"""Which rows of metrics.csv a destination does not have yet."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from tfagents_system.run_files.metrics import of_agent, read_metrics
from tfagents_system.run_files.run_paths import RunPaths

TRAIN, EVAL = "train", "eval"
# Each kind has one row of an iteration at most. Rows of several iterations may have the same environment steps: with
# `asynchronous` those grow when a segment arrives.
_ORDER = "iteration"
MARKS = {kind: f"tracked/{kind}_{_ORDER}" for kind in (TRAIN, EVAL)}
_STEP_MARKS = {
    kind: f"tracked/{kind}" for kind in (TRAIN, EVAL)
}  # Those of runs that began before MARKS: in env_steps.


def kind_of(row: Mapping[str, float | None]) -> str:
    """An evaluation's row comes after rows of later iterations: each kind has an order of its own."""
    return EVAL if row.get("eval_return") is not None else TRAIN


def to_send(row: Mapping[str, float | None]) -> dict[str, float]:
    """The values of a row, and a mark by which its destination tells how far it has got: `tracked/train_iteration`."""
    values = {name: value for name, value in row.items() if value is not None}
    return {**values, MARKS[kind_of(row)]: values[_ORDER]}


@dataclasses.dataclass
class Sent:
    """How far the rows go that a destination has, by kind.

    Attributes:
      iterations: The last one.
      env_steps: The most, where there is no last iteration: the rows were sent before those had MARKS.
    """

    iterations: dict[str, float] = dataclasses.field(default_factory=dict)
    env_steps: dict[str, float] = dataclasses.field(default_factory=dict)

    @classmethod
    def told(cls, newest_values: Mapping[str, object]) -> Sent:
        """From the newest values of a destination's metrics, marks among them."""
        return cls(_marked(newest_values, MARKS), _marked(newest_values, _STEP_MARKS))

    def new(self, rows: Sequence[Mapping[str, float | None]]) -> list[Mapping[str, float | None]]:
        """Rows of later iterations than any of their kind before. What a resumed run does again is not among them."""
        found, newest = [], dict(self.iterations)
        for row in rows:
            iteration, kind = row.get(_ORDER), kind_of(row)
            if kind not in newest and (row.get("env_steps") or 0.0) <= self.env_steps.get(kind, -1.0):
                continue
            if iteration is not None and iteration > newest.get(kind, -1.0):
                found.append(row)
                newest[kind] = iteration
        return found

    def add(self, row: Mapping[str, float | None]) -> None:
        """A row is there now."""
        self.iterations[kind_of(row)] = row[_ORDER] or 0.0


def _marked(newest_values: Mapping[str, object], marks: Mapping[str, str]) -> dict[str, float]:
    found = {kind: newest_values.get(mark) for kind, mark in marks.items()}
    return {kind: float(value) for kind, value in found.items() if isinstance(value, int | float)}


class MetricsReader:
    """Reads metrics.csv when it has changed.

    Args:
      paths: The run directory.
      agents_before: Of the agent whose rows are wanted.
    """

    def __init__(self, paths: RunPaths, agents_before: int) -> None:
        self._path = paths.metrics_csv
        self._agents_before = agents_before
        self._seen: tuple[int, int, int] | None = None

    def rows(self) -> list[Mapping[str, float | None]] | None:
        """All rows of the agent; None where the file is as it was."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return None
        state = status.st_ino, status.st_size, status.st_mtime_ns
        if state == self._seen:
            return None
        rows = of_agent(read_metrics(self._path), self._agents_before)
        self._seen = state
        return rows
