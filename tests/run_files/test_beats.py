"""Heartbeats from whoever: what is read from them is typed, short, and harmless to everything that shows it."""

import contextlib
import io
import json
import re
import time

import pytest
from rich.console import Console

from tests.support.statuses import NOW, TRAINED, status
from tfagents_system.report import status as status_module
from tfagents_system.report.status import lost_workers, plain_table, problems, time_shares
from tfagents_system.report.terminal import ProgressView, progress_line, render
from tfagents_system.run_files.beats import clean_text, parse_beat, read_heartbeat, read_status
from tfagents_system.run_files.heartbeat import write_json
from tfagents_system.run_files.run_paths import RunPaths

# Contents of heartbeat files.
HOSTILE = {
    "texts for numbers": b'{"state":"updating","curriculum":{"m":"x"},"updates_per_s":"9"}',
    "numbers for texts": b'{"state":"waiting","waiting_for":7,"host":[],"time":"now"}',
    "deep": b'{"state":"updating","iteration":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "large": b'{"state":"updating","waiting_for":"' + b"x" * 10_000_000 + b'"}',
    "long": b'{"state":"' + b"y" * 100_000 + b'","error":"' + b"x" * 100_000 + b'"}',
    "nan": b'{"state":"updating","updates_per_s":NaN,"time_left_s":Infinity}',
    "large numbers": b'{"state":"updating","updates_per_s":1e308,"time_left_s":1e308,"eval_return":-1e308}',
    "zero iterations": b'{"state":"saving","iteration":5,"num_iter":0,"updates_per_s":-0.0,"time_left_s":-1}',
    "escapes": b'{"state":"\\u001b[31mred\\u0007","waiting_for":"a\\r\\n\\u001b]0;title\\u0007","error":"\\u202e\\u0000'
    b'","curriculum":{"\\u001b[2Jmass":1.5},"\\u009b31m":2,"time_shares":{"\\u001b[1mx":0.5}}',
    "no utf-8": b'{"state":"updating","error":"\xff\xfe"}',
    "markup": b'{"state":"[/bold]","error":"[red]x[/blue]","waiting_for":"[/]","time_shares":{"[/]":1}}',
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
    with contextlib.redirect_stdout(io.StringIO()) as out:
        status_module._show_json([content], NOW)
    json.loads(out.getvalue())
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
        *((name, None) for name in ("texts for numbers", "numbers for texts", "large", "deep", "nan", "no state")),
        ("escapes", {"state": "?[31mred?", "waiting_for": "a  ?]0;title?", "error": "??"}),
    ],
)
def test_what_is_not_of_its_type_is_no_heartbeat(content, expected):
    beat = parse_beat(HOSTILE[content])
    assert beat is None if expected is None else {name: beat[name] for name in expected} == expected


def test_a_text_is_one_printable_line():
    assert clean_text("7 °C, μ ± 1\t✓") == "7 °C, μ ± 1 ✓"
    assert clean_text("a\x1b[31m\u2028b\u200b") == "a?[31m b?"


def test_all_that_a_trainer_tells_arrives(tmp_path):
    beat = {"state": "updating", "role": "trainer", "time": 5.0, "since": 4.0, "pid": 7, "host": "node7", **TRAINED}
    beat |= {"curriculum": {"mass": 1.5, "friction": None}, "save_error": None, "waiting_for": None}
    write_json(tmp_path / "trainer.json", beat)
    assert read_heartbeat(tmp_path / "trainer.json") == beat


def test_a_supervisors_status_arrives_whole(tmp_path):
    content = status() | {"pinned": True}
    content["run"] |= {"exit_code": None, "port": 8008}
    content["roles"]["worker_0"] |= {"given_up": True, "given_up_because": "exit code 1"}
    write_json(tmp_path / "status.json", content)
    assert read_status(tmp_path / "status.json") == content


def test_a_view_that_fails_is_told_once_and_ends_nothing(capsys):
    for terminal in (True, False):
        console = Console(file=io.StringIO(), force_terminal=terminal, width=80)
        view = ProgressView(console, line_secs=0.001)
        view.start()
        for _ in range(3):
            view.update({"run": {}, "roles": {"trainer": 7}})  # No supervisor writes that.
            time.sleep(0.002)
        view.stop(["finished"])
        told = console.file.getvalue() + capsys.readouterr().err
        assert "finished" in told and told.count("the view fails: KeyError") == 1


def test_reading_is_cheap(tmp_path):
    paths = RunPaths(tmp_path)
    paths.heartbeats.mkdir()
    write_json(paths.heartbeat("worker_0"), {"state": "updating", "time": 1.0, **TRAINED})

    def secs():
        began = time.perf_counter()
        read_heartbeat(paths.heartbeat("worker_0"))
        return time.perf_counter() - began

    assert min(secs() for _ in range(100)) < 500e-6
