"""The tasks of a sweep, checked before anything starts, and the places in which they run."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tfagents_system.errors import UserError
from tfagents_system.launch.inspection import check_inputs
from tfagents_system.launch.orphans import wait_for_orphans
from tfagents_system.launch.preparation import fault_of_directory
from tfagents_system.launch.python_path import LAUNCHERS, ROOT, folders_of_python_path
from tfagents_system.launch.run_settings import (
    CARRIER,
    EDIT_OPTIONS,
    EDITS,
    FRESH,
    RunSettings,
    edits_of_start,
    is_again,
    resolve,
    run_of_start,
)
from tfagents_system.launch.sweep_tasks import DONE, Place, Task
from tfagents_system.launch.vars_file import read_vars_file, run_environ
from tfagents_system.machine.claims import held_cpus
from tfagents_system.machine.gpus import found, usable_gpus
from tfagents_system.machine.signals import die_with_parent
from tfagents_system.machine.topology import (
    allowed_cpus,
    cgroup_quota,
    cores_of,
    is_confined,
    slurm_allotment,
    split_cpus,
    usable_cpus,
)
from tfagents_system.report.long_work import LongWork, followed
from tfagents_system.run_files import experience_folders, run_directory, run_inputs
from tfagents_system.run_files.run_lock import RunLock, owner_of_run
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.grid import assignment
from tfagents_system.settings.overrides import parse_assignments
from tfagents_system.settings.variables import (
    COUNTS,
    SEED,
    TASK,
    has_automatic_workers,
    read_variables,
)

_OF_TASK = (TASK, SEED, CARRIER)
_CHECK_SECS = 300.0  # For each task.


class SweepPlan:
    """The tasks of a sweep and their checks, which are all made before anything starts.

    Args:
      vars_file: Describes every task's run.
      settings: Those of each task, by its number.
      assignments: `NAME=VALUE` that all tasks have.
      parallel: Simultaneous runs; 0: they are elsewhere.
      is_open: Of a study: tasks are added later, and all simultaneous runs need a place.
      edits: What runs that exist do with files that were edited since they began; see run_settings.py.

    Attributes:
      tasks: In the order of `settings`.
      values: Their variables, by field, as far as they could be read.
      places: One for each simultaneous run.
    """

    def __init__(
        self,
        vars_file: Path,
        settings: Mapping[int, Mapping[str, Any]],
        assignments: Sequence[str],
        parallel: int,
        is_open: bool = False,
        edits: str | None = None,
    ) -> None:
        self.tasks: list[Task] = []
        self.values: list[dict[str, Any]] = []
        self.places: list[Place] = []
        self._findings: dict[str, list[int]] = {}  # With the tasks that have them.
        self._vars_file = vars_file
        self._assignments = assignments
        self._is_open = is_open
        self._edits = edits
        self._automatic = set[int]()  # Tasks whose number of workers follows from the CPUs of their place.
        self._to_move: list[Task] = []
        planned = followed(settings.items(), "looking at tasks", "tasks", len(settings))
        self._environs = {number: self._add(number, own) for number, own in planned}
        everyone = list(settings)
        try:
            to_check = _alike((task for task in self.tasks if task.state != DONE), self._environs)
            for number, findings in _check_all(to_check, vars_file).items():
                self._note([number], findings)
        except UserError as error:
            self._note(everyone, error.findings)
        if parallel:
            self._note(everyone, self._place(parallel))

    def raise_findings(self) -> None:
        """Raises:
        UserError: With all findings, and the tasks that they concern.
        """
        if self._findings:
            count = len(self.tasks)
            raise UserError(
                *(
                    text if len(numbers) == count or count == 1 else f"{_numbered(numbers)}: {text}"
                    for text, numbers in self._findings.items()
                )
            )

    def add(self, number: int, settings: Mapping[str, Any]) -> Task:
        """One more task, in the places that there are. Its own start checks its params and configuration.

        Raises:
          UserError: What it would be is refused, with all findings.
        """
        self._findings = {}  # What an earlier attempt found may be over.
        self._add(number, settings)
        task = self.tasks[-1] if not self._findings else self.tasks.pop()
        self.raise_findings()
        return task

    def move_aside(self) -> None:
        """Moves the runs that --fresh begins anew: what is there after a stop is of this sweep, and can go on.

        Raises:
          UserError: Another start works in one of them.
        """
        for task in self._to_move:
            wait_for_orphans(task.paths, task.save_secs)
            with RunLock(task.paths):
                run_inputs.move_aside(task.paths)
        if self._to_move:
            name = self._to_move[0].paths.exp_dir.name.rpartition("_task_")[0]
            print(f"{len(self._to_move)} runs that were there are in {name}_before_<n>_task_<id> now", flush=True)

    def _note(self, numbers: Iterable[int], findings: Iterable[str]) -> None:
        for finding in dict.fromkeys(findings):
            self._findings.setdefault(finding, []).extend(numbers)

    def _add(self, number: int, settings: Mapping[str, Any]) -> dict[str, str]:
        """Adds a task; returns its environment as the run will have it."""
        texts, resolved, values = self._resolved(number, settings)
        paths = RunPaths(values.get("exp_dir", Path()))
        options = [word for text in texts for word in ("--set", text)]
        edits = resolved.environ.get(EDITS)
        options += [EDIT_OPTIONS[edits]] if edits and edits != FRESH else []  # For that the plan moves it aside.
        given, _ = parse_assignments(self._assignments)
        task = Task(
            number=number,
            settings=dict(settings) | {setting.name: setting.value for setting in given},
            command=[str(LAUNCHERS / "run_script.sh"), *options, str(self._vars_file)],
            environ={**os.environ, TASK: str(number)},
            paths=paths,
            save_secs=values.get("save_deadline_secs", 60.0),
        )
        if "exp_dir" in values:
            if edits != FRESH and run_directory.is_finished(paths, resolved.overrides):
                task.state = DONE
            elif (owner := owner_of_run(paths)) is not None:
                self._note([number], [f"the run directory {paths.exp_dir} is in use by {owner}: stop that run first"])
            elif (fault := fault_of_directory(paths, values, self._vars_file, edits)) is not None:
                self._note([number], [fault])
        if edits == FRESH and (paths.run_json.exists() or experience_folders.strays(paths)):
            self._to_move.append(task)
        self.tasks.append(task)
        self.values.append(values)
        return resolved.environ

    def _resolved(self, number: int, own: Mapping[str, Any]) -> tuple[list[str], RunSettings, dict[str, Any]]:
        """A task's assignments, its settings and its variables, which are noted where they are wrong."""
        environ = read_vars_file(self._vars_file, {**os.environ, TASK: str(number)})
        given, _ = parse_assignments(self._assignments)
        own_seed = SEED in own or any(setting.name == SEED for setting in given)
        # Only the grid's tasks are asked for: a task's number adds nothing to its seed.
        seed = [] if own_seed else [f"{SEED}={environ.get(SEED) or 0}"]
        texts = ["SAC_GRID=", *seed, *(assignment(name, value) for name, value in own.items()), *self._assignments]
        run = run_of_start(environ, texts, vars_file=self._vars_file, root=ROOT) if is_again(environ) else None
        if edits := edits_of_start(self._edits, run, environ):
            environ[EDITS] = edits
        resolved = resolve(environ, texts, vars_file=self._vars_file, root=ROOT, of_task=own)
        values, findings = read_variables(resolved.environ, vars_file=self._vars_file, root=ROOT)
        self._note([number], [*resolved.findings, *findings])
        if has_automatic_workers({**environ, **resolved.overrides.variables}):
            self._automatic.add(number)
        return texts, resolved, values

    def _place(self, parallel: int) -> list[str]:
        """Gives each of the simultaneous runs its CPUs and its GPU; returns what prevents that."""
        at_once = parallel if self._is_open else min(parallel, len(self._waiting()))
        if not at_once or not all(values.keys() >= COUNTS.keys() for values in self.values):
            return []
        cpus, findings = self._cpus(at_once)
        gpus, found = self._gpus(at_once)
        self.places = [Place(*place) for place in itertools.zip_longest(cpus, gpus)]
        return findings + found

    def _waiting(self) -> list[tuple[Task, dict[str, Any]]]:
        """Tasks that are not done, with their variables."""
        return [each for each in zip(self.tasks, self.values, strict=True) if each[0].state != DONE]

    def _cpus(self, parallel: int) -> tuple[list[list[int]], list[str]]:
        """CPU ids for each of the simultaneous runs, and what prevents that."""
        needed = max(
            max(1, usable_cpus(os.environ) // parallel)
            if task.number in self._automatic
            else values["reverb_cpus"]
            + values["train_cpus"]
            + sum(values.get(f"{kind}_workers", 0) for kind in ("num_collect", "expert", "eval"))
            * values["collect_worker_cpus"]
            for task, values in self._waiting()
        )
        share = all(values.get("share_cpus", False) for values in self.values)
        cores, quota = cores_of(allowed_cpus()), cgroup_quota()
        limit = None if quota is None else max(1, math.floor(quota))
        nothing: list[list[int]] = [[] for _ in range(parallel)]
        if not is_confined(slurm_allotment(os.environ), cores):
            return nothing, []  # The ids are not ours to give.
        try:
            split = split_cpus(cores, parallel, needed, held=held_cpus(), share=share, limit=limit)
        except UserError as error:
            return nothing, list(error.findings)
        return split, []

    def _gpus(self, at_once: int) -> tuple[list[str], list[str]]:
        """A GPU for each of the simultaneous runs, if any task trains on one, and what prevents that."""
        wanting = [self._environs[task.number] for task, values in self._waiting() if values.get("train_gpus", False)]
        if not wanting:
            return [], []
        usable = usable_gpus(wanting[0])
        if len(usable) >= at_once:
            return usable[:at_once], []
        return [], [
            f"SAC_TRAIN_GPUS=1: {at_once} runs at once need a GPU each, {len(usable)} may be used here "
            f"(CUDA_VISIBLE_DEVICES: {found(wanting[0])}): lower --parallel, ask the cluster for more "
            f"(--gpus-per-node={at_once}), or unset SAC_TRAIN_GPUS"
        ]


def _alike(tasks: Iterable[Task], environs: Mapping[int, Mapping[str, str]]) -> list[dict[int, Mapping[str, str]]]:
    """Environments of tasks by number; together those of tasks that share a params folder and all variables but those
    of a task: modules that one of them imports, which may take seconds, are those of the others, too.
    """
    groups = defaultdict[Any, dict[int, Mapping[str, str]]](dict)
    for task in tasks:
        environ = environs[task.number]
        has_copies = environ.get(EDITS) != FRESH and run_directory.has_begun(task.paths)
        shared = frozenset((name, text) for name, text in environ.items() if name not in _OF_TASK)
        groups[task.paths.exp_dir if has_copies else None, shared][task.number] = environ
    return list(groups.values())


def _check_all(groups: Sequence[Mapping[int, Mapping[str, str]]], vars_file: Path) -> dict[int, list[str]]:
    """What is wrong with params and configuration of each task, found in a process that a user's code may end.

    Args:
      groups: Environments by number of the task, as of `_alike`.

    Raises:
      UserError: That process has died, or takes too long.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_check_groups, args=(groups, vars_file, theirs))
    process.start()
    theirs.close()
    found: dict[int, list[str]] = {}
    numbers = [number for group in groups for number in group]
    try:
        with LongWork("checking settings", len(numbers), "tasks") as work:
            for work.done, number in enumerate(numbers):
                if not ours.poll(_CHECK_SECS):
                    raise UserError(
                        f"the check of params and configuration of task {number} has not ended within "
                        f"{_CHECK_SECS:g} s: correct it"
                    )
                found[number] = ours.recv()
        return found
    except EOFError:
        raise UserError(
            "the process died in the check of params and configuration: see above, and correct it"
        ) from None
    finally:
        process.kill()
        process.join()


def _check_groups(groups: Iterable[Mapping[int, Mapping[str, str]]], vars_file: Path, answer: Connection) -> None:
    """Each group in a process of its own, until one dies: modules of another group may have the same names."""
    for group in groups:
        process = multiprocessing.get_context("fork").Process(target=_check_group, args=(group, vars_file, answer))
        process.start()
        process.join()
        if process.exitcode:
            return


def _check_group(environs: Mapping[int, Mapping[str, str]], vars_file: Path, answer: Connection) -> None:
    die_with_parent(signal.SIGKILL)
    for environ in environs.values():
        os.environ.clear()
        os.environ.update(run_environ(environ))
        sys.path[:] = dict.fromkeys([*folders_of_python_path(os.environ), *sys.path])
        answer.send(check_inputs(environ, vars_file))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # Threads of what was imported would be waited for.


def _numbered(numbers: Sequence[int]) -> str:
    return f"task {numbers[0]}" if len(numbers) == 1 else f"tasks {', '.join(map(str, numbers))}"
