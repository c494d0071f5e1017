"""A search for good settings: study.json of a pool's folder has its trials, and Optuna proposes the next one.

Optuna's study is built from these records whenever something is asked of it, under the lock of the folder. So any
number of programs may work on one search, and none of them keeps anything that the next start lacks.

    python -m tfagents_system.tasks.study FOLDER COMMAND...

is a task of a search's job array: it takes one trial after another until none is left. With `--study=FOLDER`
run_script.sh becomes this in place of COMMAND, which starts a run. SLURM_ARRAY_TASK_ID is the worker's number here, and
the trial's in its run. `FOLDER/worker_<number>` leads to the files of its newest run, by which the job is judged.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from tfagents_system.errors import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_RESUMABLE, UserError, exit_with
from tfagents_system.launch.cpus import Place
from tfagents_system.machine.files import read_json, write_atomically, write_json
from tfagents_system.machine.signals import StopFlag
from tfagents_system.run_files.metrics import read_rows
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.grid import Space
from tfagents_system.settings.values import assignment, in_words
from tfagents_system.settings.variables import TASK
from tfagents_system.tasks.pool import DONE, FAILED, PRUNED, RUNNING, STOPPED, WAITING, Pool, Source, Task, View

PRUNERS: dict[str, Callable[[], optuna.pruners.BasePruner]] = {
    "median": lambda: optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=25),
    "hyperband": lambda: optuna.pruners.HyperbandPruner(min_resource=10, max_resource=100),
    "none": optuna.pruners.NopPruner,
}
_JUDGED_SHARE = 0.25  # The last of a run, whose evaluations are its value.
_MOST_REFUSED = 3  # So many starts in a row: any further one would be refused, too.
_STATES = {RUNNING: "RUNNING", DONE: "COMPLETE", PRUNED: "PRUNED", FAILED: "FAIL"}  # And Optuna's words.
_FEWEST_FOR_IMPORTANCE = 8


@dataclasses.dataclass
class Trial:
    """A record of study.json.

    Attributes:
      params: As Optuna proposed them; of a list of values the index.
      state: RUNNING (until it is over, also while nobody works on it), DONE, PRUNED or FAILED.
      value: The mean evaluation return over the last quarter of its run, of a trial that is DONE.
      reports: Returns by percent of the run, at which trials are compared: each has as much behind it there.
      attrs: What a pruner remembers of it.
    """

    params: dict[str, Any]
    state: str = RUNNING
    value: float | None = None
    reports: dict[str, float] = dataclasses.field(default_factory=dict)
    attrs: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Records:
    """The content of study.json: what is tried, how many trials are wanted, and the trials by number."""

    space: Space
    pruner: str
    wanted: int
    trials: list[Trial] = dataclasses.field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> Records:
        """Those of the folder of a search that has begun."""
        if (content := read_json(folder / "study.json")) is None:
            raise UserError(f"{folder / 'study.json'} can't be read: restore it, or choose another folder")
        return cls(**content | {"trials": [Trial(**trial) for trial in content["trials"]]})

    def write(self, folder: Path) -> None:
        """For the holder of the folder's lock."""
        write_json(folder / "study.json", dataclasses.asdict(self), indent=1)

    def settings(self) -> list[dict[str, Any]]:
        """Of each trial, as --set takes them."""
        return [settings_of(self.space, trial.params) for trial in self.trials]

    def to_optuna(self) -> optuna.Study:
        """A study in memory that has all trials under their numbers."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler, pruner = optuna.samplers.TPESampler(multivariate=True, constant_liar=True), PRUNERS[self.pruner]()
        # Hyperband chooses the bracket of a trial by the name of its study.
        study = optuna.create_study(study_name="search", direction="maximize", sampler=sampler, pruner=pruner)
        for trial in self.trials:
            words: dict[str, Any] = {"params": trial.params, "value": trial.value, "system_attrs": trial.attrs}
            reports = {int(percent): value for percent, value in trial.reports.items()}
            state, space = TrialState[_STATES[trial.state]], distributions_of(self.space)
            study.add_trial(create_trial(state=state, distributions=space, intermediate_values=reports, **words))
        return study


def distributions_of(space: Space) -> dict[str, BaseDistribution]:
    """The space in Optuna's words. Values of lists are categories by their index."""

    def distribution(values: Any) -> BaseDistribution:
        if isinstance(values, list):
            return CategoricalDistribution(list(range(len(values))))
        is_whole = isinstance(values["low"], int) and isinstance(values["high"], int)
        return IntDistribution(**values) if is_whole else FloatDistribution(**values)

    return {name: distribution(values) for name, values in space.items()}


