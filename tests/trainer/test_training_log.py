"""A row of metrics has what has happened since the row before, and nothing else."""

from __future__ import annotations

import functools
import types
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from tfagents_system.report.status import format_return
from tfagents_system.trainer import training_log as module
from tfagents_system.trainer.training_log import TrainingLog, TrainingRow
from tfagents_system.transport.episode_reports import Episode, Report


def report(iteration: int, *returns: float, wind: float = 0.0) -> Report:
    episodes = [Episode(value, 10) for value in returns]
    return Report("train", 0, 0, iteration, 100, iteration, episodes, curriculum={"wind": wind})


def test_losses_episodes_and_rates_are_of_the_time_since_the_row_before(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    row = TrainingRow(types.SimpleNamespace(log_alpha=types.SimpleNamespace(numpy=lambda: np.log(0.2))))
    row.begin(50, 1000)
    row.begin(60, 1100)  # Later blocks do not move the beginning.
    row.add_losses({"critic_loss": 1.0, "loss": 9.0}, 30)
    row.add_losses({"critic_loss": 5.0}, 10)
    row.add_losses({"critic_loss": 7.0}, 1, "validation/")
    row.add_report(report(4, 1.0, 3.0, wind=0.5))
    now[0] += 4.0
    first = row.take(5, 250, 1400)
    assert first["critic_loss"] == 2.0, "(30 * 1 + 10 * 5) / 40: blocks differ in length"
    assert first["validation/critic_loss"] == 7.0 and "loss" not in first
    assert (first["updates_per_s"], first["env_steps_per_s"]) == (50.0, 100.0)
    assert (first["train_return"], first["curriculum/wind"]) == (2.0, 0.5)
    assert first["alpha"] == pytest.approx(0.2)
    assert not row.has_losses

    now[0] += 2.0
    second = row.take(6, 260, 1400)
    assert (second["updates_per_s"], second["env_steps_per_s"]) == (5.0, 0.0)
    assert not {"critic_loss", "validation/critic_loss", "train_return"} & second.keys()
    assert second["curriculum/wind"] == 0.5, "it stays until a worker tells another one"


def test_what_was_measured_before_going_back_is_forgotten() -> None:
    row = TrainingRow(None)
    row.begin(50, 1000)
    row.add_losses({"critic_loss": np.inf}, 1)
    row.add_report(report(4, -1e6), 200)
    row.clear()
    row.begin(20, 400)
    row.add_report(report(2, 5.0), 1)
    row.add_report(report(2), 7)
    after = row.take(2, 20, 400)
    assert after["updates_per_s"] == 0.0 and "critic_loss" not in after
    assert (after["train_return"], after["policy_age_updates"]) == (5.0, 4.0)
    row.add_report(report(5, 1.0))
    assert "policy_age_updates" not in row.take(6, 260, 1400)


def test_a_start_tells_of_the_last_evaluation_of_an_earlier_one() -> None:
    log = MagicMock(newest={})
    evaluation = {"env_steps": 3600.0, "eval_return": -95.4, "eval_success": None, "a/b": 1.0}
    log._metrics.rows.return_value = [evaluation | {"eval_return": -200.0}, evaluation, {"env_steps": 4000.0}]
    log._note = functools.partial(TrainingLog._note, log)
    TrainingLog.begin(log, 50)
    del log.newest["evaluated_at"]
    assert log.newest == {"env_steps": 3600.0, "eval_return": -95.4, "eval_env_steps": 3600}
    assert format_return({**log.newest, "env_steps": 4000}) == "-95.4 at step 3,600"
    assert format_return({**log.newest, "env_steps": 3600, "eval_return_std": 2}) == "-95.4 ± 2"


@pytest.mark.parametrize(
    ("steps_rate", "num_iter", "left"),
    [
        (20.0, 1000, 10.0),  # 200 steps.
        (20.0, 5, 2.0),  # The bound comes first: an iteration of 100 updates, 50 of them a second.
        (0.0, 1000, None),  # After a resume: a thousand iterations are no bound, and the rate is not known yet.
        (None, 5, 2.0),
    ],
)
def test_what_is_left_follows_from_steps_and_from_a_bound_of_iterations(
    steps_rate: float | None, num_iter: int, left: float | None
) -> None:
    log: Any = types.SimpleNamespace(
        newest={"updates_per_s": 50.0, "env_steps_per_s": steps_rate},
        _plan=types.SimpleNamespace(mean_updates=100.0),
        _params=types.SimpleNamespace(num_iter=num_iter, num_env_steps=1000),
        _state=types.SimpleNamespace(iteration=4, env_steps=800),
    )
    assert TrainingLog._time_left_secs(log) == left
    log._state.env_steps, log._params.num_iter = 1100, 1000
    assert TrainingLog._time_left_secs(log) == 0.0
