"""The best policy is that of the present task: a stage of the curriculum that evaluations have begins without one."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.fakes import FakeParams
from tfagents_system.envs.curriculum import EvaluatedTask
from tfagents_system.trainer.best_policy import EvaluatedCheckpoints
from tfagents_system.trainer.state import TrainerState

WIND = {"iters": [0, 20, 40], "range": [0.0, 0.2], "apply_to_eval": True}


def params_with(curriculum: Any = None, **attributes: Any) -> Any:
    config = {"horizon": 10, **({"curriculum": curriculum} if curriculum else {})}
    values = {"num_iter": 100, "checkpoint_period_iters": 1000, "stop_when": None}
    return type("TrainParams", (FakeParams,), values | attributes)(config)


class Export:
    """Every policy is on disk, and none is needed but the best."""

    deleted: list[str]

    def __init__(self) -> None:
        self.deleted = []

    def __getattr__(self, name: str) -> Any:
        return lambda *_: name == "has_checkpoint"

    def delete_checkpoint(self, name: str) -> None:
        self.deleted.append(name)


def evaluated(params: Any, state: TrainerState, *rows: tuple[float, ...]) -> list[int]:
    """Iterations whose policy became the best one, of rows (iteration, return) or (iteration, return, success)."""
    saves: Any = SimpleNamespace(try_to_write=lambda write: write())
    export: Any = Export()
    checkpoints, best = EvaluatedCheckpoints(params, state, export, saves, lambda _: False), list[int]()
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
    assert state.replaced == ["policy_checkpoint_0000000010", "policy_checkpoint_0000000015"]
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
