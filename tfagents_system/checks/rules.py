"""What a user's value must be: a rule in words, and whether a value satisfies it; near misses of names.

It needs nothing but Python 3.9: processes of users' environments load TrainParams, too.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import math
import numbers
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from tfagents_system.errors import shown

REQUIRED = object()  # The default of a key that a dictionary must have.


class Option(NamedTuple):
    """A key of a dictionary.

    Attributes:
      default: Its value in a dictionary without it, or REQUIRED.
    """

    default: Any
    rule: Rule
    meaning: str = ""
    unit: str = ""


class Rule(NamedTuple):
    """What a value must be.

    Attributes:
      words: Completes "it must be".
      holds: Whether a value satisfies it; a value for which this raises does not.
      details: Of a value with parts that does not satisfy it: what is wrong with which part, one sentence each, given
        the name of what has the value and the value. None or []: the words say it all.
      names: The texts that it may be; one that looks like a wrong value is told.
      keys: Of a dictionary.
    """

    words: str
    holds: Callable[[Any], bool]
    details: Callable[[str, Any], list[str]] | None = None
    names: Sequence[str] = ()
    keys: Mapping[str, Option] | None = None

    def or_else(self, words: str, holds: Callable[[Any], bool]) -> Rule:
        """A rule that allows other values as well, which `words` names: a format of the words of this one."""
        return self._replace(
            words=words.format(self.words), holds=lambda value: holds(value) or bool(self.holds(value))
        )


def is_kept(rule: Rule, value: Any) -> bool:
    """Whether a value satisfies a rule; a value for which the rule raises does not."""
    try:
        return bool(rule.holds(value))
    except Exception:  # Such as an array where one number is wanted.
        return False


def broken(rule: Rule, where: str, value: Any) -> list[str]:
    """What is wrong with the value of `where`, one sentence each; none where it satisfies the rule."""
    if is_kept(rule, value):
        return []
    details = rule.details(where, value) if rule.details is not None else []
    meant = "".join(f": {name!r} is meant" for _, name in near_misses([value], rule.names, SIMILARITY_OF_KEYS))
    with contextlib.suppress(ValueError, TypeError, OverflowError, RecursionError):
        if isinstance(value, str) and is_number(number := json.loads(value)) and is_kept(rule, number):
            meant = f": write {value} without quotes"
        elif (number := float(value)).is_integer() and is_kept(rule, int(number)):  # 1e6, where an integer is due.
            meant = f": write {int(number)}"
    return details or [f"{where} must be {rule.words}, found {shown(value)}{meant}"]


def broken_keys(
    where: str, values: Mapping[Any, Any], rules: Mapping[str, Rule], required: Sequence[str] = ()
) -> list[str]:
    """What is wrong with the keys and values of a dictionary, the value of `where`, one sentence each.

    Args:
      rules: By key; there are no others.
      required: Keys that it must have.
    """
    meant = dict(near_misses(values, rules, SIMILARITY_OF_KEYS))
    missing = [key for key in required if key not in values and key not in meant.values()]
    findings = [f"{where} has no {key}: add {key}, {rules[key].words}" for key in missing]
    for key, value in values.items():
        if key in rules:
            findings += broken(rules[key], f"{where}.{key}", value)
        else:
            hint = f"{meant[key]} is meant" if key in meant else f"there are {', '.join(rules)}"
            findings.append(f"{where}.{key} is not known: {hint}")
    return findings


def options(**keys: Option) -> Rule:
    """The rule for dictionaries that have no other keys than these."""
    rules = {key: option.rule for key, option in keys.items()}
    required = [key for key, option in keys.items() if option.default is REQUIRED]

    def details(where: str, value: Any) -> list[str]:
        return broken_keys(where, value, rules, required) if isinstance(value, Mapping) else []

    def holds(value: Any) -> bool:
        return isinstance(value, Mapping) and not details("", value)

    return Rule(f"a dictionary with any of {', '.join(keys)}", holds, details, keys=keys)


def is_number(value: Any) -> bool:
    """Whether it is one finite number, of Python or NumPy."""
    try:
        return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # An integer beyond every float.
        return False


def is_integer(value: Any) -> bool:
    """Whether it is one integer, of Python or NumPy."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def integer_from(low: int) -> Rule:
    """The rule for integers of at least `low`."""
    return Rule(f"an integer of at least {low}", lambda value: is_integer(value) and value >= low)


def integer_in(low: int, high: int) -> Rule:
    """The rule for integers from `low` to `high`, both included."""
    return Rule(f"an integer from {low} to {high}", lambda value: is_integer(value) and low <= value <= high)


def number_where(words: str, holds: Callable[[Any], bool]) -> Rule:
    """The rule for finite numbers that satisfy `holds`."""
    return Rule(words, lambda value: is_number(value) and holds(value))


def number_above(low: float, at_most: float = math.inf) -> Rule:
    """The rule for numbers from `low`, excluded, to `at_most`, included."""
    words = f"a number above {low:g}" + (f" and at most {at_most:g}" if at_most < math.inf else "")
    return number_where(words, lambda value: low < value <= at_most)


def number_in(low: float, high: float) -> Rule:
    """The rule for numbers from `low` to `high`, both included."""
    return number_where(f"a number in [{low:g}, {high:g}]", lambda value: low <= value <= high)


def one_of(values: Sequence[Any]) -> Rule:
    """The rule for one of several values; 1, 1.0 and True differ."""
    *others, last = map(repr, values)
    words = f"one of {', '.join(others)}, {last}" if len(others) > 1 else f"{others[0]} or {last}"
    return Rule(
        words,
        lambda value: any(value == allowed and is_integer(value) == is_integer(allowed) for allowed in values),
        names=[name for name in values if isinstance(name, str)],
    )


