"""Starts that are killed between two changes on the disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Any


def killed_at(place: int, start: Callable[[], Any], *more: tuple[Any, str]) -> bool:
    """Runs a start in a process that is killed before its place-th change on the disk; False: it came to its end.

    Args:
      place: From 1.
      start: What is run.
      more: Functions that are counted, too: of what, and their names.
    """
    pid = os.fork()
    if pid == 0:
        changes = 0

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal changes
                changes += 1
                if changes == place:
                    os._exit(9)
                return function(*args, **kwargs)

            return call

        changes_of = ((os, "replace"), (os, "unlink"), (os, "rename"), (shutil, "rmtree"), (os, "fdatasync"))
        for module, name in (*changes_of, *more):
            setattr(module, name, counted(getattr(module, name)))
        os.posix_fallocate = counted(os.posix_fallocate)
        try:
            start()
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) == 9
