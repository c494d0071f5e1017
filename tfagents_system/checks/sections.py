"""Reads an object of the JSON into a dataclass whose fields are described as TrainParamsBase's attributes are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from tfagents_system.checks.hyperparameters import Hyperparameter, described_by
from tfagents_system.checks.rules import is_kept
from tfagents_system.checks.spelling import SIMILARITY_OF_KEYS, near_misses
from tfagents_system.errors import UserError, shown

_Settings = TypeVar("_Settings")


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
    described = _described(settings_class)
    meant = dict(near_misses(section, described, SIMILARITY_OF_KEYS))
    findings = [
        f'"{where}.{key}" is unknown: '
        + (f'"{meant[key]}" is meant' if key in meant else "it has " + ", ".join(described))
        for key in section
        if key not in described
    ]
    values = {
        key: tuple(value) if isinstance(value, list) else value for key, value in section.items() if key in described
    }
    findings += [
        f'"{where}.{key}" must be {described[key].rule.words}, found {shown(section[key])}: correct it'
        for key, value in values.items()
        if not is_kept(described[key].rule, value)
    ]
    if findings:
        raise UserError(*findings)
    return settings_class(**values)


def _described(settings_class: Any) -> Mapping[str, Hyperparameter]:
    return described_by(settings_class)  # mypy takes no type variable for hashable.
