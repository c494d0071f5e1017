"""HalfCheetah-v5 on 2 cores, an update for each environment step: ours against SBX, Stable-Baselines3 and TF-Agents.

    python -m benchmarks.whole_system [--quick | --full] [--peers_python PYTHON] [--step_ms MS ...] [--rounds N]

Each contestant trains from scratch in its own processes, on the same CPUs, with the same hyperparameters and without
evaluation. What counts is environment steps per second after the first update, in a stretch in which as many updates as
steps were done. Then the same with an environment whose step takes 1, 5 and 20 ms of CPU time, and 20 ms of sleep. The
rounds go through all contestants in turn, so that another load on the machine meets all of them.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.outcome import Outcome, parse_args
from benchmarks.processes import ROOT, end_on_sigterm, run_json
from benchmarks.real_run import RealRun
from tfagents_system.machine.cpus import allowed_cpus

_PARAMS = ROOT / "benchmarks" / "half_cheetah" / "params.py"
_N_CPUS = 2
_LEARNING_STARTS = 1000
# Iterations before the measured ones. In the first one TensorFlow compiles; meanwhile the workers finish the second
# one, which would give slow environments one iteration for free.
_WARM_UP_ITERATIONS = 2
_START_SECS = 120.0
_MIN_STEPS_PER_S = 10.0  # of a contestant that is still taken to be alive
_SLEEPING_WORKERS = 8
_SHORT_HORIZON = 125
_EPISODES_OF_RETURN = 5
_STEPS_FOR_RETURNS = 10_000  # Before that, returns are of policies that have hardly begun to learn.
_BLOCK = 50  # steps, then updates: SBX where it loops over many updates in one call, and our iterations of steps


@dataclasses.dataclass(frozen=True)
class Task:
    """What every contestant trains.

    Attributes:
      steps: Environment steps that are measured.
      step_ms: Time that a step takes; 0 is the bare simulator.
      busy: Whether that is CPU time, or sleep.
      horizon: Steps of an episode.
      n_envs: Environments stepped side by side: our workers, the peers' processes.
      seed: Of the whole run.
      block: Steps of our iterations; None for iterations of an episode of each worker.
      matmul_precision: Of our updates.
    """

    steps: int
    step_ms: float = 0.0
    busy: bool = True
    horizon: int = 1000
    n_envs: int = 1
    seed: int = 0
    block: int | None = None
    matmul_precision: str = "float32"

    @property
    def name(self) -> str:
        if not self.step_ms:
            return "bare simulator"
        return f"{self.step_ms:g} ms {'of CPU' if self.busy else 'asleep'} a step, {self.n_envs} environments"

    @property
    def timeout_secs(self) -> float:
        return _START_SECS + (self.steps + _LEARNING_STARTS) / _MIN_STEPS_PER_S

    def peer_options(self) -> list[str]:
        """Command-line options that all peers share."""
        return [
            *("--steps", str(self.steps), "--learning_starts", str(_LEARNING_STARTS), "--seed", str(self.seed)),
            *("--step_ms", str(self.step_ms), "--horizon", str(self.horizon), "--busy" if self.busy else "--no-busy"),
        ]


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What one contestant did in one task.

    Attributes:
      steps_per_s: Environment steps, and updates, per second.
      returns: Returns of the training episodes, in order.
    """

    steps_per_s: float
    returns: list[float]


# Ours.


def train_ours(task: Task, **of_ours: Any) -> Measurement:
    """A real run by run_script.sh, ended as soon as enough iterations are in its metrics.

    Args:
      task: What everybody trains.
      of_ours: Attributes of it that only concern ours.
    """
    task = dataclasses.replace(task, **of_ours)
    count = n_iterations(task)
    total = _WARM_UP_ITERATIONS + count
    with RealRun(_PARAMS, config_of(task), variables_of(task)) as run:
        run.wait_until(lambda: len(run.iterations()) >= total, f"{total} iterations", task.timeout_secs, poll_secs=0.2)
        return measure_rows(run.iterations(), count)


