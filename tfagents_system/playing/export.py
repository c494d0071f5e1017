"""Exports a policy: files that play it without this package, one of them without TensorFlow.

    python -m tfagents_system.playing.export --exp_dir logs/minitaur --checkpoint best --format numpy --out exported

Writes policy.npz with numpy_policy.py, policy.tflite or policy.onnx: the greedy policy in the environment's own units.
Each file is compared with the checkpoint before it gets its name.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfagents_system.envs.curriculum import EvaluatedTask
from tfagents_system.errors import EXIT_DONE, EXIT_FAILED, UserError, called_as, exit_with
from tfagents_system.playing.saved_run import (
    checkpoint_in_words,
    find_checkpoint,
    find_path,
    load_run_params,
    output_folder,
)
from tfagents_system.report.long_work import LongWork
from tfagents_system.run_files.run_paths import RunPaths

_FORMATS = ("numpy", "tflite", "onnx")


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    flags = _parse(arguments)
    paths = RunPaths(find_path(flags.exp_dir, "--exp_dir", Path.is_dir))
    checkpoint = find_checkpoint(paths, flags.checkpoint)
    folder = paths.exported if flags.out is None else output_folder(flags.out, "--out")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    params = load_run_params(paths, flags.params, flags.config)
    formats = _FORMATS if flags.format == "all" else (flags.format,)
    from absl import logging

    from tfagents_system.playing import export_files
    from tfagents_system.policies.files import require

    if "onnx" in formats:
        require("tf2onnx", "onnxruntime")
    logging.set_verbosity(logging.ERROR)
    print(checkpoint_in_words(paths, checkpoint), flush=True)
    try:
        with LongWork("building the agent"):
            source = export_files.read_source(params, paths, checkpoint)
        iteration, task = source.description["iteration"], EvaluatedTask(params.env_config, params.num_iter)
        if iteration is not None and (stage := task.in_words(iteration)):
            print(f"curriculum of {stage}", flush=True)
        written = [_write(source, name, folder, flags.format == "all") for name in formats]
    except export_files.ExportError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED
    return EXIT_DONE if any(written) else EXIT_FAILED


def _write(source: Any, name: str, folder: Path, may_leave_out: bool) -> bool:
    """Writes a file and prints the result; returns whether it was written."""
    from tfagents_system.playing import export_files

    try:
        with LongWork(f"{name}: writing and comparing"):
            path, difference = export_files.write(source, name, folder)
    except UserError as error:
        if not may_leave_out:
            raise
        print(f"{name}: left out, {error}", flush=True)
        return False
    note = "; it needs an interpreter with TensorFlow's own ops (Flex)" if export_files.needs_flex(path) else ""
    print(f"{path}: {path.stat().st_size:,} bytes, actions differ by {difference:.1e} at most{note}", flush=True)
    return True


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=called_as("python -m tfagents_system.playing.export"),
        description="Exports the greedy policy of a checkpoint, in the environment's own units.",
        allow_abbrev=False,
    )
    parser.add_argument("--exp_dir", required=True, help="run directory, such as logs/minitaur")
    parser.add_argument("--params", help="Python file with TrainParams (default: the run's own copy)")
    parser.add_argument("--config", help="JSON of the environment (default: the run's own copy)")
    parser.add_argument("--checkpoint", help="name in policies/checkpoints, latest, or best (default)")
    parser.add_argument("--format", choices=(*_FORMATS, "all"), default="numpy", help="default: numpy")
    parser.add_argument("--out", help="folder for the files (default: exported, in the run directory)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_with(main)
