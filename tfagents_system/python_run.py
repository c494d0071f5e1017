"""Runs from Python: `tfagents_system.train(...)` starts one, `tfagents_system.load_run(...)` finds one.

The processes are those of `sac train`, supervised in the same way; this one starts them and reads their files. It
imports TensorFlow only where a policy is asked for.
"""

from __future__ import annotations

import atexit
import inspect
import json
import linecache
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfagents_system.errors import (
    CALLED,
    EXIT_BAD_INPUT,
    EXIT_DONE,
    EXIT_RESUMABLE,
    NAME_VARIABLE,
    TERMS,
    UserError,
    run_name_of,
    shown,
)
from tfagents_system.launch.vars_file import run_python_path
from tfagents_system.machine.claims import lock
from tfagents_system.report.long_work import LongWork
from tfagents_system.report.status import state_of, summary
from tfagents_system.run_files.heartbeat import read_status
from tfagents_system.run_files.metrics import METRIC_COLUMNS, read_rows
from tfagents_system.run_files.run_lock import TOKEN_VARIABLE
from tfagents_system.run_files.run_paths import INPUTS, OUTPUT, RunPaths
from tfagents_system.settings.variables import without_task

if TYPE_CHECKING:
    import pandas

    from tfagents_system.policies.files import Policy

_POLL_SECS = 0.5
_LAST_LINES = 40
_TERMS = json.dumps({f"--{edits}": f'edits="{edits}"' for edits in ("keep", "fresh")})
_SAC = [sys.executable, "-P", "-m", "tfagents_system"]


class RunFailedError(RuntimeError):
    """A run ended before it was finished: which role failed, its last words, and what continues the run."""


