"""Threads beside a block of code, and beside steps in real time.

Runs under SAC_ENV_PYTHON as well: only the standard library is needed, Python 3.9.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Callable, Iterator

_SWITCH_SECS = 0.0005  # How long another thread may keep Python to itself while a step is due; usually 5 ms.


def leave_python_to_steps() -> None:
    """Other threads hold up a step as little as possible, and garbage is collected between episodes alone."""
    sys.setswitchinterval(_SWITCH_SECS)
    gc.collect()
    gc.freeze()  # What is there by now stays: searching it for garbage again and again takes time.
    gc.disable()


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
