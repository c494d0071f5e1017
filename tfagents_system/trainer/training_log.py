"""What a run reports while it trains: rows of metrics, callbacks, heartbeats; and when these end it early."""

from __future__ import annotations

import collections
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import logging

from tfagents_system.envs.curriculum import Curriculum
from tfagents_system.role import Role
from tfagents_system.run_files.heartbeat import TimeShares
from tfagents_system.run_files.metrics import EpisodeOfWorker, EpisodeRows, MetricsLog
from tfagents_system.trainer.early_end import Callbacks, EarlyEnd
from tfagents_system.trainer.iteration_plan import IterationPlan
from tfagents_system.trainer.learner import Learner
from tfagents_system.trainer.trainer_checkpoints import TrainerSaves
from tfagents_system.transport.episode_reports import Report, summarize

if TYPE_CHECKING:
    from tfagents_system.trainer.evaluations import Evaluated


class TrainingRow:
    """Gathers what the next row is made of.

    Args:
      agent: Its entropy coefficient and scale of rewards are in the row, where it has them.

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
        """Training goes back: what was measured is no longer meant."""
        self._forget()
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
        self._since = (now, train_step, env_steps)
        self._forget()
        return row

    def _forget(self) -> None:
        self._losses.clear()
        self._reports.clear()
        self._policy_ages.clear()


def _mean(weighted: Sequence[tuple[float, int]]) -> float:
    values, counts = zip(*weighted, strict=True)
    return float(np.average(values, weights=counts))


class TrainingLog:
    """Follows a run; `begin` comes first.

    Args:
      role: The trainer's process.
      learner, plan, saves, shares: What is reported.

    Attributes:
      training_row: Gathers what the next row about training is made of.
      newest: For heartbeats: the newest number of each column, and the kind of the update.
    """

    def __init__(
        self, role: Role, learner: Learner, plan: IterationPlan, saves: TrainerSaves, shares: TimeShares
    ) -> None:
        self._role, self._params = role, role.params
        self._learner, self._state, self._plan, self._saves, self._shares = learner, learner.state, plan, saves, shares
        self.training_row = TrainingRow(learner.agent)
        self._metrics = MetricsLog(role.paths, Curriculum.from_config(role.params.env_config).names)
        self._episode_rows = EpisodeRows(role.paths)
        self._episodes: list[EpisodeOfWorker] = []  # Since the last row about training.
        self._early_end = EarlyEnd(role.params)
        self._callbacks = Callbacks(role.params, self._metrics.rows)
        self.newest: dict[str, Any] = {}

    def begin(self, train_step: int) -> Sequence[Mapping[str, Any]]:
        """A start of the trainer, or going back: rows of later train steps than this one do not count.

        Nor do those of later iterations than the state's, where these had no updates.

        Returns:
          The rows that do.
        """
        self.training_row.clear()
        self._episodes.clear()
        self._metrics.rewind(train_step, self._state.iteration)
        self._episode_rows.rewind(train_step, self._state.iteration)
        rows = self._metrics.rows()
        self._early_end.begin(rows)
        self._callbacks.why = None
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

    def write_evaluation(self, evaluated: Evaluated) -> dict[str, float]:
        """A row of an evaluation; returns it as it is written."""
        env_steps = self._state.env_steps if evaluated.env_steps is None else evaluated.env_steps
        where = {"train_step": evaluated.train_step, "iteration": evaluated.version, "env_steps": env_steps}
        return self._write({**where, **evaluated.summary})

    def _write(self, row: dict[str, Any]) -> dict[str, float]:
        """Returns the row as it is written."""
        with self._shares.spend("logging"):
            logged = self._metrics.write(row)
        self._early_end.add(logged)
        self.newest.update({name: value for name, value in row.items() if "/" not in name})
        logging.info("%s", "  ".join(f"{name} {value:.5g}" for name, value in row.items()))
        return logged

    # The end.

    def tell_callbacks(self, moment: str, further: Mapping[str, Any]) -> None:
        """Calls the user's callbacks with where training is and what else there is to know of this moment."""
        if self._callbacks:
            where = {
                "train_step": self._learner.train_step,
                "iteration": self._state.iteration,
                "env_steps": self._state.env_steps,
            }
            self._callbacks.tell(moment, {**where, **further})

    @property
    def looks_at_evaluations(self) -> bool:
        """Whether an evaluation may end the run."""
        return self._early_end.looks_at_evaluations or bool(self._callbacks)

    def is_over(self) -> bool:
        """Whether all iterations are done, or the run ends before: it then ends in the same way."""
        state = self._state
        if state.ended_for != self._early_end.settings:  # They were changed, so that the run continues.
            state.ended_early = None
        if state.ended_early is None and (why := self._early_end.why or self._callbacks.why or self._why_of_steps()):
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
