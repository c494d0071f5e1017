"""Attributes that are dictionaries of options: `iqn = {"huber_kappa": 0.01}` keeps the defaults of all other keys.

It needs nothing but Python 3.9: processes of users' environments load TrainParams, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tfagents_system.checks.rules import Rule, is_kept
from tfagents_system.checks.spelling import near_misses
from tfagents_system.errors import shown

REQUIRED = object()  # The default of a key that a dictionary must set.
_SIMILARITY = 0.6  # The key is refused anyway, so the suggestion may be a loose guess.


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
        findings = [
            f'{where} has no "{key}": add it'
            for key, option in self.keys.items()
            if option.default is REQUIRED and key not in value
        ]
        for key, own in value.items():
            if key not in self.keys:
                meant = near_misses([key], self.keys, _SIMILARITY) if isinstance(key, str) else []
                hint = f'"{meant[0][1]}" is meant' if meant else f"there are {', '.join(self.keys)}"
                findings.append(f'{where}["{key}"] is not known: {hint}')
            elif not is_kept(rule := self.keys[key].rule, own):
                findings.append(f'{where}["{key}"] must be {rule.words}, found {shown(own)}')
        return findings

    def filled(self, value: Any) -> Any:
        """The dictionary with all keys; False and None stay what they are."""
        if value is None or value is False:
            return value
        return {key: option.default for key, option in self.keys.items()} | (value if value is not True else {})
