"""What is wrong, or seldom meant, with several attributes together, each of which is right by itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tfagents_system.agents.algorithms import ALGORITHMS, network_findings, optimizer_findings, value
from tfagents_system.agents.iteration_counts import (
    has_prior_data,
    iterations_of_run,
    most_updates_per_env_step,
    offline_updates,
    prior_samples,
    random_count,
    random_steps,
    updates_ratio,
)
from tfagents_system.checks.hyperparameters import IMAGES, When, described_by
from tfagents_system.checks.rules import integer_from, is_kept
from tfagents_system.checks.schedules import Schedule, is_schedule
from tfagents_system.envs.curriculum import Curriculum, check_curriculum
from tfagents_system.errors import shown
from tfagents_system.hyperparameters import RACE_END_STEPS
from tfagents_system.settings.load_params import OF_ITERATIONS, is_set
from tfagents_system.train_params_base import TrainParamsBase, has_potential, overrides_any

HORIZON = integer_from(1)


class CrossRule(NamedTuple):
    """A rule over several attributes.

    Attributes:
      is_broken: Given the params; what it returns, if it is true, is `it` in the text.
      text: `{p.NAME}` is an attribute.
    """

    is_broken: Callable[[Any], Any]
    text: str


def _period(kind: str) -> CrossRule:
    """Both lengths of a period; one that `--set` gives stands for the other one of the file."""
    steps, iters = f"{kind}_period_env_steps", f"{kind}_period_iters"
    return CrossRule(
        lambda p: getattr(p, steps) is not None and p.is_set(iters) and not p.is_given(steps, instead_of=iters),
        f"{steps}={{p.{steps}}} and {iters}={{p.{iters}}} are two lengths of one period: remove one",
    )


def _more_workers(p: Any) -> int | None:
    """Workers, where an iteration has less than a step for each."""
    workers: int = p.compute_config.get("num_collect_workers", 1)
    return workers if p.env_steps_per_iter is not None and p.env_steps_per_iter < workers else None


def _more_than_allowed(p: Any) -> float | None:
    least = p.min_updates_per_env_step if p.asynchronous else None
    most = most_updates_per_env_step(p) if least is not None else None
    return most if most is not None and least > most else None


def _target_critics(p: Any) -> tuple[int, int] | None:
    few, many = value(p, "num_target_critics"), value(p, "num_critics")
    is_fixed = "num_target_critics" in ALGORITHMS[p.algorithm].fixed
    return None if is_fixed or few <= many else (few, many)


def _quantiles(p: Any) -> tuple[int, int] | None:
    tqc = value(p, "tqc")
    dropped, all_of_them = tqc["num_dropped_quantiles"], tqc["num_quantiles"]
    return (dropped, all_of_them) if ALGORITHMS[p.algorithm].has_quantiles and dropped >= all_of_them else None


def _race_steps(p: Any) -> int | None:
    return value(p, "mini_race")["steps"] if p.mini_race is not None else None


def _oversampled(p: Any) -> tuple[tuple[int, int], int, int] | None:
    """The numbers of a mini-race's `oversampling`, the time up to which it is, and the steps, where that is too far."""
    steps = _race_steps(p)
    if steps is None:
        return None
    first, second = value(p, "mini_race")["oversampling"]
    return ((first, second), first - 2 * second, steps) if first - 2 * second >= steps else None


def _prior_samples(p: Any) -> str | None:
    """The samples of prior data in a minibatch, where these are none or all."""
    samples = prior_samples(p)
    return str(samples) if has_prior_data(p) and not 0 < samples < p.batch_size else None


def _with_actors() -> str:
    return " or ".join(repr(name) for name, each in ALGORITHMS.items() if each.has_actor and each.actions == "discrete")


def _is_discrete(p: Any) -> bool:
    return ALGORITHMS[p.algorithm].actions == "discrete"


def _scores_all_actions(name: str, remedy: str, is_wanted: Callable[[Any], Any]) -> CrossRule:
    return CrossRule(
        lambda p: is_wanted(p) and _is_discrete(p) and not overrides_any(p, "agent_ctor"),
        f"{name} does not work with algorithm={{p.algorithm!r}}, which builds networks of its own that score all "
        f"actions: {remedy}, or build the whole agent with agent_ctor",
    )


