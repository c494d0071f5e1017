"""An agent that a run begins with is evaluated and kept like every other; random weights are not."""

from __future__ import annotations

from typing import Any

import pytest

from tfagents_system.trainer.best_policy import EvaluatedCheckpoints
from tfagents_system.trainer.state import TrainerState


class Export:
    """Remembers which checkpoints there are."""

    def __init__(self) -> None:
        self.there: list[str] = []
        self.best: list[Any] = []

    def save_checkpoint(self, iteration: int, env_steps: int, *, with_agent: bool, is_periodic: bool) -> str:
        del env_steps, is_periodic
        assert with_agent, "another run may begin with it"
        name = f"policy_checkpoint_{10 * iteration:010d}"
        self.there += [name] * (name not in self.there)
        return name

    def has_checkpoint(self, name: str) -> bool:
        return name in self.there

    def is_periodic(self, name: str) -> bool:
        return False

    def delete_agent(self, name: str) -> None:
        pass

    def is_first(self, name: str) -> bool:
        return name == min(self.there)

    def delete_checkpoint(self, name: str) -> None:
        self.there.remove(name)

    def mark_best(self, told: dict[str, Any]) -> None:
        self.best.append((told["checkpoint"], told["eval_return"]))


class Params:
    """Of a run with an evaluation an iteration."""

    env_config = {"horizon": 10}
    num_iter = 5
    best_metric = "return"
    stop_when = None
    checkpoint_period_iters = 100
    checkpoint_period_env_steps = None


class Saves:
    """Writes at once."""

    def try_to_write(self, write: Any) -> None:
        write()


def row_of(iteration: int, eval_return: float) -> dict[str, float]:
    """Of metrics, for an evaluation: an iteration has 10 updates."""
    return {"iteration": iteration, "train_step": 10 * iteration, "eval_return": eval_return}


@pytest.mark.parametrize(("begins_trained", "best"), [(True, "0000000000"), (False, "0000000010")])
def test_what_was_given_may_be_the_best(begins_trained: bool, best: str) -> None:
    export: Any = Export()
    params, saves = Params(), Saves()
    kept = EvaluatedCheckpoints(params, TrainerState(), export, saves, lambda _: False, begins_trained)  # type: ignore[arg-type]
    for iteration, value in enumerate((-117.4, -908.9)):
        kept.write(iteration)
        kept.take(row_of(iteration, value))
    assert export.best[-1][0] == f"policy_checkpoint_{best}"
    assert f"policy_checkpoint_{best}" in export.there


@pytest.mark.parametrize("env_steps", [None, 1000])
def test_policies_that_are_not_on_disk_leave_nothing_to_delete(env_steps: int | None) -> None:
    """Random weights, and one that a full disk has kept from being written; neither evaluation has a finite return."""
    export: Any = Export()
    params = Params()
    params.checkpoint_period_env_steps = env_steps  # type: ignore[assignment]
    kept = EvaluatedCheckpoints(params, TrainerState(), export, Saves(), lambda _: False)  # type: ignore[arg-type]
    for iteration in (0, 1):
        kept.take({"iteration": iteration, "train_step": 10 * iteration})
        kept.give_up(iteration, 10 * iteration)
    assert export.there == export.best == []