def config_of(task: Task) -> dict[str, Any]:
    """What our run has as SAC_CONFIG."""
    return {
        "horizon": task.horizon,
        "step_ms": task.step_ms,
        "busy": task.busy,
        "random_episodes": max(1, _LEARNING_STARTS // task.horizon),
        "updates_per_iteration": task.horizon * task.n_envs,  # one for each step: an episode a worker
        "steps_per_iteration": task.block,
        "matmul_precision": task.matmul_precision,
    }


def variables_of(task: Task) -> dict[str, int]:
    """The SAC_ variables of our run that follow from the task."""
    return {"SAC_TRAIN_CPUS": _N_CPUS, "SAC_NUM_COLLECT_WORKERS": task.n_envs, "SAC_SEED": task.seed}


def n_iterations(task: Task) -> int:
    """Iterations that are measured."""
    return max(1, round(task.steps / (task.block or task.horizon * task.n_envs)))


def measure_rows(rows: list[dict[str, Any]], n_measured: int) -> Measurement:
    """Steps per second from the end of the warm-up to the end of the last of `n_measured` iterations."""
    first, last = rows[_WARM_UP_ITERATIONS - 1], rows[_WARM_UP_ITERATIONS - 1 + n_measured]
    updates = last["train_step"] - first["train_step"]
    # Returns of as many updates as the others did: the warm-up counts as well.
    returns = [row["train_return"] for row in rows[:n_measured] if row["train_return"] is not None]
    return Measurement(updates / (last["wall_time_s"] - first["wall_time_s"]), returns)


# Peers.


def train_stable_baselines(python: str, library: str, train_freq: int, task: Task) -> Measurement:
    options = ["--library", library, "--n_envs", str(task.n_envs), "--train_freq", str(train_freq)]
    command = [python, "-m", "benchmarks.peers.halfcheetah", *task.peer_options(), *options]
    return to_measurement(run_json(command, task.timeout_secs))


def train_tf_agents(task: Task) -> Measurement:
    command = [sys.executable, "-m", "benchmarks.peers.tf_agents_single", *task.peer_options()]
    return to_measurement(run_json(command, task.timeout_secs))


def to_measurement(result: Mapping[str, Any]) -> Measurement:
    return Measurement(float(result["steps_per_s"]), list(result["returns"]))


# The comparison.

OURS = "tfagents_system"
OURS_IN_BLOCKS = f"{OURS}, iterations of {_BLOCK} steps"
OURS_IN_BFLOAT16 = f"{OURS_IN_BLOCKS}, bfloat16 where it is faster"
# How many times as fast ours is claimed to be.
TARGETS = {"SBX": 1.5, "Stable-Baselines3": 2.2, "TF-Agents": 4.0}
_SBX_IN_BLOCKS = f"SBX, {_BLOCK} updates after {_BLOCK} steps"
TARGETS_OF_OURS = {
    OURS: TARGETS,
    OURS_IN_BLOCKS: {"SBX": 1.7, _SBX_IN_BLOCKS: 1.2, "Stable-Baselines3": 2.8},
    OURS_IN_BFLOAT16: {_SBX_IN_BLOCKS: 1.5},
}


def contestants_of(task: Task, arguments: argparse.Namespace) -> dict[str, Callable[[Task], Measurement]]:
    """Who trains a task, by name.

    With slow environments only `--full` runs those that are slower than SBX anyway.
    """
    python = arguments.peers_python
    chosen: dict[str, Callable[[Task], Measurement]] = {OURS: train_ours}
    if not task.step_ms and not arguments.quick:
        chosen[OURS_IN_BLOCKS] = functools.partial(train_ours, block=_BLOCK)
        chosen[OURS_IN_BFLOAT16] = functools.partial(train_ours, block=_BLOCK, matmul_precision="auto")
    if python is not None:
        chosen["SBX"] = functools.partial(train_stable_baselines, python, "sbx", 1)
    if python is not None and not arguments.quick:
        if not task.step_ms:
            chosen[_SBX_IN_BLOCKS] = functools.partial(train_stable_baselines, python, "sbx", _BLOCK)
        if arguments.full or not task.step_ms:
            chosen["Stable-Baselines3"] = functools.partial(train_stable_baselines, python, "sb3", 1)
            chosen["TF-Agents"] = train_tf_agents
    return chosen


def choose_tasks(arguments: argparse.Namespace) -> list[Task]:
    """The bare simulator first, then the slow ones, with short episodes so that many workers keep in step."""
    if arguments.quick:
        return [Task(steps=500, horizon=250)]
    bare = Task(steps=arguments.steps or (30_000 if arguments.full else 1000))
    slow = [
        Task(n_steps, step_ms, busy, horizon=_SHORT_HORIZON, n_envs=n_envs)
        for step_ms, busy, n_envs, n_steps in (
            (1.0, True, _N_CPUS, 1000),
            (5.0, True, _N_CPUS, 1000),
            (20.0, True, _N_CPUS, 500),
            (20.0, False, _SLEEPING_WORKERS, 2000),
        )
    ]
    return [task for task in [bare, *slow] if arguments.step_ms is None or task.step_ms in arguments.step_ms]


def compare(outcome: Outcome, task: Task, arguments: argparse.Namespace) -> None:
    """Lets all contestants train a task in turn, once per round; one that fails is left out, with a note."""
    measured: dict[str, list[Measurement]] = collections.defaultdict(list)
    for number in range(arguments.rounds):
        for name, train in contestants_of(task, arguments).items():
            print(f"{task.name}, round {number + 1} of {arguments.rounds}: {name}", file=sys.stderr, flush=True)
            try:
                measurement = train(dataclasses.replace(task, seed=number))
            except RuntimeError as error:
                print(error, file=sys.stderr, flush=True)
                outcome.note(f"{name} failed ({task.name}): {str(error).splitlines()[0]}")
                continue
            print(f"  {measurement.steps_per_s:.1f} steps/s", file=sys.stderr, flush=True)
            measured[name].append(measurement)
    report(outcome, task, measured)


def report(outcome: Outcome, task: Task, measured: Mapping[str, Sequence[Measurement]]) -> None:
    """Speeds, returns where they can be compared, and ours over theirs."""
    speeds = {name: statistics.median(run.steps_per_s for run in runs) for name, runs in measured.items()}
    for name, speed in speeds.items():
        outcome.row(f"{name}, {task.name}", speed, "steps/s")
    if task.step_ms and task.busy:
        # An environment's own CPU time bounds everybody, however cheap the update is.
        outcome.row(f"all CPUs in the simulator, {task.name}", _N_CPUS * 1000.0 / task.step_ms, "steps/s")
    if not task.step_ms and task.steps >= _STEPS_FOR_RETURNS:
        for name, runs in measured.items():
            last = [value for run in runs for value in run.returns[-_EPISODES_OF_RETURN:]]
            if last:
                what = f"{name}, last {len(last)} training episodes of {task.steps} steps"
                outcome.row(f"{what}: mean return", statistics.mean(last), "")
                outcome.row(f"{what}: standard deviation", statistics.pstdev(last), "")
    for ours, targets in TARGETS_OF_OURS.items():
        for name, speed in speeds.items():
            if ours in speeds and name not in TARGETS_OF_OURS:
                what = ours.replace(OURS, "ours", 1)
                outcome.ratio(f"{what} over {name}, {task.name}", speeds[ours] / speed, targets.get(name))


def main() -> None:
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="30,000 steps: hours, with returns that say something")
    parser.add_argument("--steps", type=int, help="environment steps that are measured with the bare simulator")
    parser.add_argument("--step_ms", type=float, nargs="+", help="only these times of a step: 0, 1, 5, 20")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--peers_python", type=os.path.abspath, help="Python with SBX and Stable-Baselines3; without it, ours alone"
    )
    arguments = parse_args(parser)
    os.sched_setaffinity(0, allowed_cpus()[:_N_CPUS])
    outcome = Outcome((__doc__ or "").splitlines()[0])
    if arguments.peers_python is None:
        outcome.note("without peers")
    for task in choose_tasks(arguments):
        compare(outcome, task, arguments)
    outcome.print()


if __name__ == "__main__":
    main()
