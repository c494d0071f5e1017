"""Runs from Python: `tfagents_system.train(...)` starts one, `tfagents_system.load_run(...)` finds one.

The processes are those of `sac train`, supervised in the same way; this one starts them and reads their files. It
imports TensorFlow only where a policy is asked for.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import inspect
import io
import itertools
import json
import linecache
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from tfagents_system.checks.called_as import NAME_VARIABLE, PYTHON_VARIABLE, in_arguments
from tfagents_system.checks.params_source import run_name_of
from tfagents_system.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_RESUMABLE, UserError, shown
from tfagents_system.launch.python_path import run_python_path
from tfagents_system.report.run_bar import RunBar
from tfagents_system.report.status import is_under_way, state_of
from tfagents_system.run_files.beats import is_offline, read_status
from tfagents_system.run_files.heartbeat import read_json
from tfagents_system.run_files.metric_columns import ALWAYS
from tfagents_system.run_files.run_paths import INPUTS, OUTPUT, RunPaths
from tfagents_system.settings.overrides import Overrides, Setting
from tfagents_system.settings.variables import value_findings, without_task

if TYPE_CHECKING:
    import pandas

    from tfagents_system.playing.called_policy import Policy

_ROLE_VARIABLE = "TFAGENTS_RUN_TOKEN"  # Set in the processes of a run.
_EDITS = ("keep", "fresh")
_POLL_SECS = 0.5
_LAST_LINES = 40


class RunFailedError(RuntimeError):
    """A run ended with a failure; its last lines are the message."""


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
    """Starts a run, or goes on with one that was stopped, and returns at once.

    Args:
      params: Class `TrainParams(TrainParamsBase)` of a file or a notebook's cell, or a file with it. A cell must have
        the imports that the class needs: workers run the cell's text.
      config: The JSON of the environment, such as `{"horizon": 200}`, or a file with it.
      name: Of the run; its directory is `<folder>/logs/<name>`. Default: as `sac train` calls it.
      workers: How many collect.
      seed: Decides every other seed.
      attributes: Attributes of TrainParams for this run alone.
      variables: Further SAC_ variables, such as `{"SAC_TRAIN_CPUS": 4}`.
      edits: What a run that has begun does with files that were edited since: `keep` goes on with its own copies,
        `fresh` starts over and moves the old run aside. None: it is refused, with the differences.

    Raises:
      UserError: Arguments are wrong, with all findings; what the check of the start finds, `Run.wait` raises. Or the
        class is in no file, or this is a process of a run: a script calls it below `if __name__ == "__main__":`.
    """
    _refuse_within_a_run()
    folder = Path(folder).expanduser().absolute()
    file = None if isinstance(params, type) and _cell_of(params) else _file_of(params)
    name = name or ("notebook" if file is None else run_name_of(file))
    given = {"SAC_NUM_COLLECT_WORKERS": workers, "SAC_SEED": seed, "SAC_EXP_NAME": name, **(variables or {})}
    environ = _environ_of(given)
    exp_dir = folder / _exp_dir(environ)
    findings = value_findings(given, folder)
    findings += _attribute_findings(attributes or {})
    _check([in_arguments(finding, variables or ()) for finding in findings], edits, (file, config))
    inputs = folder / "logs" / f"{name}{INPUTS}"
    with _claimed(exp_dir, inputs / OUTPUT) as output:
        if file is None:
            assert isinstance(params, type)
            file = _written(inputs / "params.py", _cell_of(params) + _alias(params))
        if isinstance(config, Mapping):
            config = _written(inputs / "config.json", json.dumps(config, indent=2) + "\n")
        words = str(file), "--config", str(Path(config).absolute()), *_options(attributes or {}, edits)
        return _started(words, environ, exp_dir, output, variables or (), folder)


def _check(findings: list[str], edits: str | None, inputs: Sequence[Any]) -> None:
    """Refuses what is no start at all; all else the start refuses, which looks at everything.

    Raises:
      UserError: With all findings.
    """
    if edits not in (None, *_EDITS):
        findings.append(f"edits={shown(edits)} must be one of {', '.join(_EDITS)}, or None")
    if findings:
        files = [each for each in inputs if each and not isinstance(each, Mapping)]
        missing = [file for file in files if not Path(file).is_file()]
        raise UserError(*findings, *(f"{file} is missing: give the path of a file" for file in missing))


def _attribute_findings(attributes: Mapping[str, Any]) -> list[str]:
    """What is no setting at all, one sentence each."""
    settings, findings = [], []
    for name, value in attributes.items():
        try:
            settings.append(Setting(name, json.loads(json.dumps(value)), "attributes"))
        except (TypeError, ValueError, RecursionError):
            findings.append(
                f"{name} in attributes must be a number, a text, a list or a dictionary, as in JSON, found "
                f"{shown(value)}: give it in the class"
            )
    return findings + Overrides.from_settings(settings)[1]


def _environ_of(variables: Mapping[str, Any]) -> dict[str, str]:
    """Of a start. Where this program is a task of a job array, the run is not: it is named here."""
    given = {name: str(value) for name, value in variables.items()}
    return {**without_task(_environ()), PYTHON_VARIABLE: "1", **given}


def _exp_dir(environ: Mapping[str, str]) -> Path:
    return Path(os.path.expanduser(environ.get("SAC_LOGS_DIR") or "logs"), environ["SAC_EXP_NAME"])


def _options(attributes: Mapping[str, Any], edits: str | None) -> list[str]:
    sets = [["--set", f"{attribute}={json.dumps(value)}"] for attribute, value in attributes.items()]
    return [*itertools.chain(*sets), *([f"--{edits}"] if edits else [])]


def _refuse_within_a_run() -> None:
    if os.environ.get(_ROLE_VARIABLE) or os.environ.get(NAME_VARIABLE):
        raise UserError(
            "train() was called while a start or a run's own process imported this file: call it below `if __name__ == "
            '"__main__":`, which those do not execute'
        )


@contextlib.contextmanager
def _claimed(exp_dir: Path, path: Path) -> Iterator[BinaryIO]:
    """The file for what a run prints, empty; locked, by whoever writes to it, until the run's processes have ended.

    Raises:
      UserError: The run is under way, or another start of it is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    status = read_status(RunPaths(exp_dir).status_json)
    with path.open("ab") as file:
        if (status and is_under_way(status, time.time())) or not _is_locked(file):
            raise UserError(f"{exp_dir} is being trained: load_run({str(exp_dir)!r}) finds it; or give another name")
        file.truncate(0)
        yield file


