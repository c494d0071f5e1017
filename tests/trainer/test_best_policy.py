"""The best policy is that of the present task: a stage of the curriculum that evaluations have begins without one."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.fakes import FakeParams
from tfagents_system.envs.curriculum import EvaluatedTask
from tfagents_system.trainer.evaluations import EvaluatedCheckpoints
from tfagents_system.trainer.iteration_plan import TrainerState

WIND = {"iters": [0, 20, 40], "range": [0.0, 0.2], "apply_to_eval": True}


def params_with(curriculum: Any = None, **attributes: Any) -> Any:
    config = {"horizon": 10, **({"curriculum": curriculum} if curriculum else {})}
    values = {"num_iter": 100, "checkpoint_period_iters": 1000, "stop_when": None}
    return type("TrainParams", (FakeParams,), values | attributes)(config)


class DiskExport:
    """Remembers which checkpoints there are, and what was the best one."""

    def __init__(self, has_all: bool = False) -> None:
        self.there, self.best, self._has_all = list[str](), list[Any](), has_all

    def save_checkpoint(self, iteration: int, env_steps: int, *, with_agent: bool, is_periodic: bool) -> str:
        del env_steps, is_periodic
        assert with_agent, "another run may begin with it"
        name = f"policy_checkpoint_{10 * iteration:010d}"
        self.there += [name] * (name not in self.there)
        return name

    def has_checkpoint(self, name: str) -> bool:
        return self._has_all or name in self.there

    def is_periodic(self, name: str) -> bool:
        return False

    def delete_agent(self, name: str) -> None:
        pass

    def checkpoints(self) -> list[str]:
        return sorted(self.there)

    def delete_checkpoint(self, name: str) -> None:
        self.there.remove(name)

    def mark_best(self, told: dict[str, Any]) -> None:
        self.best.append((told["checkpoint"], told["eval_return"]))


SAVES: Any = SimpleNamespace(try_to_write=lambda write: write())  # Writes at once.


def evaluated(params: Any, state: TrainerState, *rows: tuple[float, ...]) -> list[int]:
    """Iterations whose policy became the best one, of rows (iteration, return) or (iteration, return, success)."""
    export: Any = DiskExport(has_all=True)
    checkpoints, best = EvaluatedCheckpoints(params, state, export, SAVES), list[int]()
    for iteration, *result in rows:
        before = state.best
        names = dict(zip(("eval_return", "eval_success"), result, strict=False))
        checkpoints.take({"iteration": iteration, "train_step": iteration, **names})
        if state.best != before and state.best is not None:
            best.append(state.best["iteration"])
    return best


def after_a_resume(state: TrainerState) -> TrainerState:
    return TrainerState(**json.loads(json.dumps(dataclasses.asdict(state))))


def test_a_stage_begins_anew() -> None:
    state, params = TrainerState(), params_with({"wind": WIND})
    rows = ((10, 1.0), (15, 1.5), (19, 1.2), (20, -4.0), (30, -4.5))
    assert evaluated(params, state, *rows) == [10, 15, 20], "the best of the stage before goes"
    state = after_a_resume(state)
    assert evaluated(params, state, (39, -5.0), (50, -9.0)) == [50]
    assert state.best == {
        "checkpoint": "policy_checkpoint_0000000050",
        "eval_return": -9.0,
        "eval_success": None,
        "iteration": 50,
        "curriculum": {"wind": 0.2},
        "metric": "return",
    }


@pytest.mark.parametrize(
    "curriculum",
    [None, {"wind": {**WIND, "apply_to_eval": False}}, {"wind": {**WIND, "range": [0.3, 0.3]}}],
    ids=["none", "only in training", "one value"],
)
def test_where_evaluations_stay_the_same_the_highest_return_of_all_is_the_best(curriculum: Any) -> None:
    rows = ((10, 1.0), (20, -4.0), (40, 0.5), (60, 2.0))
    assert evaluated(params_with(curriculum), TrainerState(), *rows) == [10, 60]


def test_a_run_that_got_more_iterations_keeps_what_its_last_policy_was_evaluated_with() -> None:
    state = TrainerState()
    assert evaluated(params_with({"wind": WIND}, num_iter=40), state, (40, 3.0)) == [40]
    assert state.best is not None and state.best["curriculum"] == {"wind": 0.1}, "0.2 was never due"
    assert evaluated(params_with({"wind": WIND}, num_iter=100), state, (50, -9.0)) == [50]


def test_by_success_the_return_decides_among_equal_ones_and_where_none_is_told() -> None:
    by_success = params_with(best_metric="success")
    rows = ((10, 9.0, 0.5), (20, 1.0, 0.9), (30, 20.0, 0.8), (40, 2.0, 0.9), (50, 1.5, 0.9), (60, 0.0, 1.0))
    assert evaluated(by_success, TrainerState(), *rows) == [10, 20, 40, 60]
    assert evaluated(params_with(), TrainerState(), *rows) == [10, 30]
    assert evaluated(by_success, TrainerState(), (10, 1.0), (20, 2.0), (30, 1.5), (40, -5.0, 0.1)) == [10, 20, 40]


def test_the_task_in_words() -> None:
    curriculum = {"wind": WIND, "mass": {"iters": [30], "range": [2, 2]}}
    task = EvaluatedTask({"horizon": 1, "curriculum": curriculum}, 100)
    assert task.in_words(19) == "iteration 19: wind=0"
    assert task.in_words(39) == "iteration 39: wind=0.1 (only in training: mass=2)"
    assert [task.is_last_stage(iteration) for iteration in (0, 39, 40, 100, 200)] == [False, False, True, True, True]
    assert EvaluatedTask({"horizon": 1}, 100).in_words(5) == "" and EvaluatedTask({"horizon": 1}, 100).is_last_stage(0)
    only_trained = EvaluatedTask({"horizon": 1, "curriculum": {"mass": curriculum["mass"]}}, 100)
    assert only_trained.in_words(30) == "iteration 30: nothing set (only in training: mass=2)"
    assert EvaluatedTask({"horizon": 1, "curriculum": {"wind": WIND}}, 40).stage(40) == {"wind": 0.1}


# What an agent begins with.


def row_of(iteration: int, eval_return: float) -> dict[str, float]:
    """Of metrics, for an evaluation: an iteration has 10 updates."""
    return {"iteration": iteration, "train_step": 10 * iteration, "eval_return": eval_return}


@pytest.mark.parametrize(("begins_trained", "best"), [(True, "0000000000"), (False, "0000000010")])
def test_what_was_given_may_be_the_best(begins_trained: bool, best: str) -> None:
    export: Any = DiskExport()
    kept = EvaluatedCheckpoints(params_with(), TrainerState(), export, SAVES, begins_trained)
    for iteration, value in enumerate((-117.4, -908.9)):
        kept.write(iteration)
        kept.take(row_of(iteration, value))
    assert export.best[-1][0] == f"policy_checkpoint_{best}"
    assert f"policy_checkpoint_{best}" in export.there


def test_a_late_evaluation_leaves_the_policy_that_is_evaluated_meanwhile() -> None:
    export: Any = DiskExport()
    kept = EvaluatedCheckpoints(params_with(), TrainerState(), export, SAVES)
    for iteration in (1, 2):
        kept.write(iteration)
        kept.give_up()
    kept.write(3)
    kept.write(4)
    kept.take(row_of(2, -5.0))
    kept.take(row_of(4, -4.0))
    assert [int(name[-10:]) for name in export.there] == [10, 40]
    assert export.best[-1][0] == "policy_checkpoint_0000000040"


@pytest.mark.parametrize("env_steps", [None, 1000])
def test_policies_that_are_not_on_disk_leave_nothing_to_delete(env_steps: int | None) -> None:
    """Random weights, and one that a full disk has kept from being written; neither evaluation has a finite return."""
    export: Any = DiskExport()
    params = params_with(checkpoint_period_env_steps=env_steps)
    kept = EvaluatedCheckpoints(params, TrainerState(), export, SAVES)
    for iteration in (0, 1):
        kept.take({"iteration": iteration, "train_step": 10 * iteration})
        kept.give_up()
    assert export.there == export.best == []
