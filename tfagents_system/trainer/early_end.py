"""Ends a run before its last iteration. Only what it has logged decides, so every start of it decides the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfagents_system.checks.findings import counted
from tfagents_system.checks.rules import EVALUATIONS, NO_IMPROVEMENT
from tfagents_system.envs.curriculum import EvaluatedTask
from tfagents_system.envs.faults import describe_error
from tfagents_system.errors import UserError
from tfagents_system.settings.resolved import SETTINGS_OF_END, settings_of_end
from tfagents_system.train_params_base import TrainParamsBase

Row = Mapping[str, float | None]  # of metrics.csv


def rank(row: Mapping[str, Any], metric: str) -> tuple[float, ...]:
    """The key by which evaluations compare: their return, or their success rate and, for equal ones, their return.

    An environment that reports no success has none.
    """
    eval_return = row["eval_return"]
    return (eval_return,) if metric == "return" else (row.get("eval_success") or 0.0, eval_return)


class EarlyEnd:
    """Follows the rows of metrics.csv; once `stop_when` or `max_hours` is reached, that stays so.

    Args:
      params: Of the run.
    """

    def __init__(self, params: TrainParamsBase) -> None:
        conditions = dict(params.stop_when or {})
        self._max_hours = params.max_hours
        self._patience_steps = conditions.pop(NO_IMPROVEMENT, None)
        self._wanted = int(conditions.pop(EVALUATIONS, 1))
        self._thresholds = conditions
        self._metric = params.best_metric
        self._task = EvaluatedTask(params.env_config, params.num_iter)
        self.settings = settings_of_end({name: getattr(params, name) for name in SETTINGS_OF_END})
        self.begin([])

    def begin(self, rows: Sequence[Row]) -> None:
        """Takes the existing rows: of an earlier start, or up to a checkpoint that training went back to."""
        self.why: str | None = None
        self._in_a_row = 0  # Evaluations that have reached the thresholds.
        self._best_env_steps = 0.0
        self._best: tuple[float, ...] = ()
        for row in rows:
            self.add(row)

    @property
    def looks_at_evaluations(self) -> bool:
        return bool(self._thresholds or self._patience_steps)

    def add(self, row: Row) -> None:
        """Takes a row; `why` then says why the run ends, if it does."""
        self.why = self.why or self._why_of_time(row)
        if row.get("eval_return") is not None and self._task.is_last_stage(int(row.get("iteration") or 0)):
            self.why = self.why or self._why_of_evaluation(row)

    def _why_of_time(self, row: Row) -> str | None:
        hours = (row.get("wall_time_s") or 0.0) / 3600
        if self._max_hours is None or hours < self._max_hours:
            return None
        return f"max_hours={self._max_hours:g} is reached"

    def _why_of_evaluation(self, row: Row) -> str | None:
        reached = [(value := row.get(name)) is not None and value >= low for name, low in self._thresholds.items()]
        env_steps, found_rank = row.get("env_steps") or 0.0, rank(row, self._metric)
        self._in_a_row = self._in_a_row + 1 if all(reached) else 0
        if self._thresholds and self._in_a_row >= self._wanted:
            values = " and ".join(f"{name} of at least {low:g}" for name, low in self._thresholds.items())
            return f"{counted(self._in_a_row, 'evaluation')} up to {env_steps:,.0f} steps had {values} (stop_when)"
        if not self._best or found_rank > self._best:
            self._best, self._best_env_steps = found_rank, env_steps
        elif self._patience_steps is not None and env_steps - self._best_env_steps >= self._patience_steps:
            return f"no evaluation was better for {env_steps - self._best_env_steps:,.0f} environment steps (stop_when)"
        return None


@dataclasses.dataclass(frozen=True)
class Logged:
    """What a callback is called with.

    Attributes:
      moment: `updates` (a block of them is done), `evaluation` or `checkpoint`.
      row: `train_step`, `iteration`, `env_steps`, and the losses of these updates or the columns of this evaluation.
      rows: Reads all rows of metrics.csv so far, the oldest first; cells that are empty are None.
    """

    moment: str
    row: Row
    rows: Callable[[], Sequence[Row]]


class CallbackError(UserError):
    """A callback of the user's has raised."""


class Callbacks:
    """The user's callbacks. The first answer of one of them ends the run.

    Args:
      params: Of the run.
      rows: Reads all that is logged.
    """

    def __init__(self, params: TrainParamsBase, rows: Callable[[], Sequence[Row]]) -> None:
        self._callbacks = list(params.callbacks_ctor())
        self._rows = rows
        self.why: str | None = None

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def tell(self, moment: str, row: Row) -> None:
        """Calls all of them; `why` then says why the run ends, if it does.

        Raises:
          CallbackError: One has raised.
        """
        logged = Logged(moment, row, self._rows)
        for callback in self._callbacks:
            name = getattr(callback, "__name__", type(callback).__name__)
            try:
                answer = callback(logged)
            except Exception as error:
                raise CallbackError(
                    f"callback {name} of TrainParams.callbacks_ctor raised {describe_error(error)}: correct it, and "
                    "go on in another run (--from RUN --take all)"
                ) from error
            if answer:
                self.why = self.why or (answer if isinstance(answer, str) else f"callback {name} says so")
