"""Runs the launchers as a user does, in a directory of the user's own."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.support.warm_starts import WarmPopen

ROOT = Path(__file__).resolve().parents[2]
_started: list[tuple[subprocess.Popen[str], Path]] = []  # Launchers and their run directories, until `end_all`.


class UserRun:
    """A user's folder with params, configuration and vars file, and the run that they describe.

    Args:
      folder: Where the user's files are.
      params: Text of params.py; None takes the file that SAC_PARAMS names.
      config: Content of config.json.
      **variables: SAC_ variables, without the prefix, in lower case.

    Attributes:
      command_prefix: Runs the launcher, such as `setpriv ...`.
    """

    def __init__(self, folder: Path, params: str | None, config: Mapping[str, Any] | None, **variables: object) -> None:
        self.folder = folder
        self._is_elsewhere = "exec_prefix" in variables  # Where nothing is imported yet.
        self.command_prefix: Sequence[str] = ()
        self.exp_dir = folder / "run"
        defaults: dict[str, object] = {
            "exp_name": "test",
            "exp_dir": self.exp_dir,
            "reverb_cpus": 1,
            "train_cpus": 1,
            "num_collect_workers": 2,
            "collect_worker_cpus": 1,
            "share_cpus": 1,
            "report": 0,
        }
        if params is not None:
            (folder / "my_params.py").write_text(params)
            defaults["params"] = "my_params.py"
        if config is not None:
            (folder / "my_config.json").write_text(json.dumps(config))
            defaults["config"] = "my_config.json"
        lines = [f"SAC_{name.upper()}={value}" for name, value in {**defaults, **variables}.items()]
        self.vars_file = folder / "my_vars.sh"
        self.vars_file.write_text("\n".join(lines) + "\n")

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Starts `run_script.sh` with the Python that runs the tests and further arguments; options go to Popen."""
        return self._launch("run_script.sh", arguments, options)

    def join(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Lets workers join this run, with further arguments; options go to Popen."""
        return self._launch("join_script.sh", ["--to", str(self.exp_dir), *arguments], options)

    def _launch(self, script: str, arguments: Sequence[str], options: Mapping[str, Any]) -> subprocess.Popen[str]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("SAC_", "SLURM_"))}
        environ["VIRTUAL_ENV"] = sys.prefix
        environ["SAC_ALLOW_LOGIN"] = "1"  # Tests may be run where SLURM is.
        command = [*self.command_prefix, str(ROOT / "tfagents_system/launch" / script), str(self.vars_file), *arguments]
        start: Callable[..., subprocess.Popen[str]] = functools.partial(subprocess.Popen, start_new_session=True)
        if not self.command_prefix and not self._is_elsewhere:
            start = WarmPopen
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        process = start(command, cwd=self.folder, env=environ, text=True, **{**streams, **options})
        note(process, self.exp_dir)
        return process

    def finish(self, timeout_secs: float = 400.0) -> tuple[int, str]:
        """Runs to the end; returns (exit code, output)."""
        return finish(self.start(), timeout_secs)

    def status(self) -> dict[str, Any]:
        """status.json, empty while there is none."""
        try:
            return json.loads((self.exp_dir / "status.json").read_text())
        except (OSError, ValueError):
            return {}

    def trainer(self) -> dict[str, Any]:
        """The trainer's part of it."""
        return self.status().get("roles", {}).get("trainer", {})

    def wait_until(
        self, process: subprocess.Popen[str], condition: Callable[[], bool], timeout_secs: float = 300.0
    ) -> None:
        """Waits for a condition while the run lives."""
        deadline = time.monotonic() + timeout_secs
        while not condition():
            if process.poll() is not None or time.monotonic() > deadline:
                process.send_signal(signal.SIGTERM)
                raise AssertionError(f"the run did not get there:\n{finish(process)[1]}\n{self.logs()}")
            time.sleep(0.1)

    def log(self, role: str) -> str:
        return (self.exp_dir / "logs" / f"{role}.log").read_text()

    def logs(self) -> str:
        """The ends of all logs, for messages."""
        return "\n".join(f"== {path.name}\n{path.read_text()[-2000:]}" for path in self.exp_dir.glob("logs/*.log"))


def note(process: subprocess.Popen[str], exp_dir: Path) -> None:
    """A launcher that `end_all` ends."""
    _started.append((process, exp_dir))


def end_all() -> list[str]:
    """Ends launchers that tests have left, and what works in their run directories; says which."""
    if not _started:
        return []
    left = [(process, exp_dir) for process, exp_dir in _started if process.poll() is None]
    folders = {str(exp_dir) for _, exp_dir in _started}
    _started.clear()
    for process, _ in left:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30.0)
    for found in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if found.environ().get("SAC_EXP_DIR") in folders:
                found.kill()
    for process, _ in left:
        process.wait(30.0)
    return [str(exp_dir) for _, exp_dir in left]


def finish(process: subprocess.Popen[str], timeout_secs: float = 400.0) -> tuple[int, str]:
    """Waits for the launcher's end; kills its whole session at the deadline."""
    try:
        output, _ = process.communicate(timeout=timeout_secs)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        try:
            output, _ = process.communicate(timeout=90.0)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        raise AssertionError(f"the run did not end within {timeout_secs} s:\n{output}") from None
    return process.returncode, output
