"""What is wrong with what samples are: n-step transitions, mini-races, potentials, priorities."""

from __future__ import annotations

from typing import Any

from tfagents_system.agents.algorithms import ALGORITHMS
from tfagents_system.checks.schedules import Schedule
from tfagents_system.hyperparameters import RACE_END_STEPS
from tfagents_system.train_params_base import TrainParamsBase, has_potential


def sample_form_findings(params: Any) -> list[str]:
    """What is wrong with several attributes together, one sentence each; each is right by itself."""
    findings_of = (_cut_findings, _race_findings, _potential_findings, _priority_findings)
    return [finding for findings in findings_of for finding in findings(params)]


def sample_form_notes(params: TrainParamsBase) -> list[str]:
    """What works but is seldom meant, one sentence each."""
    steps, notes = params.mini_race_steps, []
    if max(Schedule.of(params.discount).values) == 1 and steps is None:
        notes.append(
            "discount=1 without mini_race_steps: values are sums of all rewards to an episode's end, and grow without "
            "bound where episodes do not terminate. Lower discount, or set mini_race_steps"
        )
    if steps is not None and steps > params.horizon:
        notes.append(
            f"mini_race_steps={steps} is more than the horizon of {params.horizon} steps: no episode lasts as long. "
            "Lower it, or raise the horizon"
        )
    return notes


def _cut_findings(params: Any) -> list[str]:
    if not params.cut_at_exploration or ALGORITHMS[params.algorithm].actions == "discrete":
        return []
    return [
        f"TrainParams.cut_at_exploration=True does not work with algorithm={params.algorithm!r}, its actions are "
        "samples, and none is the greedy one: set it to None, or choose another algorithm"
    ]


def _race_findings(params: Any) -> list[str]:
    steps = params.mini_race_steps
    if steps is None:
        return []
    findings = []
    if steps <= params.n_step:
        findings.append(
            f"TrainParams.mini_race_steps={steps} must be above n_step={params.n_step}, a transition is a part of a "
            "mini-race: raise it, or lower n_step"
        )
    first, second = params.mini_race_oversampling
    if first - 2 * second >= steps:
        findings.append(
            f"TrainParams.mini_race_oversampling={tuple(params.mini_race_oversampling)} is about the times 1 to "
            f"{first - 2 * second}, mini_race_steps={steps} has those below {steps}: lower the first number, or set it "
            "to (0, 0), which draws all times alike"
        )
    if params.recurrent:
        findings.append(
            f"TrainParams.mini_race_steps={steps} does not work with recurrent=True, sequences have no time of their "
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


def _priority_findings(params: Any) -> list[str]:
    exponent, steps = params.priority_exponent, params.mini_race_steps
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
            f"TrainParams.priority_exponent={exponent:g} does not work with mini_race_steps={steps}, the last "
            f"{RACE_END_STEPS} steps of a mini-race change no priority: raise that, or set priority_exponent to None"
        )
    return findings
