"""Checks everything that a run needs before any of its processes starts, then prepares its run directory.

    python -m tfagents_system.launch.prepare --vars-file VARS.sh [--set NAME=VALUE]... [--check]

All findings are reported together, with exit code 2. A finished run says so and ends with 0. --check reports all that
was looked at, and writes nothing. The program of a start, start.py, also supervises the run that is prepared.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfagents_system.checks.findings import ERROR, FACT, Findings, counted
from tfagents_system.checks.rules import is_meant
from tfagents_system.envs.faults import SHOW_TRACES
from tfagents_system.errors import EXIT_BAD_INPUT, EXIT_DONE, OptionParser, UserError, exit_with, in_callers_terms
from tfagents_system.launch import forks, machine_checks
from tfagents_system.launch.cpus import CpuPlan
from tfagents_system.launch.forks import RoleStarter
from tfagents_system.launch.role_process import end_orphans
from tfagents_system.launch.run_settings import EDITS, FRESH, KEEP, RunSettings, add_edit_options, resolve
from tfagents_system.launch.supervisor import supervise
from tfagents_system.launch.trial import Inspection, run_trial
from tfagents_system.launch.vars_file import ROOT
from tfagents_system.machine.claims import COLLECT
from tfagents_system.machine.files import fault_of_private, write_atomically
from tfagents_system.machine.signals import STOP_SIGNALS, StopFlag
from tfagents_system.replay.stored_ring import ring_folder
from tfagents_system.report.long_work import LongWork
from tfagents_system.report.status import finished_in_words
from tfagents_system.run_files import params_folder, run_directory
from tfagents_system.run_files.run_directory import Inputs
from tfagents_system.run_files.run_lock import RunLock, owner_of_run
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.run_files.taken import Taken, find, split, taken_by
from tfagents_system.settings.load_params import input_files_of
from tfagents_system.settings.resolved import Settings
from tfagents_system.settings.values import as_text, in_words
from tfagents_system.settings.variables import AGENT, TAKES, VARIABLES, RunVariables, unknown_names

_FINISHED = "finished"
_NEVER_KEPT = ("exp_dir", "logs_dir", "password_file", "credentials_dir")
_NOT_FOUND = ("ModuleNotFound", "FileNotFound")
_NAMED_FILES = ("params", "config", "expert_policy", "env_python", "credentials_dir", "password_file")


class Preparation:
    """The checks of a start: first those of variables and machine, then those that run a user's own code.

    Args:
      environ: Usually os.environ, after the vars file was sourced.
      vars_file: For messages and relative paths.
      settings: What is overridden; by default what the environment says.
      joins: Workers join a run: they have no run directory of their own to look at.

    Attributes:
      environ, values, overrides: As of RunSettings.
      paths: The run directory; None where the variables do not say it.
      copy: The copy of the folder of SAC_PARAMS that a run begins with; None: there is none.
      temporary: A folder for what is made for the run, such as the ring of prior data.
      taken: What a run that begins takes of another one (SAC_FROM).
      lock: Of the run directory, which a start takes before all that takes time.
      moved_aside: Where the run is that was there before (`--fresh`), once it is moved.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        vars_file: Path | None,
        settings: RunSettings | None = None,
        *,
        joins: bool = False,
    ) -> None:
        settings = settings or resolve(environ, (), vars_file=vars_file, root=ROOT)
        self.environ, self.overrides, self.values = settings.environ, settings.overrides, dict(settings.values)
        self.findings, self.inspection = Findings(), Inspection()
        self.plan: CpuPlan | None = None
        self.lock: RunLock | None = None
        self.moved_aside: Path | None = None
        self._temporary = tempfile.TemporaryDirectory(prefix="sac_start_", ignore_cleanup_errors=True)
        self.temporary = Path(self._temporary.name).resolve()
        self.copy: Path | None = None
        self.taken: Taken | None = None
        self._digests: dict[str, str] = {}
        self._is_for_job = machine_checks.JOB_MB in self.environ  # Which will run on another machine.
        self._vars_file, self._joins = vars_file, joins
        self.paths = RunPaths(self.values["exp_dir"]) if "exp_dir" in self.values else None
        findings, names = self.findings, sorted(name for name in self.environ if name.startswith("SAC_"))
        findings.error("variables", *settings.faults)
        of_joining = {"SAC_SERVER": self.values.get("server"), "SAC_WORKER_ROLE": self.values.get("worker_role")}
        for name, value in of_joining.items():
            if not joins and value not in (None, COLLECT):
                words = f"{name}={value} is for workers that join: unset it here, or join a run with sac join"
                findings.error("variables", words)
        findings.fact("variables", f"{len(names)} set, with {self._vars_file or 'the environment'}")
        known = [variable.name for variable in VARIABLES]
        if unknown := [f"{name}{is_meant(name, known, 0.75)}" for name in unknown_names(names)]:
            findings.note(
                "variables",
                f"{'; '.join(unknown)}: not variables of the toolkit, only your own files may read them "
                "(docs/reference/variables.md)",
            )
        findings.error("settings", *settings.findings)
        findings.note("settings", *settings.notes)
        findings.fact("settings", *filter(None, [self.overrides.in_words()]))

    def take_directory(self) -> None:
        """Takes the lock of the run directory where nothing is wrong so far; another start that has it is a finding."""
        if (paths := self.paths) is None or self.findings.errors or self._fault_of_directory(paths) is not None:
            return
        with self.findings.catching("run directory"):
            deadline_secs = self.values.get("save_deadline_secs", 60.0)
            end_orphans(paths, deadline_secs)
            self.lock = RunLock(paths)
            self.lock.acquire()
            end_orphans(paths, deadline_secs, has_lock=True)

    def run(self, *, starts: bool = True) -> None:
        """Makes all checks; `starts`: a start follows, which has the directory, and does not wait for a picture."""
        if self.lock is not None and not self.lock.is_own():
            return  # Another start has the directory, and maybe these CPUs and this port.
        heartbeat = self.lock.touch if self.lock is not None else lambda: None
        with LongWork("checks", by_looks=heartbeat) as work:
            work.doing = "the machine"
            if not self._joins:
                self._check_directories(starts)
                self._check_source()
            has_directory = not any(self.findings.texts(ERROR, where) for where in ("run directory", "another run"))
            if not self._is_for_job:
                self.plan = machine_checks.check_machine(self.values, self.environ, self.findings)
            pins_count = "params" in self.values and "env_python" not in self.values  # Else of a Python of its own.
            machine_checks.check_packages(self.findings, self.values["params"].parent if pins_count else None)
            if has_directory and not self.findings.texts(ERROR, "limits") and self._is_let_in():
                work.doing = "the files beside the params"
                self._look_at_files()
                self._try_users_code(starts, work)

    def _try_users_code(self, starts: bool, work: LongWork) -> None:
        values, environ = self.values, self.environ
        if self.copy is not None and SHOW_TRACES in environ:
            environ = {**environ, SHOW_TRACES: f"{self.copy}{os.pathsep}{values['params'].parent}"}
        render = not (starts or self._is_for_job)
        # A check leaves GPUs alone.
        is_elsewhere = "trainer_server" in values or not machine_checks.has_trainer(values)
        is_measured = not (is_elsewhere or values.get("train_gpus"))
        plan = self.plan if render and is_measured else None
        if render and not is_measured:
            self.findings.note("duration", "not measured: the trainer has a GPU, or trainer or workers are elsewhere")
        self.inspection = run_trial(self, environ, work, render=render, plan=plan)
        if self.copy is not None:
            findings, folder = self.inspection.findings, values["params"].parent
            findings.replace(str(self.copy), str(folder))
            if any(error in text for text in findings.errors for error in _NOT_FOUND):
                words = "files of your own elsewhere need an absolute path, in sys.path as well"
                findings.note("params folder", f"the run works in a copy of {folder}: {words}")
        self.findings.extend(self.inspection.findings)

    def close(self) -> None:
        """Removes what only the checks needed, and gives the run directory back unless the lock was taken over."""
        self._temporary.cleanup()
        if self.lock is not None:
            self.lock.abandon()

    def was_done(self) -> list[str]:
        """What stays of a start that is ended before its run has begun."""
        if self.moved_aside is None or self.paths is None:
            return []
        return [f"what was in {self.paths.exp_dir} is in {self.moved_aside} now"]

    def _is_let_in(self) -> bool:
        """Whether no gateway refuses this start, such as for a wrong password: told before anything slow."""
        server = self.values.get("server") or self.values.get("trainer_server")
        if not server or "credentials_dir" not in self.values or self._is_for_job:
            return True
        from tfagents_system.transport.tunnel import NAME, check_path

        credentials, password_file = self.values["credentials_dir"], self.values.get("password_file")
        refused = check_path(server, credentials, password_file, must_answer=False).errors
        self.findings.error(NAME, *refused)
        return not refused

    # The run directory.

    @property
    def edits(self) -> str | None:
        """What to do with files that were edited since the run began; see run_settings.py."""
        return self.environ.get(EDITS)

    @property
    def uses_copies(self) -> bool:
        """It continues a run, with that run's copies of the user's files."""
        return "server" in self.values or run_directory.has_begun(self.run_before)

    @property
    def has_replay_server(self) -> bool:
        return not {"server", "trainer_server"} & self.values.keys()

    @property
    def run_before(self) -> RunPaths | None:
        """The run to continue, if there is one."""
        return None if self.edits == FRESH else self.paths

    def _check_directories(self, starts: bool) -> None:
        """Whether the run directory can be written, is not another run's, and nobody trains there."""
        if (paths := self.paths) is None:
            return
        if fault := self._fault_of_directory(paths):
            self.findings.error("run directory", fault)
            return
        state = self._state_of_run(paths)
        self.findings.fact("run directory", f"{paths.exp_dir}: {state}")
        asked = self.overrides.settings() if state == _FINISHED else {}
        held = run_directory.settings_of_run(paths) if asked else {}
        if idle := {name: value for name, value in asked.items() if self._is_idle(name, value, held)}:
            ways = f"--set {what_goes_on(run_directory.why_early(paths))}, or choose another SAC_EXP_NAME"
            self.findings.error("run directory", f"{in_words(idle)} changes nothing, this run is finished: add {ways}")
        if not (starts or self._is_for_job) and (owner := owner_of_run(paths)) is not None:
            self.findings.error(
                "run directory",
                f"the run directory {paths.exp_dir} is in use by {owner}: stop that run first, or choose another "
                "SAC_EXP_NAME",
            )

    def _is_idle(self, name: str, value: Any, held: Mapping[str, Any]) -> bool:
        """Whether a finished run has another value, which a start can't give it."""
        if not name.startswith("SAC_"):
            return held.get(name) != value
        field = name.removeprefix("SAC_").lower()
        meant = self.values.get(field)  # None: it is faulty, or leaves the value to the run.
        return field not in _NEVER_KEPT and meant is not None and as_text(meant) != held.get(name)

    def _fault_of_directory(self, paths: RunPaths) -> str | None:
        """Why a start can't begin there; with `--fresh` it is moved aside, and the user's files must not be in it."""
        fault = machine_checks.folder_fault(paths.exp_dir, "SAC_LOGS_DIR")
        replay_dir = None if self._is_for_job else self.values.get("replay_dir")  # Such as a node's own scratch.
        if fault is None and replay_dir is not None:
            fault = machine_checks.folder_fault(replay_dir, "SAC_REPLAY_DIR") or fault_of_private(replay_dir)
        if fault is not None:
            return fault
        source = split(str(self.values["from_"]))[0] if "from_" in self.values else None
        named = [self._vars_file, Path.cwd(), *map(self.values.get, _NAMED_FILES)]
        used = [path for path in (*named, source if source != paths.exp_dir else None) if path is not None]
        if self.edits == FRESH:
            return run_directory.why_not_moved(paths, used)
        return run_directory.why_not_begun(paths, used)

    def _state_of_run(self, paths: RunPaths) -> str:
        if self.edits == FRESH or not paths.run_json.exists():
            is_moved = paths.run_json.exists() or run_directory.strays(paths)
            return "a new run" + (", what is there is moved aside" if is_moved else "")
        if not run_directory.has_begun(paths):
            return "a run without any update yet, which takes files and settings as they are now"
        return _FINISHED if run_directory.is_finished(paths, self.overrides) else "a run that continues"

    def _check_source(self) -> None:
        """Whether the run that SAC_FROM names is there: a misspelt one is told before TensorFlow is imported."""
        source, take = self.values.get("from_"), self.values.get("take", AGENT)
        if (paths := self.paths) is None:
            return
        with self.findings.catching("another run"):
            if source is None:
                if "take" in self.values:
                    raise UserError(f"SAC_TAKE={take} says what of another run is taken: set SAC_FROM, or unset it")
                return
            has_begun, began = run_directory.has_begun(self.run_before), taken_by(paths)
            if has_begun and began is not None and (began.source, began.take) == (str(source), take):
                return
            if self.edits != FRESH and split(str(source))[0].resolve() == paths.exp_dir.resolve():
                raise UserError(
                    f"SAC_FROM={source} is this run's own directory: choose another SAC_EXP_NAME, or give "
                    f"--fresh, too, which moves it aside first"
                )
            if has_begun:
                what = "nothing of another one" if began is None else f"SAC_FROM={began.source} SAC_TAKE={began.take}"
                raise UserError(
                    f"SAC_FROM={source} SAC_TAKE={take} is for a run that begins, and {paths.exp_dir} began with "
                    f"{what}: choose another SAC_EXP_NAME, start over with --fresh, or leave it out"
                )
            self.taken = find(str(source), take)
            if self.taken.has_rows:
                ring_folder(Path(self.taken.run))

    # The user's files.

    def _look_at_files(self) -> None:
        """Copies those that the run begins with, or compares those of a run that continues with its copies."""
        if "server" in self.values or "params" not in self.values:
            return
        if not run_directory.has_begun(self.run_before):
            self._copy_folder(self.values["params"])
        elif self.paths is not None and "config" in self.values and self.edits != KEEP:
            self._compare_files(self.paths, self.values["params"], self.values["config"])

    def _copy_folder(self, params: Path) -> None:
        """What is checked is what runs: the run keeps the folder of its params file as it is now."""
        if params_folder.is_kept_otherwise(params):
            return
        try:
            left_out = [self.values[name] for name in _NEVER_KEPT if name in self.values]
            digests = params_folder.digests_of(params.parent, params_folder.files_of(params.parent, left_out))
            params_folder.copy_files(params.parent, digests, self.temporary / "params")
            self.copy, self._digests = self.temporary / "params", digests
            self.findings.fact("params folder", f"{params.parent}: {counted(len(digests), 'file')} kept for the run")
        except params_folder.TooLargeError as error:
            self.findings.note(
                "params folder",
                f"{error}: only {params.name} is kept, and an edit of what it imports would change a resumed run. Move "
                "it and what it imports into a folder of their own",
            )
        except OSError as error:  # On a full disk it names the file that it read.
            self.findings.error(
                "params folder",
                f"the run keeps a copy of the folder of SAC_PARAMS, and {error.filename} can't be read, or not be "
                f"copied to {self.temporary.parent} ({error.strerror}): make it readable, or free space there, or set "
                "TMPDIR to another folder",
            )

    def _compare_files(self, paths: RunPaths, params: Path, config: Path) -> None:
        """A run that continues would train other files than the user has now: that is refused, unless told how."""
        try:
            edits = run_directory.edits(paths, params, config)
        except OSError as error:
            self.findings.error(
                "params folder",
                f"{error.filename} can't be read ({error.strerror}), to compare it with what the run began with: make "
                f"it readable, or give --keep",
            )
            return
        if not edits:
            return
        anew = "" if self._is_for_job else ", --fresh moves the old run aside and starts over"
        words = (
            f"edited since the run began with its copies of them: {', '.join(map(str, edits))}. --keep "
            f"continues with the copies{anew}, {run_directory.from_line(paths)} makes another run of the edited files, "
            "which begins with what this one has learned, and another SAC_EXP_NAME a new run"
        )
        text = "\n  | ".join([words, *run_directory.shown(edits)])
        for folder in (params.parent, config.parent) if self._is_for_job else ():  # The user never sees these.
            text = text.replace(f"{folder}/", "")
        self.findings.error("params folder", text)

    def files(self) -> Inputs:
        """The user's files, for the run."""
        params, taken = self.values["params"], self.taken
        if taken is not None and self.moved_aside is not None and self.paths is not None:
            is_own = Path(taken.run).resolve() == self.paths.exp_dir.resolve()
            taken = dataclasses.replace(taken, run=str(self.moved_aside)) if is_own else taken
        return Inputs(
            params,
            self.values["config"],
            self.copy,
            self._digests,
            imported=self.inspection.imported,
            input_files=input_files_of(self.inspection.config, params.parent),
            taken=taken,
            prior_data=self.inspection.prior_data,
            environment=self.inspection.environment,
        )

    def variables(self) -> RunVariables:
        """All variables, checked.

        Raises:
          UserError: With everything that was found.
        """
        if self.findings.errors:
            for note in self.findings.notes:
                print(f"note: {note}", file=sys.stderr)
            raise UserError(*self.findings.errors)
        return RunVariables(**self.values)


