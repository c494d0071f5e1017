"""Settings in `critic_optimizer`, `actor_optimizer` and `alpha_optimizer` of TrainParams. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tfagents_system.agents.algorithms import ALGORITHMS
from tfagents_system.agents.iteration_counts import updates_of_run
from tfagents_system.checks.rules import Rule, integer_from, is_kept, number_above, number_where, or_none
from tfagents_system.checks.spelling import near_misses
from tfagents_system.errors import shown

PARTS = ("critic", "actor", "alpha")
_SIMILARITY = 0.6  # The name is refused anyway, so the suggestion may be a loose guess.


@dataclasses.dataclass(frozen=True)
class OptimizerSettings:
    """One optimizer with all settings filled in.

    Attributes:
      name: `adam`, `adamw`, `radam` or `sgd`.
      beta_1, beta_2: Of Adam: decay rates of its two moments.
      epsilon: Of Adam: added to the square root of the second moment.
      momentum: Of SGD.
      weight_decay: lambda. AdamW and RAdam: each step subtracts lambda * learning rate * weights (decoupled).
        Adam and SGD: lambda times the weights is added to the gradient, as an L2 term of the loss would.
      global_clipnorm: Maximum norm of the gradients of all its variables together; None: no limit.
      schedule: `constant`, `linear` or `cosine`, of the learning rate by train step.
      final_learning_rate: Where a schedule ends and stays.
      schedule_steps: Train steps until its end.
    """

    name: str
    beta_1: float
    beta_2: float
    epsilon: float
    momentum: float
    weight_decay: float
    global_clipnorm: float | None
    schedule: str
    final_learning_rate: float
    schedule_steps: int


_DEFAULTS: dict[str, Any] = {
    "name": "adam",
    "beta_1": 0.9,
    "beta_2": 0.999,
    "epsilon": 1e-7,
    "momentum": 0.0,
    "weight_decay": 0.0,
    "global_clipnorm": None,
    "schedule": "constant",
    "final_learning_rate": 0.0,
    "schedule_steps": None,
}
_ADAM, _SCHEDULE = ("beta_1", "beta_2", "epsilon"), ("final_learning_rate", "schedule_steps")
_OF_ALL = ("name", "weight_decay", "global_clipnorm", "schedule", *_SCHEDULE)
_SETTINGS = {
    **dict.fromkeys(("adam", "adamw", "radam"), (*_OF_ALL, *_ADAM)),
    "sgd": (*_OF_ALL, "momentum"),
}
# Optimizer arguments of other libraries, and their names here.
_ELSEWHERE = {
    "learning_rate": "{part}_learning_rate",
    "lr": "{part}_learning_rate",
    "clipnorm": "gradient_clipping",
}
_SCHEDULES = ("constant", "linear", "cosine")
_ADAMW_DECAY = 0.01  # As AdamW has it in PyTorch and in SimBa.


def optimizer_settings(params: Any, part: str) -> OptimizerSettings:
    """Settings of TrainParams for `critic`, `actor` or `alpha`; a schedule takes the whole run by default."""
    given = getattr(params, f"{part}_optimizer")
    defaults = dict(_DEFAULTS)
    if given.get("name") == "adamw":
        defaults["weight_decay"] = _ADAMW_DECAY
    if part != "alpha":
        defaults["beta_1"] = ALGORITHMS[params.algorithm].adam_beta_1
    settings = OptimizerSettings(**{**defaults, **given})
    if settings.schedule_steps is None:
        return dataclasses.replace(settings, schedule_steps=updates_of_run(params) or 0)
    return settings


def settings_in_use(params: Any, part: str) -> dict[str, Any]:
    """Those that act, by name."""
    settings = optimizer_settings(params, part)
    without = _SCHEDULE if settings.schedule == "constant" else ()
    return {name: getattr(settings, name) for name in _SETTINGS[settings.name] if name not in without}


def optimizer_findings(attribute: str, given: Mapping[str, Any]) -> list[str]:
    """Mistakes in one of the three attributes, one sentence each.

    Args:
      attribute: Its name, `critic_optimizer` and so on.
      given: Its value, a dictionary.
    """
    where = f"TrainParams.{attribute}"
    name = given.get("name", _DEFAULTS["name"])
    if name not in tuple(_SETTINGS):
        return [f'{where}["name"] must be {_one_of(_SETTINGS)}, found {shown(name)}{_meant(name, _SETTINGS)}']
    findings = []
    for key, value in given.items():
        if key in _ELSEWHERE:
            meant = _ELSEWHERE[key].format(part=attribute.removesuffix("_optimizer"))
            findings.append(f'{where}["{key}"] is TrainParams.{meant}: set that instead')
        elif key not in _SETTINGS[name]:
            findings.append(_unknown_key(where, name, key))
        elif (finding := _wrong_value(key, value)) is not None:
            findings.append(f'{where}["{key}"] must be {finding}, found {shown(value)}')
    return findings or _check_together(attribute, given, name)


def whole_run_findings(attribute: str, given: Mapping[str, Any]) -> list[str]:
    """The finding for a schedule over the whole run if its number of updates is not known beforehand."""
    if given.get("schedule", "constant") == "constant" or given.get("schedule_steps") is not None:
        return []
    return [
        f'TrainParams.{attribute} needs "schedule_steps" where the lengths of episodes decide how many updates the run '
        "has: add the train steps that the schedule takes"
    ]


def schedule_advice(params: Any, part: str) -> str:
    """A note if a learning rate is 0 for a large part of the run; otherwise empty."""
    settings = optimizer_settings(params, part)
    updates = updates_of_run(params)
    if settings.schedule == "constant" or settings.final_learning_rate > 0 or updates is None:
        return ""
    if settings.schedule_steps >= updates:
        return ""
    return (
        f"{part}_optimizer has learned its last after {settings.schedule_steps} of {updates} updates, where its "
        'learning rate is 0: raise "schedule_steps", or give "final_learning_rate"'
    )


def _unknown_key(where: str, name: str, key: Any) -> str:
    known = _SETTINGS[name]
    if key in _DEFAULTS:
        others = " and ".join(other for other, settings in _SETTINGS.items() if key in settings)
        return f'{where}["{key}"] is a setting of {others}, not of {name}: remove it, or choose another name'
    return f"{where}[{shown(key)}] is not known{_meant(key, known) or f': {name} has ' + ', '.join(known)}"


def _wrong_value(key: str, value: Any) -> str | None:
    """The rule that a value breaks, in words."""
    return None if is_kept(_RULES[key], value) else _RULES[key].words


def _check_together(attribute: str, given: Mapping[str, Any], name: str) -> list[str]:
    where, schedule = f"TrainParams.{attribute}", given.get("schedule", _DEFAULTS["schedule"])
    findings = [
        f'{where}["{key}"] has no effect with a constant learning rate: set "schedule" to "linear" or "cosine", '
        "or remove it"
        for key in _SCHEDULE
        if key in given and schedule == "constant"
    ]
    decays = given.get("weight_decay", _ADAMW_DECAY if name == "adamw" else 0.0) > 0
    if attribute == "alpha_optimizer" and decays:
        findings.append(
            f"{where} has a weight decay, which would pull log(alpha) to 0 whatever the entropy is: use adam or sgd "
            'with "weight_decay": 0'
        )
    return findings


def _one_of(names: Any) -> str:
    return " or ".join(f'"{name}"' for name in names)


def _meant(name: Any, known: Any) -> str:
    meant = near_misses([name], known, _SIMILARITY) if isinstance(name, str) else []
    return f': "{meant[0][1]}" is meant' if meant else ""


_BETA = number_where("a number of at least 0 and below 1", lambda value: 0 <= value < 1)
_NOT_NEGATIVE = number_where("a number of at least 0", lambda value: value >= 0)
_RULES: dict[str, Rule] = {
    "name": Rule(_one_of(_SETTINGS), lambda value: value in tuple(_SETTINGS)),
    "beta_1": _BETA,
    "beta_2": _BETA,
    "epsilon": number_above(0),
    "momentum": _BETA,
    "weight_decay": _NOT_NEGATIVE,
    "global_clipnorm": or_none(number_above(0), "None for no limit"),
    "schedule": Rule(_one_of(_SCHEDULES), lambda value: value in _SCHEDULES),
    "final_learning_rate": _NOT_NEGATIVE,
    "schedule_steps": or_none(integer_from(1), "None for the whole run"),
}