def train(
    params: type | str | os.PathLike[str],
    config: Mapping[str, Any] | str | os.PathLike[str],
    *,
    name: str | None = None,
    workers: int = 2,
    seed: int = 0,
    folder: str | os.PathLike[str] = ".",
    attributes: Mapping[str, Any] | None = None,
    variables: Mapping[str, Any] | None = None,
    edits: str | None = None,
) -> Run:
    """Starts a run, or continues with one that was stopped, and returns at once; `Run.wait` raises what is refused.

    Args:
      params: Class `TrainParams(TrainParamsBase)` of a file or a notebook's cell, or a file with it. A cell must have
        the imports that the class needs: workers run the cell's text.
      config: The JSON of the environment, such as `{"horizon": 200}`, or a file with it.
      name: Of the run (SAC_EXP_NAME); its directory is `<folder>/logs/<name>`. Default: as `sac train` calls it.
      workers: How many collect (SAC_NUM_COLLECT_WORKERS).
      seed: Decides every other seed (SAC_SEED).
      attributes: Attributes of TrainParams for this run alone, as `--set` takes them.
      variables: Further SAC_ variables, such as `{"SAC_TRAIN_CPUS": 4}`.
      edits: What a run that has begun does with files that were edited since: `keep` continues with its own copies,
        `fresh` starts over and moves the old run aside. None: it is refused, with the differences.

    Raises:
      UserError: The class is in no file, an attribute is nothing that JSON has, a start from Python is under way; or
        this is a process of a run: a script calls it below `if __name__ == "__main__":`.
    """
    if os.environ.get(TOKEN_VARIABLE) or os.environ.get(NAME_VARIABLE):
        raise UserError(
            "train() was called while a start or a run's own process imported this file: call it below `if __name__ == "
            '"__main__":`, which those do not execute'
        )
    folder = Path(folder).expanduser().absolute()
    cell = _cell_of(params) if isinstance(params, type) else ""
    file = None if cell else _file_of(params)
    name = name or ("notebook" if file is None else run_name_of(file))
    given = {"SAC_NUM_COLLECT_WORKERS": workers, "SAC_SEED": seed, "SAC_EXP_NAME": name, **(variables or {})}
    # Where this program is a task of a job array, the run is none.
    call = "train(..., edits=None)" if edits == "fresh" else "train(...)"
    environ = without_task(_environ()) | {TERMS: _TERMS, CALLED: call}
    environ |= {key: str(value) for key, value in given.items()}
    exp_dir = folder / Path(environ.get("SAC_LOGS_DIR") or "logs").expanduser() / environ["SAC_EXP_NAME"]
    options = [word for key, value in (attributes or {}).items() for word in ("--set", _assignment(key, value))]
    options += [f"--{edits}"] if edits else []
    inputs = folder / "logs" / f"{name}{INPUTS}"
    inputs.mkdir(parents=True, exist_ok=True)
    with (inputs / OUTPUT).open("ab") as output:  # Locked until the processes that write to it have ended.
        if not lock(output.fileno(), inputs / OUTPUT, waits=False):
            raise UserError(f"{exp_dir} is being trained: load_run({str(exp_dir)!r}) finds it; or give another name")
        output.truncate(0)
        file = file or _written(inputs / "params.py", cell)
        if isinstance(config, Mapping):
            config = _written(inputs / "config.json", json.dumps(config, indent=2) + "\n")
        command = [*_SAC, "train", str(file), "--config", str(Path(config).absolute()), *options]
        process = subprocess.Popen(
            command, env=environ, cwd=folder, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    run = Run(exp_dir, process, inputs / OUTPUT)
    atexit.register(run.stop)
    return run


def load_run(path: str | os.PathLike[str]) -> Run:
    """A run that was started before, under way or not.

    Raises:
      UserError: There is no run.
    """
    folder = Path(path).expanduser().absolute()
    if not RunPaths(folder).run_json.exists():
        raise UserError(f"{folder} is no run directory: give one, such as logs/reacher")
    return Run(folder)


class Run:
    """A run directory, and the processes that train it where this one has started them.

    Attributes:
      exp_dir: The run directory.
    """

    def __init__(
        self, exp_dir: Path, process: subprocess.Popen[bytes] | None = None, output: Path | None = None
    ) -> None:
        self.exp_dir = exp_dir
        self._paths, self._process, self._output = RunPaths(exp_dir), process, output
        self._began = time.time()

    def __repr__(self) -> str:
        status = self.status
        return f"<Run {self.exp_dir}: {state_of(status, time.time()) if status else 'starting'}>"

    @property
    def status(self) -> dict[str, Any]:
        """The contents of status.json, which is at most some seconds old; empty before there is one.

        While a start from here is checked, that of an earlier start is none.
        """
        status = read_status(self._paths.status_json) or {}
        is_earlier = self._process is not None and status.get("run", {}).get("started_at", 0.0) < self._began
        return {} if is_earlier and self._process and self._process.poll() != EXIT_DONE else status

    @property
    def metrics(self) -> pandas.DataFrame:
        """metrics.csv up to now, a row for each log period and evaluation; a torn last line is left out."""
        import pandas

        rows = read_rows(self._paths.metrics_csv)
        table = pandas.DataFrame(rows, columns=None if rows else [*METRIC_COLUMNS], dtype=float)
        counts = table.columns[table.notna().all()].intersection(["train_step", "iteration", "env_steps"])
        return table.astype(dict.fromkeys(counts, int))

    @property
    def evaluations(self) -> pandas.DataFrame:
        """The rows of `metrics` that are evaluations: in the others `eval_return` and its like are NaN."""
        return self.metrics.dropna(subset=["eval_return"])

    @property
    def output(self) -> str:
        """What the processes that this one started have printed."""
        return "" if self._output is None else self._output.read_text(errors="replace")

    def wait(self, timeout: float | None = None, *, progress: bool = True) -> Run:
        """Waits until a run that was started here is finished. Ctrl-C ends the waiting alone: the run continues.

        Args:
          timeout: Seconds; None: as long as it takes.
          progress: Says how far it is, in a terminal or a notebook.

        Raises:
          UserError: The start refused something; with all findings.
          RunFailedError: It failed, or was stopped by someone else.
          TimeoutError: It trains on.
        """
        if self._process is None:
            raise UserError(f"{self.exp_dir} was not started here: `sac status` and its metrics say how it continues")
        deadline = None if timeout is None else time.monotonic() + timeout
        with LongWork("starting", after_secs=0.0 if progress else threading.TIMEOUT_MAX, in_place=True) as bar:
            while self._process.poll() is None:
                self._show(bar)
                if deadline is not None and time.monotonic() > deadline:
                    raise TimeoutError(f"{self.exp_dir} is not finished after {timeout:.0f} s: wait again, or stop it")
                time.sleep(_POLL_SECS)
            self._show(bar)
        code = self._process.returncode
        if code == EXIT_BAD_INPUT and not self.status:  # Else a role has refused something after the start.
            raise UserError(*_findings(self.output))
        if code != EXIT_DONE:
            what = "was stopped and saved" if code == EXIT_RESUMABLE else f"failed with exit code {code}"
            lines = self.output.splitlines()[-_LAST_LINES:]
            why = next((number for number, line in enumerate(lines) if line.startswith("error: ")), 0)
            raise RunFailedError("\n".join([f"{self.exp_dir} {what}:", *lines[why:]]))
        return self

    def _show(self, bar: LongWork) -> None:
        if status := self.status:
            words = summary(status, time.time())
            numbers = f"iteration {words['iteration']}, {words['env steps']} env steps, eval {words['eval return']}"
            is_drawn = words["state"] == "done" and self._process is not None and self._process.poll() is None
            bar.what = f"{words['run']}: {'drawing its results' if is_drawn else words['state']}, {numbers}"

    def stop(self, timeout: float | None = None) -> None:
        """Saves everything and ends a run that was started here; the same `train(...)` continues with it.

        Args:
          timeout: Seconds; None: as long as it takes, which SAC_SAVE_DEADLINE_SECS limits.

        Raises:
          RunFailedError: It did not end within `timeout` seconds, and was killed.
        """
        if self._process is None or self._process.poll() is not None:
            return
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            raise RunFailedError(f"{self.exp_dir} did not end within {timeout:g} s and was killed") from None

    def policy(self, checkpoint: str = "best") -> Policy:
        """A saved policy, greedy.

        Args:
          checkpoint: `best`, `latest` or its name.

        Raises:
          UserError: There is none.
        """
        from tfagents_system.playing.saved_run import find_checkpoint
        from tfagents_system.policies.files import Policy, load_policy

        return Policy(load_policy(find_checkpoint(self._paths, checkpoint), "checkpoint"))

    def video(self, checkpoint: str = "best", seed: int = 0) -> Path:
        """An MP4 of an episode, made if there is none yet.

        Raises:
          UserError: There is no such policy, or the environment can't be drawn.
        """
        from tfagents_system.playing.saved_run import find_checkpoint

        name = find_checkpoint(self._paths, checkpoint).name
        file = self._paths.videos / f"{name}_seed_{seed}_episode_1.mp4"
        if not file.exists():
            command = [*_SAC, "play", str(self.exp_dir), "--checkpoint", name, "--seed", str(seed)]
            done = subprocess.run(command, env=_environ(), stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if done.returncode or not file.exists():
                raise UserError(*_findings(done.stderr + done.stdout))
        return file


def _environ() -> dict[str, str]:
    """For programs of this package, wherever they are called."""
    return {**os.environ, "PYTHONPATH": run_python_path(os.environ)}


def _assignment(name: str, value: Any) -> str:
    try:
        return f"{name}={json.dumps(value)}"
    except (TypeError, ValueError, RecursionError):
        raise UserError(
            f"{name} in attributes must be a number, a text, a list or a dictionary, as in JSON, found {shown(value)}: "
            "give it in the class"
        ) from None


def _file_of(params: type | str | os.PathLike[str]) -> Path:
    """The file that a run loads."""
    if not isinstance(params, type):
        return Path(params).expanduser().absolute()
    if params.__name__ != "TrainParams":
        raise UserError(f"class {params.__name__} must be named TrainParams, as in every params file: rename it")
    try:
        return Path(inspect.getfile(params)).absolute()
    except (TypeError, OSError):
        raise UserError(
            f"class {params.__name__} is in no file, and workers load one: write it into a file, or a notebook's cell"
        ) from None


def _cell_of(params: type) -> str:
    """The text of the notebook's cell that has defined a class; empty where a file has."""
    name = next((member.__code__.co_filename for member in vars(params).values() if inspect.isfunction(member)), "")
    if not ("ipykernel" in name or name.startswith("<")):
        return ""
    text = "".join(linecache.getlines(name))
    is_named = not text or params.__name__ == "TrainParams"
    return text if is_named else f"{text}\n\nTrainParams = {params.__name__}\n"


def _written(path: Path, text: str) -> Path:
    """Writes a file unless it has the text already, so that a run that continues is not told of an edit."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
    return path


def _findings(output: str) -> list[str]:
    """What a program has refused, a finding each, with the differences of edited files."""
    found = re.findall(r"^(?:error:|ERROR) +(.*(?:\n  \| .*)*)$", output, flags=re.M)
    return found or output.splitlines()[-_LAST_LINES:]