def settings_of(space: Space, params: Mapping[str, Any]) -> dict[str, Any]:
    """A trial's settings, as --set takes them; numbers to four digits, so that the best line can be read."""
    rounded = {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in params.items()}
    return {name: space[name][value] if isinstance(space[name], list) else value for name, value in rounded.items()}


def curve_of(paths: RunPaths) -> tuple[list[tuple[float, float]], float]:
    """(share of the run, return) of each evaluation of a trained policy, and the share that is behind the run.

    At the end of a run that ended early, by success or by `max_hours`, that share is less than 1.
    """
    params = (read_json(paths.run_json) or {}).get("attributes", {})
    column, total = "iteration", params.get("num_iter") or 1
    if params.get("num_env_steps"):
        column, total = "env_steps", params["num_env_steps"]
    rows = [(min(1.0, (row.get(column) or 0.0) / total), row) for row in read_rows(paths.metrics_csv)]
    evaluated = [(share, row["eval_return"]) for share, row in rows if row.get("train_step")]
    return [(share, value) for share, value in evaluated if value is not None], max((s for s, _ in rows), default=0.0)


def value_of(evaluations: Sequence[tuple[float, float]], reached: float = 1.0) -> float | None:
    """The mean return over the last quarter of what a run has done; None without an evaluation there."""
    last = [value for share, value in evaluations if share >= (1.0 - _JUDGED_SHARE) * reached - 1e-9]
    return sum(last) / len(last) if last else None


def reports_of(evaluations: Sequence[tuple[float, float]]) -> dict[str, float]:
    """The newest return in each twentieth of a run, by the percent at which that begins."""
    return {str(5 * int(share * 20 + 1e-9)): value for share, value in evaluations}


