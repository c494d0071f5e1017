"""What long work tells on a terminal, and where there is none."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from contextlib import redirect_stderr

import pytest

from tfagents_system.report import long_work
from tfagents_system.report.long_work import LongWork, followed


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Standard error that is no terminal, in `with redirect_stderr(lines)`: pytest takes it back after fixtures."""
    stream = io.StringIO()
    monkeypatch.setattr(long_work, "_LINE_SECS", 0.1)
    return stream


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_is_soon_over_is_not_told(lines: io.StringIO) -> None:
    with redirect_stderr(lines):
        assert list(followed([1, 2, 3], "reading", "runs", 3)) == [1, 2, 3]
    assert lines.getvalue() == ""


def test_a_line_in_place_replaces_the_one_before(lines: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with redirect_stderr(lines), LongWork("run", 4, "steps", after_secs=0.0, in_place=True) as work:
        wait_for(lambda: "run: 0 of 4 steps (0 %), 0 s" in lines.getvalue())
        work.done = 4
    assert "\r" in lines.getvalue() and lines.getvalue().count("\n") == 1
    assert lines.getvalue().endswith("4 of 4 steps (100 %), 0 s\n")


def test_without_a_terminal_there_is_a_line_now_and_then(lines: io.StringIO) -> None:
    with redirect_stderr(lines), LongWork("montage", 400, "pictures", after_secs=1.0) as work:
        work.advance(120)
        work.doing = "step 7"
        assert lines.getvalue() == ""
        wait_for(lambda: lines.getvalue().count("\n") >= 3)
    seen = lines.getvalue()
    assert {line.rpartition(", ")[0] for line in seen.splitlines()} == {"montage: 120 of 400 pictures (30 %), step 7"}
    time.sleep(0.3)
    assert lines.getvalue() == seen, "nothing more once it is over"


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
        with LongWork("checks", after_secs=0.0, by_looks=outer.advance) as checks:
            checks.look()
        assert "checks" in lines.getvalue() and outer.done == 1


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
    assert LongWork._shown_in == 0
