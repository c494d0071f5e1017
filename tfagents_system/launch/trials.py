"""The trials of a study: each is a run like any other, begun, judged and ended as Optuna's sampler and pruner say."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import Trial, TrialState

from tfagents_system.errors import UserError
from tfagents_system.launch.sweep_tasks import DONE, FAILED, RUNNING, STOPPED, Task
from tfagents_system.machine.file_locks import lock
from tfagents_system.run_files.heartbeat import read_json
from tfagents_system.run_files.metrics import read_metrics
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.search_spaces import Range, Space

MILESTONES = 20  # Of a run, at which trials are compared: each has as much behind it there.
_JUDGED_SHARE = 0.25  # The last of a run, whose evaluations are its value.
_FREE_SECS = 150.0
_MOST_STEPS = 100
_MOST_REFUSED = 3  # So many starts in a row: any further one would be refused, too.


def distributions_of(space: Space) -> dict[str, BaseDistribution]:
    """The space in Optuna's words. Lists and objects are categories by their index."""
    found: dict[str, BaseDistribution] = {}
    for name, values in space.items():
        if not isinstance(values, Range):
            found[name] = CategoricalDistribution(list(range(len(values))))
        elif values.is_whole:
            found[name] = IntDistribution(int(values.low), int(values.high), log=values.log)
        else:
            found[name] = FloatDistribution(values.low, values.high, log=values.log)
    return found


def settings_of(space: Space, params: Mapping[str, Any]) -> dict[str, Any]:
    """A trial's settings, as --set takes them."""
    chosen = {}
    for name, values in space.items():
        if name in params:
            chosen[name] = _rounded(params[name]) if isinstance(values, Range) else values[params[name]]
    return chosen


def _rounded(value: float) -> float:
    """To four digits: nobody means more, and the line with the best settings can be read."""
    return value if isinstance(value, int) else float(f"{value:.4g}")


def progress_of(row: Mapping[str, float | None], params: Mapping[str, Any]) -> float:
    """How much of its run a row of metrics.csv has behind it, from 0 to 1."""
    if params.get("num_env_steps"):
        share = (row.get("env_steps") or 0.0) / params["num_env_steps"]
    else:
        share = (row.get("iteration") or 0.0) / max(1, params.get("num_iter", 1))
    return min(1.0, share)


@dataclasses.dataclass(frozen=True)
class Curve:
    """How a trial has learned.

    Attributes:
      evaluations: (share of the run, return) of each evaluation of its trained policy.
      reached: The share of the run that is behind it: of one that ended early, by success or by `max_hours`, less
        than 1.
    """

    evaluations: Sequence[tuple[float, float]]
    reached: float = 1.0

    @property
    def value(self) -> float | None:
        """What a trial that is done is worth: the mean return over the last quarter of what it ran; None without an
        evaluation there.
        """
        judged_from = (1.0 - _JUDGED_SHARE) * self.reached - 1e-9
        last = [value for share, value in self.evaluations if share >= judged_from]
        return sum(last) / len(last) if last else None


def curve_of(paths: RunPaths) -> Curve:
    """Of a run, as far as it is."""
    params = (read_json(paths.resolved) or {}).get("params", {})
    rows = read_metrics(paths.metrics_csv)
    evaluated = [row for row in rows if row.get("eval_return") is not None and row.get("train_step")]
    return Curve(
        [(progress_of(row, params), float(row["eval_return"] or 0.0)) for row in evaluated],
        max((progress_of(row, params) for row in rows), default=0.0),
    )


def numbers_to_run(study: optuna.Study, folder: Path, wanted: int) -> list[int]:
    """Trials that are not over, new ones among them, and that no process runs now."""
    states = [trial.state for trial in study.get_trials(deepcopy=False)]
    numbers = [n for n in range(max(wanted, len(states))) if _is_to_run(states, n, wanted)]
    return [number for number in numbers if not _is_held(folder, number)]


def _is_to_run(states: Sequence[TrialState], number: int, wanted: int) -> bool:
    state = states[number] if number < len(states) else TrialState.WAITING
    return state == TrialState.RUNNING or (state == TrialState.WAITING and number < wanted)


def _is_held(folder: Path, number: int) -> bool:
    path = _lock_of(folder, number)
    if not path.exists():
        return False
    with path.open("w") as file:
        return not lock(file.fileno(), Path(file.name), waits=False)


def _lock_of(folder: Path, number: int) -> Path:
    return folder / f"trial_{number}.lock"


