"""What is wrong, or seldom meant, in TrainParams and in the JSON: names, single values, and values together."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from tfagents_system.agents.algorithms import (
    ALGORITHMS,
    PARTS,
    has_categories,
    optimizer_findings,
    optimizer_settings,
    value,
)
from tfagents_system.agents.iteration_counts import (
    has_prior_data,
    iterations_of_run,
    most_updates_per_env_step,
    offline_updates,
    prior_samples,
    random_count,
    random_steps,
)
from tfagents_system.checks.rules import broken, integer_from, is_kept, near_misses
from tfagents_system.checks.schedules import Schedule, is_schedule
from tfagents_system.envs.curriculum import Curriculum, check_curriculum
from tfagents_system.errors import shown
from tfagents_system.hyperparameters import CATEGORICAL, RACE_END_STEPS, Hyperparameter, When, described_by
from tfagents_system.settings import other_libraries
from tfagents_system.settings.load_params import INPUT_FILES, OF_ITERATIONS, check_input_files, is_set, own_names
from tfagents_system.train_params_base import TrainParamsBase, overrides_any

CONFIG_KEYS = ("horizon", "curriculum", INPUT_FILES)
_HORIZON = integer_from(1)
_EXAMPLE = '{"horizon": 200}'
_READABLE_CHARS = 10_000
_PLAIN = (bool, int, float, str, list, tuple, dict, type(None))


# The JSON.


def check_env_config(env_config: Mapping[str, Any]) -> list[str]:
    """What is wrong with the JSON of SAC_CONFIG, one sentence each."""
    misses = near_misses(env_config, CONFIG_KEYS)
    findings = [f'"{wrong}" in SAC_CONFIG is not known: "{right}" is meant' for wrong, right in misses]
    if "horizon" not in env_config:
        if "horizon" not in dict(misses).values():
            findings.append(
                'SAC_CONFIG has no "horizon", the maximum steps of an episode, and no time limit of the environment is '
                f"known: add it, as in {_EXAMPLE}"
            )
    elif not has_horizon(env_config):
        findings += broken(_HORIZON, '"horizon" in SAC_CONFIG', env_config["horizon"])
    return findings + check_input_files(env_config) + check_curriculum(env_config)


def has_horizon(env_config: Mapping[str, Any]) -> bool:
    """Whether there is a possible one."""
    return is_kept(_HORIZON, env_config.get("horizon"))


# Names and single values of TrainParams.


def check_params(params: TrainParamsBase) -> list[str]:
    """What is wrong with TrainParams, one sentence each: misspelt names, wrong types, impossible values."""
    findings = [
        f"TrainParams.{wrong} is not known: {right} is meant"
        for is_hook in (True, False)
        for wrong, right in near_misses(own_names(params, is_hook), _known_names(is_hook))
        if wrong not in other_libraries.BY_NAME  # Such as learning_rate, which looks like alpha_learning_rate.
    ]
    described = described_by(TrainParamsBase).values()
    wrong_values = {attribute.name: wrong for attribute in described if (wrong := _check_value(params, attribute))}
    findings += [finding for wrong in wrong_values.values() for finding in wrong]
    findings += [
        f"TrainParams.{name}={shown(own)} is a setting of {setting.libraries}: "
        f"{setting.ours}; rename it if it is your own"
        for name in own_names(params, is_hook=False)
        if (setting := other_libraries.BY_NAME.get(name))
        and isinstance(own := inspect.getattr_static(params, name), _PLAIN)
    ]
    findings += [
        f"TrainParams.{name} must be a method, found {shown(getattr(params, name))}: it is a hook, see "
        "train_params_base.py; rename yours"
        for name in _known_names(is_hook=True)
        if not callable(getattr(params, name))
    ]
    return findings + [f"TrainParams.{text}" for text in _broken(_RULES, _RightValues(params, wrong_values))]


def _check_value(params: TrainParamsBase, attribute: Hyperparameter) -> list[str]:
    try:
        found = getattr(params, attribute.name)
    except Exception as error:  # A property of the user's.
        words = f"raises {type(error).__name__}: {error}: it must be {attribute.rule.words}"
        return [f"TrainParams.{attribute.name} {words}"]
    return broken(attribute.rule, f"TrainParams.{attribute.name}", found)


def _known_names(is_hook: bool) -> list[str]:
    names = [name for name in dir(TrainParamsBase) if not name.startswith("_")]
    known = [name for name in names if callable(getattr(TrainParamsBase, name)) == is_hook]
    return known if is_hook else [*known, "env_config", "compute_config"]


def check_deterministic(params: TrainParamsBase) -> list[str]:
    """Which settings do not work with SAC_DETERMINISTIC=1, one sentence each."""
    return sorted(
        f"TrainParams.{attribute.name}={shown(own)} does not work with SAC_DETERMINISTIC=1, "
        f"{attribute.not_deterministic.why}: set it to {attribute.default!r}, or SAC_DETERMINISTIC=0"
        for attribute in described_by(TrainParamsBase).values()
        if attribute.not_deterministic and (own := getattr(params, attribute.name)) != attribute.default
    )


def resolved_attributes(params: TrainParamsBase) -> dict[str, Any]:
    """The values that a run has, by name: of TrainParamsBase, and those of the user's own that `--set` can give.

    None is replaced by what the algorithm has instead; optimizers and schedules have all of their settings. What
    follows from the environment (`target_entropy`) stays None.
    """
    described = described_by(TrainParamsBase)
    known = {name: value(params, name) for name in sorted(described)}
    known |= {
        name: dataclasses.asdict(Schedule.of(known[name]))
        for name, attribute in described.items()
        if attribute.takes_schedule and is_schedule(known[name])
    }
    known |= {f"{part}_optimizer": optimizer_settings(params, part) for part in PARTS}
    own = {name: inspect.getattr_static(params, name) for name in own_names(params, is_hook=False)}
    return known | {
        name: plain for name, plain in own.items() if name not in known and name[0] != "_" and _is_plain(plain)
    }


def _is_plain(content: Any) -> bool:
    """Whether JSON can represent it, and a person can read it."""
    try:
        return len(json.dumps(content)) <= _READABLE_CHARS
    except (TypeError, ValueError, RecursionError):
        return False


# Values together, each of which is right by itself.


class _AlreadyReported(AttributeError):
    """A value is wrong by itself."""


class _RightValues:
    """TrainParams without the attributes whose values are wrong."""

    def __init__(self, params: TrainParamsBase, wrong: Collection[str] = ()) -> None:
        self._params, self._wrong = params, [*wrong, *([] if has_horizon(params.env_config) else ["horizon"])]

    def __getattr__(self, name: str) -> Any:
        if name in self._wrong:
            raise _AlreadyReported
        return getattr(self._params, name)


Rule = Callable[[Any], Iterable[str]]
"""Given the params: what is wrong, one sentence each, without `TrainParams.`"""


def _unless(is_broken: Callable[[Any], Any], text: str) -> Rule:
    """A rule over several attributes.

    Args:
      is_broken: Given the params; what it returns, if it is true, is `it` in the text.
      text: `{p.NAME}` is an attribute.
    """

    def findings(p: Any) -> Iterator[str]:
        if it := is_broken(p):
            yield text.format(p=p, it=it)

    return findings


# What attributes are where they do not act.
_OFF = {
    "recurrent": False,
    "network": "mlp",
    "n_step": 1,
    "mini_race": None,
    "priority_exponent": None,
    "hindsight_share": None,
    "normalize_rewards": False,
    "batch_renormalization": False,
    "critic_layer_norm": False,
    "critic_dropout": 0,
}


def _acts(p: Any, name: str) -> bool:
    if name not in _OFF:
        return overrides_any(p, name)
    if name == "recurrent" and ALGORITHMS[p.algorithm].why_not_recurrent:  # Refused for itself.
        return False
    if name == "network" and p.algorithm in CATEGORICAL:
        return False
    return bool(value(p, name) != _OFF[name])


def _not_with(first: str, second: str, why: str) -> Rule:
    """Two attributes can't act together.

    Args:
      first: An attribute, or the hook `potential`; second: an attribute.
      why: Follows a comma.
    """

    def findings(p: Any) -> Iterator[str]:
        if _acts(p, first) and _acts(p, second):
            shown_first, remedy = first, f"remove {first}"
            if first in _OFF:
                shown_first, remedy = f"{first}={shown(value(p, first))}", f"set {first} to {_OFF[first]!r}"
            own = getattr(p, second)
            shown_second = f"{shown(value(p, second))} (by default)" if own is None else shown(own)
            yield (
                f"{shown_first} does not work with {second}={shown_second}, {why}: {remedy}, or "
                f"{second} to {_OFF[second]!r}"
            )

    return findings


def _one_period(kind: str) -> Rule:
    steps, iters = f"{kind}_period_env_steps", f"{kind}_period_iters"
    default = described_by(TrainParamsBase)[iters].default
    return _unless(
        lambda p: getattr(p, steps) is not None and getattr(p, iters) != default,
        f"{steps}={{p.{steps}}} and {iters}={{p.{iters}}} are two lengths of one period: remove one",
    )


def _workers(p: Any) -> int:
    return int(p.compute_config.get("num_collect_workers", 1))


def _target_critics(p: Any) -> tuple[int, int] | None:
    few, many = value(p, "num_target_critics"), value(p, "num_critics")
    is_fixed = "num_target_critics" in ALGORITHMS[p.algorithm].fixed
    return None if is_fixed or few <= many else (few, many)


def _quantiles(p: Any) -> tuple[int, int] | None:
    tqc = value(p, "tqc")
    dropped, all_of_them = tqc["num_dropped_quantiles"], tqc["num_quantiles"]
    return (dropped, all_of_them) if ALGORITHMS[p.algorithm].has_quantiles and dropped >= all_of_them else None


def _race_steps(p: Any) -> int:
    """0: there are no mini-races."""
    return value(p, "mini_race")["steps"] if p.mini_race is not None else 0


def _oversampled(p: Any) -> tuple[tuple[int, int], int] | None:
    """The numbers of a mini-race's `oversampling`, and the time up to which it is, where that is too far."""
    if not (steps := _race_steps(p)):
        return None
    first, second = value(p, "mini_race")["oversampling"]
    return ((first, second), first - 2 * second) if first - 2 * second >= steps else None


