"""How far long work is, in lines on standard error."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_T = TypeVar("_T")

AFTER_SECS = 2.0  # What is over before is not told of.
_LINE_SECS = 5.0


class LongWork:
    """Tells of work from its third second on, until it is left. Of works inside another one only the outer is shown.

    Args:
      what: The work, such as `montage`.
      total: How many parts it has; None: unknown.
      unit: What the parts are, in the plural.
      after_secs: So long nothing is shown; AFTER_SECS by default.
      in_place: On a terminal and in a notebook each line replaces the one before; nothing else is printed meanwhile.
      by_looks: Lines come from `look` instead of a thread; called with each of them.

    Attributes:
      done, total: Parts; may be set at any time, as may be `what` and `unit`.
      doing: What is under way; empty: not told.
    """

    _shown_in = 0  # The process that shows one; its forks show their own.

    def __init__(
        self,
        what: str,
        total: int | None = None,
        unit: str = "",
        *,
        after_secs: float | None = None,
        in_place: bool = False,
        by_looks: Callable[[], None] | None = None,
    ) -> None:
        self.what, self.total, self.done, self.doing, self.unit = what, total, 0, "", unit
        self._after_secs = AFTER_SECS if after_secs is None else after_secs
        self._in_place, self._by_looks, self._width = in_place, by_looks, 0
        self._is_over, self._thread = threading.Event(), threading.Thread(target=self._tell, daemon=True)
        self._is_shown = False

    def __enter__(self) -> LongWork:
        self._began = time.monotonic()
        self._due = self._began + self._after_secs
        if LongWork._shown_in != os.getpid():
            self._is_shown, LongWork._shown_in, self._stream = True, os.getpid(), sys.stderr
            if self._by_looks is None:
                self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_shown:
            if self._by_looks is None:
                self._is_over.set()
                self._thread.join()
                if self._width:
                    self._print(is_last=True)
            self._is_shown, LongWork._shown_in = False, 0

    def look(self) -> None:
        """Tells how far it is if a line is due."""
        if self._is_shown and time.monotonic() >= self._due:
            self._due = time.monotonic() + _LINE_SECS
            if self._by_looks is not None:
                self._by_looks()
            self._print()

    def advance(self, parts: int = 1) -> None:
        """Further parts are done."""
        self.done += parts

    def __str__(self) -> str:
        """`montage: 120 of 400 pictures (30 %), train step 4000, 8 s`."""
        told = [self._parts(), self.doing, f"{time.monotonic() - self._began:.0f} s"]
        return f"{self.what}: {', '.join(each for each in told if each)}"

    def _parts(self) -> str:
        total = self.total  # Another thread may set it.
        if not total:
            return f"{self.done:,} {self.unit}".rstrip() if self.done else ""
        return f"{self.done:,} of {total:,} {self.unit}".rstrip() + f" ({min(100, 100 * self.done // total)} %)"

    def _tell(self) -> None:
        pause_secs = self._after_secs
        while not self._is_over.wait(pause_secs):
            self._print()
            pause_secs = _LINE_SECS

    def _print(self, *, is_last: bool = False) -> None:
        text, end = str(self), "\n"
        with contextlib.suppress(OSError, ValueError):  # A pipe that nobody reads.
            is_terminal = self._stream.isatty() and os.environ.get("TERM") != "dumb"
            if self._in_place and (is_terminal or "ipykernel" in sys.modules):
                text, end = f"\r{text:<{self._width}}", "\n" if is_last else ""
            self._width = len(text)
            print(text, end=end, file=self._stream, flush=True)


def followed(items: Iterable[_T], what: str, unit: str, total: int | None = None) -> Iterator[_T]:
    """The items; tells how many of them have been worked on."""
    with LongWork(what, total, unit) as work:
        for item in items:
            yield item
            work.advance()
