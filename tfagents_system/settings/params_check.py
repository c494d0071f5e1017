"""Finds impossible values and misspelt names in TrainParams and in the JSON, before any process starts."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from tfagents_system.agents.algorithms import ALGORITHMS, Algorithm
from tfagents_system.agents.algorithms import value as value_of_algorithm
from tfagents_system.agents.network_options import network_findings
from tfagents_system.agents.optimizer_settings import (
    PARTS,
    optimizer_findings,
    schedule_advice,
    settings_in_use,
    whole_run_findings,
)
from tfagents_system.checks.rules import Rule, integer_from, is_integer, is_kept, is_number, or_none
from tfagents_system.checks.spelling import near_misses
from tfagents_system.errors import shown
from tfagents_system.settings import early_end, learning_notes, other_libraries, own_attributes
from tfagents_system.settings.effects import without_effect
from tfagents_system.train_params_base import TrainParamsBase

CONFIG_KEYS = ("horizon", "curriculum")
_NESTED_HORIZON = '{"horizon": 200}'


def _is_layers(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(is_integer(units) and units >= 1 for units in value)


_POSITIVE: Rule = ("a number above 0", lambda value: is_number(value) and value > 0)
_POSITIVE_OR_NONE = or_none(_POSITIVE)
_ANY_NUMBER: Rule = ("a finite number", is_number)
_FRACTION: Rule = ("a number in [0, 1]", lambda value: is_number(value) and 0 <= value <= 1)
_WEIGHT: Rule = ("a number above 0 and at most 1", lambda value: is_number(value) and 0 < value <= 1)
# Dropout draws in steps of 1/65536: a smaller rate would be none at all, a larger one would keep nothing.
_DROPOUT: Rule = ("0 or a number in [0.0001, 0.99]", lambda x: is_number(x) and (x == 0 or 1e-4 <= x <= 0.99))
_LOG_ALPHA: Rule = ("a number of at most 50", lambda value: is_number(value) and value <= 50)
_LAYERS: Rule = ("a tuple of positive integers such as (256, 256)", _is_layers)
_BOOL: Rule = ("True or False", lambda value: isinstance(value, bool))
_COUNT = integer_from(1)
_BOOL_OR_NONE = or_none(_BOOL)
_OPTIMIZER: Rule = ('a dictionary such as {"name": "adamw"}', lambda value: isinstance(value, Mapping))
_COUNT_OR_NONE = or_none(_COUNT)
_OF_NETWORKS = (
    "algorithm",
    "network",
    "critic_layer_norm",
    "critic_dropout",
    "batch_renormalization",
    "batch_renormalization_warmup_steps",
    "normalize_observations",
    "recurrent",
    "actor_fc_layer_params",
    "critic_joint_fc_layer_params",
)
_SIMILARITY_OF_NAMES = 0.6  # They are short.
_NAMES = ", ".join(map(repr, ALGORITHMS))

_RULES: dict[str, Rule] = {
    "algorithm": (f"one of {_NAMES}", lambda value: isinstance(value, str) and value in ALGORITHMS),
    "discount": _FRACTION,
    "critic_learning_rate": _POSITIVE,
    "actor_learning_rate": _POSITIVE,
    "alpha_learning_rate": _POSITIVE,
    "target_update_tau": _WEIGHT,
    "target_update_period": _COUNT,
    "gradient_clipping": _POSITIVE_OR_NONE,
    "learn_entropy_coef": _BOOL,
    "sac_log_alpha": _LOG_ALPHA,
    "target_entropy": or_none(_ANY_NUMBER),
    "train_batch_size": _COUNT,
    "share_log_pi": _BOOL,
    "matmul_precision": ("'float32' or 'bfloat16'", lambda value: value in ("float32", "bfloat16")),
    "num_critics": _COUNT_OR_NONE,
    "num_target_critics": _COUNT_OR_NONE,
    "actor_update_period": _COUNT_OR_NONE,
    "num_quantiles": integer_from(2),
    "num_dropped_quantiles": integer_from(0),
    "actor_fc_layer_params": _LAYERS,
    "critic_joint_fc_layer_params": _LAYERS,
    "recurrent": _BOOL,
    "recurrent_sequence_length": _COUNT,
    "recurrent_lstm_units": _COUNT,
    "frame_stack": _COUNT,
    "image_encoder_filters": ("a tuple of positive integers such as (32, 32, 32, 32), or ()", _is_layers),
    "image_encoder_features": _COUNT,
    "image_augmentation_pixels": or_none(integer_from(0)),
    "action_history": integer_from(0),
    "network": ("'mlp' or 'simba'", lambda value: value in ("mlp", "simba")),
    "critic_layer_norm": _BOOL_OR_NONE,
    "critic_dropout": or_none(_DROPOUT),
    "batch_renormalization": _BOOL_OR_NONE,
    "batch_renormalization_warmup_steps": integer_from(0),
    "critic_optimizer": _OPTIMIZER,
    "actor_optimizer": _OPTIMIZER,
    "alpha_optimizer": _OPTIMIZER,
    "normalize_observations": _BOOL,
    "normalize_rewards": _BOOL,
    "num_iter": _COUNT,
    "num_steps_per_iter": _COUNT,
    "n_train_episodes_per_iter": _COUNT,
    "n_buffer_init_episodes": integer_from(0),
    "n_episodes_in_buffer": _COUNT,
    "asynchronous": _BOOL,
    "max_policy_lag": ("0 or 1", lambda value: is_integer(value) and value in (0, 1)),
    "max_updates_per_env_step": _POSITIVE,
    "updates_per_env_step": _POSITIVE_OR_NONE,
    "n_step": _COUNT,
    "recurrent_burn_in": integer_from(0),
    "validation_share": ("a number in [0, 0.5]", lambda value: is_number(value) and 0 <= value <= 0.5),
    "n_eval_episodes": _COUNT,
    "eval_period_itrs": _COUNT,
    "log_period_itrs": _COUNT,
    "checkpoint_period_itrs": _COUNT,
    "best_metric": ("'return' or 'success'", lambda value: value in ("return", "success")),
    "stop_when": or_none(early_end.RULE),
    "max_hours": _POSITIVE_OR_NONE,
}


def check_env_config(env_config: Mapping[str, Any]) -> list[str]:
    """What is wrong with the JSON of SAC_CONFIG, one sentence each; `check_curriculum` looks at its curriculum."""
    findings = [
        f'"{wrong}" in SAC_CONFIG is not known: "{right}" is meant'
        for wrong, right in near_misses(env_config, CONFIG_KEYS)
    ]
    meant = {right for _, right in near_misses(env_config, CONFIG_KEYS)}
    if "horizon" not in env_config:
        if "horizon" not in meant:
            findings.append(
                f'SAC_CONFIG has no "horizon", the maximum steps of an episode: add it, as in {_NESTED_HORIZON}'
            )
    elif not is_kept(_COUNT, env_config["horizon"]):
        findings.append(f'"horizon" in SAC_CONFIG must be {_COUNT[0]}, found {shown(env_config["horizon"])}')
    return findings


def check_params(params: TrainParamsBase) -> list[str]:
    """What is wrong with TrainParams, one sentence each: misspelt names, wrong types, impossible values."""
    findings = [
        f"TrainParams.{wrong} is not known: {right} is meant"
        for is_hook in (True, False)
        for wrong, right in near_misses(own_attributes.own_names(params, is_hook), _known_names(is_hook))
        if other_libraries.meant(wrong) is None  # Such as learning_rate, which looks like alpha_learning_rate.
    ]
    wrong_values = {name: finding for name in _RULES if (finding := _check_value(params, name)) is not None}
    findings += wrong_values.values()
    findings += _check_hooks(params)
    findings += _check_together(params, wrong_values)
    findings += _check_algorithm(params, wrong_values)
    findings += _check_parts(params, wrong_values)
    return findings


def _check_value(params: TrainParamsBase, name: str) -> str | None:
    rule = _RULES[name]
    try:
        value = getattr(params, name)
    except Exception as error:  # A property of the user's.
        return f"TrainParams.{name} raises {type(error).__name__}: {error}: it must be {rule[0]}"
    if is_kept(rule, value):
        return None
    return f"TrainParams.{name} must be {rule[0]}, found {shown(value)}{_meant_algorithm(name, value)}"


def _meant_algorithm(name: str, value: Any) -> str:
    if name != "algorithm" or not isinstance(value, str):
        return ""
    meant = near_misses([value], ALGORITHMS, _SIMILARITY_OF_NAMES)
    return f": {meant[0][1]!r} is meant" if meant else ""


def check_deterministic(params: TrainParamsBase) -> list[str]:
    """Which settings do not work with SAC_DETERMINISTIC=1, one sentence each."""
    findings = []
    if params.asynchronous:
        findings.append(
            "TrainParams.asynchronous=True does not work with SAC_DETERMINISTIC=1, what is collected would depend on "
            "timing: set it to False, or SAC_DETERMINISTIC=0"
        )
    if params.max_hours is not None:
        findings.append(
            f"TrainParams.max_hours={params.max_hours:g} does not work with SAC_DETERMINISTIC=1, a clock would decide "
            "how long the run is: set it to None, or SAC_DETERMINISTIC=0"
        )
    if params.matmul_precision == "bfloat16":
        findings.append(
            "TrainParams.matmul_precision='bfloat16' does not work with SAC_DETERMINISTIC=1, a measurement decides "
            "whether it is used: set it to 'float32', or SAC_DETERMINISTIC=0"
        )
    return findings


def resolved_attributes(params: TrainParamsBase) -> dict[str, Any]:
    """The values that a run has, by name: of TrainParamsBase, and of the user's own those that `--set` can give.

    None is replaced by what the algorithm has instead, and optimizers have all of their settings. What follows from the
    environment (`target_entropy`) stays None.
    """
    names = [name for name in _known_names(is_hook=False) if name not in ("env_config", "compute_config", "horizon")]
    known = {name: value_of_algorithm(params, name) for name in names}
    known |= {f"{part}_optimizer": settings_in_use(params, part) for part in PARTS}
    own = {name: inspect.getattr_static(params, name) for name in own_attributes.own_names(params, is_hook=False)}
    return known | {
        name: value for name, value in own.items() if name not in known and name[0] != "_" and _is_plain(value)
    }


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Whether JSON can have it, and a person read it."""
    if isinstance(value, list | tuple | dict):
        within = value.values() if isinstance(value, dict) else value
        has_names = not isinstance(value, dict) or all(isinstance(key, str) for key in value)
        return has_names and depth < 10 and len(value) <= 1000 and all(_is_plain(each, depth + 1) for each in within)
    return value is None or isinstance(value, bool | int | float | str)


