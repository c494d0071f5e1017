"""The best policy is that of the present task: a stage of the curriculum that evaluations have begins without one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.fakes import FakeParams
from tfagents_system.envs.curriculum import EvaluatedTask
from tfagents_system.playing.saved_run import best_checkpoint
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.trainer.best_policy import BestPolicies
from tfagents_system.trainer.trainer_checkpoints import TrainerState

WIND = {"iters": [0, 20, 40], "range": [0.0, 0.2], "apply_to_eval": True}


def params_with(curriculum: Any = None, **attributes: Any) -> Any:
    config = {"horizon": 10, **({"curriculum": curriculum} if curriculum else {})}
    return type("TrainParams", (FakeParams,), {"num_iter": 100, **attributes})(config)


def evaluate(best: BestPolicies, iteration: int, eval_return: float, success: float | None = None) -> Any:
    """What became of the policy of an iteration: None if it is not the best one, else what it replaced."""
    row = {"eval_return": eval_return, **({} if success is None else {"eval_success": success})}
    return best.take(row, iteration, f"c{iteration}") if best.is_best(row, iteration) else None


def test_a_stage_begins_anew_and_those_before_are_listed() -> None:
    state = TrainerState()
    best = BestPolicies(params_with({"wind": WIND}), state)
    assert evaluate(best, 10, 1.0) == (None, 0)
    assert evaluate(best, 15, 1.5) == ("c10", 10)
    assert evaluate(best, 19, 1.2) is None
    assert evaluate(best, 20, -4.0) == (None, 0), "the best of the stage before stays on disk"
    assert evaluate(best, 30, -4.5) is None
    assert evaluate(best, 35, -2.0) == ("c20", 20)
    state = TrainerState(**json.loads(json.dumps(dataclasses.asdict(state))))  # A resume.
    best = BestPolicies(params_with({"wind": WIND}), state)
    assert evaluate(best, 39, -3.0) is None
    assert evaluate(best, 50, -9.0) == (None, 0)
    found = best.to_json()
    assert (found["checkpoint"], found["eval_return"], found["curriculum"]) == ("c50", -9.0, {"wind": 0.2})
    stages = [(each["checkpoint"], each["eval_return"], each["curriculum"]) for each in found["earlier_stages"]]
    assert stages == [("c15", 1.5, {"wind": 0.0}), ("c35", -2.0, {"wind": 0.1})]
    assert [each["iteration"] for each in found["earlier_stages"]] == [15, 35]


@pytest.mark.parametrize(
    "curriculum",
    [None, {"wind": {**WIND, "apply_to_eval": False}}, {"wind": {**WIND, "range": [0.3, 0.3]}}],
    ids=["none", "only in training", "one value"],
)
def test_where_evaluations_stay_the_same_the_highest_return_of_all_is_the_best(curriculum: Any) -> None:
    best = BestPolicies(params_with(curriculum), TrainerState())
    results = [evaluate(best, iteration, value) for iteration, value in ((10, 1.0), (20, -4.0), (40, 0.5), (60, 2.0))]
    assert results == [(None, 0), None, None, ("c10", 10)]
    assert best.to_json()["earlier_stages"] == []


def test_a_curriculum_that_was_changed_back_begins_anew_as_well() -> None:
    """Only an edit of its file can do that: values go from one end of a range to the other."""
    state = TrainerState()
    assert evaluate(BestPolicies(params_with({"wind": WIND}), state), 10, 5.0) is not None
    other = BestPolicies(params_with({"wind": {**WIND, "range": [1.0, 1.0]}}), state)
    assert evaluate(other, 12, 1.0) == (None, 0)
    back = BestPolicies(params_with({"wind": WIND}), state)
    assert evaluate(back, 14, 0.0) == (None, 0)
    assert [each["checkpoint"] for each in back.to_json()["earlier_stages"]] == ["c10", "c12"]


def test_edited_files_that_are_taken_begin_anew() -> None:
    state = TrainerState()
    assert evaluate(BestPolicies(params_with(), state), 10, 5.0) == (None, 0)
    best = BestPolicies(params_with(), state, edits=1)
    assert evaluate(best, 20, -3.0) == (None, 0), "the best one before the edit stays on disk"
    assert evaluate(best, 30, -4.0) is None
    state = TrainerState(**json.loads(json.dumps(dataclasses.asdict(state))))  # A resume takes nothing.
    best = BestPolicies(params_with(), state, edits=1)
    assert evaluate(best, 40, -4.0) is None
    assert evaluate(best, 50, -2.0) == ("c20", 20)
    found = best.to_json()
    assert (found["checkpoint"], found["eval_return"], found["edits"]) == ("c50", -2.0, 1)
    assert [(each["checkpoint"], each["edits"]) for each in found["earlier_stages"]] == [("c10", 0)]


def test_a_best_one_that_is_lost_leaves_no_result_of_its_own_and_what_was_best_before() -> None:
    state = TrainerState()
    best = BestPolicies(params_with({"wind": WIND}, best_metric="success"), state)
    for iteration in (10, 20, 40):
        assert evaluate(best, iteration, float(iteration), 0.5) == (None, 0)
    best.replace_lost([({"eval_return": 20.0, "eval_success": 0.5}, 20, "c20")])
    assert (state.best_checkpoint, state.best_eval_return, state.best_eval_success) == (None, None, None)
    assert [each["checkpoint"] for each in best.to_json()["earlier_stages"]] == ["c10", "c20"]
    assert evaluate(best, 50, -9.0, 0.0) is not None
    assert [each["checkpoint"] for each in best.to_json()["earlier_stages"]] == ["c10", "c20"]


def test_a_run_that_got_more_iterations_keeps_what_its_last_policy_was_evaluated_with() -> None:
    state = TrainerState()
    best = BestPolicies(params_with({"wind": WIND}, num_iter=40), state)
    assert evaluate(best, 40, 3.0) is not None and state.best_stage == {"wind": 0.1}, "0.2 was never due"
    best = BestPolicies(params_with({"wind": WIND}, num_iter=100), state)
    assert evaluate(best, 50, -9.0) == (None, 0)


def test_by_success_the_return_decides_among_equal_ones() -> None:
    best = BestPolicies(params_with(best_metric="success"), TrainerState())
    told = ((10, 9.0, 0.5), (20, 1.0, 0.9), (30, 20.0, 0.8), (40, 2.0, 0.9), (50, 1.5, 0.9), (60, 0.0, 1.0))
    kept = [iteration for iteration, value, success in told if evaluate(best, iteration, value, success) is not None]
    assert kept == [10, 20, 40, 60]
    found = best.to_json()
    assert (found["eval_success"], found["eval_return"], found["metric"]) == (1.0, 0.0, "success")
    by_return = BestPolicies(params_with(), TrainerState())
    kept = [iteration for iteration, *row in told if evaluate(by_return, iteration, *row) is not None]
    assert kept == [10, 30]


def test_without_any_success_told_the_return_decides() -> None:
    best = BestPolicies(params_with(best_metric="success"), TrainerState())
    assert [evaluate(best, k, value) is not None for k, value in ((10, 1.0), (20, 2.0), (30, 1.5))] == [
        True,
        True,
        False,
    ]
    assert evaluate(best, 40, -5.0, 0.1) is not None


def test_best_json_names_its_checkpoint(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    paths.best_json.parent.mkdir()
    state = TrainerState()
    best = BestPolicies(params_with(), state)
    evaluate(best, 10, 1.0)
    paths.best_json.write_text(json.dumps(best.to_json()))
    assert best_checkpoint(paths) == "c10"


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
