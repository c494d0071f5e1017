"""Which policy is the best one: after an edit that a run takes, none until the next evaluation."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import pytest

from tfagents_system.errors import UserError
from tfagents_system.playing.saved_run import find_checkpoint, milestones
from tfagents_system.report.curves import best_of
from tfagents_system.report.page.run_data import Budget, run_data
from tfagents_system.run_files.best import read_best
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.trainer.trainer_checkpoints import TrainerState
from tfagents_system.trainer.training_log import TrainingLog

BEFORE, AFTER = "policy_checkpoint_0000000010", "policy_checkpoint_0000000030"
ROWS = "train_step,env_steps,iteration,eval_return,edits\n10,100,1,9,\n20,200,2,5,\n"


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "run")
    (paths.policy_checkpoints / BEFORE).mkdir(parents=True)
    paths.metrics_csv.write_text(ROWS)
    write(paths.best_json, checkpoint=BEFORE, eval_return=9.0, edits=0)
    return paths


def write(path: Path, **content: Any) -> None:
    path.write_text(json.dumps(content))


def take_edit(paths: RunPaths) -> None:
    write(paths.run_json, edits=[{"train_step": 20, "before": "before_edits_1"}])


def rows_of(paths: RunPaths) -> list[dict[str, float]]:
    names, *lines = paths.metrics_csv.read_text().splitlines()
    return [
        {name: float(cell) for name, cell in zip(names.split(","), line.split(","), strict=True) if cell}
        for line in lines
    ]


def test_what_was_best_before_an_edit_is_not_the_best_after_it(run: RunPaths) -> None:
    assert find_checkpoint(run, "best").name == BEFORE and best_of(run, rows_of(run)) == 9.0
    take_edit(run)
    assert read_best(run) is None and best_of(run, rows_of(run)) is None
    with pytest.raises(UserError, match=r"no policy was evaluated since the run took edited files: .* take latest"):
        find_checkpoint(run, "best")
    assert [path.name for path in milestones(run)] == [BEFORE], "as where nothing was evaluated"
    (run.policy_checkpoints / AFTER).mkdir()
    with run.metrics_csv.open("a") as file:
        file.write("30,300,3,-4,1\n")
    assert best_of(run, rows_of(run)) == -4.0
    write(run.best_json, checkpoint=AFTER, eval_return=-4.0, edits=1)
    assert find_checkpoint(run, "best").name == AFTER


def test_an_edit_that_is_undone_gives_the_best_one_back(run: RunPaths) -> None:
    take_edit(run)
    write(run.run_json, edits=[])
    assert find_checkpoint(run, "best").name == BEFORE


def test_the_trainer_tells_no_best_return_of_before(run: RunPaths) -> None:
    told = []
    log: Any = types.SimpleNamespace(
        _state=TrainerState(best_eval_return=9.0, best_checkpoint=BEFORE),
        _learner=types.SimpleNamespace(train_step=20, resumed_at=20),
        _params=types.SimpleNamespace(num_iter=5, num_env_steps=None),
        _role=types.SimpleNamespace(heartbeat=types.SimpleNamespace(beat=lambda state, **beat: told.append(beat))),
        _shares=types.SimpleNamespace(shares=dict, counted_secs=0.0),
        _saves=types.SimpleNamespace(error=None),
        training_row=types.SimpleNamespace(curriculum=None),
        newest={},
        _time_left_secs=lambda: None,
    )
    for edits in (0, 1):
        log._edits = edits
        TrainingLog.beat(log, "training")
    assert [beat["best_eval_return"] for beat in told] == [9.0, None]


def test_the_page_marks_where_the_best_policy_was_evaluated(run: RunPaths) -> None:
    assert run_data(run, Budget())["best"] == {"env_steps": 100, "updates": 10, "hours": 0.0, "y": 9.0}
    take_edit(run)
    assert run_data(run, Budget())["best"] is None
