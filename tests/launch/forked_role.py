"""A role for tests: says what it is, then does what FORKED_ROLE_DOES says."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tfagents_system.errors import UserError
from tfagents_system.launch.signals import die_with_parent


def main() -> None:
    die_with_parent()
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
        case "raise":
            raise ValueError("on purpose")
        case "tensorflow":
            import tensorflow as tf

            print(float(tf.reduce_sum(tf.matmul(tf.ones((4, 4)), tf.ones((4, 4))))), flush=True)
        case "wait":
            subprocess.Popen(["sleep", "300"])
            time.sleep(300)


def answer(number: int) -> int:
    """For `ForkServer.call`."""
    os.environ["FORKED_CALL"] = "not in the server"
    return number * 2 + int(os.environ["FORKED_NUMBER"])


def fail() -> None:
    raise UserError("the rule", "the remedy")


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)
