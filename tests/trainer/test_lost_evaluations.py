"""Evaluations whose reports got lost: which workers the trainer still expects, and what they tell again."""

from __future__ import annotations

import contextlib
import dataclasses
import types
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import msgspec
import numpy as np
import pytest

from tfagents_system.machine.claims import SlotCounts
from tfagents_system.machine.files import write_json
from tfagents_system.run_files.episodes import RecordedEpisode, load_episode
from tfagents_system.run_files.heartbeat import TimeShares
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.trainer import evaluations as evaluations_module
from tfagents_system.trainer.evaluations import BestEpisodes, WorkerReports
from tfagents_system.transport.episode_reports import Episode, Evaluations, KeptEpisode, Report
from tfagents_system.transport.tables import EVAL_WEIGHTS, REPORTS, Progress
from tfagents_system.worker import evaluator as evaluator_module
from tfagents_system.worker.evaluator import Evaluator

STRAGGLER_SECS = 30.0


@pytest.mark.parametrize(
    ("state", "goes_on_beating", "is_gone"),
    [
        ("evaluating", True, False),  # A long episode.
        ("collecting", True, False),  # It evaluates when its iteration is collected.
        ("waiting", True, True),  # It has evaluated and its report was lost, or it does not know that it should.
        ("evaluating", False, True),  # Paused or dead.
    ],
)
def test_workers_that_are_silent_or_wait_themselves_are_not_waited_for(
    tmp_path, monkeypatch, state, goes_on_beating, is_gone
):
    now = [1000.0]
    monkeypatch.setattr(evaluations_module, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    paths = RunPaths(tmp_path)
    paths.heartbeats.mkdir(exist_ok=True)
    params: Any = types.SimpleNamespace(
        num_eval_episodes=3, asynchronous=True, eval_period_iters=1, eval_period_env_steps=None, keep_best_episodes=0
    )
    variables = types.SimpleNamespace(straggler_secs=STRAGGLER_SECS, slots=SlotCounts(3, 3, 3))
    role: Any = types.SimpleNamespace(
        **{"paths": paths, "params": params, "variables": variables},
        **{"deterministic": False, "is_far": False, "has_left": lambda worker: False},
    )
    checkpoints = MagicMock()
    evaluations = WorkerReports(role, MagicMock(), checkpoints, TimeShares())
    evaluations.connect(MagicMock(**{"reader.return_value.get.return_value": None}))
    evaluations.begin()
    evaluations.start(0, [], 0)
    for secs in range(int(STRAGGLER_SECS) + 2):
        now[0] += 1.0
        beat = {"state": state, "since": 0.0, "time": 70.0 * secs * goes_on_beating}  # By another clock.
        write_json(paths.heartbeat("worker_2"), beat)
        for worker in (0, 1):
            write_json(paths.heartbeat(f"worker_{worker}"), {"state": "evaluating", "since": 0.0, "time": secs})
        evaluations.leave_out_gone()
        if secs == STRAGGLER_SECS:
            assert evaluations.missing() == [0, 1, 2], "it has the whole time"
    assert evaluations.missing() == ([0, 1] if is_gone else [0, 1, 2])
    role.is_far = True
    now[0] += 1.0
    evaluations.leave_out_gone()
    assert checkpoints.give_up.called, "a trainer elsewhere hears no heartbeats: whoever is late is gone"


def evaluator_over(connection: Any, **params: Any) -> Evaluator:
    """With nothing to run episodes in: what it tells is what counts here."""
    settings: Any = types.SimpleNamespace(eval_observers_ctor=list, num_iter=10, **params)
    nothing: Any = None
    sender: Any = types.SimpleNamespace(call=lambda function: function())
    return Evaluator(settings, 0, range(1), connection, sender, connection.newest(EVAL_WEIGHTS), nothing, nothing)


class Connection:
    """Keeps the reports that were put, and counts how often the newest policy was asked for."""

    def __init__(self) -> None:
        self.told: list[Report] = []
        self.asked = 0

    def put(self, table: str, arrays: Any) -> None:
        assert table == REPORTS
        self.told.append(Report.from_wire(arrays))

    def try_put(self, table: str, arrays: Any, timeout_secs: float) -> None:
        self.put(table, arrays)

    def newest(self, table: str) -> Any:
        assert table == EVAL_WEIGHTS
        return types.SimpleNamespace(get=self._get)

    def _get(self) -> None:
        self.asked += 1


def test_a_waiting_worker_tells_again_what_got_lost_on_the_way(monkeypatch):
    connection = Connection()
    evaluator = evaluator_over(connection)
    now = [100.0]
    monkeypatch.setattr(evaluator_module.time, "monotonic", lambda: now[0])
    evaluator.evaluate_if_due(None)
    assert connection.told == [], "nothing was evaluated yet"
    report = Report("eval", 7, 0, 4, 40, 4, [], {})
    evaluator.tell(report)
    for secs, times in ((0.2, 1), (4.0, 1), (1.0, 2), (0.2, 2), (5.0, 3)):
        now[0] += secs
        evaluator.evaluate_if_due(None)  # As workers do between iterations, and while they wait.
        assert connection.told == [report] * times
    evaluations = Evaluations(num_episodes=1, sharing=range(1))
    complete = msgspec.structs.replace(report, episodes=[Episode(1.0, 10)])
    for evaluation in (complete, complete):
        evaluations.add(evaluation)
    assert [(version, len(reports)) for version, reports in evaluations.pop_ready()] == [(4, 1)]
    evaluations.add(complete)
    assert evaluations.pop_ready() == [], "it counts once"


@pytest.mark.parametrize(
    ("session", "eval_iteration", "asks"),
    [(1, -1, 0), (8, -1, 0), (7, 4, 0), (7, 5, 1), (8, 4, 1)],  # The worker has evaluated (7, 4).
)
def test_a_worker_asks_the_server_for_a_policy_to_evaluate_only_where_there_is_one(session, eval_iteration, asks):
    connection = Connection()
    evaluator = evaluator_over(connection)
    evaluator._evaluated = (7, 4)
    evaluator.evaluate_if_due(Progress(session, 20, 200, eval_iteration))
    assert connection.asked == asks


def test_random_numbers_of_an_evaluation_follow_the_curriculums_values():
    """`set_state` may draw numbers, and is called only for values that are not set yet."""
    told: list[str] = []
    evaluator = evaluator_over(Connection())
    rollout = types.SimpleNamespace(episodes=lambda count: told.append("episodes"))
    evaluator.policy = types.SimpleNamespace(policy=MagicMock())
    evaluator.runner = types.SimpleNamespace(
        activity=types.SimpleNamespace(beat=lambda state, iteration: None, spend=contextlib.nullcontext),
        environments=types.SimpleNamespace(
            eval_lanes=1,
            memory=types.SimpleNamespace(check=lambda: None),
            set_evaluated=lambda iteration: told.append("set_state"),
        ),
        repeat=lambda stream, iteration: told.append("seeds"),
        rollout=lambda actor, **more: rollout,
        stepping=lambda is_eval: contextlib.nullcontext(),
    )
    evaluator.play(4, 40, [0], lambda episode: None, repeats=True)
    assert told == ["set_state", "seeds", "episodes"]
    told.clear()
    evaluator.play(4, 40, [0], lambda episode: None)
    assert told == ["set_state", "episodes"], "who only plays has its own random numbers"


# `keep_best_episodes`: the files of the best episodes, whichever worker collected them and whoever starts again.


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
