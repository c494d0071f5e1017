"""A run by run_script.sh in a temporary folder, watched from outside through its files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from benchmarks.processes import ROOT, end_session
from tfagents_system.run_files.heartbeat import read_heartbeat, read_status
from tfagents_system.run_files.metrics import read_rows
from tfagents_system.run_files.run_paths import RunPaths

_POLL_SECS = 0.02
_END_SECS = 90.0


def clean_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment variables without those that would change the run, and with this Python."""
    removed = ("SAC_", "SLURM_", "TF_", "OMP_")
    kept = {name: value for name, value in environ.items() if not name.startswith(removed)}
    return kept | {"PYTHONPATH": str(ROOT), "VIRTUAL_ENV": sys.prefix}


class RealRun:
    """Starts a run on entering; ends it and removes its folder on leaving.

    Args:
      params: File with `class TrainParams`.
      config: What SAC_CONFIG holds.
      variables: Further SAC_ variables.

    Attributes:
      vars_file: What run_script.sh is given.
      paths: The run directory.
      started: When run_script.sh was last started, time.monotonic().
    """

    def __init__(self, params: Path, config: Mapping[str, Any], variables: Mapping[str, Any]) -> None:
        self._temporary = tempfile.TemporaryDirectory()
        self._folder = Path(self._temporary.name)
        self.paths = RunPaths(self._folder / "run")
        self.started = 0.0
        (self._folder / "config.json").write_text(json.dumps(config))
        own = {"SAC_EXP_NAME": "benchmark", "SAC_EXP_DIR": self.paths.exp_dir, "SAC_PARAMS": params}
        own |= {"SAC_CONFIG": self._folder / "config.json", "SAC_REVERB_CPUS": 1, "SAC_SHARE_CPUS": 1}
        own |= {"SAC_TRAIN_CPUS": 1, "SAC_COLLECT_WORKER_CPUS": 1, **variables}
        lines = [f"{name}={value}\n" for name, value in own.items()]
        self.vars_file = self._folder / "vars.sh"
        self.vars_file.write_text("# shellcheck shell=bash\n" + "".join(lines))

    def __enter__(self) -> RealRun:
        self._output = (self._folder / "output.txt").open("w+")
        self._process = self._start()
        return self

    def _start(self) -> subprocess.Popen[str]:
        self.started = time.monotonic()
        return subprocess.Popen(
            [str(ROOT / "run_script.sh"), str(self.vars_file)],
            cwd=self._folder,
            env=clean_environ(os.environ),
            text=True,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A second signal ends it at once: nothing is worth saving.
        self._process.terminate()
        time.sleep(0.5)
        end_session(self._process)
        self._output.close()
        self._temporary.cleanup()

    def stop(self) -> None:
        """Stops the run, which saves a checkpoint before it ends."""
        self._process.terminate()
        self._process.wait(timeout=_END_SECS)

    def interrupt(self, number: signal.Signals) -> None:
        """Ends the run by a signal and starts the same command again; SIGKILL takes all its processes with it."""
        roles = list(self.processes().values())
        self._process.send_signal(number)
        self._process.wait(timeout=_END_SECS)
        psutil.wait_procs(roles, timeout=_END_SECS)
        self._process = self._start()

    def wait_until(
        self, condition: Callable[[], bool], what: str, timeout_secs: float, poll_secs: float = _POLL_SECS
    ) -> float:
        """Waits; returns the seconds since the run was last started.

        Args:
          condition: What is waited for.
          what: The same in words.
          timeout_secs: From now on.
          poll_secs: Between two checks, which take CPU time from the run.

        Raises:
          RuntimeError: The run ended first, or the time is up.
        """
        deadline = time.monotonic() + timeout_secs
        while not condition():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._output.seek(0)
                raise RuntimeError(f"the run did not reach: {what}\n{self._output.read()[-2000:]}")
            time.sleep(poll_secs)
        return time.monotonic() - self.started

    def heartbeat(self, role: str) -> dict[str, Any]:
        """The last heartbeat of a role; empty before the first."""
        return dict(read_heartbeat(self.paths.heartbeat(role)) or {})

    def iterations(self) -> list[dict[str, Any]]:
        """Rows of the metrics, one for each iteration that is done."""
        return [row for row in read_rows(self.paths.metrics_csv) if row["updates_per_s"] is not None]

    def processes(self) -> dict[str, psutil.Process]:
        """The processes of the roles, by their names."""
        status = read_status(self.paths.status_json) or {"run": {"pid": self._process.pid}}
        children = psutil.Process(status["run"]["pid"]).children()
        return {name.removeprefix("sac_"): child for child in children if (name := child.name()).startswith("sac_")}
