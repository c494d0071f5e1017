"""A role's heartbeat: cheap, always whole, never the end of the role."""

import json
import os
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from tfagents_system.run_files import heartbeat as heartbeat_module
from tfagents_system.run_files.heartbeat import BeatReader, Heartbeat, read_heartbeat, write_json
from tfagents_system.run_files.run_paths import RunPaths


@pytest.fixture
def path(tmp_path):
    return tmp_path / "heartbeats" / "worker_3.json"


def test_a_beat_says_who_where_when_and_what(path):
    Heartbeat(path, "worker_3").beat("collecting", iteration=4, curriculum={"mass": 0.5})
    beat = read_heartbeat(path)
    assert (beat["role"], beat["pid"], beat["state"]) == ("worker_3", os.getpid(), "collecting")
    assert beat["host"] and abs(beat["time"] - time.time()) < 5
    assert (beat["iteration"], beat["curriculum"]) == (4, {"mass": 0.5})


def test_long_work_beats_with_what_it_is_at(path):
    heartbeat, times, at = Heartbeat(path, "replay", min_secs=0.02), set(), []
    heartbeat.beat("starting")
    with heartbeat.during("starting", lambda: f"row {len(at)}"):
        for row in (1, 2):
            at.append(row)
            _wait_until(lambda row=row: (read_heartbeat(path) or {}).get("doing") == f"row {row}")
            times.add(read_heartbeat(path)["time"])
    assert len(times) == 2
    heartbeat.beat("serving")
    assert read_heartbeat(path)["state"] == "serving" and "doing" not in read_heartbeat(path)


def test_beats_that_come_too_soon_are_left_out_unless_they_are_forced_or_something_waits_for_them(path):
    heartbeat = Heartbeat(path, "trainer", min_secs=60)
    heartbeat.beat("starting", n=0)
    heartbeat.beat("updating", n=1)  # Others wait for the start's end,
    assert read_heartbeat(path)["n"] == 1
    heartbeat.beat("updating", n=2)
    heartbeat.beat("saving", n=3)
    assert read_heartbeat(path)["n"] == 1
    heartbeat.beat("saving", force=True, n=4)
    assert read_heartbeat(path)["n"] == 4
    heartbeat.beat("stopped", n=5)  # and for last words.
    assert read_heartbeat(path)["n"] == 5


def test_a_change_of_state_that_comes_too_soon_is_written_later_whatever_the_role_does_then(path):
    written = []
    heartbeat = Heartbeat(path, "trainer", min_secs=0.2)
    heartbeat.tell_too(lambda content: written.append((time.monotonic(), content["state"], content["since"])))
    began = time.monotonic()
    heartbeat.beat("updating")
    for _ in range(50):
        heartbeat.beat("waiting")
        heartbeat.beat("updating")
    before = time.time()
    heartbeat.beat("saving")  # It then says nothing for long.
    after = time.time()
    _wait_until(lambda: written[-1][1] == "saving")
    at, _, since = written[-1]
    assert at - began >= 0.2 * (len(written) - 1) and before <= since <= after
    assert read_heartbeat(path)["state"] == "saving"
    heartbeat.beat("saving")
    heartbeat.beat("done")  # At once; and nothing that was to be written comes after it.
    assert read_heartbeat(path)["state"] == "done"
    beats = len(written)
    time.sleep(0.3)
    assert len(written) == beats and written[-1][1] == "done"


def test_however_often_the_state_changes_a_beat_is_written_as_seldom_as_it_should_be(path):
    written = []
    heartbeat = Heartbeat(path, "worker_0", min_secs=0.1)
    heartbeat.tell_too(lambda content: written.append(time.monotonic()))
    began = time.monotonic()
    while time.monotonic() < began + 1.0:
        heartbeat.beat("collecting")
        heartbeat.beat("waiting")
    assert 3 <= len(written) <= (time.monotonic() - began) / 0.1 + 1


def test_a_reader_reads_rarely_and_never_in_the_thread_that_asks(tmp_path, monkeypatch):
    paths, threads = RunPaths(tmp_path), []
    paths.heartbeats.mkdir()

    def read(path):
        threads.append(threading.current_thread())
        return read_heartbeat(path)

    monkeypatch.setattr(heartbeat_module, "read_heartbeat", read)
    reader = BeatReader(paths, every_secs=0.2)
    write_json(paths.heartbeat("worker_1"), {"state": "stopped"})
    assert reader.last("worker_1") is None, "not read yet"
    began = time.monotonic()
    _wait_until(lambda: reader.last("worker_1") == {"state": "stopped"} and reader.last("worker_2") == {})
    write_json(paths.heartbeat("worker_1"), {"state": "collecting"})
    _wait_until(lambda: reader.last("worker_1") == {"state": "collecting"})
    rounds = (time.monotonic() - began) / 0.2 + 1
    assert threading.current_thread() not in threads and len(threads) <= 2 * rounds
    count = len(threads)
    write_json(paths.heartbeat("worker_1"), {"state": "stopped"})
    _wait_until(lambda: not reader._beats)
    assert len(threads) <= count + 1, "nobody asks"
    assert reader.last("worker_1") is None, "an old answer is none"


def test_who_asks_rarely_waits_for_the_answer_but_not_for_long(tmp_path, monkeypatch):
    paths, may_read, may_go_on = RunPaths(tmp_path), threading.Event(), threading.Event()
    paths.heartbeats.mkdir()
    monkeypatch.setattr(heartbeat_module, "read_heartbeat", lambda path: may_read.wait(60) and read_heartbeat(path))
    monkeypatch.setattr(
        heartbeat_module, "time", SimpleNamespace(**vars(time) | {"sleep": lambda secs: may_go_on.wait(60)})
    )
    write_json(paths.heartbeat("worker_1"), {"state": "stopped"})
    reader = BeatReader(paths)
    began = time.monotonic()
    reader.wait(["worker_1", "worker_2"], secs=0.05)
    assert time.monotonic() - began >= 0.05 and reader.last("worker_1") is None, "the file system hangs"
    may_read.set()
    for _ in range(3):
        reader.wait(["worker_1", "worker_2"], secs=60.0)
        assert reader.last("worker_1") == {"state": "stopped"} and reader.last("worker_2") == {}
        may_go_on.set()
        _wait_until(lambda: not reader._beats)
        may_go_on.clear()
    assert time.monotonic() - began < 60


def _wait_until(condition, secs=10.0):
    deadline = time.monotonic() + secs
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


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
    path.parent.mkdir()
    write_json(path, {"state": "updating", "n": 0, "text": "x" * 50_000})
    stop = threading.Event()

    def write():
        for n in range(300):
            write_json(path, {"state": "updating", "n": n, "text": "x" * 50_000})
        stop.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    while not stop.is_set():
        seen.append(read_heartbeat(path))
    writer.join()
    assert seen and None not in seen
