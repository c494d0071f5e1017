"""Sources a vars file as run_script.sh does, for programs that need what it says."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tfagents_system.errors import UserError
from tfagents_system.launch.python_path import run_python_path

# The file's output is no variable, and the folder that it changes to is not the run's.
_SCRIPT = 'tfagents_pwd=$PWD; set -ae +u; source "$1" >&2; cd "$tfagents_pwd"; env -0'


def read_vars_file(path: Path, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment after the vars file was sourced.

    Raises:
      UserError: The file is missing or fails.
    """
    if not path.is_file():
        raise UserError(f"vars file {path} is missing: give the path of a file such as training_variables.sh")
    command = ["bash", "-c", _SCRIPT, "vars", str(path.resolve())]
    done = subprocess.run(command, stdout=subprocess.PIPE, env=dict(environ), check=False)
    if done.returncode or not done.stdout:  # No output: it has called `exit`.
        raise UserError(f"vars file {path} fails: see above (a file that calls exit says nothing), and correct it")
    entries = done.stdout.decode(errors="surrogateescape").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def run_environ(sourced: Mapping[str, str]) -> dict[str, str]:
    """The environment as run_script.sh completes it after the vars file was sourced; without GPUs."""
    own = {"PYTHONPATH": run_python_path(sourced, os.getcwd()), "PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": "-1"}
    return {**sourced, **own}
