"""The process that checks a user's own code: it reports in a file what it has found so far and what it is doing.

A crash or a hang of the user's code becomes a finding, too.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tfagents_system.envs.env_process import DEFAULT_STEP_TIMEOUT_SECS, build_timeout_secs
from tfagents_system.errors import EXIT_BAD_INPUT, print_findings
from tfagents_system.launch.cpus import CpuPlan
from tfagents_system.launch.fork_client import ForkServer
from tfagents_system.launch.fork_messages import CallDiedError, ForkServerError
from tfagents_system.launch.inspection import PARAMS, Inspection, Inspector
from tfagents_system.launch.python_path import ROOT
from tfagents_system.launch.run_settings import FOLDER
from tfagents_system.machine.files import write_atomically
from tfagents_system.machine.processes import kill_session
from tfagents_system.machine.threads import repeated
from tfagents_system.report.long_work import LongWork
from tfagents_system.run_files.run_paths import TRAINER
from tfagents_system.settings.variables import read_variables

_MODULE = "tfagents_system.launch.inspection_process"
_SPEAK_SECS = 20.0
_POLL_SECS = 0.2


class Progress:
    """A file in which an inspection reports its progress.

    Args:
      path: The file.
      step_timeout_secs: Limit of a step or a reset; all else may take longer.
      copy: The temporary copy of the params' folder, whose name means nothing to the user; None: there is none.
    """

    def __init__(self, path: Path, step_timeout_secs: float, copy: str | None) -> None:
        self._path = path
        self._copy = copy
        self._step_timeout_secs = step_timeout_secs
        self._seen: tuple[int, int] | None = None
        self._since = self._spoke = time.monotonic()

    def write(self, inspection: Inspection) -> None:
        """Called by the inspection when it begins something."""
        write_atomically(self._path, pickle.dumps(inspection))

    def read(self) -> Inspection:
        """What was written last."""
        try:
            inspection: Inspection = pickle.loads(self._path.read_bytes())
        except (OSError, EOFError, pickle.PickleError):
            return Inspection()
        return inspection

    def overdue(self, work: LongWork) -> bool:
        """Whether the inspection's current activity takes too long; says at intervals what it waits for.

        Args:
          work: Is told what the inspection does.
        """
        with contextlib.suppress(FileNotFoundError):
            stat = self._path.stat()
            if (seen := (stat.st_ino, stat.st_mtime_ns)) != self._seen:
                self._seen, self._since = seen, time.monotonic()
                self._spoke = self._since
                doing = self.read().doing
                work.doing = doing.replace(f"{self._copy}/", "") if self._copy else doing
                return False
        now = time.monotonic()
        if self._seen is None or now - self._spoke < min(_SPEAK_SECS, self._step_timeout_secs):
            return False
        self._spoke = now
        doing = self.read().doing
        limit_secs = self._limit_secs(doing)
        if not doing or now - self._since >= limit_secs:
            return bool(doing)
        print(f"note: check: {doing} takes {now - self._since:.0f} s, of at most {limit_secs:g} s", flush=True)
        return False

    def _limit_secs(self, doing: str) -> float:
        """The same limit as workers have."""
        return self._step_timeout_secs if _is_step(doing) else build_timeout_secs(self._step_timeout_secs)

    def ended_early(self, died_with: str | None) -> Inspection:
        """The findings before the user's code ended the process, or hung (None), and the finding that it did."""
        so_far = self.read()
        doing = so_far.doing or "the check of params and environment"
        if died_with is None:
            fault = f"{doing} has not returned for {self._limit_secs(doing):g} s: correct it"
            if _is_step(doing):
                fault += ", or raise SAC_STEP_TIMEOUT_SECS"
        else:
            fault = f"the process died with {died_with} in {doing}: see above, and correct it"
        if doing == "rendering":
            so_far.checks["rendering"].notes.append(f"{fault}; training needs no pictures")
        else:
            so_far.checks[PARAMS if so_far.num_iter is None else "environment"].errors.append(fault)
        return so_far


def _is_step(doing: str) -> bool:
    return "step()" in doing or "reset()" in doing


def inspect(
    environ: Mapping[str, str], vars_file: Path | None, progress: Progress, render: bool, plan: CpuPlan | None
) -> Inspection:
    """Loads params and configuration, builds the environment and tries it: all that runs a user's own code."""
    return Inspector(environ, vars_file, progress.write).run(render, plan)


def run_inspection(
    environ: Mapping[str, str],
    vars_file: Path | None,
    fork_server: ForkServer | None,
    work: LongWork,
    *,
    render: bool,
    plan: CpuPlan | None = None,
) -> Inspection:
    """`inspect`, in a process of its own if one can be forked: what a simulator starts does not stay here."""
    work.doing = "importing TensorFlow"
    timeout_secs = float(
        read_variables(environ, vars_file=vars_file, root=ROOT)[0].get("step_timeout_secs", DEFAULT_STEP_TIMEOUT_SECS)
    )
    with tempfile.TemporaryDirectory(prefix="sac_check_") as folder:
        progress = Progress(Path(folder) / "progress", timeout_secs, environ.get(FOLDER))
        if fork_server is not None:
            try:
                return _inspect_forked(environ, vars_file, fork_server, progress, work, render, plan)
            except ForkServerError as error:
                print(f"note: {error}: params and environment are checked without it", flush=True)
        with _ended_when_overdue(progress, work):
            return inspect(environ, vars_file, progress, render, plan)


def _inspect_forked(
    environ: Mapping[str, str],
    vars_file: Path | None,
    fork_server: ForkServer,
    progress: Progress,
    work: LongWork,
    render: bool,
    plan: CpuPlan | None,
) -> Inspection:
    if plan is not None:  # Updates are measured with the trainer's threads.
        threads = plan.thread_environ(TRAINER)
        environ = {**environ, **{name: count for name, count in threads.items() if name.startswith("TF_")}}
    was_hung = False

    def watch() -> None:
        nonlocal was_hung
        if not was_hung and progress.overdue(work):
            was_hung = True
            kill_session(progress.read().pid)

    try:
        inspection: Inspection = fork_server.call(
            _MODULE, "inspect", dict(environ), vars_file, progress, render, plan, environ=environ, watch=watch
        )
        return inspection
    except CallDiedError as error:
        return progress.ended_early(None if was_hung else str(error))


@contextlib.contextmanager
def _ended_when_overdue(progress: Progress, work: LongWork) -> Iterator[None]:
    """For a check in this process: a thread ends it with the findings when the user's code hangs."""

    def watch() -> None:
        if progress.overdue(work):
            print_findings(progress.ended_early(None).checks.errors)
            os._exit(EXIT_BAD_INPUT)

    with repeated(watch, _POLL_SECS):
        yield
