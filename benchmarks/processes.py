"""Runs the measured programs with a deadline, and leaves none behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

_END_SECS = 30.0  # that a process told to end may take


def end_on_sigterm() -> None:
    """A benchmark that is told to end unwinds, and so ends what it started in sessions of their own."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def run_json(
    command: Sequence[str], timeout_secs: float, *, folder: Path | None = None, show_progress: bool = False
) -> Any:
    """Runs a program and returns the JSON in the last line of its standard output.

    Args:
      command: The program; modules of this repository are found.
      timeout_secs: How long it may take.
      folder: Where it runs; None is a temporary folder, because MuJoCo leaves its log in the current one.
      show_progress: Whether its standard error is shown as it is written; otherwise only its end, after a failure.

    Raises:
      RuntimeError: It failed, gave no JSON, or was not done in time.
    """
    with tempfile.TemporaryDirectory() as temporary:
        process = subprocess.Popen(
            command,
            cwd=folder or temporary,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            text=True,
            stdout=subprocess.PIPE,
            stderr=None if show_progress else subprocess.PIPE,
            start_new_session=True,
        )
        try:
            output, errors = process.communicate(timeout=timeout_secs)
        except subprocess.TimeoutExpired:
            errors = end_session(process)
            raise RuntimeError(f"not done within {timeout_secs:.0f} s: {' '.join(command)}\n{errors[-2000:]}") from None
        finally:
            end_session(process)
    if process.returncode:
        end = (errors or "")[-2000:]
        raise RuntimeError(f"failed with exit code {process.returncode}: {' '.join(command)}\n{end}")
    try:
        return json.loads(output.strip().splitlines()[-1])
    except (IndexError, ValueError):
        raise RuntimeError(f"no JSON in the last line of the output: {' '.join(command)}\n{output[-2000:]}") from None


def end_session(process: subprocess.Popen[str]) -> str:
    """Ends a session leader and the rest of its session; returns what it wrote to standard error.

    It is terminated first, so that it can end what it started in further sessions, and killed at the deadline.
    """
    if process.poll() is not None:
        _kill_group(process.pid)
        return ""
    process.terminate()
    try:
        process.wait(timeout=_END_SECS)
    except subprocess.TimeoutExpired:
        pass
    _kill_group(process.pid)
    try:
        _, errors = process.communicate(timeout=_END_SECS)
    except subprocess.TimeoutExpired:  # Something outside the session still holds its output.
        return ""
    return errors or ""


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass
