"""Threads beside a block of code."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def repeated(action: Callable[[], object], every_secs: float) -> Iterator[None]:
    """Calls `action` each time that so many seconds have passed, in a thread of its own, until the block ends."""
    is_over = threading.Event()

    def repeat() -> None:
        while not is_over.wait(every_secs):
            action()

    thread = threading.Thread(target=repeat, name="repeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
