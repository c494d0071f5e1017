"""What long work tells on a terminal, and where there is none."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from typing import TextIO

import pytest

from tfagents_system.report import long_work
from tfagents_system.report.long_work import LongWork, followed
from tfagents_system.report.run_bar import RunBar

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Standard error that is no terminal, in `with redirect_stderr(lines)`: pytest takes it back after fixtures."""
    stream = io.StringIO()
    monkeypatch.setattr(long_work, "_LINE_SECS", 0.1)
    return stream


class Terminal:
    """Standard error that is one, of 80 columns."""

    def __init__(self, master: int, stream: TextIO) -> None:
        self._master, self.stream, self._told = master, stream, b""

    def told(self) -> str:
        """All that was written to it."""
        self.stream.flush()
        with contextlib.suppress(BlockingIOError):
            while True:
                self._told += os.read(self._master, 1 << 16)
        return self._told.decode()

    def text(self) -> str:
        """Without what moves and colours."""
        return _ESCAPE.sub("", self.told())


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    os.set_blocking(master, False)
    with os.fdopen(slave, "w", buffering=1) as stream:
        yield Terminal(master, stream)
    os.close(master)


class Patience(threading.Event):
    """Of a work in the place of `_is_over`: the time in which nothing is told ends when the test sets `is_spent`."""

    def __init__(self) -> None:
        super().__init__()
        self.is_spent, self.waits = threading.Event(), list[float | None]()

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        if len(self.waits) > 1:
            return super().wait(timeout)
        assert self.is_spent.wait(10.0)
        return self.is_set()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_is_soon_over_is_not_told(lines: io.StringIO, terminal: Terminal) -> None:
    for stream in (lines, terminal.stream):
        with redirect_stderr(stream):
            assert list(followed([1, 2, 3], "reading", "runs", 3)) == [1, 2, 3]
    assert terminal.told() == "" and lines.getvalue() == ""


def test_without_a_terminal_there_is_a_line_now_and_then(lines: io.StringIO) -> None:
    work = LongWork("montage", 400, "pictures", after_secs=0.05)
    work._is_over = patience = Patience()
    with redirect_stderr(lines), work:
        work.advance(120)
        work.doing = "step 7"
        wait_for(lambda: patience.waits == [0.05])
        assert lines.getvalue() == ""
        patience.is_spent.set()
        wait_for(lambda: lines.getvalue().count("\n") >= 3)
    seen = lines.getvalue()
    assert {line.rpartition(", ")[0] for line in seen.splitlines()} == {"montage: 120 of 400 pictures (30 %), step 7"}
    assert set(patience.waits[1:]) == {0.1}
    time.sleep(0.3)
    assert lines.getvalue() == seen, "nothing more once it is over"


def test_nothing_is_more_than_whole() -> None:
    work = LongWork("run", 1500, "steps")
    work.done = 1600
    assert work._parts() == "1,600 of 1,500 steps (100 %)"


def test_a_dumb_terminal_gets_lines(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    work = LongWork("checks", after_secs=0.05)
    work.doing = "building the environment"
    with redirect_stderr(terminal.stream), work:
        wait_for(lambda: "\n" in terminal.told())
    assert terminal.told().replace("\r\n", "\n").startswith("checks: building the environment, ")


def test_on_a_terminal_there_is_a_bar_which_goes(terminal: Terminal, capsys: pytest.CaptureFixture[str]) -> None:
    with redirect_stderr(terminal.stream), LongWork("checks", 4, "tasks", after_secs=0.01) as work:
        work.doing = "[a]"  # Would be rich's markup.
        work.advance(3)
        wait_for(lambda: "3 of 4 tasks (75 %)" in terminal.text())
        print("printed meanwhile")
        print("long/" * 40, file=sys.stderr)
        assert "━" in terminal.told() and "checks: [a]" in terminal.text()
    assert "long/" * 40 in terminal.text(), "a path is copied as one"
    assert terminal.told().rstrip("\r").endswith("\x1b[2K"), "the line is erased"
    assert "\x1b[?25l" not in terminal.told(), "who is killed meanwhile would leave a terminal without its cursor"
    assert capsys.readouterr().out == "printed meanwhile\n", "standard output is somewhere else, and stays there"


def test_within_a_work_no_other_one_is_told(lines: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_work, "AFTER_SECS", 0.0)
    with redirect_stderr(lines):
        with LongWork("outer", after_secs=0.0) as outer:
            for _ in followed(range(2), "inner", "parts"):
                outer.doing = "in it"
                wait_for(lambda: "in it" in lines.getvalue())
                wait_for(lambda: lines.getvalue().count("in it") > 1)
        assert "inner" not in lines.getvalue()
        with LongWork("next", after_secs=0.0):
            wait_for(lambda: "next" in lines.getvalue())


@pytest.mark.parametrize("error", [BrokenPipeError, ValueError])
def test_output_that_cannot_be_written_ends_nothing(error: type[Exception]) -> None:
    class Broken(io.StringIO):
        tries = 0

        def write(self, text: str) -> int:
            self.tries += 1
            raise error

    broken = Broken()
    with redirect_stderr(broken):
        with LongWork("export", after_secs=0.0):
            wait_for(lambda: broken.tries > 0)
        with pytest.raises(KeyError), LongWork("export"):
            raise KeyError
    assert not LongWork._is_one_shown


def test_a_run_is_told_in_lines_too(lines: io.StringIO) -> None:
    trainer = {"env_steps": 500, "num_env_steps": 2000, "eval_return": -12.0}
    with redirect_stderr(lines):
        with RunBar(is_shown=True) as bar:
            bar.show({})
            bar.show({"run": {"name": "reacher", "state": "running"}, "roles": {"trainer": trainer}})
            wait_for(lambda: "reacher" in lines.getvalue())
            for steps, shown in ((2_000, 2_000), (2_100, 2_000)):
                bar.show({"run": {}, "roles": {"trainer": {**trainer, "env_steps": steps}}})
                assert bar._work is not None and bar._work.done == shown, "no more than were asked for"
            bar.show({"run": {}, "roles": {"trainer": {"iteration": -1, "num_iter": 25}}})
            assert bar._work is not None and (bar._work.done, bar._work.total, bar._work.doing) == (
                0,
                25,
                "offline updates",
            )
        with RunBar(is_shown=False) as bar:
            bar.show({"run": {}})
    assert "reacher: running: 500 of 2,000 steps (25 %), evaluation -12, " in lines.getvalue()
