"""The best policy is that of the present task: a stage of the curriculum that evaluations have begins without one."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from tests.support.fakes import FakeParams
from tfagents_system.envs.curriculum import EvaluatedTask
from tfagents_system.trainer.best_policy import BestPolicy
from tfagents_system.trainer.trainer_checkpoints import TrainerState

WIND = {"iters": [0, 20, 40], "range": [0.0, 0.2], "apply_to_eval": True}


def params_with(curriculum: Any = None, **attributes: Any) -> Any:
    config = {"horizon": 10, **({"curriculum": curriculum} if curriculum else {})}
    return type("TrainParams", (FakeParams,), {"num_iter": 100, **attributes})(config)


def evaluate(best: BestPolicy, iteration: int, eval_return: float, success: float | None = None) -> Any:
    """What became of the policy of an iteration: None if it is not the best one, else what it replaced."""
    row = {"eval_return": eval_return, **({} if success is None else {"eval_success": success})}
    return best.take(row, iteration, f"c{iteration}") if best.is_best(row, iteration) else None


def after_a_resume(state: TrainerState) -> TrainerState:
    return TrainerState(**json.loads(json.dumps(dataclasses.asdict(state))))


def test_a_stage_begins_anew() -> None:
    state = TrainerState()
    best = BestPolicy(params_with({"wind": WIND}), state)
    assert evaluate(best, 10, 1.0) == (None, 0)
    assert evaluate(best, 15, 1.5) == ("c10", 10)
    assert evaluate(best, 19, 1.2) is None
    assert evaluate(best, 20, -4.0) == ("c15", 15), "the best of the stage before goes"
    assert evaluate(best, 30, -4.5) is None
    best = BestPolicy(params_with({"wind": WIND}), after_a_resume(state))
    assert evaluate(best, 39, -5.0) is None
    assert evaluate(best, 50, -9.0) == ("c20", 20)
    found = best.to_json()
    assert found is not None
    assert (found["checkpoint"], found["eval_return"], found["curriculum"]) == ("c50", -9.0, {"wind": 0.2})


@pytest.mark.parametrize(
    "curriculum",
    [None, {"wind": {**WIND, "apply_to_eval": False}}, {"wind": {**WIND, "range": [0.3, 0.3]}}],
    ids=["none", "only in training", "one value"],
)
def test_where_evaluations_stay_the_same_the_highest_return_of_all_is_the_best(curriculum: Any) -> None:
    best = BestPolicy(params_with(curriculum), TrainerState())
    results = [evaluate(best, iteration, value) for iteration, value in ((10, 1.0), (20, -4.0), (40, 0.5), (60, 2.0))]
    assert results == [(None, 0), None, None, ("c10", 10)]


def test_a_run_that_got_more_iterations_keeps_what_its_last_policy_was_evaluated_with() -> None:
    state = TrainerState()
    best = BestPolicy(params_with({"wind": WIND}, num_iter=40), state)
    assert evaluate(best, 40, 3.0) is not None and state.best_stage == {"wind": 0.1}, "0.2 was never due"
    best = BestPolicy(params_with({"wind": WIND}, num_iter=100), state)
    assert evaluate(best, 50, -9.0) == ("c40", 40)


def test_by_success_the_return_decides_among_equal_ones() -> None:
    best = BestPolicy(params_with(best_metric="success"), TrainerState())
    told = ((10, 9.0, 0.5), (20, 1.0, 0.9), (30, 20.0, 0.8), (40, 2.0, 0.9), (50, 1.5, 0.9), (60, 0.0, 1.0))
    kept = [iteration for iteration, value, success in told if evaluate(best, iteration, value, success) is not None]
    assert kept == [10, 20, 40, 60]
    found = best.to_json() or {}
    assert (found["eval_success"], found["eval_return"], found["metric"]) == (1.0, 0.0, "success")
    by_return = BestPolicy(params_with(), TrainerState())
    kept = [iteration for iteration, *row in told if evaluate(by_return, iteration, *row) is not None]
    assert kept == [10, 30]


def test_without_any_success_told_the_return_decides() -> None:
    best = BestPolicy(params_with(best_metric="success"), TrainerState())
    assert [evaluate(best, k, value) is not None for k, value in ((10, 1.0), (20, 2.0), (30, 1.5))] == [
        True,
        True,
        False,
    ]
    assert evaluate(best, 40, -5.0, 0.1) is not None


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
