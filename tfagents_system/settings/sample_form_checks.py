"""What is wrong with what samples are: n-step transitions, mini-races, potentials, hindsight, priorities."""

from __future__ import annotations

from typing import Any

from tfagents_system.agents.algorithms import ALGORITHMS, value
from tfagents_system.agents.iteration_counts import prior_samples
from tfagents_system.checks.schedules import Schedule
from tfagents_system.hyperparameters import RACE_END_STEPS
from tfagents_system.train_params_base import TrainParamsBase, has_potential, overrides_any


def sample_form_findings(params: Any) -> list[str]:
    """What is wrong with several attributes together, one sentence each; each is right by itself."""
    findings_of = (_cut_findings, _race_findings, _potential_findings, _hindsight_findings, _priority_findings)
    return [finding for findings in findings_of for finding in findings(params)]


def sample_form_notes(params: TrainParamsBase) -> list[str]:
    """What works but is seldom meant, one sentence each."""
    steps, notes = _race_steps(params), []
    if max(Schedule.of(params.discount).values) == 1 and steps is None:
        notes.append(
            "discount=1 without mini_race: values are sums of all rewards to an episode's end, and grow without "
            "bound where episodes do not terminate. Lower discount, or set mini_race"
        )
    if steps is not None and steps > params.horizon:
        notes.append(
            f"mini_race.steps={steps} is more than the horizon of {params.horizon} steps: no episode lasts as long. "
            "Lower it, or raise the horizon"
        )
    return notes


def _race_steps(params: Any) -> int | None:
    return value(params, "mini_race")["steps"] if params.mini_race is not None else None


def _cut_findings(params: Any) -> list[str]:
    if not params.cut_at_exploration or ALGORITHMS[params.algorithm].actions == "discrete":
        return []
    return [
        f"TrainParams.cut_at_exploration=True does not work with algorithm={params.algorithm!r}, its actions are "
        "samples, and none is the greedy one: set it to None, or choose another algorithm"
    ]


def _race_findings(params: Any) -> list[str]:
    steps = _race_steps(params)
    if steps is None:
        return []
    findings = []
    if steps <= params.n_step:
        findings.append(
            f"TrainParams.mini_race.steps={steps} must be above n_step={params.n_step}, a transition is a part of a "
            "mini-race: raise it, or lower n_step"
        )
    first, second = value(params, "mini_race")["oversampling"]
    if first - 2 * second >= steps:
        findings.append(
            f"TrainParams.mini_race.oversampling={(first, second)} is about the times 1 to "
            f"{first - 2 * second}, mini_race.steps={steps} has those below {steps}: lower the first number, or set it "
            "to (0, 0), which draws all times alike"
        )
    if params.recurrent:
        findings.append(
            "TrainParams.mini_race does not work with recurrent=True, sequences have no time of their "
            "own: set it to None, or recurrent to False"
        )
    return findings


def _potential_findings(params: Any) -> list[str]:
    if not (params.recurrent and has_potential(params)):
        return []
    return [
        "TrainParams.potential does not work with recurrent=True, the rewards of sequences are not shaped: remove it, "
        "or set recurrent to False"
    ]


def _hindsight_findings(params: Any) -> list[str]:
    try:
        share = hindsight_share_of(params)
    except Exception:
        return []  # What a hook raises is told where it is used first.
    if share is None:
        if params.hindsight_share is None:
            return []
        return [
            f"TrainParams.hindsight_share={params.hindsight_share:g} has no effect, the form that sample_form_ctor "
            "returns has no hindsight: pass it one (replay/hindsight.py), or set hindsight_share to None"
        ]
    what, remedy = hindsight_in_words(params, share)
    begin = f"{what} does not work with"
    findings = []
    if params.recurrent:
        findings.append(
            f"{begin} recurrent=True, sequences keep the goal that they were collected for: {remedy}, or "
            "recurrent to False"
        )
    if params.mini_race is not None:
        findings.append(f"{begin} mini_race: {remedy}, or mini_race to None")
    if has_potential(params):
        findings.append(
            f"{begin} TrainParams.potential, which is stored for the goal that a step was collected for: remove it, or "
            f"{remedy}"
        )
    if params.normalize_rewards:
        findings.append(
            f"{begin} normalize_rewards=True, which divides by the returns of the goals that steps were collected for: "
            "set it to False"
        )
    own = params.batch_size - prior_samples(params)
    if not round(share * own):
        findings.append(f"{what} of {own} samples is less than half a sample: raise it, or batch_size")
    return findings


def hindsight_share_of(params: Any) -> float | None:
    """Of the form that is drawn; None: no sample gets another goal.

    The toolkit's own form has `hindsight_share`, which may not fit what else it is asked for: it is not built here.
    """
    if not overrides_any(params, "sample_form_ctor"):
        asked: float | None = params.hindsight_share
        return asked
    hindsight = params.sample_form_ctor().hindsight
    return None if hindsight is None else float(hindsight.share)


def hindsight_in_words(params: Any, share: float) -> tuple[str, str]:
    """Who asks for it, and what ends that, for errors."""
    if overrides_any(params, "sample_form_ctor"):
        return f"the hindsight of sample_form_ctor, share {share:g},", "return a form without hindsight"
    return f"TrainParams.hindsight_share={share:g}", "set hindsight_share to None"


def _priority_findings(params: Any) -> list[str]:
    exponent, steps = params.priority_exponent, _race_steps(params)
    if exponent is None:
        return []
    findings = []
    if params.recurrent:
        findings.append(
            f"TrainParams.priority_exponent={exponent:g} does not work with recurrent=True, sequences have no "
            "priorities: set it to None, or recurrent to False"
        )
    if steps is not None and steps <= RACE_END_STEPS:
        findings.append(
            f"TrainParams.priority_exponent={exponent:g} does not work with mini_race.steps={steps}, the last "
            f"{RACE_END_STEPS} steps of a mini-race change no priority: raise that, or set priority_exponent to None"
        )
    return findings
