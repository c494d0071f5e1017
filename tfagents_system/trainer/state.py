"""What a trainer knows beside the agent, and the periods of evaluations and checkpoints, in iterations or steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from tfagents_system.train_params_base import TrainParamsBase


@dataclasses.dataclass
class TrainerState:
    """What the trainer knows in addition to the agent's variables.

    Attributes:
      iteration: Iterations completed.
      iteration_start: Train step at which the current iteration began.
      env_steps: Environment steps of the run, as the newest block has counted them.
      best: The best policy of the present stage, as best.json has it; None before the first evaluation.
      end_env_steps, earlier_end_env_steps: `env_steps` when the last iteration ended, and when the one before it did.
      evaluations: Rows of evaluations in metrics.csv that all of this follows from.
      replaced: Policy checkpoints that were the best and are not needed: deleted once two checkpoints in a row, as many
        as are kept, have them here.
      ended_early: Why the run ends before its last iteration, where it does.
      ended_for: The settings for which it does, as `settings_of_end` has them.
      recoveries: How often training diverged and went back to a checkpoint; random numbers depend on it.
      network_resets: How often networks were drawn anew.
      policy_steps, end_policy_steps: Environment steps after the first random ones, as the newest block has counted
        them; and when the last iteration ended.
      ratio, ratio_offset: Updates per step that the run has now; and updates that count as done beside those that are,
        since the ratio was another one before.
      least_ratio: `min_updates_per_env_step` that the run has now.
      paced_from_update, paced_from_step: Updates and policy steps at which it got these two ratios.
      matmul_precision: What `auto` has chosen at the first start; None before that.
    """

    iteration: int = 0
    env_steps: int = 0
    best: dict[str, Any] | None = None
    recoveries: int = 0
    iteration_start: int = 0
    ended_early: str | None = None
    ended_for: str | None = None
    matmul_precision: str | None = None
    evaluations: int = 0
    replaced: list[str] = dataclasses.field(default_factory=list)
    end_env_steps: int = 0
    earlier_end_env_steps: int = -1
    network_resets: int = 0
    policy_steps: int = 0
    end_policy_steps: int = 0
    ratio: float | None = None
    ratio_offset: int = 0
    least_ratio: float | None = None
    paced_from_update: int = 0
    paced_from_step: int = 0


class Period(NamedTuple):
    """One period.

    Attributes:
      iterations: Its length.
      env_steps: Its length, where that is given instead: then `iterations` does not count.
    """

    iterations: int
    env_steps: int | None

    @classmethod
    def of(cls, params: TrainParamsBase, kind: Literal["eval", "checkpoint"]) -> Period:
        return cls(getattr(params, f"{kind}_period_iters"), getattr(params, f"{kind}_period_env_steps"))

    def passed(self, iteration: int, env_steps: int) -> int:
        """Multiples of it that are reached after so many iterations and steps; -1 before the beginning (-1, -1)."""
        return iteration // self.iterations if self.env_steps is None else env_steps // self.env_steps

    def is_due(self, state: TrainerState) -> bool:
        """Whether the last iteration has reached a multiple; also before the first iteration."""
        now = self.passed(state.iteration, state.end_env_steps)
        return now > self.passed(state.iteration - 1, state.earlier_end_env_steps)


def parts_of(train_step: int, count: int, period: int | None) -> Iterator[slice]:
    """The parts of `count` updates after `train_step`: each ends at a multiple of the period, or with the last one."""
    first, period = 0, period or train_step + count
    while first < count:
        end = min(count, first + period - (train_step + first) % period)
        yield slice(first, end)
        first = end