def prepare(preparation: Preparation) -> tuple[RunVariables, RunLock] | None:
    """Checks and prepares a run.

    Returns:
      Its variables, and the lock of its directory: until that is released, no other start writes there. None if the run
      is finished already.

    Raises:
      UserError: With all findings.
    """

    def end() -> list[str]:
        preparation.close()
        return preparation.was_done()

    if preparation.paths is not None:
        forks.show_marks({"SAC_EXP_DIR": str(preparation.paths.exp_dir)})
    with contextlib.closing(preparation), forks.before_early_end(end):
        preparation.take_directory()
        preparation.run()
        if not _write_run(preparation):
            return None
        lock, preparation.lock = preparation.lock, None
        assert lock is not None
        return preparation.variables(), lock


def _write_run(preparation: Preparation) -> bool:
    """Writes the run directory; returns whether the run is not finished.

    Raises:
      UserError: With all findings; or another start, on another machine, has taken the lock over meanwhile.
    """
    variables, inspection, lock = preparation.variables(), preparation.inspection, preparation.lock
    assert lock is not None and preparation.plan is not None and inspection.specs is not None
    for note in preparation.findings.notes:
        if note not in preparation.plan.notes:  # Those are printed below the plan.
            print(f"note: {note}")
    paths = RunPaths(variables.exp_dir)
    if not lock.is_own():
        raise UserError(f"the run directory {paths.exp_dir} was taken over by {lock.describe_owner()}: start again")
    if preparation.edits == FRESH and (paths.run_json.exists() or run_directory.strays(paths)):
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (*STOP_SIGNALS, signal.SIGHUP))
        try:
            preparation.moved_aside = run_directory.move_aside(paths)
            print(*preparation.was_done())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        lock.acquire()  # Of the new directory; another start that takes it first sees that it is another one.
    uses_copies = run_directory.has_begun(paths)
    overrides = dataclasses.replace(preparation.overrides, defaults=inspection.defaults)
    settings = Settings(variables, overrides, inspection.attributes, inspection.config)
    run_directory.write_inputs(paths, settings, preparation.files(), job=preparation.environ.get("SLURM_JOB_ID"))
    write_atomically(paths.specs, inspection.specs)
    if run_directory.is_finished(paths):
        tell_finished(variables.exp_name, paths)
        return False
    used = (paths.params, paths.config) if uses_copies else (variables.params, variables.config)
    print(f"{variables.exp_name}: params {used[0]}, config {used[1]}, run directory {paths.exp_dir}")
    if words := preparation.overrides.in_words():
        print(f"settings: {words}")
    for name in ("another run", "prior data"):
        for fact in preparation.findings.texts(FACT, name):
            print(f"{name}: {fact}")
    return True


