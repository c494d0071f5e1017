"""episodes.csv: single episodes beside the means of metrics.csv, dropped with them."""

import pytest

from tfagents_system.run_files import episode_rows
from tfagents_system.run_files.episode_rows import EpisodeOfWorker, EpisodeRows, read_episodes
from tfagents_system.run_files.run_paths import RunPaths


def row(train_step):
    return {
        "train_step": train_step,
        "iteration": 1,
        "env_steps": 2 * train_step,
        "wall_time_s": 1.5,
        "critic_loss": 3.0,
    }


@pytest.fixture
def paths(tmp_path):
    return RunPaths(tmp_path)


def test_episodes_are_where_their_row_is(paths):
    rows = EpisodeRows(paths)
    rows.write(row(100), [EpisodeOfWorker(0, -1.5, 200, None), EpisodeOfWorker(3, 2.0, 150, True)])
    rows.write(row(200), [])
    where = {"train_step": 100, "iteration": 1, "env_steps": 200, "wall_time_s": 1.5}
    assert read_episodes(paths.episodes_csv) == [
        {**where, "worker": 0, "return": -1.5, "length": 200},
        {**where, "worker": 3, "return": 2.0, "length": 150, "success": 1},
    ]


def test_what_comes_again_is_dropped_and_infinite_returns_are_left_out(paths):
    rows = EpisodeRows(paths)
    for step in (100, 200, 300):
        rows.write(row(step), [EpisodeOfWorker(0, float(step), 10, None), EpisodeOfWorker(0, float("inf"), 10, None)])
    resumed = EpisodeRows(paths)
    resumed.rewind(200, 1)
    resumed.write(row(300), [EpisodeOfWorker(0, 7.0, 10, None)])
    assert [each["return"] for each in read_episodes(paths.episodes_csv)] == [100.0, 200.0, 7.0]
    resumed.write({**row(300), "iteration": 2}, [EpisodeOfWorker(0, 8.0, 10, None)])
    resumed.rewind(300, 1)  # The second iteration had no update.
    assert [each["return"] for each in read_episodes(paths.episodes_csv)] == [100.0, 200.0, 7.0]


def test_of_very_many_episodes_every_nth_is_kept(paths, monkeypatch):
    monkeypatch.setattr(episode_rows, "MOST_OF_A_ROW", 4)
    EpisodeRows(paths).write(row(100), [EpisodeOfWorker(0, float(k), 10, None) for k in range(9)])
    assert [each["return"] for each in read_episodes(paths.episodes_csv)] == [0.0, 3.0, 6.0]
