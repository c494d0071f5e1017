"""Bounds what a role's log takes: whatever is printed, its first and its last MiB stay.

A simulator, its C code and its child processes append to the file themselves, so that nobody has to read what they
print, and a crash loses none of their last words. Whoever watches the role cuts the middle out of the file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

KEPT_BYTES = 2**20
_LEFT_OUT = re.compile(rb"^\.\.\. ([\d,]+) bytes left out here \.\.\.$", re.MULTILINE)
_LINE_BYTES, _MOST_CHUNKS = 100, 16
_LONG_BYTES = 2**16  # A longer line is not kept whole.


def bound(log: Path, start: int = 0) -> int:
    """Cuts a log of more than 3 KEPT_BYTES to the first and the last KEPT_BYTES, and a line that says what is left out.

    It is cut in place, as those who write it append: no other way works on every file system. What is written while
    it is cut stays, but for what comes within the last microseconds of that.

    Args:
      start: A position in the log.

    Returns:
      Where what was at `start` is now: at the cut if it is left out. A log that can't be cut stays as it is.
    """
    try:
        with open(log, "r+b", buffering=0) as file:
            number, size = file.fileno(), os.fstat(file.fileno()).st_size
            return start if size <= 3 * KEPT_BYTES else _cut(number, size, start)
    except OSError:
        return start


def _cut(number: int, size: int, start: int) -> int:
    head = os.pread(number, KEPT_BYTES + _LINE_BYTES, 0)
    if (line := _LEFT_OUT.search(head)) is not None:  # Of an earlier cut.
        end, before = line.start(), int(line[1].replace(b",", b""))
    else:
        end, before = head.rfind(b"\n", KEPT_BYTES - _LONG_BYTES, KEPT_BYTES) + 1 or KEPT_BYTES, 0
    tail = os.pread(number, KEPT_BYTES, size - KEPT_BYTES)
    first = size - KEPT_BYTES + tail.find(b"\n", 0, _LONG_BYTES) + 1  # Of what stays: whole lines.
    left_out = f"... {before + first - (line.end() + 1 if line else end):,} bytes left out here ...\n".encode()
    new = (b"" if head[:end].endswith(b"\n") else b"\n") + left_out
    target = end + len(new)
    os.pwrite(number, new, end)
    copied = first
    for _ in range(_MOST_CHUNKS):  # With what is appended meanwhile, which may come as fast as it is copied.
        if not (chunk := os.pread(number, KEPT_BYTES, copied)):
            break
        os.pwrite(number, chunk, target + copied - first)
        copied += len(chunk)
    os.ftruncate(number, target + copied - first)
    return start if start <= end else max(target, start - first + target)
