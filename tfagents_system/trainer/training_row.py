"""The row of metrics about training: losses, rates and episodes since the row before."""

from __future__ import annotations

import collections
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfagents_system.report.episodes import Report, summarize


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