_RULES = (
    CrossRule(
        lambda p: p.buffer_size < p.horizon,
        "buffer_size={p.buffer_size} is less than an episode of horizon={p.horizon} steps: raise it to at least "
        "{p.horizon}",
    ),
    CrossRule(
        lambda p: p.buffer_size < p.batch_size,
        "buffer_size={p.buffer_size} is less than a minibatch of batch_size={p.batch_size} steps: raise it to at least "
        "{p.batch_size}",
    ),
    CrossRule(
        lambda p: p.recurrent and p.n_step != 1,
        "n_step={p.n_step} does not work with recurrent=True, sequences are trained on step by step: set n_step=1",
    ),
    CrossRule(
        _more_than_allowed,
        "min_updates_per_env_step={p.min_updates_per_env_step} must be at most updates_per_env_step={it:g}, no more "
        "updates are allowed: lower it, or raise updates_per_env_step",
    ),
    _period("eval"),
    _period("checkpoint"),
    CrossRule(
        _more_workers,
        "env_steps_per_iter={p.env_steps_per_iter} is less than a step for each of SAC_NUM_COLLECT_WORKERS={it} "
        "workers: raise it to at least {it}, or take fewer workers",
    ),
    CrossRule(
        lambda p: not p.num_eval_episodes and p.stop_when is not None and shown(p.stop_when),
        "stop_when={it} needs evaluations, and num_eval_episodes is 0: set it to at least 1, or stop_when to None "
        "(max_hours and callbacks_ctor end a run without them)",
    ),
    CrossRule(
        lambda p: p.recurrent and ALGORITHMS[p.algorithm].why_not_recurrent,
        "recurrent=True does not work with algorithm={p.algorithm!r}, {it}: set it to False, or choose another "
        "algorithm",
    ),
    CrossRule(
        _target_critics,
        "num_target_critics={it[0]} must be at most num_critics={it[1]}, they are drawn from these: lower it, or raise "
        "num_critics",
    ),
    CrossRule(
        _quantiles,
        "tqc: num_dropped_quantiles={it[0]} must be below num_quantiles={it[1]}, nothing would be left: lower it",
    ),
    # The replay server follows a scheduled discount: agents and workers know of none.
    CrossRule(
        lambda p: is_schedule(p.discount) and not ALGORITHMS[p.algorithm].takes_bootstrap_factor,
        "discount as a schedule does not work with algorithm={p.algorithm!r}, which multiplies with one discount "
        "itself: set a number, or choose dqn, iqn or sac_discrete",
    ),
    CrossRule(
        lambda p: is_schedule(p.discount) and p.normalize_rewards,
        "discount as a schedule does not work with normalize_rewards=True, returns would be discounted in several "
        "ways: set a number, or normalize_rewards=False",
    ),
    # What samples are.
    CrossRule(
        lambda p: p.cut_at_exploration and not _is_discrete(p),
        "cut_at_exploration=True does not work with algorithm={p.algorithm!r}, its actions are samples, and none is "
        "the greedy one: set it to None, or choose another algorithm",
    ),
    CrossRule(
        lambda p: (steps := _race_steps(p)) is not None and steps <= p.n_step and steps,
        "mini_race.steps={it} must be above n_step={p.n_step}, a transition is a part of a mini-race: raise it, or "
        "lower n_step",
    ),
    CrossRule(
        _oversampled,
        "mini_race.oversampling={it[0]} is about the times 1 to {it[1]}, mini_race.steps={it[2]} has those below "
        "{it[2]}: lower the first number, or set it to (0, 0), which draws all times alike",
    ),
    CrossRule(
        lambda p: p.recurrent and p.mini_race is not None,
        "mini_race does not work with recurrent=True, sequences have no time of their own: set it to None, or "
        "recurrent to False",
    ),
    CrossRule(
        lambda p: p.recurrent and has_potential(p),
        "potential does not work with recurrent=True, the rewards of sequences are not shaped: remove it, or set "
        "recurrent to False",
    ),
    CrossRule(
        lambda p: p.recurrent and p.priority_exponent is not None,
        "priority_exponent={p.priority_exponent:g} does not work with recurrent=True, sequences have no priorities: "
        "set it to None, or recurrent to False",
    ),
    CrossRule(
        lambda p: p.priority_exponent is not None and (steps := _race_steps(p) or 0) <= RACE_END_STEPS and steps,
        f"priority_exponent={{p.priority_exponent:g}} does not work with mini_race.steps={{it}}, the last "
        f"{RACE_END_STEPS} steps of a mini-race change no priority: raise that, or set priority_exponent to None",
    ),
    CrossRule(
        _prior_samples,
        "prior_data_share={p.prior_data_share:g} of batch_size={p.batch_size} is {it} samples, and a minibatch has "
        "some of both: choose another share, or raise batch_size",
    ),
    # Hooks that build what an attribute is about.
    CrossRule(
        lambda p: p.reset_period_updates is not None and overrides_any(p, "agent_ctor"),
        "reset_period_updates={p.reset_period_updates} draws the networks of the toolkit's own agents anew, and "
        "agent_ctor builds another one: set it to None, or remove the hook",
    ),
    CrossRule(
        lambda p: p.actor_observations is not None and not ALGORITHMS[p.algorithm].has_actor and _with_actors(),
        "actor_observations={p.actor_observations} does not work with algorithm={p.algorithm!r}, which has no actor, "
        "its values are what acts: set it to None, or choose {it}",
    ),
    CrossRule(
        lambda p: (
            p.actor_observations is not None and ALGORITHMS[p.algorithm].has_actor and overrides_any(p, "agent_ctor")
        ),
        "actor_observations={p.actor_observations} says what the actors of the toolkit's own agents see, and "
        "agent_ctor builds another one: set it to None, or remove the hook",
    ),
    _scores_all_actions("actor_ctor", "remove the hook", lambda p: overrides_any(p, "actor_ctor")),
    _scores_all_actions("critic_ctor", "remove the hook", lambda p: overrides_any(p, "critic_ctor")),
    _scores_all_actions("batch_renormalization=True", "set it to None", lambda p: p.batch_renormalization),
)


