"""history.jsonl: what happened to whom, and where each role's time went between two lines."""

import pytest

from tfagents_system.launch import run_history
from tfagents_system.launch.run_history import RunHistory
from tfagents_system.run_files.history import append, read_history
from tfagents_system.run_files.run_paths import RunPaths


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 1000.0

    monkeypatch.setattr(run_history.time, "monotonic", lambda: Clock.now)
    return Clock


@pytest.fixture
def paths(tmp_path):
    return RunPaths(tmp_path)


def trainer(secs, pid=1, **more):
    shares = {"updates": 0.75, "waiting": 0.25}
    return {
        "host": "a",
        "pid": pid,
        "env_steps": 500,
        "train_step": 50,
        "time_shares": shares,
        "counted_secs": secs,
        **more,
    }


def worker(pid, faults=0, **more):
    return {"host": "a", "pid": pid, "env_faults": faults, "last_env_fault": "no torque", **more}


def told(paths, kind):
    return [entry for entry in read_history(paths.history) if entry["kind"] == kind]


def test_time_is_that_since_the_line_before_of_the_same_process(paths, clock):
    history = RunHistory(paths)
    for now, beat in (
        (1010.0, trainer(8.0)),
        (1015.0, trainer(12.0)),
        (1020.0, trainer(16.0)),
        (1030.0, trainer(2.0, pid=2)),
    ):
        clock.now = now
        history.look({"trainer": beat, "worker_0": {"pid": 7}})
    lines = told(paths, "time")
    assert [line["spent"]["trainer"]["updates"] for line in lines] == [6.0, 6.0, 1.5]
    assert lines[0]["env_steps"] == 500 and lines[0]["spent"]["trainer"]["other"] == 0.0


def test_lines_come_more_seldom_the_longer_a_start_has_run(paths, clock):
    history = RunHistory(paths)
    for k in range(1, 200_000, 10):
        clock.now = 1000.0 + k
        history.look({"trainer": trainer(float(k))})
    count = len(told(paths, "time"))
    assert 400 < count < 800  # 100 in the first 1000 s, then 100 for each factor of e.


def test_faults_resumes_and_going_back_are_told_once(paths, clock):
    history = RunHistory(paths)
    history.look({"trainer": trainer(1.0), "worker_0": worker(5)})
    history.look({"trainer": trainer(1.0, resumed_at_step=1200, recoveries=0), "worker_0": worker(5, 2)})
    history.look({"trainer": trainer(1.0, resumed_at_step=1200, recoveries=1), "worker_0": worker(6, 1)})
    history.state("stopped", "stopped by SIGTERM")
    history.state("stopped", "stopped by SIGTERM")
    assert [(e["role"], e["count"], e["text"]) for e in told(paths, "fault")] == [
        ("worker_0", 3, "3 environment faults, last: no torque")
    ]
    assert [e["text"] for e in told(paths, "resume")] == ["goes on from update 1,200"]
    assert len(told(paths, "recovery")) == 1 and len(told(paths, "state")) == 1


def test_what_the_user_is_told_names_its_role(paths, clock):
    history = RunHistory(paths)
    history.look({"worker_1": worker(5), "worker_10": worker(6)})
    history.say("worker_10 ended with SIGKILL: restart in 1 s\n  its last words")
    (event,) = told(paths, "event")
    assert (event["role"], event["text"]) == ("worker_10", "worker_10 ended with SIGKILL: restart in 1 s")


def test_a_torn_line_spoils_no_other_and_a_full_disk_nothing(paths):
    append(paths.history, {"time": 1, "kind": "state", "state": "running"})
    with paths.history.open("a") as file:
        file.write('{"time": 2, "ki')
    append(paths.history, {"time": 3, "kind": "state", "state": "done"})
    assert [entry["time"] for entry in read_history(paths.history)] == [1, 3]
    append(paths.exp_dir / "none" / "history.jsonl", {"time": 1})
