"""A role's heartbeat: cheap, always whole, never the end of the role."""

import json
import os
import threading
import time

import numpy as np
import pytest

from tfagents_system.report.heartbeat import Heartbeat, read_heartbeat, write_json


@pytest.fixture
def path(tmp_path):
    return tmp_path / "heartbeats" / "worker_3.json"


def test_a_beat_says_who_where_when_and_what(path):
    Heartbeat(path, "worker_3").beat("collecting", iteration=4, curriculum={"mass": 0.5})
    beat = read_heartbeat(path)
    assert (beat["role"], beat["pid"], beat["state"]) == ("worker_3", os.getpid(), "collecting")
    assert beat["host"] and abs(beat["time"] - time.time()) < 5
    assert (beat["iteration"], beat["curriculum"]) == (4, {"mass": 0.5})


def test_beats_that_come_too_soon_are_left_out_unless_the_state_changes_or_they_are_forced(path):
    heartbeat = Heartbeat(path, "trainer", min_secs=60)
    heartbeat.beat("updating", n=1)
    heartbeat.beat("updating", n=2)
    assert read_heartbeat(path)["n"] == 1
    heartbeat.beat("updating", force=True, n=3)
    assert read_heartbeat(path)["n"] == 3
    heartbeat.beat("saving", n=4)
    assert read_heartbeat(path)["n"] == 4


def test_since_is_when_the_state_began(path):
    heartbeat = Heartbeat(path, "trainer", min_secs=0)
    heartbeat.beat("waiting")
    first = read_heartbeat(path)
    time.sleep(0.02)
    heartbeat.beat("waiting")
    second = read_heartbeat(path)
    assert second["since"] == first["since"] and second["time"] > first["time"]
    heartbeat.beat("updating")
    assert read_heartbeat(path)["since"] > first["since"]


def test_a_throttled_beat_costs_less_than_100_us(path):
    heartbeat = Heartbeat(path, "trainer", min_secs=60)
    heartbeat.beat("updating")
    fastest = min(_secs_of(lambda: heartbeat.beat("updating", iteration=1, curriculum={})) for _ in range(200))
    assert fastest < 100e-6


def _secs_of(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def test_any_json_reader_takes_it(path):
    values = {"nan": float("nan"), "inf": np.float32("inf"), "scalar": np.int64(7), "array": np.array([1.0, np.nan])}
    Heartbeat(path, "trainer").beat("updating", path=path, nested={"a": [float("-inf"), True, None]}, **values)

    def refuse(constant):
        raise AssertionError(constant)

    beat = json.loads(path.read_text(), parse_constant=refuse)
    assert (beat["nan"], beat["inf"], beat["scalar"], beat["array"]) == (None, None, 7, [1.0, None])
    assert beat["nested"] == {"a": [None, True, None]}
    assert beat["path"] == str(path)


def test_a_full_disk_is_told_once_and_nothing_is_left_behind(path, monkeypatch, capsys):
    heartbeat = Heartbeat(path, "trainer", min_secs=0)
    heartbeat.beat("starting")
    before = path.read_text()

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        heartbeat.beat("updating")
        heartbeat.beat("updating")
    assert capsys.readouterr().err.count("No space left on device") == 1
    assert path.read_text() == before
    assert list(path.parent.iterdir()) == [path]
    heartbeat.beat("updating", n=1)
    assert read_heartbeat(path)["n"] == 1


def test_what_is_missing_torn_or_no_object_reads_as_none(path):
    assert read_heartbeat(path) is None
    path.parent.mkdir()
    for text in ('{"state": "upd', "[1, 2]", ""):
        path.write_text(text)
        assert read_heartbeat(path) is None


def test_a_reader_never_sees_half_a_file(path):
    write_json(path, {"n": 0, "text": "x" * 50_000})
    stop = threading.Event()

    def write():
        for n in range(300):
            write_json(path, {"n": n, "text": "x" * 50_000})
        stop.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    while not stop.is_set():
        seen.append(read_heartbeat(path))
    writer.join()
    assert seen and None not in seen
