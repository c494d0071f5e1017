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
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.outcome import Outcome, parse_args
from benchmarks.processes import ROOT, end_on_sigterm, end_session, run_json
from tfagents_system.launch.cpus import allowed_cpus
from tfagents_system.launch.run_paths import RunPaths
from tfagents_system.report.metrics import read_metrics

_N_CPUS = 2
_LEARNING_STARTS = 1000
# Iterations before the stretch that is measured. In the first one TensorFlow compiles; while the trainer is busy with
# that, the workers finish the second one, which would be a present of one iteration to slow environments.
_WARM_UP_ITERATIONS = 2
_START_SECS = 120.0
_MIN_STEPS_PER_S = 10.0  # of a contestant that is still taken to be alive
_SLEEPING_WORKERS = 8
_SHORT_HORIZON = 125
_EPISODES_OF_RETURN = 5
_STEPS_FOR_RETURNS = 10_000  # Before that, returns are of policies that have hardly begun to learn.
_BLOCK = 50  # steps, then updates, of SBX where it loops over many updates in one call


@dataclasses.dataclass(frozen=True)
class Task:
    """What is trained, by everybody.

    Attributes:
      steps: Environment steps that are measured.
      step_ms: Time that a step takes; 0 is the bare simulator.
      busy: Whether that is CPU time, or sleep.
      horizon: Steps of an episode.
      n_envs: Environments stepped side by side: our workers, the peers' processes.
      seed: Of the whole run.
    """

    steps: int
    step_ms: float = 0.0
    busy: bool = True
    horizon: int = 1000
    n_envs: int = 1
    seed: int = 0

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


def train_ours(task: Task) -> Measurement:
    """A real run by run_script.sh, ended as soon as enough iterations are in its metrics."""
    with tempfile.TemporaryDirectory() as folder:
        exp_dir = Path(folder) / "run"
        vars_file = write_vars_file(Path(folder), exp_dir, task)
        with (Path(folder) / "output.txt").open("w+") as output:
            process = subprocess.Popen(
                [str(ROOT / "run_script.sh"), str(vars_file)],
                cwd=folder,
                env=clean_environ(os.environ),
                text=True,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                rows = wait_for_rows(process, exp_dir, task)
            except RuntimeError as error:
                output.seek(0)
                raise RuntimeError(f"{error}:\n{output.read()[-2000:]}") from None
            finally:
                # Told twice, it ends at once: nothing is worth saving.
                process.terminate()
                time.sleep(0.5)
                end_session(process)
    return measure_rows(rows, n_iterations(task))


def write_vars_file(folder: Path, exp_dir: Path, task: Task) -> Path:
    config = {
        "horizon": task.horizon,
        "step_ms": task.step_ms,
        "busy": task.busy,
        "random_episodes": max(1, _LEARNING_STARTS // task.horizon),
        "updates_per_iteration": task.horizon * task.n_envs,  # one for each step: an episode a worker
    }
    (folder / "config.json").write_text(json.dumps(config))
    variables: dict[str, object] = {
        "SAC_EXP_NAME": "whole_system",
        "SAC_EXP_DIR": exp_dir,
        "SAC_PARAMS": ROOT / "benchmarks" / "half_cheetah" / "params.py",
        "SAC_CONFIG": folder / "config.json",
        "SAC_REVERB_CPUS": 1,
        "SAC_TRAIN_CPUS": _N_CPUS,
        "SAC_NUM_COLLECT_WORKERS": task.n_envs,
        "SAC_COLLECT_WORKER_CPUS": 1,
        "SAC_SHARE_CPUS": 1,
        "SAC_SEED": task.seed,
    }
    path = folder / "vars.sh"
    path.write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
    return path


def clean_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what would change the run, and with the Python that runs this."""
    kept = {name: value for name, value in environ.items() if not name.startswith(("SAC_", "SLURM_"))}
    return {**kept, "VIRTUAL_ENV": sys.prefix}


def n_iterations(task: Task) -> int:
    """Iterations that are measured; each has an episode a worker."""
    return max(1, round(task.steps / (task.horizon * task.n_envs)))


def wait_for_rows(process: subprocess.Popen[str], exp_dir: Path, task: Task) -> list[dict[str, Any]]:
    """The training rows of the metrics, as soon as there are enough of them."""
    deadline = time.monotonic() + task.timeout_secs
    while True:
        rows = [row for row in read_metrics(RunPaths(exp_dir).metrics_csv) if row["updates_per_s"] is not None]
        if len(rows) >= _WARM_UP_ITERATIONS + n_iterations(task):
            return rows
        if process.poll() is not None:
            raise RuntimeError(f"our run ended with exit code {process.returncode}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"our run was not done within {task.timeout_secs:.0f} s")
        time.sleep(0.2)


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


def train_tf_agents(example: str, task: Task) -> Measurement:
    command = [sys.executable, "-m", f"benchmarks.peers.tf_agents_{example}", *task.peer_options()]
    return to_measurement(run_json(command, task.timeout_secs))


def to_measurement(result: Mapping[str, Any]) -> Measurement:
    return Measurement(float(result["steps_per_s"]), list(result["returns"]))


# The comparison.

OURS = "tfagents_system"
# How many times as fast ours is claimed to be.
TARGETS = {"SBX": 1.5, "Stable-Baselines3": 2.2, "TF-Agents, single process": 4.0, "TF-Agents, distributed": 6.0}


def contestants_of(task: Task, arguments: argparse.Namespace) -> dict[str, Callable[[Task], Measurement]]:
    """Who trains a task, by name.

    With slow environments only `--full` runs those that are slower than SBX anyway.
    """
    python = arguments.peers_python
    chosen: dict[str, Callable[[Task], Measurement]] = {OURS: train_ours}
    if python is not None:
        chosen["SBX"] = functools.partial(train_stable_baselines, python, "sbx", 1)
    if python is not None and not arguments.quick:
        if not task.step_ms:
            name = f"SBX, {_BLOCK} updates after {_BLOCK} steps"
            chosen[name] = functools.partial(train_stable_baselines, python, "sbx", _BLOCK)
        if arguments.full or not task.step_ms:
            chosen["Stable-Baselines3"] = functools.partial(train_stable_baselines, python, "sb3", 1)
            chosen["TF-Agents, single process"] = functools.partial(train_tf_agents, "single")
            chosen["TF-Agents, distributed"] = functools.partial(train_tf_agents, "distributed")
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
    """Has a task trained by everybody in turn, as often as there are rounds; who fails is left out, with a note."""
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
    for name, speed in speeds.items():
        if OURS in speeds and name != OURS:
            outcome.ratio(f"ours over {name}, {task.name}", speeds[OURS] / speed, TARGETS.get(name))


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