class Study(Source):
    """The trials of a search: those that nobody continues come first, then new ones until there are enough.

    Attributes:
      refusal: Why no further trial begins: no process can be started, or one start after another is refused.
    """

    refusal = ""
    _refused_in_a_row = 0

    def begin(self, space: Space, pruner: str, wanted: int) -> None:
        """Begins a search or continues with it; a UserError says that the folder has another one, or a sweep."""
        with self.locked():
            records = Records(space, pruner, wanted)
            if (self.folder / "study.json").exists():
                begun = Records.read(self.folder)
                if begun.space == space:
                    records.trials = begun.trials
                elif any(trial.state != FAILED for trial in begun.trials):  # Else nothing was learned with it.
                    raise UserError(
                        f"the search in {self.folder} has begun with another space, `space` in study.json: give that "
                        "one with --space, or choose another SAC_EXP_NAME"
                    )
            elif self.path.exists():
                raise UserError(f"{self.folder} is that of a sweep: choose another SAC_EXP_NAME")
            records.write(self.folder)

    def run(self, places: Sequence[Place], stop: StopFlag, show: Callable[[Sequence[Task]], None]) -> int:
        """Runs trials until none is left here, prints what was found, and returns the exit code."""
        code = Pool(self, places, stop, show).run()
        with self.locked():
            print(*self.write_results(), sep="\n", flush=True)
        if self.refusal:
            print(f"error: {self.refusal}; correct that, and the same command continues", file=sys.stderr, flush=True)
            return EXIT_FAILED
        return EXIT_RESUMABLE if stop.is_set() and self.left() else code

    def left(self) -> int:
        """How many trials are not over."""
        records = Records.read(self.folder)
        return sum(trial.state == RUNNING for trial in records.trials) + max(0, records.wanted - len(records.trials))

    def open_numbers(self) -> Iterator[int]:
        records, begun = Records.read(self.folder), {task.number for task in self.tasks if task.state != WAITING}
        if not self.refusal:
            yield from (n for n, trial in enumerate(records.trials) if trial.state == RUNNING and n not in begun)
            yield from range(len(records.trials), min(len(records.trials) + 1, records.wanted))

    def task(self, number: int) -> Task:
        records = Records.read(self.folder)
        if number == len(records.trials):
            records.trials.append(Trial(records.to_optuna().ask(distributions_of(records.space)).params))
            self.write_list(records.settings())
            records.write(self.folder)
        if number not in {task.number for task in self.tasks}:
            self.tasks.append(self.new_task(number, records.settings()[number]))
        return next(task for task in self.tasks if task.number == number)

    def is_hopeless(self, task: Task) -> bool:
        """Records how far a trial is; whether the pruner ends it."""
        reports, trial = reports_of(curve_of(task.paths)[0]), Records.read(self.folder).trials[task.number]
        if trial.state == PRUNED or trial.reports == reports:
            return False
        with self.locked():
            records = Records.read(self.folder)
            trial = records.trials[task.number]
            trial.reports = reports
            study = records.to_optuna()
            is_pruned = study.pruner.prune(study, study.trials[task.number])
            trial.attrs = study.trials[task.number].system_attrs
            trial.state = PRUNED if is_pruned else trial.state
            records.write(self.folder)
        return is_pruned

    def end(self, task: Task, *, is_stopped: bool) -> None:
        if task.exit_code is None:
            self.refusal = f"{task}: {task.reason}"
            return
        evaluations, reached = curve_of(task.paths)
        with self.locked():
            records = Records.read(self.folder)
            trial = records.trials[task.number]
            if task.state != DONE and trial.state == PRUNED:
                task.state, task.reason = PRUNED, "others had more at the same point"
            if task.state == STOPPED or (task.state == FAILED and is_stopped):
                return  # It continues with another start.
            if task.state == DONE:
                trial.reports, trial.value = reports_of(evaluations), value_of(evaluations, reached)
                if trial.value is None:
                    task.state, task.reason = FAILED, "it has no evaluation in the last quarter of what it ran"
            trial.state = task.state
            records.write(self.folder)
        self._refused_in_a_row = self._refused_in_a_row + 1 if task.exit_code == EXIT_BAD_INPUT else 0
        if self._refused_in_a_row == _MOST_REFUSED:
            self.refusal = f"{task}: {task.reason}"

    def write_results(self) -> list[str]:
        """Writes trials.csv; returns lines for the user: the best trials, what mattered, and how to continue."""
        text, records = io.StringIO(), Records.read(self.folder)
        settings, states = records.settings(), [trial.state for trial in records.trials]
        values = {number: trial.value for number, trial in enumerate(records.trials) if trial.value is not None}
        best = sorted(values, key=lambda number: values[number], reverse=True)
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["trial", "state", "value", *records.space])
        for number, trial in enumerate(records.trials):
            words = [json.dumps(settings[number][name]) for name in records.space]
            writer.writerow([number, trial.state, values.get(number, ""), *words])
        write_atomically(self.folder / "trials.csv", text.getvalue().encode())
        lines = [
            f"{len(best)} trials have a value, {states.count(PRUNED)} were pruned, {states.count(FAILED)} have failed, "
            f"{states.count(RUNNING)} are unfinished: {self.folder / 'trials.csv'}"
        ]
        lines += [f"{values[number]:12.5g}  task {number}: {in_words(settings[number])}" for number in best[:10]]
        if len(best) >= _FEWEST_FOR_IMPORTANCE and len(set(values.values())) > 1:
            # Shares of the variance of the better trials (PED-ANOVA, Watanabe et al. 2023).
            shares = optuna.importance.get_param_importances(
                records.to_optuna(), evaluator=optuna.importance.PedAnovaImportanceEvaluator()
            )
            lines.append("matters most: " + ", ".join(f"{name} {share:.0%}" for name, share in shares.items()))
        if best:
            words = [f"--set {shlex.quote(assignment(name, value))}" for name, value in settings[best[0]].items()]
            lines.append("best: " + " ".join(words))
        return lines


def main() -> int:
    """The program; returns its exit code."""
    folder, command, view = Path(sys.argv[1]), sys.argv[2:], View()
    worker = folder / f"worker_{os.environ[TASK]}"

    def show(tasks: Sequence[Task]) -> None:
        view.show(tasks)
        for paths in [task.paths for task in tasks if task.state == RUNNING]:
            worker.mkdir(exist_ok=True)
            for path in (paths.trainer_checkpoints, paths.heartbeats, paths.logs, paths.status_json):
                link = worker / path.name
                if not link.is_symlink() or link.readlink() != path:
                    link.unlink(missing_ok=True)
                    link.symlink_to(path)

    return Study(folder, command, None).run([Place()], StopFlag.of_supervisor(), show)


if __name__ == "__main__":
    exit_with(main)
