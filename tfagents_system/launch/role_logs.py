"""Bounds what a role's log takes: whatever is printed, its first and its last MiB stay.

A simulator, its C code and its child processes append to the file themselves, so that nobody has to read what they
print, and a crash loses none of their last words. Whoever watches the role cuts the middle out of the file.
"""

from __future__ import annotations

import os
from pathlib import Path

KEPT_BYTES = 2**20
LEFT_OUT = b"\n... what was printed here is left out ...\n"
_TAIL = KEPT_BYTES + len(LEFT_OUT)  # Where what stays of the end begins.
_MOST_CHUNKS = 16


def bound(log: Path, start: int = 0) -> int:
    """Cuts a log of more than 3 KEPT_BYTES to the first and the last KEPT_BYTES.

    It is cut in place, as those who write it append: no other way works on every file system. Of what is written
    while it is cut, some may be left out as well.

    Args:
      start: A position in the log.

    Returns:
      Where what was at `start` is now: at the cut if it is left out. A log that can't be cut stays as it is.
    """
    try:
        size = log.stat().st_size
        if size <= 3 * KEPT_BYTES:
            return start
        with open(log, "r+b", buffering=0) as file:
            number, shift, end = file.fileno(), size - KEPT_BYTES - _TAIL, _TAIL
            os.pwrite(number, LEFT_OUT, KEPT_BYTES)
            for _ in range(_MOST_CHUNKS):  # With what is appended meanwhile, which may come as fast as it is copied.
                if not (chunk := os.pread(number, KEPT_BYTES, end + shift)):
                    break
                end += os.pwrite(number, chunk, end)
            os.ftruncate(number, end)
            return start if start <= KEPT_BYTES else max(_TAIL, start - shift)
    except OSError:
        return start