def or_none(rule: Rule, none: str = "None") -> Rule:
    """A rule that allows None as well; `none` names that in words."""
    return rule.or_else(f"{{}}, or {none}", lambda value: value is None)


TRUE_OR_FALSE = Rule("True or False", lambda value: isinstance(value, bool))


# Of single attributes of TrainParams.

NUMBER = Rule("a finite number", is_number)
EVEN = Rule("an even number of at least 2", lambda value: is_integer(value) and value >= 2 and value % 2 == 0)
SHARE = number_where("a number above 0 and below 1", lambda value: 0 < value < 1)
NOT_NEGATIVE = number_where("a number of at least 0", lambda value: value >= 0)
LAYERS = Rule("a tuple of positive integers such as (256, 256)", lambda value: _are_sizes(value))
OVERSAMPLING = Rule(
    "two integers (a, b) of at least 0, a at least 2 b, such as (40, 5)",
    lambda value: len(value) == 2 and all(map(is_integer, value)) and value[0] >= 2 * value[1] >= 0,
)
RANGE = Rule(
    "two numbers, the lower one first",
    lambda value: len(value) == 2 and all(map(is_number, value)) and value[0] < value[1],
)
PARTS_OF_OBSERVATION = Rule(
    'a tuple of names such as ("proprio", "camera")',
    lambda value: isinstance(value, (list, tuple)) and bool(value) and all(isinstance(name, str) for name in value),
)
CONVOLUTIONS = Rule(
    "a tuple of filters such as (32, 32), or of (filters, kernel, stride) such as ((16, 4, 2), (32, 3, 1)), or ()",
    lambda value: (
        isinstance(value, (list, tuple))
        and all(_are_sizes([layer]) or (_are_sizes(layer) and len(layer) == 3) for layer in value)
    ),
)
ROWS = Rule(
    "a list of rows of equally many numbers such as [[1, 0, -0.5], [0, 1, 0]]",
    lambda value: len({len(row) for row in value}) == 1 and all(is_number(number) for row in value for number in row),
)
BOUNDS = Rule(
    "a pair (low, high) of numbers, or of lists of numbers, such as (-1, 1) or ([-1, 0], [1, 2]), low not above high",
    lambda value: _are_bounds(*value),
)
GoalStrategy = Literal["future", "final", "episode"]


def _are_sizes(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(is_integer(size) and size >= 1 for size in value)


def _are_bounds(low: Any, high: Any) -> bool:
    count = next((len(side) for side in (low, high) if not is_number(side)), 1)
    lows, highs = ([side] * count if is_number(side) else list(side) for side in (low, high))
    are_numbers = all(map(is_number, lows + highs)) and len(lows) == len(highs) > 0
    return are_numbers and all(map(operator.le, lows, highs))


def _are_paths(value: Any) -> bool:
    paths = [value] if isinstance(value, (str, os.PathLike)) else list(value)
    return bool(paths) and all(isinstance(path, (str, os.PathLike)) and str(path) for path in paths)


PATHS = Rule("a path such as 'demos.npz', or a list of paths", _are_paths)

# What `stop_when` can say.
EVALUATIONS, NO_IMPROVEMENT = "evaluations", "no_improvement_env_steps"
_THRESHOLDS = {"eval_success": number_above(0, at_most=1), "eval_return": NUMBER}
_CONDITIONS = {**_THRESHOLDS, EVALUATIONS: integer_from(1), NO_IMPROVEMENT: integer_from(1)}


def _are_conditions(value: Any) -> bool:
    has_one = _THRESHOLDS.keys() & value.keys() or (NO_IMPROVEMENT in value and EVALUATIONS not in value)
    return bool(has_one) and all(is_kept(_CONDITIONS[name], value[name]) for name in value)


CONDITIONS = Rule(
    'a dictionary such as {"eval_success": 0.95, "evaluations": 3}, {"eval_return": -200} or '
    '{"no_improvement_env_steps": 200000}',
    _are_conditions,
)


# Names that were probably meant to be other names.

_SIMILARITY = 0.85
SIMILARITY_OF_KEYS = 0.6  # Where every key must be known, the nearest one is worth naming.


def near_misses(names: Iterable[str], known: Iterable[str], similarity: float = _SIMILARITY) -> list[tuple[str, str]]:
    """Pairs (wrong name, known name) of names that are not known but look like one that is.

    Names that resemble no known one are the user's own and pass.

    Args:
      names: What was found; names with a leading underscore are private and pass.
      known: The right names.
      similarity: Ratio of difflib.SequenceMatcher, over names without case and underscores.
    """
    known = list(known)
    plain = {_plain(name): name for name in known}
    pairs = []
    for name in names:
        if not isinstance(name, str) or name in known or name.startswith("_"):
            continue
        near = [plain[match] for match in difflib.get_close_matches(_plain(name), plain, n=3, cutoff=similarity)]
        # NUM_WORKERS resembles MAX_WORKERS more than NUM_COLLECT_WORKERS, which has all its words.
        best = min(near, key=lambda right: not set(name.split("_")) <= set(right.split("_")), default=None)
        if best is not None and not _extends(name, best):
            pairs.append((name, best))
    return pairs


def is_meant(name: str, known: Iterable[str], similarity: float = SIMILARITY_OF_KEYS) -> str:
    """`, best is meant`: the known name that looks like one that is refused; empty without any."""
    return "".join(f", {right} is meant" for _, right in near_misses([name], known, similarity))


def _extends(name: str, known: str) -> bool:
    """Whether `name` is `known` plus further words, such as actor_learning_rate_decay: plainly a different thing."""
    words, known_words = set(name.split("_")) - {""}, set(known.split("_"))
    return known_words < words


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
