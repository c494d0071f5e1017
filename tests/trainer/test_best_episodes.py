"""`keep_best_episodes`: the files of the best episodes, whichever worker collected them and whoever starts again."""

from __future__ import annotations

import dataclasses
import types
from pathlib import Path
from typing import Any

import numpy as np

from tfagents_system.run_files.episodes import RecordedEpisode, load_episode
from tfagents_system.run_files.heartbeat import TimeShares
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.trainer.evaluations import BestEpisodes, WorkerReports
from tfagents_system.transport.episode_reports import Evaluations, KeptEpisode, Report

EPISODE = RecordedEpisode(
    lists={"actions": np.zeros((2, 1), np.float32), "rewards": np.ones(2, np.float32)},
    episode_return=2.0,
    success=None,
    worker_id=0,
    number=0,
    env_id=0,
    checkpoint="policy_checkpoint_0000000007",
    train_step=7,
    iteration=1,
    seed=2**32 - 1,
    curriculum={"mass": 1.5},
)


def report(worker_id: int, *returns: float, first: int = 0) -> Report:
    kept = []
    for number, episode_return in enumerate(returns, first):
        episode = dataclasses.replace(EPISODE, worker_id=worker_id, number=number, episode_return=episode_return)
        kept.append(KeptEpisode(episode_return, 7, number, episode.to_bytes()))
    return Report("train", 0, worker_id, 1, 7, 1, [], kept=kept)


def found(folder: Path) -> list[float]:
    returns = sorted((load_episode(path, "file").episode_return for path in folder.glob("*")), reverse=True)
    assert all(f"return_{value:.6g}_" in " ".join(path.name for path in folder.glob("*")) for value in returns)
    return returns


def test_the_best_of_all_workers_stay_and_the_others_go(tmp_path: Path) -> None:
    best = BestEpisodes(tmp_path / "episodes", 3)
    best.add(report(0, 1.0, 5.0))
    best.add(Report.from_wire(report(1, 3.0, -2.0).to_wire()))
    assert found(tmp_path / "episodes") == [5.0, 3.0, 1.0]
    best.add(report(0, 4.0, 0.5, first=2))
    assert found(tmp_path / "episodes") == [5.0, 4.0, 3.0]
    best.add(report(2, 5.0, 3.0))
    assert found(tmp_path / "episodes") == [5.0, 5.0, 4.0]


def test_a_start_goes_on_with_those_that_are_there_and_keeps_none_twice(tmp_path: Path) -> None:
    BestEpisodes(tmp_path, 3).add(report(0, 1.0, 5.0, 3.0))
    (tmp_path / "return_9_broken.npz").write_bytes(b"no file of numpy")
    again = BestEpisodes(tmp_path, 3)
    again.add(report(0, 1.0, 5.0, 3.0))
    (tmp_path / "return_9_broken.npz").unlink()
    assert found(tmp_path) == [5.0, 3.0, 1.0], "a deterministic run has collected them again"
    fewer = BestEpisodes(tmp_path, 1)
    fewer.add(report(1, 0.0))
    assert found(tmp_path) == [5.0], "--set keep_best_episodes=1"


def test_a_file_has_all_that_was_recorded(tmp_path: Path) -> None:
    (tmp_path / "one.npz").write_bytes(EPISODE.to_bytes())
    loaded = load_episode(tmp_path / "one.npz", "--replay_actions")
    assert dataclasses.replace(loaded, lists={}) == dataclasses.replace(EPISODE, lists={})
    for name, values in EPISODE.lists.items():
        np.testing.assert_array_equal(loaded.lists[name], values)
    assert len(loaded) == 2


def test_the_trainer_takes_them_from_messages_of_their_own(tmp_path: Path) -> None:
    told = list[Report]()
    wire = [part.to_wire() for part in report(0, 1.0, 5.0).parts()]
    reader = types.SimpleNamespace(get=lambda secs: wire.pop(0) if wire else None)
    connection = types.SimpleNamespace(feed_dead_reader=lambda *_: None, reader=lambda *_, **__: reader)
    paths = RunPaths(tmp_path)
    log = types.SimpleNamespace(add_report=told.append)
    reports: Any = WorkerReports.__new__(WorkerReports)
    reports._log, reports._shares, reports._gathered = log, TimeShares(), Evaluations(1, range(1))
    reports._best_episodes = BestEpisodes(paths.episodes, 2)
    reports.connect(connection)
    reports.take()
    assert [each.kind for each in told] == ["train"] and found(tmp_path / "episodes") == [5.0, 1.0]