def _fixed_findings(params: Any) -> list[str]:
    return [
        f"TrainParams.{name}={shown(own)} does not work with algorithm={params.algorithm!r}, {why}: set it to None, or "
        "choose another algorithm"
        for name, why in ALGORITHMS[params.algorithm].fixed.items()
        if (own := getattr(params, name, None)) is not None
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
    others = (
        (params.recurrent, f"recurrent=True, sequences keep the goal that they were collected for: {remedy}, or "
         "recurrent to False"),
        (params.mini_race is not None, f"mini_race: {remedy}, or mini_race to None"),
        (has_potential(params), "TrainParams.potential, which is stored for the goal that a step was collected for: "
         f"remove it, or {remedy}"),
        (params.normalize_rewards, "normalize_rewards=True, which divides by the returns of the goals that steps were "
         "collected for: set it to False"),
    )  # fmt: skip
    findings = [f"{what} does not work with {words}" for is_wanted, words in others if is_wanted]
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


_FUNCTIONS: tuple[Callable[[Any], Sequence[str]], ...] = (
    _fixed_findings,
    _hindsight_findings,
    optimizer_findings,
    network_findings,
)


def cross_findings(params: TrainParamsBase, wrong: Collection[str]) -> list[str]:
    """What is wrong with several attributes together, one sentence each.

    Args:
      wrong: Attributes whose values are wrong by themselves, which is reported already.
    """
    findings = [f"TrainParams.{text}" for text in _broken(_RULES, params, wrong)]
    for findings_of in _FUNCTIONS:
        with contextlib.suppress(_AlreadyReported):
            findings += findings_of(_RightValues(params, wrong))
    return findings


def _broken(rules: Iterable[CrossRule], params: TrainParamsBase, wrong: Collection[str] = ()) -> Iterator[str]:
    """The texts of those that do not hold, of those that need no wrong value."""
    right = _RightValues(params, wrong)
    for rule in rules:
        with contextlib.suppress(_AlreadyReported):
            if it := rule.is_broken(right):
                yield rule.text.format(p=right, it=it)


class _AlreadyReported(AttributeError):
    """A value is wrong by itself."""


class _RightValues:
    """TrainParams without the attributes whose values are wrong."""

    def __init__(self, params: TrainParamsBase, wrong: Collection[str]) -> None:
        has_horizon = is_kept(HORIZON, params.env_config.get("horizon"))
        self._params, self._wrong = params, [*wrong, *([] if has_horizon else ["horizon"])]

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


def _random_first(p: Any) -> tuple[str, int, int]:
    """What says how much is random at first, its value, and the steps."""
    name = "num_initial_episodes" if p.initial_collect_steps is None else "initial_collect_steps"
    return name, getattr(p, name), random_steps(p)


# What works but is seldom meant.
_NOTES = (
    CrossRule(
        lambda p: offline_updates(p) and random_count(p) and _random_first(p),
        "offline_updates={p.offline_updates}, and the first actions ({it[0]}={it[1]}) are random, not of the policy "
        "that was trained offline: set initial_collect_steps=0",
    ),
    CrossRule(
        lambda p: (
            p.algorithm in ("redq", "droq")
            and p.actor_update_period is None
            and not (p.asynchronous or updates_ratio(p) is not None)
        ),
        "algorithm={p.algorithm!r} without updates_per_env_step: the actor steps in each update, in the paper once in "
        "20, once for each step of the environment. Set updates_per_env_step, or actor_update_period",
    ),
    CrossRule(
        lambda p: max(Schedule.of(p.discount).values) == 1 and p.mini_race is None,
        "discount=1 without mini_race: values are sums of all rewards to an episode's end, and grow without bound "
        "where episodes do not terminate. Lower discount, or set mini_race",
    ),
    CrossRule(
        lambda p: (steps := _race_steps(p)) is not None and steps > p.horizon and steps,
        "mini_race.steps={it} is more than the horizon of {p.horizon} steps: no episode lasts as long. Lower it, or "
        "raise the horizon",
    ),
    CrossRule(
        lambda p: p.num_env_steps is not None and random_steps(p) >= p.num_env_steps and _random_first(p),
        "num_env_steps={p.num_env_steps} may be over before the first update: {it[0]}={it[1]} come first, up to "
        "{it[2]:,} steps with random actions: lower that, or raise num_env_steps",
    ),
)


def advice(params: TrainParamsBase) -> list[str]:
    """What works but is seldom meant, one sentence each; every value is right, by itself and together."""
    return [*_broken(_NOTES, params), *_late_curriculum(params), *without_effect(params)]


def _late_curriculum(params: TrainParamsBase) -> list[str]:
    """Values of the curriculum that never fall due in this run."""
    config = params.env_config
    if check_curriculum(config) or not is_kept(HORIZON, config.get("horizon")):
        return []  # Reported already.
    count = iterations_of_run(params, params.compute_config.get("num_collect_workers", 1))
    length, remedy = f"{count} iterations", "num_iter"
    if count < params.num_iter:  # By its steps.
        length, remedy = f"num_env_steps={params.num_env_steps}, which are {count} iterations", "num_env_steps"
        length += " of full-length episodes" if params.env_steps_per_iter is None else ""
    return [
        f"curriculum.{name}.iters: {', '.join(map(str, late))} come after the last iteration, so their values never "
        f"fall due: the run has {length}, counted from 0. Lower these, or raise {remedy}"
        for name, late in Curriculum.from_config(config).after(count).items()
    ]


def without_effect(params: TrainParamsBase, images: bool | None = None) -> list[str]:
    """Attributes that were set but have no effect beside the others, one sentence each.

    Args:
      params: Their values must be right, each by itself and together.
      images: Whether there are any in the observations; None where that is not known yet.
    """
    notes = []
    for each in described_by(TrainParamsBase).values():
        because = next((why for when in each.acts if (why := _why_not(params, when, images))), "")
        own = getattr(params, each.name) if because else each.default
        # Of these, one that is set is meant, though it is the default: it decides what an iteration is.
        if own != each.default or (because and each.name in OF_ITERATIONS and is_set(params, each.name)):
            notes.append(f"TrainParams.{each.name}={shown(own)} has no effect {because}")
    return notes


def _why_not(params: TrainParamsBase, when: When, images: bool | None) -> str:
    """Why a condition does not hold, with the remedy; empty if it does, or nobody can know."""
    if when.of_agent and overrides_any(params, "agent_ctor", "actor_ctor", "critic_ctor"):
        return ""
    if when.attribute == IMAGES:
        return "with observations without images: remove it" if images is False else ""
    if when.or_with and getattr(params, when.or_with):
        return ""
    own = value(params, when.attribute)
    return "" if when.holds(own) else f"with {when.attribute}={shown(own)}: remove it, or change that"
