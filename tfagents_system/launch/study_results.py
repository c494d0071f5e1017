"""What a study has found: a table, a plot of what mattered, and the settings to go on with."""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Sequence
from pathlib import Path

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, TrialState

from tfagents_system.launch.trials import settings_of
from tfagents_system.machine.files import write_atomically
from tfagents_system.settings.grid import assignment, in_words
from tfagents_system.settings.search_spaces import Space

_SHOWN = 10
_FEWEST_FOR_IMPORTANCE = 8
_BEST, _OTHERS = "#0072B2", "#999999"  # Okabe and Ito's: told apart by everybody.


def finished(study: optuna.Study) -> list[FrozenTrial]:
    """Trials with a value, the best first."""
    done = study.get_trials(states=(TrialState.COMPLETE,))
    return sorted(done, key=lambda trial: trial.value or 0.0, reverse=True)


def write(study: optuna.Study, space: Space, folder: Path) -> list[str]:
    """Writes trials.csv and study.png into the study's folder; returns lines for the user."""
    _write_table(study, space, folder / "trials.csv")
    best = finished(study)
    counts = {state: len(study.get_trials(states=(state,))) for state in TrialState}
    lines = [
        f"{len(best)} trials have a value, {counts[TrialState.PRUNED]} were pruned, {counts[TrialState.FAIL]} have "
        f"failed, {counts[TrialState.RUNNING]} are unfinished: {folder / 'trials.csv'}"
    ]
    if not best:
        return lines
    lines += [f"{t.value:12.5g}  task {t.number}: {in_words(settings_of(space, t.params))}" for t in best[:_SHOWN]]
    importances = _importances(study)
    _draw(study, importances, folder / "study.png")
    if importances:
        lines.append("matters most: " + ", ".join(f"{name} {share:.0%}" for name, share in importances.items()))
    lines.append(f"plot: {folder / 'study.png'}")
    settings = settings_of(space, best[0].params)
    words = [shlex.quote(assignment(name, value)) for name, value in settings.items()]
    lines.append("best: " + " ".join(f"--set {word}" for word in words))
    return lines


def _write_table(study: optuna.Study, space: Space, path: Path) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["trial", "state", "value", *space])
    for trial in study.get_trials(deepcopy=False):
        settings = settings_of(space, trial.params)
        cells = [json.dumps(settings[name]) if name in settings else "" for name in space]
        writer.writerow([trial.number, trial.state.name.lower(), "" if trial.value is None else trial.value, *cells])
    write_atomically(path, text.getvalue().encode())


def _importances(study: optuna.Study) -> dict[str, float]:
    """Shares of the variance of the better trials (PED-ANOVA, Watanabe et al. 2023); empty with too few trials."""
    done = finished(study)
    if len(done) < _FEWEST_FOR_IMPORTANCE or len({trial.value for trial in done}) < 2:
        return {}
    return get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())


def _draw(study: optuna.Study, importances: dict[str, float], path: Path) -> None:
    from matplotlib.figure import Figure

    done = sorted(finished(study), key=lambda trial: trial.number)
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    numbers, values = [trial.number for trial in done], [trial.value or 0.0 for trial in done]
    left.plot(numbers, values, "o", color=_OTHERS, label="trials")
    left.step(numbers, _best_so_far(values), where="post", color=_BEST, label="best so far")
    left.set(xlabel="trial", ylabel="mean return, last quarter of the run")
    left.xaxis.get_major_locator().set_params(integer=True)
    left.legend()
    names = list(importances)[::-1]
    right.barh(names, [importances[name] for name in names], color=_BEST)
    right.set(xlabel="share of what makes trials good", title="" if names else "too few trials to say what matters")
    right.tick_params(labelbottom=bool(names), bottom=bool(names), left=bool(names), labelleft=bool(names))
    figure.savefig(path, dpi=120)


def _best_so_far(values: Sequence[float]) -> list[float]:
    return [max(values[: k + 1]) for k in range(len(values))]
