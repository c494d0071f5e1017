"""The trials of a study: each is a run like any other, begun, judged and ended as Optuna's sampler and pruner say."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import Trial, TrialState

from tfagents_system.errors import UserError
from tfagents_system.launch.sweep_tasks import DONE, FAILED, RUNNING, STOPPED, Task
from tfagents_system.run_files.heartbeat import read_json
from tfagents_system.run_files.metrics import read_metrics
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.search_spaces import Range, Space

MILESTONES = 20  # Of a run, at which trials are compared: each has as much behind it there.
_JUDGED_SHARE = 0.25  # The last of a run, whose evaluations are its value.
_FREE_SECS = 150.0
_MOST_STEPS = 100


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


def curve_of(paths: RunPaths) -> list[tuple[float, float]]:
    """(share of the run, return) of each evaluation of its trained policy."""
    params = (read_json(paths.resolved) or {}).get("params", {})
    rows = [row for row in read_metrics(paths.metrics_csv) if row.get("eval_return") is not None]
    return [(progress_of(row, params), float(row["eval_return"] or 0.0)) for row in rows if row.get("train_step")]


def value_of(curve: Sequence[tuple[float, float]]) -> float | None:
    """What a trial is worth: the mean return over the last quarter of its run; None without an evaluation there."""
    last = [value for share, value in curve if share >= 1.0 - _JUDGED_SHARE]
    return sum(last) / len(last) if last else None


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

    Attributes:
      tasks: Those begun or continued here.
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
    ) -> None:
        self.tasks: list[Task] = []
        self._study, self._space, self._folder, self._add = study, space, folder, add
        self._wanted, self._parallel, self._end, self._say = wanted, parallel, end, say
        self._trials: dict[int, Trial] = {}
        self._locks: dict[int, TextIO] = {}
        self._pruned: set[int] = set()
        self._distributions = distributions_of(space)

    def look(self) -> None:
        """Reports what runs have reached, tells the ends of those that are over, and adds tasks for free places."""
        for task in [task for task in self.tasks if task.number in self._trials]:
            if task.state == RUNNING:
                self._report(task)
                if task.number not in self._pruned and self._trials[task.number].should_prune():
                    self._pruned.add(task.number)
                    self._end(task)
            elif task.state in (DONE, FAILED) or (task.state == STOPPED and task.number in self._pruned):
                self._tell(task)
            elif task.state == STOPPED:
                self._release(task.number)  # The whole study is stopped: it goes on with this one.
        if not any(task.state == STOPPED and task.number not in self._pruned for task in self.tasks):
            self._fill()

    def _fill(self) -> None:
        with self._lock("study"):
            while len(self._trials) < self._parallel and (trial := self._next()) is not None:
                self.tasks.append(self._task_of(trial))

    def _next(self) -> Trial | None:
        """A trial that nobody continues, else a new one; None if there are enough."""
        known = self._study.get_trials(deepcopy=False)
        for frozen in known:
            if frozen.state == TrialState.RUNNING and frozen.number not in self._trials and self._claim(frozen.number):
                self._trials[frozen.number] = Trial(self._study, frozen._trial_id)
                return self._trials[frozen.number]
        if len(known) >= self._wanted:
            return None
        trial = self._study.ask(self._distributions)
        self._claim(trial.number)
        self._trials[trial.number] = trial
        return trial

    def _task_of(self, trial: Trial) -> Task:
        settings = settings_of(self._space, trial.params)
        deadline = time.monotonic() + _FREE_SECS
        while True:
            try:
                return self._add(trial.number, settings)
            except UserError:  # A run whose starter was killed saves first.
                if time.monotonic() > deadline:
                    raise
                time.sleep(1.0)

    def _report(self, task: Task) -> None:
        """Tells the return at each milestone that the run has passed."""
        trial = self._trials[task.number]
        reported = self._study.get_trials(deepcopy=False)[task.number].intermediate_values
        curve = curve_of(task.paths)
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
            value = value_of(curve_of(task.paths))
        if number in self._pruned and value is None:
            self._study.tell(trial, state=TrialState.PRUNED)
            self._say(f"{task} is pruned: others had more at the same point")
        elif value is None:
            reason = task.reason or "it has no evaluation in its last quarter"
            self._study.tell(trial, state=TrialState.FAIL)
            self._say(f"{task} has failed: {reason}")
        else:
            self._study.tell(trial, value)
        self._release(number)

    def _claim(self, number: int) -> bool:
        file = (self._folder / f"trial_{number}.lock").open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        self._locks[number] = file
        return True

    def _release(self, number: int) -> None:
        del self._trials[number]
        self._locks.pop(number).close()

    def _lock(self, name: str) -> TextIO:
        file = (self._folder / f"{name}.lock").open("w")
        fcntl.flock(file, fcntl.LOCK_EX)
        return file
