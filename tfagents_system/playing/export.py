"""Exports a policy: files that play it without this package, one of them without TensorFlow.

Writes policy.npz with numpy_policy.py, policy.tflite or policy.onnx: the greedy policy in the environment's own units.
Each file is compared with the checkpoint before it gets its name.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tfagents_system.envs.curriculum import EvaluatedTask
from tfagents_system.errors import EXIT_DONE, EXIT_FAILED, OptionParser
from tfagents_system.playing.saved_run import (
    checkpoint_in_words,
    find_checkpoint,
    find_path,
    load_run_params,
    output_folder,
)
from tfagents_system.report.long_work import LongWork
from tfagents_system.run_files.run_paths import RunPaths


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    flags = _parse(arguments)
    paths = RunPaths(find_path(flags.run, "RUN", Path.is_dir))
    checkpoint = find_checkpoint(paths, flags.checkpoint)
    folder = paths.exported if flags.out is None else output_folder(flags.out, "--out")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    params = load_run_params(paths, flags.params, flags.config)
    from absl import logging

    from tfagents_system.playing import export_files
    from tfagents_system.policies.files import require

    formats = flags.format or ["numpy"]
    if "onnx" in formats:
        require("tf2onnx", "onnxruntime")
    logging.set_verbosity(logging.ERROR)
    print(checkpoint_in_words(paths, checkpoint), flush=True)
    with LongWork("building the agent"):
        source = export_files.read_source(params, paths, checkpoint)
    iteration, task = source.description["iteration"], EvaluatedTask(params.env_config, params.num_iter)
    if iteration is not None and (stage := task.in_words(iteration)):
        print(f"curriculum of {stage}", flush=True)
    for name in dict.fromkeys(formats):
        try:
            with LongWork(f"{name}: writing and comparing"):
                path, difference = export_files.write(source, name, folder)
        except export_files.ExportError as error:
            print(f"error: {error}", file=sys.stderr)
            return EXIT_FAILED
        print(f"{path}: {path.stat().st_size:,} bytes, actions differ by {difference:.1e} at most", flush=True)
    return EXIT_DONE


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = OptionParser(description="The policy is greedy, in the environment's own units.")
    parser.add_argument("run", metavar="RUN", help="run directory")
    parser.add_argument("--params", metavar="PARAMS.py", help="file with TrainParams (default: the run's copy)")
    parser.add_argument("--config", metavar="JSON", help="JSON of the environment (default: the run's copy)")
    words = "name in policies/checkpoints, latest or best (default: best)"
    parser.add_argument("--checkpoint", metavar="NAME", help=words)
    formats = ("numpy", "tflite", "onnx")
    parser.add_argument(
        "--format", action="append", choices=formats, help="may be given several times (default: numpy)"
    )
    parser.add_argument("--out", metavar="FOLDER", help="folder to write to (default: exported/ in the run directory)")
    return parser.parse_args(arguments)