def _without_actor(p: Any) -> str:
    if p.actor_observations is None:
        return ""
    if not ALGORITHMS[p.algorithm].has_actor:
        return f"algorithm={p.algorithm!r} has none, its values are what acts"
    return "agent_ctor builds another one" if overrides_any(p, "agent_ctor") else ""


def _is_discrete(p: Any) -> bool:
    return ALGORITHMS[p.algorithm].actions == "discrete"


def _networks_of_ones_own(p: Any) -> str:
    if not _is_discrete(p) or overrides_any(p, "agent_ctor"):
        return ""
    hooks = [hook for hook in ("actor_ctor", "critic_ctor") if overrides_any(p, hook)]
    return ", ".join([*hooks, *(["batch_renormalization"] if p.batch_renormalization else [])])


def _even_layers(name: str) -> Rule:
    def where(p: Any) -> str:
        if ALGORITHMS[p.algorithm].residual_blocks:
            return f"algorithm={p.algorithm!r}"
        return "network='simba'" if _acts(p, "network") else ""

    return _unless(
        lambda p: len(set(getattr(p, name))) != 1 and where(p),
        f"{name}={{p.{name}}} must be one width, once for each residual block, with {{it}}: write it as in (256, 256)",
    )


def _fixed(p: Any) -> Iterator[str]:
    """Attributes that the algorithm fixes."""
    for name, why in ALGORITHMS[p.algorithm].fixed.items():
        own, held = getattr(p, name, None), described_by(TrainParamsBase)[name].by_algorithm.value(p)
        if own is not None and own != held:
            yield (
                f"{name}={shown(own)} does not work with algorithm={p.algorithm!r}, {why}: set it to None, or choose "
                "another algorithm"
            )


