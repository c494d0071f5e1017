"""Finds impossible values and misspelt names in TrainParams and in the JSON, before any process starts."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from tfagents_system.agents.algorithms import ALGORITHMS, PARTS, optimizer_settings
from tfagents_system.agents.algorithms import value as value_of_algorithm
from tfagents_system.checks.hyperparameters import Hyperparameter, described_by
from tfagents_system.checks.rules import broken, is_kept
from tfagents_system.checks.schedules import Schedule, is_schedule
from tfagents_system.checks.spelling import near_misses
from tfagents_system.errors import shown
from tfagents_system.settings import other_libraries
from tfagents_system.settings.load_params import own_names
from tfagents_system.settings.rules import HORIZON, cross_findings
from tfagents_system.train_params_base import TrainParamsBase

CONFIG_KEYS = ("horizon", "curriculum")
_EXAMPLE = '{"horizon": 200}'
_SIMILARITY_OF_NAMES = 0.6  # They are short.
_PLAIN = (bool, int, float, str, list, tuple, dict, type(None))


def check_env_config(env_config: Mapping[str, Any]) -> list[str]:
    """What is wrong with the JSON of SAC_CONFIG, one sentence each; `check_curriculum` looks at its curriculum."""
    misses = near_misses(env_config, CONFIG_KEYS)
    findings = [f'"{wrong}" in SAC_CONFIG is not known: "{right}" is meant' for wrong, right in misses]
    if "horizon" not in env_config:
        if "horizon" not in dict(misses).values():
            findings.append(
                'SAC_CONFIG has no "horizon", the maximum steps of an episode, and no time limit of the environment is '
                f"known: add it, as in {_EXAMPLE}"
            )
    elif not is_kept(HORIZON, env_config["horizon"]):
        findings.append(f'"horizon" in SAC_CONFIG must be {HORIZON.words}, found {shown(env_config["horizon"])}')
    return findings


def check_params(params: TrainParamsBase) -> list[str]:
    """What is wrong with TrainParams, one sentence each: misspelt names, wrong types, impossible values."""
    findings = [
        f"TrainParams.{wrong} is not known: {right} is meant"
        for is_hook in (True, False)
        for wrong, right in near_misses(own_names(params, is_hook), _known_names(is_hook))
        if other_libraries.meant(wrong) is None  # Such as learning_rate, which looks like alpha_learning_rate.
    ]
    described = described_by(TrainParamsBase).values()
    wrong_values = {each.name: found for each in described if (found := _check_value(params, each))}
    findings += [finding for found in wrong_values.values() for finding in found]
    return [*findings, *_foreign_findings(params), *_check_hooks(params), *cross_findings(params, wrong_values)]


def _foreign_findings(params: TrainParamsBase) -> list[str]:
    """Names of other libraries' settings, which would change nothing."""
    own = {name: inspect.getattr_static(params, name) for name in own_names(params, is_hook=False)}
    return [
        f"TrainParams.{name}={shown(value)} is a setting of {other_libraries.in_words(setting.libraries)}: "
        f"{setting.ours}; rename it if it is your own"
        for name, value in own.items()
        if (setting := other_libraries.meant(name)) and isinstance(value, _PLAIN)
    ]


def _check_value(params: TrainParamsBase, described: Hyperparameter) -> list[str]:
    name, rule = described.name, described.rule
    try:
        value = getattr(params, name)
    except Exception as error:  # A property of the user's.
        return [f"TrainParams.{name} raises {type(error).__name__}: {error}: it must be {rule.words}"]
    return [f"{finding}{_meant_algorithm(name, value)}" for finding in broken(rule, f"TrainParams.{name}", value)]


def _meant_algorithm(name: str, value: Any) -> str:
    if name != "algorithm" or not isinstance(value, str):
        return ""
    meant = near_misses([value], ALGORITHMS, _SIMILARITY_OF_NAMES)
    return f": {meant[0][1]!r} is meant" if meant else ""


def check_deterministic(params: TrainParamsBase) -> list[str]:
    """Which settings do not work with SAC_DETERMINISTIC=1, one sentence each."""
    return sorted(
        f"TrainParams.{each.name}={shown(value)} does not work with SAC_DETERMINISTIC=1, {each.not_deterministic.why}: "
        f"set it to {each.default!r}, or SAC_DETERMINISTIC=0"
        for each in described_by(TrainParamsBase).values()
        if each.not_deterministic and (value := getattr(params, each.name)) != each.default
    )


def resolved_attributes(params: TrainParamsBase) -> dict[str, Any]:
    """The values that a run has, by name: of TrainParamsBase, and those of the user's own that `--set` can give.

    None is replaced by what the algorithm has instead; optimizers and schedules have all of their settings. What
    follows from the environment (`target_entropy`) stays None.
    """
    described = described_by(TrainParamsBase)
    known = {name: value_of_algorithm(params, name) for name in sorted(described)}
    known |= {
        name: Schedule.of(known[name]).to_json()
        for name, each in described.items()
        if each.takes_schedule and is_schedule(known[name])
    }
    known |= {f"{part}_optimizer": optimizer_settings(params, part) for part in PARTS}
    own = {name: inspect.getattr_static(params, name) for name in own_names(params, is_hook=False)}
    return known | {
        name: value for name, value in own.items() if name not in known and name[0] != "_" and _is_plain(value)
    }


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Whether JSON can represent it, and a person can read it."""
    if isinstance(value, list | tuple | dict):
        within = value.values() if isinstance(value, dict) else value
        has_names = not isinstance(value, dict) or all(isinstance(key, str) for key in value)
        return has_names and depth < 10 and len(value) <= 1000 and all(_is_plain(each, depth + 1) for each in within)
    return value is None or isinstance(value, bool | int | float | str)


def _known_names(is_hook: bool) -> list[str]:
    names = [name for name in dir(TrainParamsBase) if not name.startswith("_")]
    known = [name for name in names if callable(getattr(TrainParamsBase, name)) == is_hook]
    return known if is_hook else [*known, "env_config", "compute_config"]


def _check_hooks(params: TrainParamsBase) -> list[str]:
    return [
        f"TrainParams.{name} must be a method, found {shown(getattr(params, name))}: "
        "it is a hook, see train_params_base.py; rename yours"
        for name in _known_names(is_hook=True)
        if not callable(getattr(params, name))
    ]