def advice(params: TrainParamsBase) -> list[str]:
    """What can be had, but is seldom meant, one sentence each; every value is right by itself."""
    notes = [note for part in PARTS if (note := schedule_advice(params, part))]
    has_ratio = params.asynchronous or params.updates_per_env_step is not None
    if params.algorithm in ("redq", "droq") and params.actor_update_period is None and not has_ratio:
        notes.append(
            f"algorithm={params.algorithm!r} without updates_per_env_step: the actor steps in each update, in the "
            "paper once in 20, once for each step of the environment. Set updates_per_env_step, or actor_update_period"
        )
    return notes + learning_notes.learning_rates(params) + without_effect(params) + own_attributes.notes(params)


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


def _check_algorithm(params: TrainParamsBase, wrong_values: Mapping[str, str]) -> list[str]:
    """Rules of the algorithm; those of attributes with a wrong value have been told already."""
    if "algorithm" in wrong_values:
        return []
    algorithm = ALGORITHMS[params.algorithm]
    findings = [
        f"TrainParams.{name}={shown(getattr(params, name))} does not work with algorithm={params.algorithm!r}, {why}: "
        "set it to None, or choose another algorithm"
        for name, why in algorithm.fixed.items()
        if name not in wrong_values and getattr(params, name) is not None
    ]
    if algorithm.why_not_recurrent and "recurrent" not in wrong_values and params.recurrent:
        findings.append(
            f"TrainParams.recurrent=True does not work with algorithm={params.algorithm!r}, "
            f"{algorithm.why_not_recurrent}: set it to False, or choose another algorithm"
        )
    return findings + _check_subset(params, algorithm, wrong_values) + _check_quantiles(params, algorithm, wrong_values)


