"""The early end of a run: what is logged decides, once and for all, whatever is killed and resumed between."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.fakes import FakeParams
from tests.support.trainer_without_agent import Run, now
from tfagents_system import sac_train
from tfagents_system.launch.prepare import what_goes_on
from tfagents_system.run_files import run_directory
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings import params_check
from tfagents_system.settings.resolved import Overrides, settings_of_end
from tfagents_system.trainer.training_log import CallbackError, EarlyEnd, Logged

__all__ = ["now"]  # A fixture.

SUCCESS = {"eval_success": 0.95, "evaluations": 3}
WHY_OF_TWO = r"2 evaluations up to [\d,]+ steps had eval_success of at least 0\.9 \(stop_when\)"


def end_of(curriculum: Any = None, **attributes: Any) -> EarlyEnd:
    config = {"horizon": 10, **({"curriculum": curriculum} if curriculum else {})}
    params = type("TrainParams", (FakeParams,), {"num_iter": 100, **attributes})(config)
    assert params_check.check_params(params) == []
    return EarlyEnd(params)


def evaluations(*values: float, name: str = "eval_success") -> list[dict[str, float]]:
    return [
        {"iteration": 10 * k, "env_steps": 1000 * k, "eval_return": 0.0, name: value} for k, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("stop_when", "rows", "ends_after"),
    [
        (SUCCESS, evaluations(1.0, 0.96, 0.9, 0.95, 1.0, 1.0, 0.1), 6),
        (SUCCESS, evaluations(1.0, 1.0, 0.9, 1.0, 1.0), None),
        ({"eval_success": 0.5}, evaluations(0.4, 0.5), 2),
        ({"eval_return": -200}, evaluations(-300.0, -200.0, -500.0, name="eval_return"), 2),
        ({"eval_return": 5.0, "eval_success": 0.5}, evaluations(1.0, 1.0), None),
        ({"eval_success": 0.5}, evaluations(1.0, name="eval_return"), None),
        ({"no_improvement_env_steps": 2000}, evaluations(1.0, 3.0, 2.0, 3.0, 4.0, name="eval_return"), 4),
        ({"no_improvement_env_steps": 2000}, evaluations(1.0, 3.0, 2.0, 3.1, 2.0, name="eval_return"), None),
        (None, evaluations(1.0, 1.0, 1.0, 1.0), None),
    ],
)
def test_when_it_ends(stop_when: Any, rows: list[dict[str, float]], ends_after: int | None) -> None:
    end = end_of(stop_when=stop_when)
    found = []
    for row in rows:
        end.add(row)
        end.add({"iteration": row["iteration"], "train_return": 9.0})  # Rows between two evaluations count for nothing.
        found.append(end.why is not None)
    assert found == [ends_after is not None and k >= ends_after for k in range(1, len(rows) + 1)], "and stays so"
    again = end_of(stop_when=stop_when)
    again.begin(rows)
    assert again.why == end.why


KEYS = "stop_when=null, or stop_when.KEY=VALUE (null removes a key)"


@pytest.mark.parametrize(
    ("why", "more"),
    [
        ("1 evaluation up to 1,300 steps had eval_return of at least -15 (stop_when)", KEYS),
        ("no evaluation was better for 2,000 environment steps (stop_when)", KEYS),
        ("max_hours=0.5 is reached", "max_hours=N"),
        ("num_env_steps=400 is reached", "num_env_steps=N"),
        ("the critics diverge", "num_iter=N"),
        (None, "num_iter=N"),
    ],
)
def test_a_finished_run_is_offered_what_has_ended_it(why: str | None, more: str) -> None:
    assert what_goes_on(why) == more


def test_no_improvement_is_by_the_metric_of_the_best_policy() -> None:
    rows = [
        {"iteration": k, "env_steps": 1000 * k, "eval_return": float(k), "eval_success": success}
        for k, success in enumerate((0.5, 0.4, 0.3, 0.2))
    ]
    for metric, is_over in (("return", False), ("success", True)):
        end = end_of(stop_when={"no_improvement_env_steps": 3000}, best_metric=metric)
        end.begin(rows)
        assert (end.why is not None) == is_over


def test_only_evaluations_of_the_last_stage_count() -> None:
    wind = {"iters": [0, 15, 35, 500], "range": [0.0, 0.3], "apply_to_eval": True}  # 500 is never reached.
    for apply, ends_after in ((True, 5), (False, 2)):
        end = end_of({"wind": {**wind, "apply_to_eval": apply}}, stop_when={"eval_success": 0.9, "evaluations": 2})
        for k, row in enumerate(evaluations(*[1.0] * 7), 1):
            end.add(row)
            assert (end.why is not None) == (k >= (6 if apply else ends_after))


def test_hours_are_those_of_the_metrics() -> None:
    end = end_of(max_hours=0.5)
    end.begin([{"iteration": 1, "wall_time_s": 1799.0}])
    assert end.why is None
    end.add({"iteration": 2, "wall_time_s": 1800.0})
    assert end.why == "max_hours=0.5 is reached"


CONDITIONS: list[Any] = [{}, {"eval_succes": 0.9}, {"eval_success": 1.5}, {"eval_success": 0}, {"eval_return": "high"}]
CONDITIONS += [{"eval_return": float("nan")}, {"evaluations": 3}, {"eval_return": 1, "evaluations": 0}]
CONDITIONS += [{"no_improvement_env_steps": 0}, {"no_improvement_env_steps": 10, "evaluations": 2}]


@pytest.mark.parametrize("value", [*CONDITIONS, [0.95], "eval_success"])
def test_what_is_no_condition_is_refused(value: Any) -> None:
    params = type("TrainParams", (FakeParams,), {"stop_when": value})({"horizon": 10})
    (finding,) = params_check.check_params(params)
    assert finding.startswith('TrainParams.stop_when must be a dictionary such as {"eval_success": 0.95, ')


def test_a_clock_may_not_end_a_deterministic_run() -> None:
    params = type("TrainParams", (FakeParams,), {"max_hours": 2})({"horizon": 10})
    assert params_check.check_params(params) == []
    (finding,) = params_check.check_deterministic(params)
    assert finding.startswith("TrainParams.max_hours=2 does not work with SAC_DETERMINISTIC=1")


# The trainer.


def go(run: Run, first: int, last: int, success: float) -> int:
    """Iterations with an evaluation at each tenth; returns how many are done when it is over, or all are."""
    for iteration in range(first, last + 1):
        run.iterate(iteration)
        if iteration % 10 == 0:
            run.tell(0, iteration, [1.0] * 4, success=success)
            run.trainer._reports.take()
        if run.trainer._log.is_over():
            return iteration
    return last


def test_a_run_ends_early_and_a_start_after_a_kill_knows_it(tmp_path: Path, now: list[float]) -> None:
    run = Run(tmp_path, num_workers=1, stop_when={"eval_success": 0.9, "evaluations": 2})
    assert go(run, 0, 19, success=0.5) == 19
    assert go(run, 20, 60, success=1.0) == 30
    assert re.fullmatch(WHY_OF_TWO, run.trainer._state.ended_early or "")
    killed = Run(tmp_path, num_workers=1, stop_when={"eval_success": 0.9, "evaluations": 2}, session=2)
    killed.trainer._state.iteration = 30
    assert killed.trainer._log.is_over(), "by the rows, whatever the checkpoint says"
    rewound = Run(tmp_path, num_workers=1, stop_when={"eval_success": 0.9, "evaluations": 2}, session=3)
    rewound.trainer._follow(2500)
    rewound.trainer._state.iteration = 25
    assert not rewound.trainer._log.is_over(), "its checkpoint is from before"
    assert go(rewound, 26, 60, success=1.0) == 30, "and it ends where it would have"


def test_the_last_policy_of_an_early_end_is_evaluated_and_kept(tmp_path: Path, now: list[float]) -> None:
    deleted: list[str] = []
    run = Run(tmp_path, num_workers=1, stop_when={"eval_success": 0.9})
    run.trainer._export.delete_checkpoint = deleted.append
    run.trainer._params.checkpoint_period_iters = 1000
    run.iterate(20)
    run.iterate(23)
    run.tell(0, 20, [5.0] * 4, success=1.0)  # It took three iterations.
    run.trainer._reports.take()
    trainer, state = run.trainer, run.trainer._state
    trainer._connect = trainer._begin = trainer.save_finally = lambda: None
    trainer._export.has_model = lambda: True
    take = trainer._reports.take

    def evaluate_and_take() -> None:
        run.tell(0, trainer._reports.version, [1.0] * 4, success=0.0)
        take()

    trainer._reports.take = evaluate_and_take
    trainer.run()
    assert state.iteration == 23 and [row["iteration"] for row in run.rows()] == [20, 23]
    assert state.best["checkpoint"] == "policy_checkpoint_0000002000" and deleted == []
    assert trainer._log.is_over(), "however bad the last one was"


def test_settings_that_let_it_go_on_do(tmp_path: Path, now: list[float]) -> None:
    run = Run(tmp_path, num_workers=1, stop_when={"eval_success": 0.9})
    assert go(run, 0, 30, success=1.0) == 0
    state = run.trainer._state
    for stop_when, is_over in (({"eval_success": 0.9}, True), ({"eval_return": 2.0}, False), (None, False)):
        again = Run(tmp_path, num_workers=1, stop_when=stop_when)
        vars(again.trainer._state).update(vars(state))
        assert again.trainer._log.is_over() == is_over


def test_callbacks_get_what_is_logged_and_may_end_the_run(tmp_path: Path, now: list[float]) -> None:
    told: list[Logged] = []

    def patience(logged: Logged) -> str | None:
        told.append(logged)
        returns = [row["eval_return"] for row in logged.rows() if row.get("eval_return") is not None]
        return f"{len(returns)} evaluations are enough" if len(returns) == 3 else None

    run = Run(tmp_path, num_workers=1, callbacks=[lambda logged: None, patience])
    assert go(run, 0, 60, success=0.5) == 20
    assert [(each.moment, each.row["iteration"], each.row["eval_success"]) for each in told] == [
        ("evaluation", iteration, 0.5) for iteration in (0, 10, 20)
    ]
    state = run.trainer._state
    assert state.ended_early == "3 evaluations are enough"
    killed = Run(tmp_path, num_workers=1, callbacks=[patience])
    vars(killed.trainer._state).update(vars(state))
    assert killed.trainer._log.is_over() and len(told) == 3
    run.trainer._log.tell_callbacks("updates", {"critic_loss": 0.25})
    assert (told[-1].moment, dict(told[-1].row)) == (
        "updates",
        {"train_step": 2000, "iteration": 20, "env_steps": 0, "critic_loss": 0.25},
    )


def test_a_callback_that_raises_ends_the_run_with_the_users_line_and_all_is_saved(
    tmp_path: Path, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def divide(logged: Logged) -> str | None:
        return str(1 / (logged.row["eval_success"] or 0))

    run = Run(tmp_path, num_workers=1, callbacks=[divide])
    run.iterate(10)
    run.tell(0, 10, [1.0] * 4, success=0.0)
    saved: list[int] = []

    def start() -> None:
        run.trainer._reports.take()

    trainer = run.trainer
    trainer.run, trainer.close = start, lambda: None
    trainer.save_finally = lambda: saved.append(trainer._state.iteration)
    monkeypatch.setattr(sac_train, "Trainer", lambda role: trainer)
    with pytest.raises(CallbackError) as caught:
        sac_train.train(trainer._role)
    told = (
        "callback divide of TrainParams.callbacks_ctor raised ZeroDivisionError: division by zero (test_early_end.py, "
    )
    assert str(caught.value).startswith(told) and "--from RUN --take all" in str(caught.value)
    assert saved == [10] and run.best == [("policy_checkpoint_0000001000", 1.0)]


# The run directory.


def test_a_run_is_finished_early_for_its_own_settings_alone(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    attributes = {"num_iter": 100, "stop_when": {"eval_return": 5}, "max_hours": None, "num_env_steps": None}
    ended_for = settings_of_end(attributes)
    trainer = {"state": "done", "num_iter": 100, "ended_early": "so", "ended_for": ended_for}

    def is_finished(trainer: Any, **other: Any) -> bool:
        paths.status_json.write_text(json.dumps({"roles": {"trainer": trainer}}))
        paths.run_json.write_text(json.dumps({"attributes": attributes | other}))
        return run_directory.is_finished(paths)

    assert is_finished(trainer) and run_directory.why_early(paths) == "so"
    others: list[dict[str, Any]] = [{"stop_when": None}, {"stop_when": {"eval_return": 6}}, {"max_hours": 2}]
    assert not any(is_finished(trainer, **other) for other in others)
    is_finished(trainer)
    alike: list[dict[str, Any]] = [{}, {"stop_when": {"eval_return": 5}}, {"num_iter": 100, "max_hours": None}]
    for params in alike:
        assert run_directory.is_finished(paths, Overrides(params)), params
    impossible: list[dict[str, Any]] = [{"max_hours": "long"}, {"stop_when": {"eval_return": {}}}, {"stop_when": 5}]
    for params in (*others, *impossible, {"num_iter": 200}, {"num_env_steps": 900}):
        assert not run_directory.is_finished(paths, Overrides(params)), f"a sweep continues with it for {params}"
    assert not is_finished({**trainer, "state": "saving"})
    assert is_finished({"state": "done", "num_iter": 100}) and run_directory.why_early(paths) is None