def _is_locked(file: BinaryIO) -> bool:
    """Locks a file; False if others have."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return not isinstance(error, BlockingIOError)  # Another one: a file system without locks.
    return True


def _started(
    words: Sequence[str],
    environ: Mapping[str, str],
    exp_dir: Path,
    output: BinaryIO,
    own: Collection[str],
    folder: Path,
) -> Run:
    """`sac train` with these arguments in a folder, in a session of its own; stopped when this program ends."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "tfagents_system", "train", *words],
        stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environ, cwd=folder,
        start_new_session=True,
    )  # fmt: skip
    run = Run(exp_dir, process, Path(output.name), own)
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


def _environ() -> dict[str, str]:
    """For programs of this package, wherever they are called."""
    return {**os.environ, "PYTHONPATH": run_python_path(os.environ)}


class Run:
    """A run directory, and the processes that train it where this one has started them.

    Attributes:
      exp_dir: The run directory.
    """

    def __init__(
        self,
        exp_dir: Path,
        process: subprocess.Popen[bytes] | None = None,
        output: Path | None = None,
        own: Collection[str] = (),
    ) -> None:
        self.exp_dir = exp_dir
        self._own = own  # Variables that the caller has named.
        self._paths, self._process, self._output = RunPaths(exp_dir), process, output
        self._began = time.time()

    def __repr__(self) -> str:
        status = self.status
        trainer = status.get("roles", {}).get("trainer", {})
        told = [f"iteration {trainer['iteration']}"] if trainer.get("iteration") is not None else []
        told = ["offline updates"] if is_offline(trainer) else told
        told.insert(0, state_of(status, time.time()) if status else "starting")
        return f"<Run {self.exp_dir}: {', '.join(told)}>"

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
        """metrics.csv up to now, a row for each log period and evaluation; no row before the first.

        A last line that is being written, or that a crash has torn, is left out.
        """
        import pandas

        path = self._paths.metrics_csv
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        lines = text[: text.rfind("\n") + 1]
        return (
            pandas.read_csv(io.StringIO(lines)) if lines.strip() else pandas.DataFrame(columns=[*ALWAYS], dtype=float)
        )

    @property
    def evaluations(self) -> pandas.DataFrame:
        """The rows of `metrics` that are evaluations: in the others `eval_return` and its like are NaN."""
        return self.metrics.dropna(subset=["eval_return"])

    @property
    def output(self) -> str:
        """What the processes that this one started have printed."""
        return "" if self._output is None else self._output.read_text(errors="replace")

    def wait(self, timeout: float | None = None, *, progress: bool = True) -> Run:
        """Waits until a run that was started here is finished. Ctrl-C ends the waiting alone: the run goes on.

        Args:
          timeout: Seconds; None: as long as it takes.
          progress: Says how far it is, in a terminal or a notebook.

        Raises:
          UserError: The start refused something; with all findings.
          RunFailedError: It failed, or was stopped by someone else.
          TimeoutError: It trains on.
        """
        process = self._require_process()
        deadline = None if timeout is None else time.monotonic() + timeout
        with RunBar(progress) as bar:
            while process.poll() is None:
                bar.show(self.status)
                if deadline is not None and time.monotonic() > deadline:
                    raise TimeoutError(f"{self.exp_dir} is not finished after {timeout:.0f} s: wait again, or stop it")
                time.sleep(_POLL_SECS)
            bar.show(self.status)
        self._judge(process.returncode)
        return self

    def stop(self, timeout: float | None = None) -> None:
        """Saves everything and ends a run that was started here; the same `train(...)` goes on with it.

        Args:
          timeout: Seconds; None: a minute more than SAC_SAVE_DEADLINE_SECS, at least two.

        Raises:
          RunFailedError: It did not end within `timeout` seconds, and was killed.
        """
        process = self._process
        if process is None or process.poll() is not None:
            return
        timeout = self._stop_secs() if timeout is None else timeout
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise RunFailedError(f"{self.exp_dir} did not end within {timeout:.0f} s and was killed") from None

    def _stop_secs(self) -> float:
        """How long saving and ending may take."""
        variables = (read_json(self._paths.run_json) or {}).get("start", {}).get("variables", {})
        return max(120.0, 60.0 + variables.get("save_deadline_secs", 60.0))

    def policy(self, checkpoint: str = "best") -> Policy:
        """A saved policy, greedy.

        Args:
          checkpoint: `best`, `latest` or its name.

        Raises:
          UserError: There is none.
        """
        from tfagents_system.playing.called_policy import Policy
        from tfagents_system.playing.saved_run import find_checkpoint
        from tfagents_system.policies.policy_files import load_policy

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
            command = [sys.executable, "-P", "-m", "tfagents_system", "play", str(self.exp_dir)]
            command += ["--checkpoint", name, "--seed", str(seed)]
            done = subprocess.run(
                command, env=_environ(), capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
            )
            if done.returncode or not file.exists():
                raise UserError(*_findings(done.stderr + done.stdout))
        return file

    def _require_process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise UserError(f"{self.exp_dir} was not started here: `sac status` and its metrics say how it goes on")
        return self._process

    def _judge(self, code: int) -> None:
        if code == EXIT_DONE:
            return
        if code == EXIT_BAD_INPUT:
            raise UserError(*(in_arguments(finding, self._own) for finding in _findings(self.output)))
        what = "was stopped and saved" if code == EXIT_RESUMABLE else f"failed with exit code {code}"
        raise RunFailedError("\n".join([f"{self.exp_dir} {what}:", *self.output.splitlines()[-_LAST_LINES:]]))


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
    method = next((one for one in vars(params).values() if inspect.isfunction(one)), None)
    name = "" if method is None else method.__code__.co_filename
    is_cell = "ipykernel" in name or name.startswith("<")
    return "".join(linecache.getlines(name)) if is_cell else ""


def _alias(params: type) -> str:
    return "" if params.__name__ == "TrainParams" else f"\n\nTrainParams = {params.__name__}\n"


def _written(path: Path, text: str) -> Path:
    """Writes a file unless it has the text already, so that a run that goes on is not told of an edit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
    return path


def _findings(output: str) -> list[str]:
    """What a program has refused, a finding each, with the differences of edited files."""
    found = re.findall(r"^(?:error:|ERROR) +(.*(?:\n  \| .*)*)$", output, flags=re.M)
    return found or output.splitlines()[-_LAST_LINES:]