def tell_finished(name: str, paths: RunPaths) -> None:
    """Says that a run is finished, and how it continues."""
    why = run_directory.why_early(paths)
    words = finished_in_words(name, why, run_directory.read_run_json(paths)["attributes"]["num_iter"])
    print(
        in_callers_terms(
            f"{words} ({paths.exp_dir}). Nothing is to be done: choose another SAC_EXP_NAME for a new run, or continue "
            f"with this one with --set {what_goes_on(why)}"
        )
    )


def what_goes_on(why_early: str | None) -> str:
    """Settings with which a run that ended continues."""
    if why_early and why_early.endswith("(stop_when)"):
        return "stop_when=null, or stop_when.KEY=VALUE (null removes a key)"
    ends = ((f"{name}=", f"{name}=N") for name in ("num_env_steps", "max_hours"))
    return next((more for begin, more in ends if (why_early or "").startswith(begin)), "num_iter=N")


def check(environ: Mapping[str, str], vars_file: Path | None, settings: RunSettings | None = None) -> int:
    """Makes the checks of a start, prints what was looked at and found, and returns the exit code; writes nothing."""
    preparation = Preparation(environ, vars_file, settings)
    with contextlib.closing(preparation), forks.before_early_end(preparation.close):
        preparation.run(starts=False)
    print(preparation.findings.report())
    return EXIT_BAD_INPUT if preparation.findings.errors else EXIT_DONE


