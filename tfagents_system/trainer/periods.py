"""Periods of evaluations and checkpoints: in iterations, or in environment steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.trainer.trainer_checkpoints import TrainerState


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
