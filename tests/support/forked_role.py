"""A role for tests: says what it is, then does what FORKED_ROLE_DOES says."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfagents_system.errors import UserError
from tfagents_system.machine.signals import die_with_parent

Tell = Callable[[Any], None]


def main() -> None:
    die_with_parent(signal.SIGTERM)
    import numpy as np

    told = {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "session": os.getsid(0),
        "cpus": sorted(os.sched_getaffinity(0)),
        "name": Path("/proc/self/comm").read_text().strip(),
        "threads": len(os.listdir("/proc/self/task")),
        "random": [random.random(), float(np.random.random())],
        "own": {name: value for name, value in os.environ.items() if name.startswith("FORKED_")},
        "home": os.environ.get("HOME"),
        "imported": "tensorflow" in sys.modules,
    }
    print(json.dumps(told), flush=True)
    print("to stderr", file=sys.stderr, flush=True)
    match os.environ["FORKED_ROLE_DOES"]:
        case "exit":
            os._exit(75)
        case "outlive":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(300)
        case "daemon":
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    print(json.dumps({"daemon": os.getpid()}), flush=True)
                    time.sleep(300)
                os._exit(0)
            time.sleep(300)
        case "wait":
            subprocess.Popen(["sleep", "300"])
            time.sleep(300)


# For `forks.call`.


def answer(tell: Tell) -> int:
    os.environ["FORKED_CALL"] = "not in the process that calls"
    return 40 + int(os.environ["FORKED_NUMBER"])


def hang(tell: Tell) -> None:
    tell("hangs")
    time.sleep(300)


def fail(tell: Tell) -> None:
    raise UserError("the rule", "the remedy")


class OwnError(Exception):
    """Can't be made again from what pickle keeps of it."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__("own")


def raise_own_error(tell: Tell) -> None:
    raise OwnError(1, 2)


def leave_a_child(tell: Tell) -> list[int]:
    """Like an environment that runs in a process of its own: it has all that this one had open."""
    child = os.fork()
    if child == 0:
        time.sleep(300)
    return [child]


def leave_players(tell: Tell) -> list[int]:
    """Like a simulator whose player has a session of its own, and one that makes it a daemon."""
    player = subprocess.Popen(["sleep", "300"], start_new_session=True)
    return [player.pid, int(subprocess.check_output(["sh", "-c", "setsid sleep 300 > /dev/null & echo $!"]))]


def stay(told_at: Path) -> None:
    children = [*leave_a_child(print), *leave_players(print)]
    beside = told_at.with_name("new")
    beside.write_text(" ".join(map(str, [os.getpid(), *children])))
    beside.rename(told_at)
    time.sleep(300)


def crash(tell: Tell) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


if __name__ == "__main__":
    main()