class Trials:
    """Keeps as many trials under way as there are places, until there are enough.

    Several of these may share a study's folder, on one machine or many.

    Args:
      study: Optuna's, in a storage that outlives this process.
      space: What is tried.
      folder: For locks: a trial whose lock is free, though it is not over, is continued.
      add: Makes the task of a trial from its number and settings.
      wanted: Trials of the study, failed ones included.
      parallel: At once, here.
      end: Stops the run of a task.
      say: Tells a line.
      only: This trial alone is run here, as by a task of a job array.

    Attributes:
      tasks: Those begun or continued here.
      left: Numbers of trials that are not over and go on with another start.
      refusal: Why no further trial can begin.
      unstarted: Why no further run is started: no process (a full disk), or one start after another is refused.
    """

    def __init__(
        self,
        study: optuna.Study,
        space: Space,
        folder: Path,
        add: Callable[[int, Mapping[str, Any]], Task],
        *,
        wanted: int,
        parallel: int,
        end: Callable[[Task], None],
        say: Callable[[str], None],
        only: int | None = None,
    ) -> None:
        self.tasks: list[Task] = []
        self.left: set[int] = set()
        self.refusal: UserError | None = None
        self.unstarted = ""
        self._study, self._space, self._folder, self._add = study, space, folder, add
        self._wanted, self._parallel, self._end, self._say, self._only = wanted, parallel, end, say, only
        self._trials: dict[int, Trial] = {}
        self._to_add: dict[int, float] = {}  # Claimed trials without a task yet: until when that is tried.
        self._locks: dict[int, TextIO] = {}
        self._pruned: set[int] = set()
        self._refused_in_a_row = 0
        self._distributions = distributions_of(space)

    @property
    def is_waiting(self) -> bool:
        """Whether a trial that was claimed waits until the last process of its run has saved."""
        return bool(self._to_add)

    def is_over(self, number: int) -> bool:
        """Whether a trial has a value, was pruned or has failed."""
        known = self._study.get_trials(deepcopy=False)
        return number < len(known) and known[number].state.is_finished()

    def look(self, is_stopped: bool = False) -> None:
        """Reports what runs have reached, tells the ends of those that are over, and adds tasks for free places.

        Args:
          is_stopped: All runs are being stopped: no trial begins, and those that did not save have not failed.
        """
        for task in [task for task in self.tasks if task.number in self._trials]:
            is_pruned = task.number in self._pruned
            if task.state == RUNNING:
                self._report(task)
                if not is_pruned and self._trials[task.number].should_prune():
                    self._pruned.add(task.number)
                    self._end(task)
            elif task.is_unstarted:
                self.unstarted = f"{task}: {task.reason}"
                self._leave(task.number)
            elif not is_pruned and (task.state == STOPPED or (is_stopped and task.state == FAILED)):
                self._leave(task.number)
            elif task.state in (DONE, FAILED, STOPPED):
                self._refused_in_a_row = self._refused_in_a_row + 1 if task.is_refused else 0
                if self._refused_in_a_row == _MOST_REFUSED:
                    self.unstarted = f"{task}: {task.reason}"
                self._tell(task)
        if not is_stopped:
            self._fill()

    def _fill(self) -> None:
        if self.refusal is None and not self.unstarted:
            with self._locked("study"):
                while len(self._trials) < self._parallel and self._claim_next():
                    pass
        for number, deadline in list(self._to_add.items()):
            self._try_to_add(number, deadline)

    def _claim_next(self) -> bool:
        """Takes a trial that nobody continues, else a new one; False if there are enough."""
        states = [trial.state for trial in self._study.get_trials(deepcopy=False)]
        for number in range(max(self._wanted, len(states))) if self._only is None else [self._only]:
            is_mine = number in self._trials or number in self.left
            if not is_mine and _is_to_run(states, number, self._wanted) and self._claim(number):
                self._trials[number] = self._begun(number)
                # A run whose starter was killed saves first.
                is_new = number >= len(states) or states[number] == TrialState.WAITING
                self._to_add[number] = time.monotonic() + (0.0 if is_new else _FREE_SECS)
                return True
        return False

    def _begun(self, number: int) -> Trial:
        """The trial of this number, with all its settings: it may be new, or its process was killed before."""
        while len(self._study.get_trials(deepcopy=False)) <= number:
            self._study.enqueue_trial({})
        frozen = self._study.get_trials(deepcopy=False)[number]
        if frozen.state == TrialState.WAITING:
            self._study._storage.set_trial_state_values(frozen._trial_id, state=TrialState.RUNNING)
        trial = Trial(self._study, frozen._trial_id)
        for name, distribution in self._distributions.items():
            if name not in frozen.params:
                trial._suggest(name, distribution)
        return trial

    def _try_to_add(self, number: int, deadline: float) -> None:
        settings = settings_of(self._space, self._trials[number].params)
        try:
            self.tasks.append(self._add(number, settings))
        except UserError as error:
            if time.monotonic() <= deadline:
                return
            self.refusal = error
            self._leave(number)
        del self._to_add[number]

    def _report(self, task: Task) -> None:
        """Tells the return at each milestone that the run has passed."""
        trial = self._trials[task.number]
        reported = self._study.get_trials(deepcopy=False)[task.number].intermediate_values
        curve = curve_of(task.paths).evaluations
        if not curve:
            return
        reached = int(curve[-1][0] * MILESTONES)
        for milestone in range(1, reached + 1):
            step = milestone * _MOST_STEPS // MILESTONES
            before = [value for share, value in curve if share <= milestone / MILESTONES + 1e-9]
            if before and step not in reported:
                trial.report(before[-1], step)

    def _tell(self, task: Task) -> None:
        trial, number = self._trials[task.number], task.number
        value = None
        if task.state == DONE:
            self._report(task)
            value = curve_of(task.paths).value
        if number in self._pruned and value is None:
            self._study.tell(trial, state=TrialState.PRUNED)
            self._say(f"{task} is pruned: others had more at the same point")
        elif value is None:
            reason = task.reason or "it has no evaluation in the last quarter of what it ran"
            self._study.tell(trial, state=TrialState.FAIL)
            self._say(f"{task} has failed: {reason}")
        else:
            self._study.tell(trial, value)
        self._release(number)

    def _leave(self, number: int) -> None:
        """It goes on with another start."""
        self.left.add(number)
        self._release(number)

    def _claim(self, number: int) -> bool:
        file = _lock_of(self._folder, number).open("w")
        if not lock(file.fileno(), Path(file.name), waits=False):
            file.close()
            return False
        self._locks[number] = file
        return True

    def _release(self, number: int) -> None:
        del self._trials[number]
        self._locks.pop(number).close()

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        with (self._folder / f"{name}.lock").open("w") as file:
            lock(file.fileno(), Path(file.name))
            yield
