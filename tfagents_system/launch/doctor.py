"""`sac doctor`: what this machine has for training, each with what to do where it lacks something."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence

from tfagents_system.checks.findings import is_installed
from tfagents_system.errors import EXIT_DONE, EXIT_FAILED, exit_with
from tfagents_system.launch import required_packages
from tfagents_system.launch.python_path import run_python_path
from tfagents_system.machine.cpus import allowed_cpus, cores_of, format_cpu_list, usable_gpus
from tfagents_system.report.long_work import LongWork

OK, LACKS, NONE = "ok", "LACKS", "-"
_DEADLINE_SECS = 60.0
_EXTRAS = {
    "onnx": ("onnxruntime", "tf2onnx"),
    "experience": ("minari",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "tuning": ("optuna",),
    "envpool": ("envpool",),
}
# A picture of each kind of simulator, drawn in a process of its own: drawing may end it.
_PICTURES = {"classic control": ("pygame", "Pendulum-v1"), "MuJoCo": ("mujoco", "Reacher-v5")}
_DRAW = (
    "from tfagents_system.envs.rendering import prepare_headless; prepare_headless(); import gymnasium; "
    "env = gymnasium.make('{name}', render_mode='rgb_array'); env.reset(); assert env.render().any()"
)
_SEES_A_GPU = "import tensorflow as tf; assert tf.config.list_physical_devices('GPU')"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a line for each thing; returns 1 if training lacks something."""
    argparse.ArgumentParser(prog="sac doctor", description=__doc__, allow_abbrev=False).parse_args(arguments)
    failed = False
    with LongWork("looking at this machine and drawing pictures"):
        for state, what, text in _lines():
            print(f"{state:5}  {what}: {text}", flush=True)
            failed |= state == LACKS
    return EXIT_FAILED if failed else EXIT_DONE


def _lines() -> Iterator[tuple[str, str, str]]:
    yield OK if sys.version_info[:2] == (3, 11) else LACKS, "Python", f"{platform.python_version()} ({sys.executable})"
    if wrong := required_packages.missing(dev=False):
        yield LACKS, "packages", f"{', '.join(wrong)}: run ./setup.sh, or pip install the toolkit again"
    else:
        tensorflow = importlib.metadata.version("tensorflow")
        yield OK, "packages", f"TensorFlow {tensorflow}, TF-Agents, Reverb and all others within the tested ranges"
    for extra, modules in _EXTRAS.items():
        lacking = ", ".join(name for name in modules if not is_installed(name))
        yield NONE if lacking else OK, f"extra [{extra}]", f"not installed ({lacking})" if lacking else "installed"
    cpus = allowed_cpus()
    yield OK, "CPUs", f"{len(cpus)} ({format_cpu_list(cpus)}) on {len(cores_of(cpus))} cores"
    sbatch = shutil.which("sbatch")
    yield OK if sbatch else NONE, "SLURM", sbatch or "no sbatch on PATH: runs train on this machine"
    for kind, (module, name) in _PICTURES.items():
        if not is_installed(module):
            yield NONE, kind, "not installed"
        elif fault := _fault_of(_DRAW.format(name=name), "-1"):
            yield LACKS, kind, f"draws nothing: {fault}"
        else:
            yield OK, kind, "draws without a screen"
    if not (names := usable_gpus(os.environ)):
        yield NONE, "GPU", "none: trainers use CPUs"
    elif _fault_of(_SEES_A_GPU, names[0]):
        lack = "but TensorFlow can use none: install the extra [gpu] to train on one"
        yield NONE, "GPU", f"{len(names)}, {lack}"
    else:
        yield OK, "GPU", f"{len(names)}: SAC_TRAIN_GPUS=1 uses one"


def _fault_of(code: str, gpu: str) -> str:
    """The last line that a program says, if it fails; `gpu` is what it sees, as CUDA_VISIBLE_DEVICES names it."""
    environ = {**os.environ, "PYTHONPATH": run_python_path(os.environ), "CUDA_VISIBLE_DEVICES": gpu}
    command = [sys.executable, "-c", code]
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=_DEADLINE_SECS, check=False)
    except subprocess.TimeoutExpired:
        return f"no end within {_DEADLINE_SECS:.0f} s"
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


if __name__ == "__main__":
    exit_with(main)
