"""The learning curve: of any run, however little of it there is."""

import contextlib
import sys

import pytest

from tfagents_system.errors import UserError
from tfagents_system.report import long_work
from tfagents_system.report.plots import draw_learning_curve, main
from tfagents_system.report.status import RunModel
from tfagents_system.run_files.metrics import MetricsLog
from tfagents_system.run_files.run_paths import RunPaths


@pytest.fixture
def paths(tmp_path):
    (tmp_path / "pendulum_seed_3").mkdir()
    return RunPaths(tmp_path / "pendulum_seed_3")


@pytest.fixture(autouse=True)
def no_summaries(monkeypatch):
    monkeypatch.setattr(MetricsLog, "_summarize", lambda *_: None)


def write(paths, *rows):
    log = MetricsLog(paths, [])
    for row in rows:
        log.write(row)


def train(step, **columns):
    losses = {"critic_loss": 100 / (1 + step), "actor_loss": 30.0, "alpha": 0.5}
    return {"train_step": step, "env_steps": 2 * step, "train_return": -1500.0 + step, **losses, **columns}


def evaluation(step, mean, std):
    return {"train_step": step, "env_steps": 2 * step, "eval_return": mean, "eval_return_std": std}


def line(axes, label):
    (found,) = [line for line in axes.get_lines() if line.get_label().startswith(label)]
    return list(zip(*found.get_data(), strict=True))


def test_the_curves_are_the_numbers_by_environment_steps(paths, figures):
    # An evaluation is written later than the row of the period that follows it.
    write(paths, train(100), train(300), evaluation(200, -900.0, 50.0), evaluation(0, -1400.0, 10.0))
    assert draw_learning_curve(RunModel(paths.exp_dir)) == paths.learning_curve
    axes = figures[-1].axes[0]
    assert line(axes, "collected") == [(200, -1400.0), (600, -1200.0)]
    assert line(axes, "evaluation") == [(0, -1400.0), (400, -900.0)]
    (band,) = axes.collections
    corners = {tuple(point) for point in band.get_paths()[0].vertices}
    assert {(0.0, -1410.0), (0.0, -1390.0), (400.0, -950.0), (400.0, -850.0)} <= corners


@pytest.mark.parametrize(
    ("rows", "panels"),
    [
        ([evaluation(0, -1400.0, 10.0)], 0),
        ([train(step) for step in range(0, 7_000, 100)], 3),
        ([train(1, **{f"curriculum/{name}": 2 for name in "abcde"}, eval_success=0.5)], 9),
    ],
)
def test_any_run_can_be_drawn(paths, figures, rows, panels):
    write(paths, *rows)
    draw_learning_curve(RunModel(paths.exp_dir))
    assert len(figures[-1].axes) == 1 + panels


def test_losses_of_held_out_episodes_are_drawn_beside_the_others(paths, figures):
    rows = [train(step, **{"validation/critic_loss": 200.0 + step}) for step in (1, 2)]
    write(paths, *rows)
    draw_learning_curve(RunModel(paths.exp_dir))
    (axes,) = [axes for axes in figures[-1].axes if axes.get_title("left") == "critic loss"]
    assert line(axes, "held out") == [(2, 201.0), (4, 202.0)]
    assert line(axes, "trained on") == [(2, 50.0), (4, pytest.approx(100 / 3))]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["trained on", "held out"]


def test_main_names_the_run_that_has_nothing_to_draw(paths, tmp_path, capsys):
    write(paths, train(100))
    assert main([str(paths.exp_dir)]) == 0
    assert capsys.readouterr().out.strip() == str(paths.learning_curve)
    with pytest.raises(UserError, match="nowhere/metrics.csv has no rows"):
        main([str(tmp_path / "nowhere"), str(paths.exp_dir)])
    assert str(paths.learning_curve) in capsys.readouterr().out


def test_the_path_is_the_last_line_below_those_of_progress(paths, monkeypatch, capsys):
    monkeypatch.setattr(long_work, "AFTER_SECS", 0.0)
    write(paths, train(100))
    with contextlib.redirect_stderr(sys.stdout):  # As in a run's log.
        assert main([str(paths.exp_dir)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("drawing: 1 of 1 runs (100 %)") and lines[-1] == str(paths.learning_curve)
