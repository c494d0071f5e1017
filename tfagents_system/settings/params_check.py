"""Finds impossible values and misspelt names in TrainParams and in the JSON, before any process starts."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from tfagents_system.agents.algorithms import (
    ALGORITHMS,
    PARTS,
    network_findings,
    optimizer_findings,
    optimizer_settings,
)
from tfagents_system.agents.algorithms import value as value_of_algorithm
from tfagents_system.agents.iteration_counts import most_updates_per_env_step, updates_ratio
from tfagents_system.checks.hyperparameters import Hyperparameter, described_by
from tfagents_system.checks.rules import broken, integer_from, is_kept
from tfagents_system.checks.schedules import Schedule, is_schedule
from tfagents_system.checks.spelling import near_misses
from tfagents_system.errors import shown
from tfagents_system.settings import learning_notes, other_libraries, own_attributes
from tfagents_system.settings.actor_rules import actor_findings, discrete_findings
from tfagents_system.settings.effects import without_effect
from tfagents_system.settings.own_attributes import is_set
from tfagents_system.settings.prior_rules import prior_findings, prior_notes
from tfagents_system.settings.reset_rules import reset_findings
from tfagents_system.settings.sample_form_checks import sample_form_findings, sample_form_notes
from tfagents_system.settings.schedule_checks import schedule_together_findings
from tfagents_system.train_params_base import TrainParamsBase

CONFIG_KEYS = ("horizon", "curriculum")
_NESTED_HORIZON = '{"horizon": 200}'
_SIMILARITY_OF_NAMES = 0.6  # They are short.
_HORIZON = integer_from(1)


def check_env_config(env_config: Mapping[str, Any]) -> list[str]:
    """What is wrong with the JSON of SAC_CONFIG, one sentence each; `check_curriculum` looks at its curriculum."""
    misses = near_misses(env_config, CONFIG_KEYS)
    findings = [f'"{wrong}" in SAC_CONFIG is not known: "{right}" is meant' for wrong, right in misses]
    if "horizon" not in env_config:
        if "horizon" not in dict(misses).values():
            findings.append(
                f'SAC_CONFIG has no "horizon", the maximum steps of an episode: add it, as in {_NESTED_HORIZON}'
            )
    elif not is_kept(_HORIZON, env_config["horizon"]):
        findings.append(f'"horizon" in SAC_CONFIG must be {_HORIZON.words}, found {shown(env_config["horizon"])}')
    return findings


def check_params(params: TrainParamsBase) -> list[str]:
    """What is wrong with TrainParams, one sentence each: misspelt names, wrong types, impossible values."""
    findings = [
        f"TrainParams.{wrong} is not known: {right} is meant"
        for is_hook in (True, False)
        for wrong, right in near_misses(own_attributes.own_names(params, is_hook), _known_names(is_hook))
        if other_libraries.meant(wrong) is None  # Such as learning_rate, which looks like alpha_learning_rate.
    ]
    described = described_by(TrainParamsBase).values()
    wrong_values = {each.name: found for each in described if (found := _check_value(params, each))}
    findings += [finding for found in wrong_values.values() for finding in found]
    findings += _check_hooks(params)
    for findings_of in _TOGETHER:
        with contextlib.suppress(_AlreadyReported):
            findings += findings_of(_RightValues(params, wrong_values))
    return findings


class _AlreadyReported(AttributeError):
    """A value is wrong by itself, which is reported already: its combination with others is not checked."""


class _RightValues:
    """TrainParams without the attributes whose values are wrong."""

    def __init__(self, params: TrainParamsBase, wrong: Collection[str]) -> None:
        self._params, self._wrong = params, wrong

    def __getattr__(self, name: str) -> Any:
        if name in self._wrong:
            raise _AlreadyReported
        return getattr(self._params, name)

    def is_set(self, name: str) -> bool:
        return is_set(self._params, name)

    def is_given(self, name: str, instead_of: str) -> bool:
        """Whether `--set` gives the one and not the other."""
        source = self._params._source
        return source is not None and name in source.attributes and instead_of not in source.attributes


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
    own = {name: inspect.getattr_static(params, name) for name in own_attributes.own_names(params, is_hook=False)}
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


def advice(params: TrainParamsBase) -> list[str]:
    """What works but is seldom meant, one sentence each; every value is right by itself."""
    notes = prior_notes(params)
    has_ratio = params.asynchronous or updates_ratio(params) is not None
    if params.algorithm in ("redq", "droq") and params.actor_update_period is None and not has_ratio:
        notes.append(
            f"algorithm={params.algorithm!r} without updates_per_env_step: the actor steps in each update, in the "
            "paper once in 20, once for each step of the environment. Set updates_per_env_step, or actor_update_period"
        )
    notes += sample_form_notes(params) + learning_notes.curriculum(params)
    if is_kept(_HORIZON, params.env_config.get("horizon")) or params.initial_collect_steps is not None:
        notes += learning_notes.random_first(params)
    return notes + without_effect(params)


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


def _fixed_findings(params: Any) -> list[str]:
    return [
        f"TrainParams.{name}={shown(value)} does not work with algorithm={params.algorithm!r}, {why}: set it to None, "
        "or choose another algorithm"
        for name, why in ALGORITHMS[params.algorithm].fixed.items()
        if (value := getattr(params, name, None)) is not None
    ]


def _buffer_findings(params: Any) -> list[str]:
    if not is_kept(_HORIZON, params.env_config.get("horizon")):
        return []
    least = {"an episode of horizon": params.horizon, "a minibatch of batch_size": params.batch_size}
    return [
        f"TrainParams.buffer_size={params.buffer_size} is less than {name}={steps} steps: raise it to at least {steps}"
        for name, steps in least.items()
        if params.buffer_size < steps
    ]


def _sequence_findings(params: Any) -> list[str]:
    if not params.recurrent or params.n_step == 1:
        return []
    return [
        f"TrainParams.n_step={params.n_step} does not work with recurrent=True, sequences are trained on step by "
        "step: set n_step=1"
    ]


def _ratio_findings(params: Any) -> list[str]:
    if not params.asynchronous:
        return []
    least, most = params.min_updates_per_env_step, most_updates_per_env_step(params)
    if least is None or least <= most:
        return []
    return [
        f"TrainParams.min_updates_per_env_step={least} must be at most updates_per_env_step={most:g}, no more updates "
        "are allowed: lower it, or raise updates_per_env_step"
    ]


def _period_findings(params: Any) -> list[str]:
    """Both kinds of a period; one that `--set` gives stands for the other one of the file."""
    kinds = (f"{kind}_period" for kind in ("eval", "checkpoint"))
    return [
        f"TrainParams.{kind}_env_steps={steps} and {kind}_iters={getattr(params, f'{kind}_iters')} are two lengths of "
        "one period: remove one"
        for kind in kinds
        if (steps := getattr(params, f"{kind}_env_steps")) is not None
        and params.is_set(f"{kind}_iters")
        and not params.is_given(f"{kind}_env_steps", instead_of=f"{kind}_iters")
    ]


def _share_findings(params: Any) -> list[str]:
    workers = params.compute_config.get("num_collect_workers", 1)
    if params.env_steps_per_iter is None or params.env_steps_per_iter >= workers:
        return []
    return [
        f"TrainParams.env_steps_per_iter={params.env_steps_per_iter} is less than a step for each of "
        f"SAC_NUM_COLLECT_WORKERS={workers} workers: raise it to at least {workers}, or take fewer workers"
    ]


def _evaluation_findings(params: Any) -> list[str]:
    if params.num_eval_episodes or params.stop_when is None:
        return []
    return [
        f"TrainParams.stop_when={shown(params.stop_when)} needs evaluations, and num_eval_episodes is 0: set it "
        "to at least 1, or stop_when to None (max_hours and callbacks_ctor end a run without them)"
    ]


def _memory_findings(params: Any) -> list[str]:
    why_not = ALGORITHMS[params.algorithm].why_not_recurrent
    if not why_not or not params.recurrent:
        return []
    return [
        f"TrainParams.recurrent=True does not work with algorithm={params.algorithm!r}, {why_not}: set it to False, "
        "or choose another algorithm"
    ]


def _subset_findings(params: Any) -> list[str]:
    few, all_of_them = (value_of_algorithm(params, name) for name in ("num_target_critics", "num_critics"))
    if "num_target_critics" in ALGORITHMS[params.algorithm].fixed or few <= all_of_them:
        return []
    return [
        f"TrainParams.num_target_critics={few} must be at most num_critics={all_of_them}, they are drawn from these: "
        "lower it, or raise num_critics"
    ]


def _quantile_findings(params: Any) -> list[str]:
    tqc = value_of_algorithm(params, "tqc")
    if not ALGORITHMS[params.algorithm].has_quantiles or tqc["num_dropped_quantiles"] < tqc["num_quantiles"]:
        return []
    return [
        f"TrainParams.tqc: num_dropped_quantiles={tqc['num_dropped_quantiles']} must be below "
        f"num_quantiles={tqc['num_quantiles']}, nothing would be left: lower it"
    ]


# What is wrong with several attributes together, where the value of each is right.
_TOGETHER: tuple[Callable[[Any], list[str]], ...] = (
    _buffer_findings,
    _sequence_findings,
    _ratio_findings,
    _period_findings,
    _share_findings,
    _evaluation_findings,
    _fixed_findings,
    _memory_findings,
    _subset_findings,
    _quantile_findings,
    optimizer_findings,
    schedule_together_findings,
    sample_form_findings,
    network_findings,
    reset_findings,
    prior_findings,
    actor_findings,
    discrete_findings,
)
