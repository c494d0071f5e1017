"""Heartbeats: cheap, always whole, never the end of a role; and harmless to everything that shows them."""

import io
import json
import os
import re
import time

import numpy as np
import pytest
from rich.console import Console

from tests.support.statuses import NOW, status
from tfagents_system.machine.files import write_json
from tfagents_system.report.status import lost_workers, plain_table, problems, time_shares
from tfagents_system.report.terminal import progress_line, render
from tfagents_system.run_files import heartbeat as heartbeat_module
from tfagents_system.run_files.heartbeat import (
    Heartbeat,
    TimeShares,
    clean_text,
    parse_beat,
    read_heartbeat,
)


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


def test_a_change_of_state_that_comes_too_soon_is_written_later_whatever_the_role_does_then(path, monkeypatch):
    written = []

    def write(path, content, **options):
        write_json(path, content, **options)
        written.append((time.monotonic(), content["state"], content["since"]))

    monkeypatch.setattr(heartbeat_module, "write_json", write)
    heartbeat = Heartbeat(path, "trainer", min_secs=0.2)
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


def _wait_until(condition, secs=10.0):
    deadline = time.monotonic() + secs
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


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


def test_counts_of_a_worker_grow_over_its_restarts(path):
    for faults, last, expected in ((3, "a", (3, 30, "a")), (0, "", (3, 30, "a")), (2, "b", (5, 50, "b"))):
        heartbeat = Heartbeat(path, "worker_3", min_secs=0.0)
        heartbeat.beat("starting")
        counts = {"env_faults": faults, "eval_env_faults": 0, "episodes": 10 * faults}
        heartbeat.beat("collecting", **counts, last_env_fault=last, last_env_fault_at=float(faults))
        beat = read_heartbeat(path)
        assert (beat["env_faults"], beat["episodes"], beat.get("last_env_fault")) == expected
        assert beat["last_env_fault_at"] == (2.0 if last == "b" else 3.0)


# Contents of heartbeat files.
HOSTILE = {
    "texts for numbers": b'{"state":"updating","curriculum":{"m":"x"},"updates_per_s":"9"}',
    "deep": b'{"state":"updating","iteration":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "large": b'{"state":"updating","waiting_for":"' + b"x" * 10_000_000 + b'"}',
    "long": b'{"state":"' + b"y" * 100_000 + b'","save_error":"' + b"x" * 100_000 + b'"}',
    "nan": b'{"state":"updating","updates_per_s":NaN,"time_left_s":Infinity}',
    "large numbers": b'{"state":"updating","updates_per_s":1e308,"time_left_s":1e308,"eval_return":-1e308}',
    "escapes": b'{"state":"\\u001b[31mred\\u0007","waiting_for":"a\\r\\n\\u001b]0;title\\u0007","save_error":"\\u202e'
    b'\\u0000","curriculum":{"\\u001b[2Jmass":1.5},"\\u009b31m":2,"time_shares":{"\\u001b[1mx":0.5}}',
    "markup": b'{"state":"[/bold]","save_error":"[red]x[/blue]","waiting_for":"[/]","time_shares":{"[/]":1}}',
    "no object": b"[1]",
    "no state": b'{"time":1}',
    "half": b'{"state":"upd',
}


def shown(content):
    """Everything that shows a status, as one text."""
    console = Console(
        file=io.StringIO(), force_terminal=True, width=100, height=40, color_system=None, legacy_windows=False
    )
    console.print(render(content, 100, 40))
    json.dumps([{**content, "problems": problems(content, NOW)}])
    lines = [progress_line(content), plain_table([content], NOW), *problems(content, NOW), *lost_workers(content)]
    lines += [f"{owner} {share}" for owner, shares in time_shares(content).items() for share in shares.items()]
    return "\n".join([console.file.getvalue(), *lines])


def of_run(beat):
    """A status as a supervisor makes it, in which all roles have this heartbeat."""
    content = status()
    ours = {"alive": True, "restarts": 0, "given_up": False}
    content["roles"] = {role: {**(beat or {}), **ours} for role in (*content["roles"], "worker_9")}
    return content


@pytest.mark.parametrize("name", HOSTILE)
def test_whatever_is_in_a_heartbeat_can_be_shown_everywhere(tmp_path, name):
    path = tmp_path / "worker_9.json"
    path.write_bytes(HOSTILE[name])
    text = shown(of_run(read_heartbeat(path)))
    assert not re.search(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u202e]", text)
    assert set(re.findall(r"\x1b.{4}", text)) <= {"\x1b[0m\n"} and len(text) < 100_000


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        *((name, None) for name in ("texts for numbers", "large", "deep", "nan", "no state", "half")),
        ("escapes", {"state": "?[31mred?", "waiting_for": "a  ?]0;title?", "save_error": "??"}),
    ],
)
def test_what_is_not_of_its_type_is_no_heartbeat(content, expected):
    beat = parse_beat(HOSTILE[content])
    assert beat is None if expected is None else {name: beat[name] for name in expected} == expected


def test_a_number_of_another_machine_can_be_computed_with():
    assert parse_beat(b'{"state": "x", "env_faults": %d}' % 10**400)["env_faults"] == 2**63 - 1


def test_a_text_is_one_printable_line():
    assert clean_text("7 °C, μ ± 1\t✓") == "7 °C, μ ± 1 ✓"
    assert clean_text("a\x1b[31m\u2028b\u200b") == "a?[31m b?"


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_seconds_that_are_taken_out_count_for_another_activity_only():
    clock = Clock()
    shares = TimeShares(after_first=None, clock=clock)
    with shares.spend("collecting"):
        clock.now = 8.0
        shares.take_out("simulator", 5.0)
        shares.take_out("policy", 1.0)
        assert shares.shares() == pytest.approx({"simulator": 0.625, "policy": 0.125, "collecting": 0.25})
    with shares.spend("evaluating"):
        clock.now = 16.0
    assert shares.shares() == pytest.approx(
        {"simulator": 0.3125, "policy": 0.0625, "collecting": 0.125, "evaluating": 0.5}
    )
    assert sum(shares.shares().values()) == pytest.approx(1.0)


def test_a_block_under_way_counts_so_far():
    clock = Clock()
    shares = TimeShares(after_first=None, clock=clock)
    with shares.spend("waiting"), shares.spend("of no account inside"):
        clock.now = 3.0
        assert shares.shares() == {"waiting": pytest.approx(1.0)}