_RULES = (
    _unless(
        lambda p: p.buffer_size < p.horizon,
        "buffer_size={p.buffer_size} is less than an episode of horizon={p.horizon} steps: raise it to at least "
        "{p.horizon}",
    ),
    _unless(
        lambda p: p.buffer_size < p.batch_size,
        "buffer_size={p.buffer_size} is less than a minibatch of batch_size={p.batch_size} steps: raise it to at least "
        "{p.batch_size}",
    ),
    _unless(
        lambda p: (
            p.asynchronous
            and (p.min_updates_per_env_step or 0) > most_updates_per_env_step(p)
            and most_updates_per_env_step(p)
        ),
        "min_updates_per_env_step={p.min_updates_per_env_step} must be at most updates_per_env_step={it:g}, no more "
        "updates are allowed: lower it, or raise updates_per_env_step",
    ),
    _one_period("eval"),
    _one_period("checkpoint"),
    _unless(
        lambda p: p.env_steps_per_iter is not None and p.env_steps_per_iter < _workers(p) and _workers(p),
        "env_steps_per_iter={p.env_steps_per_iter} is less than a step for each of SAC_NUM_COLLECT_WORKERS={it} "
        "workers: raise it to at least {it}, or take fewer workers",
    ),
    _unless(
        lambda p: not p.num_eval_episodes and p.stop_when is not None and shown(p.stop_when),
        "stop_when={it} needs evaluations, and num_eval_episodes is 0: set it to at least 1, or stop_when to None "
        "(max_hours and callbacks_ctor end a run without them)",
    ),
    _unless(
        lambda p: p.recurrent and ALGORITHMS[p.algorithm].why_not_recurrent,
        "recurrent=True does not work with algorithm={p.algorithm!r}, {it}: set it to False, or choose another "
        "algorithm",
    ),
    _unless(
        _target_critics,
        "num_target_critics={it[0]} must be at most num_critics={it[1]}, they are drawn from these: lower it, or raise "
        "num_critics",
    ),
    _unless(
        _quantiles,
        "tqc: num_dropped_quantiles={it[0]} must be below num_quantiles={it[1]}, nothing would be left: lower it",
    ),
    # The replay server follows a scheduled discount: agents and workers know of none.
    _unless(
        lambda p: is_schedule(p.discount) and not ALGORITHMS[p.algorithm].takes_bootstrap_factor,
        "discount as a schedule does not work with algorithm={p.algorithm!r}, which multiplies with one discount "
        "itself: set a number, or choose dqn, iqn or sac_discrete",
    ),
    _unless(
        lambda p: is_schedule(p.discount) and value(p, "normalize_rewards"),
        "discount as a schedule does not work with normalize_rewards=True, returns would be discounted in several "
        "ways: set a number, or normalize_rewards=False",
    ),
    # What samples are.
    _unless(
        lambda p: p.cut_at_exploration and not _is_discrete(p),
        "cut_at_exploration=True does not work with algorithm={p.algorithm!r}, its actions are samples, and none is "
        "the greedy one: set it to None, or choose another algorithm",
    ),
    _unless(
        lambda p: 0 < _race_steps(p) <= p.n_step and _race_steps(p),
        "mini_race.steps={it} must be above n_step={p.n_step}, a transition is a part of a mini-race: raise it, or "
        "lower n_step",
    ),
    _unless(
        _oversampled,
        "mini_race.oversampling={it[0]} is about the times 1 to {it[1]}, and mini_race has fewer steps: lower the "
        "first number, or set it to (0, 0), which draws all times alike",
    ),
    _unless(
        lambda p: p.priority_exponent is not None and _race_steps(p) <= RACE_END_STEPS and _race_steps(p),
        f"priority_exponent={{p.priority_exponent:g}} does not work with mini_race.steps={{it}}, the last "
        f"{RACE_END_STEPS} steps of a mini-race change no priority: raise that, or set priority_exponent to None",
    ),
    _unless(
        lambda p: has_prior_data(p) and not 0 < prior_samples(p) < p.batch_size and str(prior_samples(p)),
        "prior_data_share={p.prior_data_share:g} of batch_size={p.batch_size} is {it} samples, and a minibatch has "
        "some of both: choose another share, or raise batch_size",
    ),
    _unless(
        lambda p: p.hindsight_share is not None and not round(p.hindsight_share * (p.batch_size - prior_samples(p))),
        "hindsight_share={p.hindsight_share:g} of a minibatch is less than half a sample: raise it, or batch_size",
    ),
    # Networks, and hooks that build them.
    _even_layers("actor_fc_layer_params"),
    _even_layers("critic_joint_fc_layer_params"),
    _unless(
        lambda p: p.reset_period_updates is not None and overrides_any(p, "agent_ctor"),
        "reset_period_updates={p.reset_period_updates} draws the networks of the toolkit's own agents anew, and "
        "agent_ctor builds another one: set it to None, or remove the hook",
    ),
    _unless(
        _without_actor,
        "actor_observations={p.actor_observations} says what the actors of the toolkit's own agents see, and {it}: set "
        "it to None, or choose another algorithm or agent",
    ),
    _unless(
        _networks_of_ones_own,
        "{it}: not with algorithm={p.algorithm!r}, which builds networks of its own that score all actions: remove it, "
        "or build the whole agent with agent_ctor",
    ),
    _unless(
        lambda p: p.action_bounds is not None and p.action_table is not None,
        "action_bounds does not work with action_table, whose rows are all actions: set one of them to None",
    ),
    _not_with("n_step", "recurrent", "sequences are trained on step by step"),
    _not_with("mini_race", "recurrent", "sequences have no time of their own"),
    _not_with("potential", "recurrent", "the rewards of sequences are not shaped"),
    _not_with("priority_exponent", "recurrent", "sequences have no priorities"),
    _not_with("batch_renormalization", "recurrent", "its statistics would be of neighbouring, dependent steps"),
    _not_with("hindsight_share", "recurrent", "sequences keep the goal that they were collected for"),
    _not_with("hindsight_share", "mini_race", "which gives samples a time of their own"),
    _not_with("potential", "hindsight_share", "it is stored for the goal that a step was collected for"),
    _not_with("hindsight_share", "normalize_rewards", "which divides by returns of the goals that steps had before"),
    _not_with("network", "recurrent", "residual blocks have no memory"),
    _not_with("critic_layer_norm", "network", "whose blocks have their own layer normalisation"),
    _not_with("critic_dropout", "network", "DroQ's dropout is for plain layers"),
    _not_with("batch_renormalization", "network", "which normalises layers already"),
    _fixed,
    optimizer_findings,
)


