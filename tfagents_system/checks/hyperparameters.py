"""How TrainParamsBase describes each hyperparameter in one line, and how to read these descriptions.

    target_update_period: Annotated[Count, "updates", Unless("algorithm", "crossq")] = 1

The type has the rule for values. A text is the unit, with "per worker" or "in total"; the classes of this file say
the rest. It needs nothing but Python 3.9: processes of users' environments load TrainParams, too.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from tfagents_system.checks.rules import (
    TRUE_OR_FALSE,
    Rule,
    broken_keys,
    integer_from,
    is_number,
    layers_such_as,
    number_above,
    number_where,
    one_of,
    or_none,
)
from tfagents_system.errors import UserError, shown

_Settings = TypeVar("_Settings")
REQUIRED = object()  # The default of a key that a dictionary must set.


class Option(NamedTuple):
    """One key.

    Attributes:
      default: Its value in a dictionary without it, or REQUIRED.
    """

    default: Any
    rule: Rule
    meaning: str
    unit: str = ""


class Options:
    """What the dictionary of an attribute may hold.

    Args:
      keys: By name.
    """

    def __init__(self, **keys: Option) -> None:
        self.keys: Mapping[str, Option] = keys

    def rule(self, allows_bool: bool, allows_none: bool) -> Rule:
        """The rule for the attribute: True is the dictionary of all defaults, False and None have no dictionary."""
        words = f"{'True, False or ' * allows_bool}a dictionary with any of {', '.join(self.keys)}"

        def holds(value: Any) -> bool:
            if isinstance(value, Mapping):
                return not self.findings("", value) and bool(value or not allows_bool)
            return (allows_bool and isinstance(value, bool)) or (allows_none and value is None)

        def details(where: str, value: Any) -> list[str]:
            return self.findings(where, value) if isinstance(value, Mapping) else []

        return Rule(f"{words}{', or None' * allows_none}", holds, details)

    def findings(self, where: str, value: Mapping[str, Any]) -> list[str]:
        """What is wrong with single keys, one sentence each."""
        required = [key for key, option in self.keys.items() if option.default is REQUIRED]
        return broken_keys(where, value, {key: option.rule for key, option in self.keys.items()}, required)

    def filled(self, value: Any) -> Any:
        """The dictionary with all keys; False and None stay what they are."""
        if value is None or value is False:
            return value
        return {key: option.default for key, option in self.keys.items()} | (value if value is not True else {})


Count = Annotated[int, integer_from(1)]
CountOrZero = Annotated[int, integer_from(0)]
Number = Annotated[float, Rule("a finite number", is_number)]
Positive = Annotated[float, number_above(0)]
Layers = Annotated[Sequence[int], layers_such_as("(256, 256)")]
_BETA = number_where("a number of at least 0 and below 1", lambda value: 0 <= value < 1)
Optimizer = Annotated[
    Mapping[str, Any],
    Options(
        name=Option("adam", one_of(("adam", "adamw", "sgd")), "Which one."),
        beta_1=Option(None, _BETA, "Decay rate of Adam's first moment; None: 0.9, with crossq 0.5."),
        beta_2=Option(0.999, _BETA, "Decay rate of Adam's second moment."),
        epsilon=Option(1e-7, number_above(0), "Added by Adam to the square root of the second moment."),
        momentum=Option(0.0, _BETA, "Of SGD."),
        weight_decay=Option(
            None,
            number_where("a number of at least 0", lambda value: value >= 0),
            "AdamW: each step subtracts it times the learning rate times the weights, 0.01 where it is not set. Adam "
            "and SGD: it times the weights joins the gradient, 0 where it is not set.",
        ),
        global_clipnorm=Option(
            None, or_none(number_above(0)), "Maximum norm of the gradients of all variables together; None: no limit."
        ),
    ),
]


class When(NamedTuple):
    """What another attribute must be for this one to have an effect.

    Attributes:
      attribute: The other attribute.
      value: Its value; True and False also match whatever is truthy or falsy, such as an empty tuple. A tuple matches
        any of its values.
      is_equal: If False, it must be anything else.
    """

    attribute: str
    value: Any = True
    is_equal: bool = True

    def holds(self, found: Any) -> bool:
        """Whether this attribute has an effect when the other one is `found`."""
        values = self.value if isinstance(self.value, tuple) else (self.value,)
        is_it = bool(found) == self.value if isinstance(self.value, bool) else found in values
        return is_it == self.is_equal


def Unless(attribute: str, value: Any) -> When:
    """What another attribute must not be for this one to have an effect."""
    return When(attribute, value, is_equal=False)


class ByAlgorithm:
    """Values from the algorithms' papers, which replace None.

    Args:
      others: For all algorithms that are not named.
      named: By algorithm; a function gets the params.
    """

    def __init__(self, others: Any = None, **named: Any) -> None:
        self.others, self.named = others, named

    def value(self, params: Any) -> Any:
        """The value for `params.algorithm`."""
        found = self.named.get(params.algorithm, self.others)
        return found(params) if callable(found) else found


class NotDeterministic(NamedTuple):
    """With SAC_DETERMINISTIC=1 it must have its default: `why`."""

    why: str


class MayChange:
    """`--set` may give it to a run that has begun: what was learned and what is stored fit any value."""


@dataclasses.dataclass(frozen=True)
class Hyperparameter:
    """What is known about one attribute.

    Attributes:
      acts: Conditions that must all hold for it to have an effect.
      options: Of a dictionary of options; None for all others.
    """

    name: str
    default: Any
    rule: Rule
    unit: str
    acts: tuple[When, ...]
    by_algorithm: ByAlgorithm
    may_change: bool
    not_deterministic: NotDeterministic | None
    options: Options | None = None

    @property
    def takes_schedule(self) -> bool:
        """Whether a schedule may be in the place of its number."""
        return self.rule.details is not None and self.options is None


@functools.cache
def described_by(params_class: type) -> Mapping[str, Hyperparameter]:
    """The public annotated attributes of a class by name, in its order.

    Raises:
      KeyError: One has a type without a rule.
    """
    hints = typing.get_type_hints(params_class, include_extras=True)
    return {name: _described(params_class, name, hint) for name, hint in hints.items() if not name.startswith("_")}


def _described(params_class: type, name: str, hint: Any) -> Hyperparameter:
    metadata = getattr(hint, "__metadata__", ())
    kind, options = hint.__origin__ if metadata else hint, next((o for o in metadata if isinstance(o, Options)), None)
    if options is not None:
        rule = options.rule(bool in typing.get_args(kind), type(None) in typing.get_args(kind))
    else:
        rule = _rule(kind, [given for given in metadata if isinstance(given, Rule)])
    return Hyperparameter(
        name,
        getattr(params_class, name),
        rule,
        unit=", ".join(each for each in metadata if isinstance(each, str)),
        acts=tuple(each for each in metadata if isinstance(each, When)),
        by_algorithm=next((each for each in metadata if isinstance(each, ByAlgorithm)), ByAlgorithm()),
        may_change=MayChange in metadata,
        not_deterministic=next((each for each in metadata if isinstance(each, NotDeterministic)), None),
        options=options,
    )


def _rule(kind: Any, given: Sequence[Rule]) -> Rule:
    """The rule given beside a type, else the type's own; `| None` allows None as well."""
    args = typing.get_args(kind)
    if type(None) in args:
        (other,) = (each for each in args if each is not type(None))
        return or_none(_rule(other, given))
    if given:
        return given[-1]
    if typing.get_origin(kind) is Literal:
        return one_of(args)
    return _rule(kind.__origin__, kind.__metadata__) if hasattr(kind, "__metadata__") else {bool: TRUE_OR_FALSE}[kind]


def read_section(settings_class: type[_Settings], section: Any, where: str) -> _Settings:
    """Builds the dataclass from an object of the JSON.

    Args:
      settings_class: A dataclass with a default for each field, and a type that has a rule (`Count`, `Annotated`).
      section: What the JSON has; lists become tuples.
      where: Its key in the JSON, named in errors.

    Raises:
      UserError: It is no object, or has unknown keys or impossible values; all of them at once.
    """
    if not isinstance(section, Mapping):
        raise UserError(f'"{where}" must be an object, found {shown(section)}: correct it')
    described: Mapping[str, Hyperparameter] = described_by(settings_class)  # type: ignore[arg-type]
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in section.items()}
    if findings := broken_keys(where, values, {name: field.rule for name, field in described.items()}):
        raise UserError(*findings)
    return settings_class(**values)
