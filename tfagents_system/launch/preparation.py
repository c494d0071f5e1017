"""The checks of a start, and what they find out for the run."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfagents_system.checks.called_as import option
from tfagents_system.checks.checklist import Check, Checklist
from tfagents_system.envs.faults import SHOW_TRACES
from tfagents_system.envs.reward_places import named_in
from tfagents_system.errors import UserError
from tfagents_system.launch import resources
from tfagents_system.launch.cpus import CpuPlan
from tfagents_system.launch.inspection import Inspection
from tfagents_system.launch.kept_folder import KeptFolder
from tfagents_system.launch.machine_checks import check_machine, check_packages
from tfagents_system.launch.python_path import ROOT
from tfagents_system.launch.run_settings import EDITS, FOLDER, FRESH, KEEP, PRIOR_FOLDER, RunSettings, resolve
from tfagents_system.launch.trial import run_trial
from tfagents_system.machine.files import fault_of_private
from tfagents_system.machine.worker_slots import COLLECT
from tfagents_system.replay.stored_ring import ring_folder
from tfagents_system.report.long_work import LongWork
from tfagents_system.run_files import run_directory, run_inputs
from tfagents_system.run_files.run_inputs import Inputs
from tfagents_system.run_files.run_lock import owner_of_run
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.run_files.taken import find, split, taken_by
from tfagents_system.settings.variable_values import AGENT
from tfagents_system.settings.variables import RunVariables, read_variables, unknown_names


class Preparation:
    """The checks of a start: first those of variables and machine, then those that run a user's own code.

    Args:
      settings: What is overridden; by default what the environment says.

    Attributes:
      overrides: How the run differs from what its files say.
      run_json: As of RunSettings.
      moved_aside: Where the run is that was there before (`--fresh`), once it is moved.
    """

    def __init__(self, environ: Mapping[str, str], vars_file: Path | None, settings: RunSettings | None = None) -> None:
        self.checks = Checklist()
        settings = settings or resolve(environ, (), vars_file=vars_file, root=ROOT)
        environ, self.overrides, self.run_json = settings.environ, settings.overrides, settings.run_json
        self.plan: CpuPlan | None = None
        self.moved_aside: Path | None = None
        self.inspection = Inspection()
        self._kept = KeptFolder()
        self._made = tempfile.TemporaryDirectory(prefix="sac_prior_")  # What the inspection makes for the run.
        self._environ = environ
        self._is_for_job = resources.JOB_MB in environ  # Which will run on another machine.
        self._vars_file = vars_file
        self._values, findings = read_variables(environ, vars_file=vars_file, root=ROOT)
        self.checks["variables"].errors += findings + self._misplaced()
        own = sorted(name for name in environ if name.startswith("SAC_"))
        self.checks["variables"].facts.append(f"{len(own)} set, with {vars_file or 'the environment'}")
        if unknown := unknown_names(own):
            self.checks["variables"].notes.append(
                f"{', '.join(unknown)}: no variable of the toolkit is called so, only your own files may read "
                f"{'it' if len(unknown) == 1 else 'them'} (docs/reference/variables.md)"
            )
        self._paths = RunPaths(self._values["exp_dir"]) if "exp_dir" in self._values else None
        self.checks["settings"].errors += settings.findings
        self.checks["settings"].notes += settings.notes
        if words := self.overrides.in_words():
            self.checks["settings"].facts.append(words)
        self.checks["settings"].notes += [
            f"{name}=null removes the key, unless it is null in the file: write a null that is a value into the file"
            for name in self.overrides.removed()
        ]

    def run(self, *, in_fork: bool = True, starts: bool = True) -> None:
        """Makes all checks.

        Args:
          in_fork: A user's own code runs in a fork, else in this process.
          starts: A start follows, which takes the run directory itself and does not wait for a picture.
        """
        with LongWork("checks", by_looks=True) as work:
            self._run(in_fork, starts, work)

    def _run(self, in_fork: bool, starts: bool, work: LongWork) -> None:
        work.doing = "the machine"
        self._check_directories(starts)
        if not self._is_for_job:
            self.plan = check_machine(self._values, self._environ, self.checks)
        check_packages(self.checks["packages"])
        self._check_source(self.checks["another run"])
        if self._is_let_in() and not self.checks["another run"].errors and not self.checks["run directory"].errors:
            work.doing = "the files beside the params"
            self._look_at_files()
            environ = {**self._environ, PRIOR_FOLDER: self._made.name}
            if self._kept.copy:
                environ[FOLDER] = str(self._kept.copy)
                if SHOW_TRACES in environ:
                    environ[SHOW_TRACES] = self._kept.copy_and_original
            render = not (starts or self._is_for_job)
            # Not measured: on a GPU, which the check leaves alone, and where trainer or workers are elsewhere.
            is_elsewhere = not self._values.get("local_trainer", True)
            is_left_out = {"server", "trainer_server", "train_gpus"} & {k for k, value in self._values.items() if value}
            measures = render and not (is_elsewhere or is_left_out)
            plan = self.plan if measures else None
            self.inspection = run_trial(environ, self._vars_file, work, render=render, plan=plan, in_fork=in_fork)
            self.checks.extend(self._kept.told_of_original(self.inspection.checks))

    def _is_let_in(self) -> bool:
        """Whether no gateway refuses this start, such as for a wrong password: told before anything slow."""
        if (gateway := self._gateway()) is None or self._is_for_job:
            return True
        from tfagents_system.transport.remote.check import NAME, refusals

        self.checks[NAME].errors += (found := refusals(*gateway))
        return not found

    def _gateway(self) -> tuple[str, Path, Path | None] | None:
        """Address, credentials and password file of a trainer that is elsewhere than its replay server."""
        values = self._values
        if not {"trainer_server", "credentials_dir"} <= values.keys():
            return None
        return values["trainer_server"], values["credentials_dir"], values.get("password_file")

    def _check_source(self, check: Check) -> None:
        """Whether the run that SAC_FROM names is there: a misspelt one is told before TensorFlow is imported."""
        source, take = self._values.get("from_"), self._values.get("take", AGENT)
        if self._paths is None or "server" in self._values:
            return
        if source is None:
            if "take" in self._values:
                check.errors.append(f"SAC_TAKE={take} says what of another run is taken: set SAC_FROM, or unset it")
            return
        has_begun, began = run_directory.has_begun(self._run_before), taken_by(self._paths)
        if has_begun and began is not None and (began.source, began.take) == (str(source), take):
            return
        if self.edits != FRESH and split(str(source))[0].resolve() == self._paths.exp_dir.resolve():
            check.errors.append(
                f"SAC_FROM={source} is this run's own directory: choose another SAC_EXP_NAME, or give "
                f"{option('fresh')}, too, which moves it aside first"
            )
            return
        if has_begun:
            what = "nothing of another one" if began is None else f"SAC_FROM={began.source} SAC_TAKE={began.take}"
            check.errors.append(
                f"SAC_FROM={source} SAC_TAKE={take} is for a run that begins, and {self._paths.exp_dir} began with "
                f"{what}: choose another SAC_EXP_NAME, start over with {option('fresh')}, or leave it out"
            )
            return
        with check.catching():
            taken = find(str(source), take)
            if taken.has_rows:
                ring_folder(Path(taken.run))

    def _look_at_files(self) -> None:
        """Copies those that the run begins with, or compares those of a run that goes on with its copies."""
        check = self.checks["params folder"]
        if "server" in self._values:
            return
        if run_directory.has_begun(self._run_before):
            self._compare_files(check)
        else:
            self._kept.take(self._values, check)

    def _compare_files(self, check: Check) -> None:
        """A run that goes on would train other files than the user has now: that is refused, unless told how."""
        params, config = self._values.get("params"), self._values.get("config")
        if self._paths is None or params is None or config is None or self.edits == KEEP:
            return
        try:
            edits = run_inputs.edits(self._paths, params, config)
        except OSError as error:
            check.errors.append(
                f"{error.filename} can't be read ({error.strerror}), to compare it with what the run began with: make "
                f"it readable, or give {option('keep')}"
            )
            return
        if not edits:
            return
        anew = "" if self._is_for_job else f", {option('fresh')} moves the old run aside and starts over"
        words = (
            f"edited since the run began with its copies of them: {', '.join(map(str, edits))}. {option('keep')} goes "
            f"on with the run's copies{anew}, {run_directory.from_line(self._paths)} makes another run of the edited "
            "files, which begins with what this one has learned"
        )
        text = "\n  | ".join([words, *run_inputs.shown(edits)])
        for folder in (params.parent, config.parent) if self._is_for_job else ():  # The user never sees these.
            text = text.replace(f"{folder}/", "")
        check.errors.append(text)

    def close(self) -> None:
        """Removes what only the checks needed."""
        self._kept.close()
        self._made.cleanup()

    @property
    def paths(self) -> RunPaths | None:
        """The run directory; None where the variables do not say it."""
        return self._paths

    @property
    def environ(self) -> Mapping[str, str]:
        """With all overridden variables."""
        return self._environ

    @property
    def edits(self) -> str | None:
        """What to do with files that were edited since the run began; see run_settings.py."""
        return self._environ.get(EDITS)

    @property
    def _run_before(self) -> RunPaths | None:
        """The run to continue, if there is one."""
        return None if self.edits == FRESH else self._paths

    def files(self) -> Inputs:
        """The user's files, for the run."""
        taken = self.inspection.taken
        if taken is not None and self.moved_aside is not None and self._paths is not None:
            is_own = Path(taken.run).resolve() == self._paths.exp_dir.resolve()
            taken = taken.from_aside(self.moved_aside) if is_own else taken
        return Inputs(
            self._values["params"],
            self._values["config"],
            self._kept.copy,
            self._kept.digests,
            imported=self.inspection.imported,
            reward=named_in(self.inspection.config, self._values["params"].parent),
            taken=taken,
            prior_data=self.inspection.prior_data,
        )

    def variables(self) -> RunVariables:
        """All variables, checked.

        Raises:
          UserError: With everything that was found.
        """
        if self.checks.errors:
            for note in self.checks.notes:
                print(f"note: {note}", file=sys.stderr)
            raise UserError(*self.checks.errors)
        return RunVariables(**self._values)

    def _misplaced(self) -> list[str]:
        """Variables that are not meant for this program."""
        ours = {"SAC_SERVER": self._values.get("server"), "SAC_WORKER_ROLE": self._values.get("worker_role")}
        return [
            f"{name}={value} is for workers that join: unset it here, or join a run with sac join"
            for name, value in ours.items()
            if value not in (None, COLLECT)
        ]

    def _check_directories(self, starts: bool) -> None:
        if self._paths is None:
            return
        check = self.checks["run directory"]
        fault = resources.folder_fault(self._paths.exp_dir, "SAC_LOGS_DIR")
        replay_dir = None if self._is_for_job else self._values.get("replay_dir")  # Such as a node's own scratch.
        if fault is None and replay_dir is not None:
            fault = resources.folder_fault(replay_dir, "SAC_REPLAY_DIR") or fault_of_private(replay_dir)
        if fault is not None:
            check.errors.append(fault)
            return
        if (fault := fault_of_directory(self._paths, self._values, self._vars_file, self.edits)) is not None:
            check.errors.append(fault)
            return
        check.facts.append(f"{self._paths.exp_dir}: {self._state_of_run(self._paths)}")
        if not (starts or self._is_for_job) and (owner := owner_of_run(self._paths)) is not None:
            check.errors.append(
                f"the run directory {self._paths.exp_dir} is in use by {owner}: stop that run first, or choose another "
                "SAC_EXP_NAME"
            )

    def _state_of_run(self, paths: RunPaths) -> str:
        if self.edits == FRESH or not paths.run_json.exists():
            is_moved = paths.run_json.exists() or run_inputs.strays(paths)
            return "a new run" + (", what is there is moved aside" if is_moved else "")
        if not run_directory.has_begun(paths):
            return "a run without any update yet, which takes files and settings as they are now"
        return "finished" if run_directory.is_finished(paths, self.overrides) else "a run that goes on"


def fault_of_directory(
    paths: RunPaths, values: Mapping[str, Any], vars_file: Path | None, edits: str | None
) -> str | None:
    """Why a start can't begin in a run directory; None if it can.

    Args:
      values: The variables that could be read, by field.
      edits: With `--fresh` the directory is moved aside, and the user's files must not be in it.
    """
    fields = ("params", "config", "expert_policy", "env_python", "credentials_dir", "password_file")
    source = split(str(values["from_"]))[0] if "from_" in values else None
    named = [vars_file, Path.cwd(), *map(values.get, fields), source if source != paths.exp_dir else None]
    used = [path for path in named if path is not None]
    if edits == FRESH:
        return run_inputs.why_not_moved(paths, used)
    return run_inputs.why_not_begun(paths, used)