def _check_parts(params: TrainParamsBase, wrong_values: Mapping[str, str]) -> list[str]:
    """Rules of the optimizers and of the networks' parts."""
    findings = []
    for name in (f"{part}_optimizer" for part in PARTS):
        if name in wrong_values:
            continue
        found = optimizer_findings(name, getattr(params, name))
        if not found and "updates_per_env_step" not in wrong_values and params.updates_per_env_step is not None:
            found = whole_run_findings(name, getattr(params, name))
        findings += found
    if not set(_OF_NETWORKS) & set(wrong_values):
        findings += network_findings(params)
    return findings


def _check_subset(params: TrainParamsBase, algorithm: Algorithm, wrong_values: Mapping[str, str]) -> list[str]:
    names = ("num_target_critics", "num_critics")
    if set(names) & set(wrong_values) or "num_target_critics" not in algorithm.defaults:
        return []
    few, all_of_them = (algorithm.value(params, name) for name in names)
    if few <= all_of_them:
        return []
    return [
        f"TrainParams.num_target_critics={few} must be at most num_critics={all_of_them}, they are drawn from these: "
        "lower it, or raise num_critics"
    ]


def _check_quantiles(params: TrainParamsBase, algorithm: Algorithm, wrong_values: Mapping[str, str]) -> list[str]:
    if not algorithm.has_quantiles or {"num_quantiles", "num_dropped_quantiles"} & set(wrong_values):
        return []
    if params.num_dropped_quantiles < params.num_quantiles:
        return []
    return [
        f"TrainParams.num_dropped_quantiles={params.num_dropped_quantiles} must be below "
        f"num_quantiles={params.num_quantiles}, nothing would be left: lower it"
    ]


