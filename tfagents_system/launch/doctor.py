"""`sac doctor`: what this machine has for training, each with what to do where it lacks something."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import itertools
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from tfagents_system.errors import EXIT_DONE, EXIT_FAILED, exit_with
from tfagents_system.launch import required_packages
from tfagents_system.launch.python_path import run_python_path
from tfagents_system.machine import gpus
from tfagents_system.machine.cpus import allowed_cpus, cores_of, format_cpu_list
from tfagents_system.machine.installed import is_installed
from tfagents_system.report.long_work import LongWork

OK, LACKS, NONE = "ok", "LACKS", "-"
_DEADLINE_SECS = 60.0
# A picture of each kind of simulator, drawn in a process of its own: drawing may end it.
_PICTURES = {
    "classic control (pygame)": ("pygame", "import gymnasium as g; e = g.make('Pendulum-v1', render_mode='rgb_array')"),
    "MuJoCo": ("mujoco", "import gymnasium as g; e = g.make('Reacher-v5', render_mode='rgb_array')"),
}
_EXTRAS = {
    "onnx": ("onnxruntime", "tf2onnx"),
    "experience": ("minari",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "tuning": ("optuna",),
    "envpool": ("envpool",),
}
_DRAW = (
    "from tfagents_system.envs.rendering import prepare_headless; prepare_headless(); "
    "{make}; e.reset(); assert e.render().any()"
)
# As TensorFlow sees the trainer's; nothing where it lacks a library of CUDA, or the driver.
_GPU_NAME = (
    "import tensorflow as tf; details = tf.config.experimental.get_device_details; "
    "print(*[details(gpu).get('device_name') for gpu in tf.config.list_physical_devices('GPU')])"
)
Line = tuple[str, str, str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a line for each thing; returns 1 if training lacks something."""
    argparse.ArgumentParser(prog="sac doctor", description=__doc__, allow_abbrev=False).parse_args(arguments)
    failed = False
    with LongWork("looking at this machine and drawing pictures"), ThreadPoolExecutor() as pool:
        parts = pool.map(lambda part: list(part()), (_python, _machine, _pictures, _gpu))
        for state, what, text in itertools.chain.from_iterable(parts):
            print(f"{state:5}  {what}: {text}", flush=True)
            failed |= state == LACKS
    return EXIT_FAILED if failed else EXIT_DONE


def _python() -> Iterator[Line]:
    yield OK if sys.version_info[:2] == (3, 11) else LACKS, "Python", f"{platform.python_version()} ({sys.executable})"
    if wrong := required_packages.missing(dev=False):
        yield LACKS, "packages", f"{', '.join(wrong)}: run ./setup.sh, or pip install the toolkit again"
    else:
        tensorflow = importlib.metadata.version("tensorflow")
        yield OK, "packages", f"TensorFlow {tensorflow}, TF-Agents, Reverb and all others within the tested ranges"
    for extra, modules in _EXTRAS.items():
        lacking = ", ".join(name for name in modules if not is_installed(name))
        text = f"not installed ({lacking})" if lacking else "installed"
        yield NONE if lacking else OK, f"extra [{extra}]", text


def _machine() -> Iterator[Line]:
    cpus = allowed_cpus()
    yield OK, "CPUs", f"{len(cpus)} ({format_cpu_list(cpus)}) on {len(cores_of(cpus))} cores"
    free = shutil.disk_usage("/dev/shm").free / 2**20 if os.path.isdir("/dev/shm") else 0.0
    text = f"{free:,.0f} MiB free in /dev/shm, for policies that travel while trainers work"
    yield OK if free >= 64 else NONE, "shared memory", text
    sbatch = shutil.which("sbatch")
    yield OK if sbatch else NONE, "SLURM", sbatch or "no sbatch on PATH: runs train on this machine"


def _pictures() -> Iterator[Line]:
    for name, (module, make) in _PICTURES.items():
        if not is_installed(module):
            yield NONE, name, "not installed"
        elif fault := _fault_of(_DRAW.format(make=make)):
            yield LACKS, name, f"draws nothing: {fault}"
        else:
            yield OK, name, "draws without a screen"


def _fault_of(code: str) -> str:
    """The last line that a program says, if it fails."""
    try:
        done = _in_own_process(code, CUDA_VISIBLE_DEVICES="-1")
    except subprocess.TimeoutExpired:
        return f"no picture within {_DEADLINE_SECS:.0f} s"
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def _in_own_process(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A program that has ended.

    Raises:
      subprocess.TimeoutExpired: It has not within a minute.
    """
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": run_python_path(os.environ), **variables},
        capture_output=True,
        text=True,
        timeout=_DEADLINE_SECS,
        stdin=subprocess.DEVNULL,
    )


def _gpu() -> Iterator[Line]:
    names, name = gpus.usable_gpus(os.environ), ""
    if not names:
        yield NONE, "GPU", "none: trainers use CPUs"
        return
    with contextlib.suppress(subprocess.TimeoutExpired):
        name = _in_own_process(_GPU_NAME, CUDA_VISIBLE_DEVICES=names[0], TF_CPP_MIN_LOG_LEVEL="3").stdout.strip()
    lack = "but TensorFlow can use none: install the extra [gpu] to train on one"
    yield (
        (OK, "GPU", f"{len(names)}: SAC_TRAIN_GPUS=1 uses one ({name})")
        if name
        else (NONE, "GPU", f"{len(names)}, {lack}")
    )


if __name__ == "__main__":
    exit_with(main)
