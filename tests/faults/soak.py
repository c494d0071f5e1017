"""Lets a run go for an hour and says whether memory, threads and file descriptors of its processes stay flat.

    python -m tests.faults.soak --minutes 60 [--csv soak.csv]

The simulator costs next to nothing: an hour is more than ten million steps. Exit code 0: everything is flat.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import dataclasses
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil

from tests.faults.campaign import processes_of
from tests.support.launching import UserRun, finish
from tfagents_system.errors import EXIT_RESUMABLE
from tfagents_system.run_files.heartbeat import read_heartbeat
from tfagents_system.run_files.run_paths import REPLAY, TRAINER, RunPaths, worker_role

WORKERS = 2
SAMPLE_SECS = 5.0
_START_SECS = 180.0
_WARM_UP_SHARE = 0.25  # The ring fills, caches grow.
_GROWTH_SHARE = 0.03  # of its median that a role's memory may grow by, over the time that is looked at
_GROWTH_COUNT = 2.0  # threads or file descriptors: those of a moment, such as a heartbeat being written
_PSS = re.compile(rb"^Pss:\s+(\d+) kB", re.MULTILINE)

PARAMS = f"""
from tests.faults.numbered import NumberedEnv
from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    num_iter = 10_000_000
    num_steps_per_iter = 5
    n_train_episodes_per_iter = 10
    n_buffer_init_episodes = {WORKERS}
    buffer_size = 100000
    n_eval_episodes = {WORKERS}
    eval_period_itrs = 50
    checkpoint_period_itrs = 200
    log_period_itrs = 20
    train_batch_size = 64
    actor_fc_layer_params = (32,)
    critic_joint_fc_layer_params = (32,)

    def env_ctor(self):
        return NumberedEnv(-1, self.horizon, "")
"""


@dataclasses.dataclass(frozen=True)
class Sample:
    """What one process had at one moment.

    Attributes:
      secs: Since training began.
      role: A role, `supervisor` or `fork server`.
      pss_mb: Its memory, what it shares with others in parts.
      threads, descriptors: How many.
      env_steps: Of the run, by then.
    """

    secs: float
    role: str
    pss_mb: float
    threads: int
    descriptors: int
    env_steps: int


def main(argv: Sequence[str] | None = None) -> int:
    args = _parse(argv)
    with tempfile.TemporaryDirectory(prefix="soak_") as folder:
        samples = soak(Path(folder), args.minutes * 60.0)
    with args.csv.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in dataclasses.fields(Sample)])
        writer.writerows(dataclasses.astuple(sample) for sample in samples)
    text, is_flat = verdict(samples)
    print(text)
    print(f"{samples[-1].env_steps:,} steps in {samples[-1].secs / 60:.0f} minutes; samples in {args.csv}")
    print("everything is flat" if is_flat else "NOT flat")
    return 0 if is_flat else 1


def soak(folder: Path, secs: float) -> list[Sample]:
    """Runs for a while and samples every process of the run.

    Raises:
      RuntimeError: The run did not start, or did not stop as it should.
    """
    run = UserRun(folder, PARAMS, {"horizon": 200}, num_collect_workers=WORKERS)
    paths = RunPaths(run.exp_dir)
    samples: list[Sample] = []
    with (folder / "output.txt").open("w") as output:
        process = run.start(stdout=output)
    try:
        run.wait_until(process, lambda: (run.trainer().get("train_step") or 0) > 0, _START_SECS)
        began = time.monotonic()
        names = _names(run, paths, process.pid)
        while (now := time.monotonic() - began) < secs and process.poll() is None:
            env_steps = (read_heartbeat(paths.heartbeat(REPLAY)) or {}).get("env_steps") or 0
            samples += [sample for pid, name in names.items() if (sample := _sample(pid, name, now, env_steps))]
            time.sleep(SAMPLE_SECS)
        restarts = sum(role.get("restarts", 0) for role in run.status().get("roles", {}).values())
        process.terminate()
        code, _ = finish(process)
    finally:
        for left in list(processes_of(run.exp_dir)):
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()
    if code != EXIT_RESUMABLE or restarts:
        raise RuntimeError(
            f"exit code {code}, {restarts} restarts:\n{(folder / 'output.txt').read_text()}\n{run.logs()}"
        )
    return samples


def _names(run: UserRun, paths: RunPaths, supervisor: int) -> dict[int, str]:
    """The run's processes by pid."""
    beats = {
        role: read_heartbeat(paths.heartbeat(role)) for role in (REPLAY, TRAINER, *map(worker_role, range(WORKERS)))
    }
    names = {int(beat["pid"]): role for role, beat in beats.items() if beat}
    others = [
        process for process in processes_of(run.exp_dir) if process.pid not in names and process.pid != supervisor
    ]
    forks = {
        process.pid: "fork server" for process in others if any("fork_server" in part for part in process.cmdline())
    }
    return {supervisor: "supervisor", **forks, **names}


def _sample(pid: int, name: str, secs: float, env_steps: int) -> Sample | None:
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_bytes()
        threads, descriptors = (len(list(Path(f"/proc/{pid}/{folder}").iterdir())) for folder in ("task", "fd"))
    except OSError:
        return None  # It has just ended.
    found = _PSS.search(rollup)
    return Sample(secs, name, int(found[1]) / 1024 if found else 0.0, threads, descriptors, env_steps)


def verdict(samples: Sequence[Sample]) -> tuple[str, bool]:
    """A table of how each process grew, and whether all of them are flat."""
    lines = [f"{'':12}{'MB':>8}{'MB grown':>10}{'MB/h':>8}{'threads':>9}{'grown':>7}{'files':>7}{'grown':>7}"]
    is_flat = True
    last = max(sample.secs for sample in samples)
    for role in dict.fromkeys(sample.role for sample in samples):
        ours = [sample for sample in samples if sample.role == role and sample.secs >= _WARM_UP_SHARE * last]
        secs = np.array([sample.secs for sample in ours])
        memory, threads, files = (
            np.array([getattr(sample, name) for sample in ours], float) for name in ("pss_mb", "threads", "descriptors")
        )
        grown = [_growth(values) for values in (memory, threads, files)]
        bounds = (_GROWTH_SHARE * float(np.median(memory)), _GROWTH_COUNT, _GROWTH_COUNT)
        flat = all(growth <= bound for growth, bound in zip(grown, bounds, strict=True))
        is_flat = is_flat and flat
        hours = (secs[-1] - secs[0]) / 3600.0
        lines.append(
            f"{role:12}{np.median(memory):8.1f}{grown[0]:10.2f}{grown[0] / max(hours, 1e-9):8.1f}"
            f"{np.median(threads):9.0f}{grown[1]:7.1f}{np.median(files):7.0f}{grown[2]:7.1f}"
            f"{'' if flat else '  NOT FLAT'}"
        )
    return "\n".join(lines), is_flat


def _growth(values: np.ndarray) -> float:
    """From the first third to the last; medians, for memory that is shared jumps whenever somebody is forked."""
    third = max(1, len(values) // 3)
    return 1.5 * float(np.median(values[-third:]) - np.median(values[:third]))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="how long (60)")
    parser.add_argument("--csv", type=Path, default=Path("soak.csv"), help="where the samples go (soak.csv)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
