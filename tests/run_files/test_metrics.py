"""metrics.csv and episodes.csv: rows that stay whole through crashes, full disks and rollbacks."""

from __future__ import annotations

import csv
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tfagents_system.run_files import metrics
from tfagents_system.run_files.metrics import (
    EpisodeOfWorker,
    EpisodeRows,
    MetricsLog,
    RowsFile,
    read_episodes,
    read_rows,
)
from tfagents_system.run_files.run_paths import RunPaths


@pytest.fixture
def paths(tmp_path):
    return RunPaths(tmp_path)


@pytest.fixture
def no_summaries(monkeypatch):
    """TensorFlow takes seconds to import; most tests are about the file."""
    monkeypatch.setattr(MetricsLog, "_summarize", lambda *_: None)


def row(train_step, **columns):
    return {"train_step": train_step, "iteration": train_step // 100, "env_steps": 2 * train_step, **columns}


def steps(paths):
    return [line["train_step"] for line in read_rows(paths.metrics_csv)]


def test_a_row_is_in_the_file_at_once_and_what_it_has_not_is_empty(paths, no_summaries):
    log = MetricsLog(paths, ["mass"])
    log.write(row(100, critic_loss=np.float32(0.25), alpha=float("nan"), eval_return=None, **{"curriculum/mass": 3}))
    (read,) = read_rows(paths.metrics_csv)
    assert (read["train_step"], read["iteration"], read["env_steps"]) == (100, 1, 200)
    assert (read["critic_loss"], read["curriculum/mass"]) == (0.25, 3)
    assert read["alpha"] is None and read["eval_return"] is None
    with paths.metrics_csv.open() as file:
        (cells,) = csv.DictReader(file)
    assert (cells["train_step"], cells["critic_loss"], cells["curriculum/mass"]) == ("100", "0.25", "3")


def test_new_columns_widen_the_header_and_keep_the_rows(paths, no_summaries):
    log = MetricsLog(paths, [])
    log.write(row(100, alpha=0.5))
    log.write(row(200, **{"train/force, max": 2.5}))
    log.write(row(300, alpha=0.25))
    rows = read_rows(paths.metrics_csv)
    assert [r["train/force, max"] for r in rows] == [None, 2.5, None]
    assert [r["alpha"] for r in rows] == [0.5, None, 0.25]
    assert len(paths.metrics_csv.read_text().splitlines()) == 4


@pytest.mark.parametrize("cells", [3, 18])
def test_a_torn_last_line_is_dropped_and_does_not_spoil_the_next(paths, no_summaries, cells):
    MetricsLog(paths, []).write(row(100))
    assert len(paths.metrics_csv.read_text().splitlines()[0].split(",")) == 18
    with paths.metrics_csv.open("a") as file:
        file.write(",".join(["200", *["17"] * (cells - 1)]))  # The last number may have been 170, so it is none.
    assert steps(paths) == [100]
    MetricsLog(paths, []).write(row(200))
    assert steps(paths) == [100, 200]


def test_rewind_drops_what_comes_again_and_nothing_else(paths, no_summaries):
    log = MetricsLog(paths, [])
    for train_step in (0, 100, 300, 200, 200):  # An evaluation arrives after the row of a later period.
        log.write(row(train_step))
    resumed = MetricsLog(paths, [])
    resumed.rewind(200, 2)
    assert steps(paths) == [0, 100, 200, 200]
    resumed.rewind(10_000, 100)
    assert steps(paths) == [0, 100, 200, 200]
    resumed.write(row(300))
    assert steps(paths) == [0, 100, 200, 200, 300]


def test_wall_time_goes_on_over_a_resume_and_does_not_count_what_is_done_again(paths, no_summaries, monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(metrics.time, "monotonic", lambda: clock.now)
    log = MetricsLog(paths, [])
    clock.now = 1010.0
    log.write(row(100))
    clock.now = 1030.0
    log.write(row(200))
    clock.now = 5000.0
    resumed = MetricsLog(paths, [])
    resumed.rewind(100, 1)
    clock.now = 5007.0
    resumed.write(row(200))
    assert [r["wall_time_s"] for r in read_rows(paths.metrics_csv)] == [10.0, 17.0]


def test_tensorboard_has_the_same_numbers_under_the_same_names(paths):
    log = MetricsLog(paths, [])
    for train_step, value in ((100, 1.0), (200, 2.0)):
        log.write(row(train_step, alpha=value, eval_return=-value, **{"eval/force": value, "train/force": value}))
    log.write(row(300, alpha=float("nan")))
    log.close()
    assert scalars(paths.train_summaries) == {
        "alpha": [(100, 1.0), (200, 2.0)],
        "train/force": [(100, 1.0), (200, 2.0)],
        "iteration": [(100, 1.0), (200, 2.0), (300, 3.0)],
        "env_steps": [(100, 200.0), (200, 400.0), (300, 600.0)],
    }
    assert scalars(paths.eval_summaries) == {
        "eval_return": [(100, -1.0), (200, -2.0)],
        "eval/force": [(100, 1.0), (200, 2.0)],
    }


def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(event.step, float(make_ndarray(event.tensor_proto))) for event in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
    }


FIRST = [{"step": number, "value": 0.5} for number in range(20_000)]  # What pytest writes meanwhile is shorter.


@contextmanager
def room_for(path: Path, more_bytes: int) -> Iterator[None]:
    """As on a full disk: a file may grow by so much, and the rest of a write fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + more_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_rows_of_a_write_that_breaks_off_come_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.csv"
    file = RowsFile(path, ["step", "value"], "rows")
    file.add(FIRST)
    content = path.read_bytes()
    more = [{"step": number, "value": 1.5} for number in range(20_000, 20_008)]
    with room_for(path, 30):
        file.add(more[:4])
        assert file.rows() == FIRST + more[:4]
        assert path.read_bytes() == content, "nor is half a row in it"
        file.add(more[4:6])
    assert capfd.readouterr().err.count("rows can't be written") == 1
    file.add(more[6:])
    assert read_rows(path) == file.rows() == FIRST + more


def written(train_step, iteration=1):
    """A row as it is in metrics.csv."""
    return row(train_step, wall_time_s=1.5) | {"iteration": iteration}


def test_episodes_are_where_their_row_is_and_of_very_many_every_nth_is_kept(paths, monkeypatch):
    rows = EpisodeRows(paths)
    rows.write(written(100), [EpisodeOfWorker(0, -1.5, 200, None), EpisodeOfWorker(3, 2.0, 150, True)])
    rows.write(written(200), [])
    where = {"train_step": 100, "iteration": 1, "env_steps": 200, "wall_time_s": 1.5}
    assert read_episodes(paths.episodes_csv) == [
        {**where, "worker": 0, "return": -1.5, "length": 200},
        {**where, "worker": 3, "return": 2.0, "length": 150, "success": 1},
    ]
    monkeypatch.setattr(metrics, "MOST_OF_A_ROW", 4)
    rows.write(written(300), [EpisodeOfWorker(0, float(k), 10, None) for k in range(9)])
    assert [each["return"] for each in read_episodes(paths.episodes_csv)[2:]] == [0.0, 3.0, 6.0]


def test_what_comes_again_is_dropped_and_infinite_returns_are_left_out(paths):
    rows = EpisodeRows(paths)
    for step in (100, 200, 300):
        rows.write(written(step), [EpisodeOfWorker(0, value, 10, None) for value in (float(step), float("inf"))])
    resumed = EpisodeRows(paths)
    resumed.rewind(200, 1)
    resumed.write(written(300), [EpisodeOfWorker(0, 7.0, 10, None)])
    assert [each["return"] for each in read_episodes(paths.episodes_csv)] == [100.0, 200.0, 7.0]
    resumed.write(written(300, iteration=2), [EpisodeOfWorker(0, 8.0, 10, None)])
    resumed.rewind(300, 1)  # The second iteration had no update.
    assert [each["return"] for each in read_episodes(paths.episodes_csv)] == [100.0, 200.0, 7.0]