def _check_together(params: TrainParamsBase, wrong_values: Mapping[str, str]) -> list[str]:
    """Rules over several values; those with a wrong one have been told already."""
    if not is_kept(_COUNT, params.env_config.get("horizon")):
        return []
    horizon = params.horizon
    findings = []
    if not {"train_batch_size", "n_episodes_in_buffer"} & set(wrong_values):
        capacity_steps = params.n_episodes_in_buffer * horizon
        if params.train_batch_size > capacity_steps:
            findings.append(
                f"TrainParams.train_batch_size={params.train_batch_size} is larger than the replay buffer of "
                f"n_episodes_in_buffer={params.n_episodes_in_buffer} * horizon={horizon} = {capacity_steps} steps: "
                "lower it, or raise n_episodes_in_buffer"
            )
    return findings + _check_sequences(params, wrong_values) + _check_ratio(params, wrong_values)


def _check_sequences(params: TrainParamsBase, wrong_values: Mapping[str, str]) -> list[str]:
    if {"recurrent", "n_step"} & set(wrong_values) or not params.recurrent or params.n_step == 1:
        return []
    return [
        f"TrainParams.n_step={params.n_step} does not work with recurrent=True, sequences are trained on step by "
        "step: set n_step=1"
    ]


def _check_ratio(params: TrainParamsBase, wrong_values: Mapping[str, str]) -> list[str]:
    if {"asynchronous", "updates_per_env_step"} & set(wrong_values):
        return []
    if not params.asynchronous or params.updates_per_env_step is None:
        return []
    return [
        f"TrainParams.updates_per_env_step={params.updates_per_env_step} does not work with asynchronous=True, whose "
        "workers wait for no updates: set max_updates_per_env_step instead, or asynchronous=False"
    ]
