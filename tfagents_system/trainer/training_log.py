"""What a run reports while it trains: rows of metrics, callbacks, heartbeats; and when these end it early.

Only what is logged decides when a run ends, so every start of it decides the same.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from tfagents_system.checks.findings import counted
from tfagents_system.checks.rules import EVALUATIONS, NO_IMPROVEMENT
from tfagents_system.envs.curriculum import Curriculum, EvaluatedTask
from tfagents_system.envs.faults import describe_error
from tfagents_system.errors import UserError
from tfagents_system.role import Role
from tfagents_system.run_files.heartbeat import TimeShares
from tfagents_system.run_files.metrics import EpisodeOfWorker, EpisodeRows, MetricsLog
from tfagents_system.settings.resolved import SETTINGS_OF_END, settings_of_end
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.trainer.iteration_plan import IterationPlan
from tfagents_system.trainer.learner import Learner
from tfagents_system.trainer.trainer_checkpoints import TrainerSaves
from tfagents_system.transport.episode_reports import Report, summarize

Row = Mapping[str, float | None]  # of metrics.csv


def rank(row: Mapping[str, Any], metric: str) -> tuple[float, ...]:
    """The key by which evaluations compare: their return, or their success rate and, for equal ones, their return.

    An environment that reports no success has none.
    """
    eval_return = row["eval_return"]
    return (eval_return,) if metric == "return" else (row.get("eval_success") or 0.0, eval_return)


class EarlyEnd:
    """Follows the rows of metrics.csv; once `stop_when` or `max_hours` is reached, that stays so."""

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


class TrainingRow:
    """Gathers what the next row is made of; an agent's entropy coefficient and scale of rewards, where it has them.

    Attributes:
      curriculum: Values of the curriculum's parameters, as workers reported them last.
    """

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self._losses: dict[str, list[tuple[float, int]]] = collections.defaultdict(list)
        self._reports: list[Report] = []
        self._policy_ages: list[int] = []
        self._since: tuple[float, int, int] | None = None  # (time, train step, env steps) of the last row
        self.curriculum: dict[str, float] = {}

    @property
    def has_losses(self) -> bool:
        return bool(self._losses)

    def begin(self, train_step: int, env_steps: int) -> None:
        """Rates are counted from the first call after a start or `clear`; later ones do nothing."""
        self._since = self._since or (time.monotonic(), train_step, env_steps)

    def add_losses(self, losses: Mapping[str, float], count: int, prefix: str = "") -> None:
        """The mean losses of so many minibatches."""
        for name, value in losses.items():
            self._losses[prefix + name].append((value, count))

    def add_report(self, report: Report, policy_age_updates: int | None = None) -> None:
        """Episodes that a worker has collected, and how many updates its policy is behind; None is not logged."""
        self._reports.append(report)
        if policy_age_updates is not None:
            self._policy_ages.append(policy_age_updates)

    def clear(self) -> None:
        """Forgets what was measured: it is in a row, or training goes back."""
        self._losses.clear()
        self._reports.clear()
        self._policy_ages.clear()
        self._since = None

    def take(self, iteration: int, train_step: int, env_steps: int) -> dict[str, Any]:
        """The row of the time since the last one, by column."""
        now = time.monotonic()
        since, last_step, last_env_steps = self._since or (now, train_step, env_steps)
        row: dict[str, Any] = {
            "train_step": train_step,
            "iteration": iteration,
            "env_steps": env_steps,
            "updates_per_s": (train_step - last_step) / max(1e-9, now - since),
            "env_steps_per_s": (env_steps - last_env_steps) / max(1e-9, now - since),
        }
        row.update({name: _mean(values) for name, values in self._losses.items() if name != "loss"})
        if (log_alpha := getattr(self._agent, "log_alpha", None)) is not None:
            row["alpha"] = float(np.exp(log_alpha.numpy()))
        if (scale := getattr(self._agent, "reward_scale", None)) is not None:
            row["reward_scale"] = float(scale.divisor)
        row.update(summarize("train", self._reports))
        if self._policy_ages:
            row["policy_age_updates"] = float(np.mean(self._policy_ages))
        if self._reports:
            self.curriculum = self._reports[-1].curriculum
        row.update({f"curriculum/{name}": value for name, value in self.curriculum.items()})
        self.clear()
        self._since = (now, train_step, env_steps)
        return row


def _mean(weighted: Sequence[tuple[float, int]]) -> float:
    values, counts = zip(*weighted, strict=True)
    return float(np.average(values, weights=counts))


class TrainingLog:
    """Follows a run; `begin` comes first.

    Attributes:
      training_row: Gathers what the next row about training is made of.
      newest: For heartbeats: the newest number of each column, and the kind of the update.
    """

    def __init__(
        self, role: Role, learner: Learner, plan: IterationPlan, saves: TrainerSaves, shares: TimeShares
    ) -> None:
        self._role, self._params, self._learner, self._state = role, role.params, learner, learner.state
        self._plan, self._saves, self._shares = plan, saves, shares
        self.training_row = TrainingRow(learner.agent)
        self._metrics = MetricsLog(role.paths, Curriculum.from_config(role.params.env_config).names)
        self._episode_rows = EpisodeRows(role.paths)
        self._episodes: list[EpisodeOfWorker] = []  # Since the last row about training.
        self._early_end = EarlyEnd(role.params)
        self._callbacks = list(role.params.callbacks_ctor())
        self._end_of_callbacks: str | None = None  # The first answer of one of them ends the run.
        self.newest: dict[str, Any] = {}

    def begin(self, train_step: int) -> Sequence[Mapping[str, Any]]:
        """A start of the trainer, or going back: returns the rows that count, those up to this train step.

        Not those of later iterations than the state's, where these had no updates.
        """
        self.training_row.clear()
        self._episodes.clear()
        self._metrics.rewind(train_step, self._state.iteration)
        self._episode_rows.rewind(train_step, self._state.iteration)
        rows = self._metrics.rows()
        self._early_end.begin(rows)
        self._end_of_callbacks = None
        for row in [row for row in rows if row.get("eval_return") is not None][-1:]:
            self._note(row)
        return rows

    def close(self) -> None:
        self._metrics.close()

    # Metrics.

    def add_report(self, report: Report) -> None:
        """Episodes that a worker has collected; in lock-step `train/policy_lag` says how old its policy was."""
        age = max(0, self._learner.train_step - report.train_step) if self._params.asynchronous else None
        self.training_row.add_report(report, age)
        self._episodes += [
            EpisodeOfWorker(report.worker_id, each.episode_return, each.length, each.success)
            for each in report.episodes
        ]

    def write_training_row(self) -> None:
        """A row of the time since the last one."""
        iteration, train_step, env_steps = self._state.iteration, self._learner.train_step, self._state.env_steps
        row = self.training_row.take(iteration, train_step, env_steps)
        if self._state.network_resets:
            row["network_resets"] = self._state.network_resets
        logged = self._write({**row, **self._learner.scheduled.metrics(env_steps, train_step, iteration)})
        self._episode_rows.write(logged, self._episodes)
        self._episodes.clear()

    def write_evaluation(
        self, version: int, train_step: int, env_steps: int | None, summary: Mapping[str, float]
    ) -> dict[str, float]:
        """A row of an evaluation, of the policy of an iteration; returns it as it is written.

        `env_steps` are those at the end of that iteration; None where an earlier process has published the policy.
        """
        env_steps = self._state.env_steps if env_steps is None else env_steps
        return self._write({"train_step": train_step, "iteration": version, "env_steps": env_steps, **summary})

    def _write(self, row: dict[str, Any]) -> dict[str, float]:
        """Returns the row as it is written."""
        with self._shares.spend("logging"):
            logged = self._metrics.write(row)
        self._early_end.add(logged)
        self._note(row)
        logging.info("%s", "  ".join(f"{name} {value:.5g}" for name, value in row.items()))
        return logged

    def _note(self, row: Row) -> None:
        """For heartbeats; of a row of metrics.csv what is not empty."""
        self.newest.update({name: value for name, value in row.items() if "/" not in name and value is not None})
        evaluated = {"evaluated_at": time.time(), "eval_env_steps": int(row["env_steps"] or 0)}
        self.newest |= {"logged_at": time.time()} if row.get("eval_return") is None else evaluated

    # The end.

    def tell_callbacks(self, moment: str, further: Mapping[str, Any]) -> None:
        """Calls the user's callbacks with where training is and what else there is to know of this moment.

        Raises:
          CallbackError: One has raised.
        """
        where = {"iteration": self._state.iteration, "env_steps": self._state.env_steps}
        logged = Logged(moment, {"train_step": self._learner.train_step, **where, **further}, self._metrics.rows)
        for callback in self._callbacks:
            name = getattr(callback, "__name__", type(callback).__name__)
            try:
                answer = callback(logged)
            except Exception as error:
                raise CallbackError(
                    f"callback {name} of TrainParams.callbacks_ctor raised {describe_error(error)}: correct it, and "
                    "continue in another run (--from RUN --take all)"
                ) from error
            if answer and self._end_of_callbacks is None:
                self._end_of_callbacks = answer if isinstance(answer, str) else f"callback {name} says so"

    @property
    def looks_at_evaluations(self) -> bool:
        """Whether an evaluation may end the run."""
        return self._early_end.looks_at_evaluations or bool(self._callbacks)

    def is_over(self) -> bool:
        """Whether all iterations are done, or the run ends before: it then ends in the same way."""
        state = self._state
        if state.ended_for != self._early_end.settings:  # They were changed, so that the run continues.
            state.ended_early = None
        if state.ended_early is None and (why := self._early_end.why or self._end_of_callbacks or self._why_of_steps()):
            state.ended_early, state.ended_for = why, self._early_end.settings
            logging.info("iteration %d is the last: %s", state.iteration, why)
        return state.iteration >= self._params.num_iter or state.ended_early is not None

    def is_last(self, iteration: int) -> bool:
        """Whether a policy of that iteration is the result of the run, as far as that is decided."""
        is_over = self._state.ended_early is not None or self._why_of_steps() is not None
        return (is_over and iteration >= self._state.iteration) or iteration >= self._params.num_iter

    def _why_of_steps(self) -> str | None:
        steps = self._params.num_env_steps
        return None if steps is None or self._state.end_env_steps < steps else f"num_env_steps={steps} is reached"

    # Heartbeats.

    def beat(self, state: str, waiting_for: str | None = None) -> None:
        """Tells what the trainer does, and how far it is."""
        training, learner = self._state, self._learner
        self._role.heartbeat.beat(
            state,
            **{
                **self.newest,
                "iteration": training.iteration,
                "num_iter": self._params.num_iter,
                "num_env_steps": self._params.num_env_steps,
                "train_step": learner.train_step,
                "env_steps": training.env_steps,
                "best_eval_return": training.best["eval_return"] if training.best else None,
                "ended_early": training.ended_early,
                "ended_for": training.ended_for,
                "curriculum": self.training_row.curriculum,
                "time_left_s": self._time_left_secs(),
                "time_shares": self._shares.shares(),
                "counted_secs": self._shares.counted_secs,
                "resumed_at_step": learner.resumed_at,
                "recoveries": training.recoveries,
                "save_error": self._saves.error,
                "waiting_for": waiting_for,
            },
        )

    def _time_left_secs(self) -> float | None:
        """At the rates of the last row of metrics, with as many updates in an iteration as there were so far."""
        rate, updates = self.newest.get("updates_per_s"), self._plan.mean_updates
        num_iter, num_env_steps = self._params.num_iter, self._params.num_env_steps
        found = []
        # A run of so many steps may have no bound of iterations: then it is as large as that number.
        if rate and updates is not None and (num_env_steps is None or num_iter < num_env_steps):
            found.append((num_iter - self._state.iteration) * updates / rate)
        if num_env_steps is not None:
            steps, rate = max(0, num_env_steps - self._state.env_steps), self.newest.get("env_steps_per_s")
            found += [steps / rate] if rate else [] if steps else [0.0]
        return min(found, default=None)
