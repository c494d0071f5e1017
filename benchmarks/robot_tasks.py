"""Which of EnvPool's robot tasks can be trained on: built, reset with two seeds, and 100 random steps of each.

    python -m benchmarks.robot_tasks [--only TEXT] [--csv FILE]

It needs the extra `envpool`, and takes about half an hour of one core. Each task has a fork of its own and 120 s. The
table by family goes to standard output, a row for each task into the CSV file.
"""

from __future__ import annotations

import argparse
import collections
import csv
import datetime
import importlib.metadata
import multiprocessing
import os
import signal
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple

# Before NumPy and TensorFlow are imported: a fork needs a parent of one thread.
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import envpool
import numpy as np
import tree
from envpool.registration import registry
from tf_agents.specs.array_spec import sample_spec_nest

from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError

FAMILIES = {
    "envpool.mujoco.dmc": "dm_control",
    "envpool.mujoco.metaworld": "Meta-World",
    "envpool.mujoco.myosuite": "MyoSuite",
    "envpool.mujoco.playground": "MuJoCo Playground",
}
OPTIONS = {"envpool.mujoco.metaworld": {"partially_observable": False}}  # Else observations lack the goal.
WORKS, SAME_START = "works", "works, but each episode begins with the same observation"
_LANES, _STEPS, _SEEDS = 2, 100, (1, 2)
_DEADLINE_SECS = 120  # Then SIGALRM ends the fork.


class Row(NamedTuple):
    """A task. Numbers are those of one observation and one action; None: it was not built."""

    family: str
    name: str
    verdict: str
    observation: int | None
    action: int | None
    success: bool | None  # Whether `info` has `success` or `is_success`, from which `eval_success` is made.


Trial = tuple[str, int | None, int | None, bool | None]  # The last four of a row.


def tasks(only: str) -> Iterator[tuple[str, str]]:
    """Families and names that contain `only`, without second names such as MyoSuite/myoElbowPose1D6MFixed-v0."""
    names = registry.list_all_envs()
    for name in names:
        family = FAMILIES.get(registry.specs[name][0])
        if family is not None and only in name and name.partition("/")[2] not in names:
            yield family, name


def try_task(name: str) -> Trial:
    """What a run does with a task: seeds, first observations, random steps."""
    starts, options = [], OPTIONS.get(registry.specs[name][0], {})
    for seed in _SEEDS:
        env = TrainingEnvironment(
            envpool.make(name, env_type="gymnasium", num_envs=_LANES, num_threads=1, seed=seed, **options), 10 * _STEPS
        )
        starts += [_numbers(env.reset().observation) for _ in range(2)]
    random = np.random.RandomState(0)
    for _ in range(_STEPS):
        env.step(sample_spec_nest(env.action_spec(), random))
    is_same = all(np.array_equal(start, starts[0]) for start in starts)
    action = sum(int(np.prod(spec.shape)) for spec in tree.flatten(env.action_spec()))
    return SAME_START if is_same else WORKS, starts[0].size, action, bool({"success", "is_success"} & env.info.keys())


def _numbers(observation: object) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in tree.flatten(observation)])


def _report(name: str, connection: Connection) -> None:
    """The fork: sends a Trial; what C++ prints is left out."""
    signal.alarm(_DEADLINE_SECS)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    try:
        result = try_task(name)
    except Exception as error:
        cause = error.__cause__ or error  # Of a fault of the environment.
        kind = "refused" if isinstance(error, UserError) else f"raises {type(cause).__name__}"
        result = f"{kind}: {textwrap.shorten(str(cause), 100)}", None, None, None
    connection.send(result)
    os._exit(0)  # Threads of EnvPool may not end.


def trial_of(name: str) -> Trial:
    """Tries a task in a fork; -14 (SIGALRM) is the exit code of one that takes too long."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_report, args=(name, sender))
    process.start()
    sender.close()
    with receiver:
        try:
            trial: Trial = receiver.recv()
        except EOFError:
            process.join()
            trial = f"ends its process with {process.exitcode}", None, None, None
    return trial


def table(rows: Sequence[Row]) -> str:
    """Markdown: how many tasks of each family have each verdict."""
    counts = collections.Counter((row.family, row.verdict) for row in rows)
    lines = [f"| {family} | {count} | {verdict} |" for (family, verdict), count in sorted(counts.items())]
    return "\n".join(["| family | tasks | verdict |", "|---|---:|---|", *lines])


def survey() -> None:
    """The program."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.robot_tasks", description=__doc__)
    parser.add_argument("--only", default="", help="names that contain this text")
    parser.add_argument("--csv", default=os.devnull, help="gets a row for each task")
    flags = parser.parse_args()
    for module in FAMILIES:
        importlib.import_module(module)  # Once, for all forks.
    rows, begin = [], time.monotonic()
    with open(flags.csv, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        for family, name in tasks(flags.only):
            rows.append(Row(family, name, *trial_of(name)))
            writer.writerow(rows[-1])
            file.flush()
            print(f"{time.monotonic() - begin:6.0f} s: {name}: {rows[-1].verdict}", file=sys.stderr, flush=True)
    print(f"EnvPool {importlib.metadata.version('envpool')}, {datetime.date.today()}\n\n{table(rows)}")


if __name__ == "__main__":
    survey()
