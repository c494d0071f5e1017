"""HalfCheetah-v5 on 2 cores, an update for each environment step: ours against SBX, Stable-Baselines3 and TF-Agents.

    python -m benchmarks.whole_system [--quick | --full] [--only NAME ...] [--step_ms MS ...] [--rounds N]

Each contestant trains from scratch in its own processes, on the same CPUs, with the same hyperparameters and without
evaluation. What counts is environment steps per second after the first update, in a stretch in which as many updates as
steps were done. Then the same with an environment whose step takes 1, 5 and 20 ms of CPU time, and 20 ms of sleep. The
rounds go through all contestants in turn, so that another load on the machine meets all of them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.contract import ROOT, Result, end_session, peers_python, run_json, say
from tfagents_system.launch.cpus import allowed_cpus
from tfagents_system.launch.run_paths import RunPaths
from tfagents_system.report.metrics import read_metrics

_N_CPUS = 2
_LEARNING_STARTS = 1000
# Iterations before the stretch that is measured. In the first one TensorFlow compiles; while the trainer is busy with
# that, the workers finish the second one, which would be a present of one iteration to slow environments.
_WARM_UP_ITERATIONS = 2
_START_SECS = 300.0
_MIN_STEPS_PER_S = 5.0  # of a contestant that is still taken to be alive
_SLEEPING_WORKERS = 8
_EPISODES_OF_RETURN = 5


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

    def options(self) -> list[str]:
        """Command-line options that all peers share."""
        return [
            *("--steps", str(self.steps), "--learning_starts", str(_LEARNING_STARTS), "--seed", str(self.seed)),
            *("--step_ms", str(self.step_ms), "--horizon", str(self.horizon), "--busy" if self.busy else "--no-busy"),
        ]


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Attributes:
    steps_per_s: Environment steps, and updates, per second.
    returns: Return of each training episode, in order.
    """  # noqa: D205

    steps_per_s: float
    returns: list[float]


@dataclasses.dataclass(frozen=True)
class Contestant:
    """Attributes:
    name: As in the table.
    run: Trains a task.
    target: How many times as fast ours is claimed to be; None for information.
    needs_peers: Whether it needs the peers' Python.
    takes_slow_steps: Whether it runs with slow environments, too.
    in_quick: Whether `--quick` runs it.
    """  # noqa: D205

    name: str
    run: Callable[[Task], Measurement]
    target: float | None
    needs_peers: bool = True
    takes_slow_steps: bool = False
    in_quick: bool = False


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
                end_session(process)
    return measure_rows(rows, n_iterations(task))