def _broken(rules: Iterable[Rule], right: _RightValues) -> Iterator[str]:
    """The findings of rules, of each up to the first wrong value that it needs."""
    for rule in rules:
        with contextlib.suppress(_AlreadyReported):
            yield from rule(right)


# What works but is seldom meant.


def _random_first(p: Any) -> tuple[str, int, int]:
    """What says how much is random at first, its value, and the steps."""
    name = "num_initial_episodes" if p.initial_collect_steps is None else "initial_collect_steps"
    return name, getattr(p, name), random_steps(p)


def _late_values(p: Any) -> Iterator[str]:
    """Values of the curriculum that never fall due in this run."""
    if not check_curriculum(p.env_config):  # Else it is reported already.
        count = iterations_of_run(p, _workers(p))
        for name, late in Curriculum.from_config(p.env_config).after(count).items():
            yield (
                f"curriculum.{name}.iters: {', '.join(map(str, late))} come after the last iteration, so their values "
                f"never fall due: the run has {count} iterations, counted from 0. Lower these, or make the run longer"
            )


_NOTES = (
    _unless(
        lambda p: has_categories(p) and not value(p, "normalize_rewards") and "value_range" not in p.categorical,
        "normalize_rewards=False with categorical critics: returns beyond categorical.value_range=(-5.0, 5.0) are "
        "clipped. Set value_range to the range of your returns",
    ),
    _unless(
        lambda p: offline_updates(p) and random_count(p) and _random_first(p),
        "offline_updates={p.offline_updates}, and the first actions ({it[0]}={it[1]}) are random, not of the policy "
        "that was trained offline: set initial_collect_steps=0",
    ),
    _unless(
        lambda p: max(Schedule.of(p.discount).values) == 1 and p.mini_race is None,
        "discount=1 without mini_race: values are sums of all rewards to an episode's end, and grow without bound "
        "where episodes do not terminate. Lower discount, or set mini_race",
    ),
    _unless(
        lambda p: p.num_env_steps is not None and random_steps(p) >= p.num_env_steps and _random_first(p),
        "num_env_steps={p.num_env_steps} may be over before the first update: {it[0]}={it[1]} come first, up to "
        "{it[2]:,} steps with random actions: lower that, or raise num_env_steps",
    ),
    _late_values,
)


