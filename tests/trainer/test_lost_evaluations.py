"""Evaluations whose reports got lost: which workers the trainer still expects, and what they tell again."""

import time
import types
from typing import Any

import msgspec
import pytest

from tfagents_system.report.episodes import Episode, Evaluations, Report
from tfagents_system.run_files.heartbeat import BeatReader, write_json
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.trainer.evaluations import PolicyEvaluations
from tfagents_system.transport.tables import Progress
from tfagents_system.worker import worker as worker_module
from tfagents_system.worker.worker import Worker

STRAGGLER_SECS = 30.0


@pytest.mark.parametrize(
    ("state", "since_secs", "silent_secs", "is_gone"),
    [
        ("evaluating", 600.0, 1.0, False),  # A long episode.
        ("collecting", 600.0, 1.0, False),  # It evaluates when its iteration is collected.
        ("waiting", 29.0, 1.0, False),
        ("waiting", 31.0, 1.0, True),  # It has evaluated and its report was lost, or it does not know that it should.
        ("evaluating", 600.0, 31.0, True),  # Paused or dead.
    ],
)
def test_workers_that_are_silent_or_wait_themselves_are_not_waited_for(
    tmp_path, state, since_secs, silent_secs, is_gone
):
    now = time.time()
    paths = RunPaths(tmp_path)
    beat = {"state": state, "since": now - since_secs, "time": now - silent_secs}
    write_json(paths.heartbeat("worker_3"), beat)
    params: Any = types.SimpleNamespace(n_eval_episodes=1)
    role: Any = types.SimpleNamespace(beats=BeatReader(paths, every_secs=0.01), paths=paths, num_workers=5)
    evaluations = PolicyEvaluations(params, role, STRAGGLER_SECS)
    assert not evaluations._is_gone(3) and not evaluations._is_gone(4), "their heartbeats are being read"
    deadline = time.monotonic() + 10
    while not evaluations._is_gone(4):
        assert time.monotonic() < deadline, "it was never heard of"
        evaluations._is_gone(3)
    assert evaluations._is_gone(3) == is_gone


def test_a_waiting_worker_tells_again_what_got_lost_on_the_way(monkeypatch):
    told = []

    class Connection:
        def put(self, table, arrays):
            told.append(Report.from_wire(arrays))

        def try_put(self, table, arrays, timeout_secs):
            self.put(table, arrays)

    worker = Worker.__new__(Worker)
    worker._connection = Connection()
    worker._evaluation = None
    worker._newest_progress = lambda wait_secs: None
    worker._end_with_the_run = lambda: None
    now = [100.0]
    monkeypatch.setattr(worker_module.time, "monotonic", lambda: now[0])
    worker._wait_for_news()
    assert told == [], "nothing was evaluated yet"
    report = Report("eval", 7, 0, 4, 40, 4, [], {})
    worker._tell_evaluation(report)
    for secs, times in ((0.2, 1), (4.0, 1), (1.0, 2), (0.2, 2), (5.0, 3)):
        now[0] += secs
        worker._wait_for_news()
        assert told == [report] * times
    evaluations = Evaluations(num_episodes=1, num_workers=1)
    complete = msgspec.structs.replace(report, episodes=[Episode(1.0, 10)])
    for evaluation in (complete, complete):
        evaluations.add(evaluation)
    assert [(version, len(reports)) for version, reports in evaluations.pop_ready()] == [(4, 1)]
    evaluations.add(complete)
    assert evaluations.pop_ready() == [], "it counts once"


def test_a_worker_that_never_waits_tells_again_between_iterations_but_rarely(monkeypatch):
    now, told = [1000.0], []
    monkeypatch.setattr(worker_module.time, "monotonic", lambda: now[0])
    worker = Worker.__new__(Worker)
    worker._connection = types.SimpleNamespace(try_put=lambda table, arrays, timeout: told.append(now[0]))
    worker._report = lambda report: None
    worker._next_iteration = lambda: 0
    worker._wait_for_policy = worker._apply_curriculum = worker._collect = lambda iteration: None
    worker._evaluate_if_due = lambda: None
    worker._evaluation = None
    worker._params = types.SimpleNamespace(asynchronous=True, num_iter=10)
    worker._go_on()
    worker._tell_evaluation(Report("eval", 7, 0, 4, 40, 4, [Episode(1.0, 10)], {}))
    for _ in range(2000):
        now[0] += 0.1
        worker._go_on()
    assert [round(moment) for moment in told] == [1060, 1120, 1180]
    worker._params.asynchronous = False
    for _ in range(2000):
        now[0] += 0.1
        worker._go_on()
    assert len(told) == 3, "in lock-step it waits, and tells again then"


@pytest.mark.parametrize(
    ("session", "eval_iteration", "asks"),
    [(1, -1, 0), (8, -1, 0), (7, 4, 0), (7, 5, 1), (8, 4, 1)],  # The worker has evaluated (7, 4).
)
def test_a_worker_asks_the_server_for_a_policy_to_evaluate_only_where_there_is_one(session, eval_iteration, asks):
    asked = []
    worker = Worker.__new__(Worker)
    worker._evaluated = (7, 4)
    worker._newest_progress = lambda: Progress(session, 20, 200, eval_iteration)
    worker._eval_weights_reader = types.SimpleNamespace(get=lambda: asked.append(1))
    worker._evaluate_if_due()
    assert len(asked) == asks
