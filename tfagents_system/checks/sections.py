"""Reads an object of the JSON into a dataclass whose fields are described as TrainParamsBase's attributes are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from tfagents_system.checks.hyperparameters import Hyperparameter, described_by
from tfagents_system.checks.rules import is_kept, meant_in_words
from tfagents_system.checks.spelling import SIMILARITY_OF_KEYS, near_misses
from tfagents_system.errors import UserError, shown

_Settings = TypeVar("_Settings")
_MOST_CHARACTERS = 80


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
        f'"{where}.{key}" must be {_in_json(described[key].rule.words)}, found {_as_json(section[key])}'
        + (meant_in_words(described[key].rule, section[key]) or ": correct it")
        for key, value in values.items()
        if not is_kept(described[key].rule, value)
    ]
    if findings:
        raise UserError(*findings)
    return settings_class(**values)


def _in_json(words: str) -> str:
    """A rule's words, which are about Python's values, as JSON calls these."""
    return words.replace(", or None", ", or null").replace("True or False", "true or false")


def _as_json(value: Any) -> str:
    """A value of the JSON as it is written there, cut if it is long."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):  # It was set from Python.
        return shown(value)
    return text if len(text) <= _MOST_CHARACTERS else shown(value)


def _described(settings_class: Any) -> Mapping[str, Hyperparameter]:
    return described_by(settings_class)  # mypy takes no type variable for hashable.