def advice(params: TrainParamsBase) -> list[str]:
    """What works but is seldom meant, one sentence each; every value is right, by itself and together."""
    return [*_broken(_NOTES, _RightValues(params)), *without_effect(params)]


def without_effect(params: TrainParamsBase) -> list[str]:
    """Attributes that were set but have no effect beside the others, one sentence each.

    An agent of the user's own may read any of them: nothing is told then.

    Args:
      params: Their values must be right, each by itself and together.
    """
    if overrides_any(params, "agent_ctor", "actor_ctor", "critic_ctor"):
        return []
    notes = []
    for attribute in described_by(TrainParamsBase).values():
        because = next((why for when in attribute.acts if (why := _why_not(params, when))), "")
        own = getattr(params, attribute.name) if because else attribute.default
        # Of these, one that is set is meant, though it is the default: it decides what an iteration is.
        is_meant = because and attribute.name in OF_ITERATIONS and is_set(params, attribute.name)
        if own != attribute.default or is_meant:
            notes.append(f"TrainParams.{attribute.name}={shown(own)} has no effect {because}")
    return notes


def _why_not(params: TrainParamsBase, when: When) -> str:
    """Why a condition does not hold, with the remedy; empty if it does."""
    other = value(params, when.attribute)
    return "" if when.holds(other) else f"with {when.attribute}={shown(other)}: remove it, or change that"