def main(*, starts: bool = False) -> int:
    """The program; returns its exit code. `starts`: the run is supervised once it is prepared."""
    parser = OptionParser(prog="sac train")
    parser.add_argument("--vars-file", type=Path, default=None, help="the sourced vars file, for messages and paths")
    parser.add_argument("--check", action="store_true", help="only check, and report all that was looked at")
    parser.add_settings()
    add_edit_options(parser)
    parser.add_argument("--from", dest="source", metavar="RUN", help="another run that this one begins with: SAC_FROM")
    parser.add_argument("--take", choices=TAKES, help="what of it is taken: SAC_TAKE")
    args = parser.parse_args()
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # TensorFlow's own messages would hide what the user must read.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # Names may hold any bytes.
    if args.check:
        os.environ[SHOW_TRACES] = "1"
    os.environ.update({"SAC_FROM": args.source} if args.source else {})
    os.environ.update({"SAC_TAKE": args.take} if args.take else {})
    settings = resolve(os.environ, args.assignments, vars_file=args.vars_file, root=ROOT, edits=args.edits)
    if args.edits == FRESH and settings.environ.get(EDITS) == KEEP:
        print("note: the job was requeued: what --fresh asked for was done by an earlier start")
    os.environ.update(settings.environ)
    if args.check:
        return check(os.environ, args.vars_file, settings)
    prepared = prepare(Preparation(os.environ, args.vars_file, settings))
    if prepared is None:
        return EXIT_DONE
    variables, lock = prepared
    if not starts:
        lock.release()
        return EXIT_DONE
    stop = StopFlag.of_supervisor()
    os.environ.pop(EDITS, None)  # From now on the run directory says what it does.
    return supervise(variables, stop, RoleStarter(), lock)


if __name__ == "__main__":
    forks.end_early_on_signals()
    exit_with(main)