def write_vars_file(folder: Path, exp_dir: Path, task: Task) -> Path:
    config = {
        "horizon": task.horizon,
        "step_ms": task.step_ms,
        "busy": task.busy,
        "random_episodes": max(1, _LEARNING_STARTS // task.horizon),
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


def train_stable_baselines(library: str, *more: str) -> Callable[[Task], Measurement]:
    def run(task: Task) -> Measurement:
        options = ["--library", library, "--n_envs", str(task.n_envs), *more]
        command = [str(peers_python()), "-m", "benchmarks.peers.halfcheetah", *task.options(), *options]
        return to_measurement(run_json(command, task.timeout_secs))

    return run


def train_tf_agents(example: str) -> Callable[[Task], Measurement]:
    def run(task: Task) -> Measurement:
        command = [sys.executable, "-m", f"benchmarks.peers.tf_agents_{example}", *task.options()]
        return to_measurement(run_json(command, task.timeout_secs))

    return run


def to_measurement(result: Mapping[str, Any]) -> Measurement:
    return Measurement(float(result["steps_per_s"]), list(result["returns"]))


OURS = "tfagents_system"
CONTESTANTS = (
    Contestant(OURS, train_ours, None, needs_peers=False, takes_slow_steps=True, in_quick=True),
    Contestant("SBX", train_stable_baselines("sbx"), 1.5, takes_slow_steps=True, in_quick=True),
    Contestant("SBX, 50 updates after 50 steps", train_stable_baselines("sbx", "--train_freq", "50"), None),
    Contestant("Stable-Baselines3", train_stable_baselines("sb3"), 2.2, takes_slow_steps=True),
    Contestant("TF-Agents, single process", train_tf_agents("single"), 4.0),
    Contestant("TF-Agents, distributed", train_tf_agents("distributed"), 6.0),
)


# The comparison.


def tasks(arguments: argparse.Namespace) -> list[Task]:
    """The bare simulator first, then the slow ones with short episodes, so that many workers keep in step."""
    if arguments.quick:
        return [Task(steps=500, horizon=250)]
    bare = Task(steps=arguments.steps or (30_000 if arguments.full else 2000))
    slow = [
        Task(n_steps, step_ms, busy, horizon=250, n_envs=n_envs)
        for step_ms, busy, n_envs, n_steps in (
            (1.0, True, _N_CPUS, 1000),
            (5.0, True, _N_CPUS, 1000),
            (20.0, True, _N_CPUS, 500),
            (20.0, False, _SLEEPING_WORKERS, 2000),
        )
    ]
    chosen = [task for task in [bare, *slow] if arguments.step_ms is None or task.step_ms in arguments.step_ms]
    if arguments.full:
        chosen = [dataclasses.replace(task, steps=max(task.steps, 4000)) for task in chosen]
    return chosen


def takes_part(contestant: Contestant, task: Task, arguments: argparse.Namespace) -> bool:
    if arguments.only and contestant.name not in arguments.only:
        return False
    if arguments.quick and not contestant.in_quick:
        return False
    return contestant.takes_slow_steps or not task.step_ms


def compare(result: Result, task: Task, contestants: list[Contestant], rounds: int) -> None:
    """Runs a task by all contestants, `rounds` times in turn; a contestant that fails is left out with a note."""
    measured: dict[str, list[Measurement]] = {contestant.name: [] for contestant in contestants}
    for number in range(rounds):
        for contestant in contestants:
            say(f"{task.name}, round {number + 1} of {rounds}: {contestant.name}")
            try:
                measurement = contestant.run(dataclasses.replace(task, seed=number))
            except RuntimeError as error:
                say(str(error))
                result.note(f"{contestant.name} failed ({task.name}): {str(error).splitlines()[0]}")
                continue
            say(f"  {measurement.steps_per_s:.1f} steps/s")
            measured[contestant.name].append(measurement)
    report(result, task, [contestant for contestant in contestants if measured[contestant.name]], measured)


def report(
    result: Result, task: Task, contestants: list[Contestant], measured: Mapping[str, list[Measurement]]
) -> None:
    speeds = {}
    for contestant in contestants:
        runs = measured[contestant.name]
        speeds[contestant.name] = statistics.median(run.steps_per_s for run in runs)
        result.row(f"{contestant.name}, {task.name}", speeds[contestant.name], "steps/s")
        last = [value for run in runs for value in run.returns[-_EPISODES_OF_RETURN:]]
        if last and not task.step_ms:
            name = f"{contestant.name}, return of the last {_EPISODES_OF_RETURN} training episodes of {task.steps} steps"
            result.row(name, statistics.mean(last), "return")
            result.row(f"{name}, standard deviation", statistics.pstdev(last), "return")
    for contestant in contestants:
        if OURS in speeds and contestant.name != OURS:
            ratio = speeds[OURS] / speeds[contestant.name]
            result.ratio(f"ours / {contestant.name}, {task.name}", ratio, contestant.target)


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_true", help="a minute: to see that it runs")
    length.add_argument("--full", action="store_true", help="30,000 steps: an hour, with returns that say something")
    parser.add_argument("--steps", type=int, help="environment steps that are measured with the bare simulator")
    parser.add_argument("--step_ms", type=float, nargs="+", help="only these times of a step: 0, 1, 5, 20")
    names = [contestant.name for contestant in CONTESTANTS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"contestants: {', '.join(names)}")
    parser.add_argument("--rounds", type=int, default=1)
    return parser.parse_args(arguments)


def main() -> None:
    arguments = parse_arguments()
    os.sched_setaffinity(0, allowed_cpus()[:_N_CPUS])
    result = Result(__doc__ or "")
    has_peers = peers_python() is not None
    if not has_peers:
        result.note("without peers")
    for task in tasks(arguments):
        contestants = [one for one in CONTESTANTS if takes_part(one, task, arguments)]
        compare(result, task, [one for one in contestants if has_peers or not one.needs_peers], arguments.rounds)
    result.emit()


if __name__ == "__main__":
    main()
