"""A role for tests: says what it is, then does what FORKED_ROLE_DOES says."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tfagents_system.errors import UserError
from tfagents_system.machine.signals import die_with_parent


def main() -> None:
    die_with_parent()
    import numpy as np

    told = {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "session": os.getsid(0),
        "cpus": sorted(os.sched_getaffinity(0)),
        "name": Path("/proc/self/comm").read_text().strip(),
        "environ_of_proc": hashlib.sha256(Path("/proc/self/environ").read_bytes()).hexdigest(),
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
        case "raise":
            raise ValueError("on purpose")
        case "tensorflow":
            import tensorflow as tf

            print(float(tf.reduce_sum(tf.matmul(tf.ones((4, 4)), tf.ones((4, 4))))), flush=True)
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


def answer(number: int) -> int:
    """For `ForkServer.call`."""
    os.environ["FORKED_CALL"] = "not in the server"
    return number * 2 + int(os.environ["FORKED_NUMBER"])


def fail() -> None:
    raise UserError("the rule", "the remedy")


class OwnError(Exception):
    """Can't be made again from what pickle keeps of it."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__("own")


def raise_own_error() -> None:
    raise OwnError(1, 2)


def leave_a_child() -> int:
    """Like an environment that runs in a process of its own: it has all that this one had open."""
    child = os.fork()
    if child == 0:
        time.sleep(300)
    return child


def leave_players() -> list[int]:
    """Like a simulator whose player has a session of its own, and one that makes it a daemon."""
    player = subprocess.Popen(["sleep", "300"], start_new_session=True)
    return [player.pid, int(subprocess.check_output(["sh", "-c", "setsid sleep 300 > /dev/null & echo $!"]))]


def stay(told_at: str) -> None:
    child = " ".join(map(str, [leave_a_child(), *leave_players()]))
    beside = Path(f"{told_at}.new")
    beside.write_text(f"{os.getpid()} {child}")
    beside.rename(told_at)
    time.sleep(300)


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)
