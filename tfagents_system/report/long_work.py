"""How far long work is, on standard error: a bar on a terminal and in notebooks, a line every few seconds elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

_T = TypeVar("_T")

AFTER_SECS = 2.0  # What is over before is not told of.
_DRAW_SECS = 0.25  # Checks measure how fast the machine is meanwhile.
_LINE_SECS = 5.0


class LongWork:
    """Tells of work from its third second on, until it is left. Of works inside another one only the outer is shown.

    Nothing that happens to the output ends the work.

    Args:
      what: The work, such as `montage`.
      total: How many parts it has; None: unknown.
      unit: What the parts are, in the plural.
      after_secs: So long nothing is shown; AFTER_SECS by default.
      stays: A bar stays on the terminal when the work is over.

    Attributes:
      done, total: Parts; may be set at any time, as may be `what` and `unit`.
      doing: What is under way; empty: not told.
    """

    _is_one_shown = False

    def __init__(
        self,
        what: str,
        total: int | None = None,
        unit: str = "",
        *,
        after_secs: float | None = None,
        stays: bool = False,
    ) -> None:
        self.what, self.total, self.done, self.doing = what, total, 0, ""
        self.unit, self._stays = unit, stays
        self._after_secs = AFTER_SECS if after_secs is None else after_secs
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._bar: Any = None  # rich's Progress.

    def __enter__(self) -> LongWork:
        self._began = time.monotonic()
        if not LongWork._is_one_shown:
            LongWork._is_one_shown = True
            self._stream = sys.stderr
            if self._after_secs <= 0:  # A notebook shows it below the cell of this thread.
                with contextlib.suppress(OSError, ValueError):
                    self._open_bar()
            self._thread = threading.Thread(target=self._tell, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is None:
            return
        self._is_over.set()
        self._thread.join()
        if self._bar is not None:
            with contextlib.suppress(OSError, ValueError):
                self._update_bar()
                self._bar.stop()
        LongWork._is_one_shown = False

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
        if self._is_over.wait(self._after_secs):
            return
        with contextlib.suppress(OSError, ValueError):  # A pipe that nobody reads.
            if self._bar is None:
                self._open_bar()
            while self._bar is not None:
                self._update_bar()
                if self._is_over.wait(_DRAW_SECS):
                    return
            while True:
                print(self, file=self._stream, flush=True)
                if self._is_over.wait(_LINE_SECS):
                    return

    def _open_bar(self) -> None:
        """Shows a bar, where there is something to draw it on."""
        is_terminal = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        if not is_terminal and "ipykernel" not in sys.modules:
            return
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        from tfagents_system.report.tables import SurvivingConsole

        class Drawn(SurvivingConsole):
            def show_cursor(self, show: bool = True) -> bool:
                """Leaves it as it is: a signal may end this program while a bar is shown."""
                del show
                return False

        texts = [TextColumn(f"{{task.{name}}}", markup=False) for name in ("description", "fields[parts]")]
        # Long lines that are printed meanwhile, such as paths, stay one line: they are copied.
        console = Drawn(file=self._stream, soft_wrap=True) if is_terminal else Drawn()
        both = is_terminal and sys.stdout is not None and sys.stdout.isatty()
        self._bar = Progress(
            texts[0],
            BarColumn(),
            texts[1],
            TimeElapsedColumn(),
            console=console,
            transient=not self._stays,
            refresh_per_second=1 / _DRAW_SECS,
            redirect_stdout=both,
            redirect_stderr=is_terminal,
        )
        self._task = self._bar.add_task(self.what, total=self.total, parts="")
        self._bar.start()

    def _update_bar(self) -> None:
        told = f"{self.what}: {self.doing}" if self.doing else self.what
        self._bar.update(self._task, description=told, completed=self.done, total=self.total, parts=self._parts())


def followed(items: Iterable[_T], what: str, unit: str, total: int | None = None) -> Iterator[_T]:
    """The items; tells how many of them have been worked on."""
    with LongWork(what, total, unit) as work:
        for item in items:
            yield item
            work.advance()
