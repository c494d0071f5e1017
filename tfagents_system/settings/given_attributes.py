"""What is wrong with the arguments of `tfagents_system.train`, as far as that is seen without the user's class."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tfagents_system.checks.hyperparameters import Hyperparameter, described_by
from tfagents_system.checks.rules import broken
from tfagents_system.checks.spelling import near_misses
from tfagents_system.errors import SettingsError, UserError, shown
from tfagents_system.settings import merge, other_libraries
from tfagents_system.settings.load_params import fixed_attribute
from tfagents_system.settings.overrides import Overrides, Setting
from tfagents_system.settings.params_check import check_env_config
from tfagents_system.train_params_base import TrainParamsBase

ATTRIBUTES = "attributes"


def argument_findings(attributes: Mapping[str, Any], config: Any = None, params: Any = None) -> list[str]:
    """One sentence each; names of a file's own attributes, and parts of its dictionaries, are looked at by the start.

    Args:
      attributes: As `--set` takes them, by name.
      config: The configuration; all else, such as a file with it, is not looked at.
      params: The class; all else, such as a file with it, is not looked at.
    """
    values = {name: _of_json(value) for name, value in attributes.items()}
    findings = [
        f"{name} in {ATTRIBUTES} must be a number, a text, a list or a dictionary, as in JSON, found "
        f"{shown(attributes[name])}: give it in the class"
        for name, value in values.items()
        if value is _NONE
    ]
    settings = [Setting(name, value, ATTRIBUTES) for name, value in values.items() if value is not _NONE]
    overrides, impossible = Overrides.from_settings(settings)
    findings += impossible
    for name, value in overrides.params.items():
        findings += _findings_of(name, value, params if isinstance(params, type) else TrainParamsBase)
    return findings + (_findings_of_config(overrides, config) if isinstance(config, Mapping) else [])


_NONE: Any = object()


def _of_json(value: Any) -> Any:
    """The value as the start reads it; _NONE where JSON has no such value."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError):
        return _NONE


def _findings_of(name: str, value: Any, params: type) -> Iterator[str]:
    described: Mapping[str, Hyperparameter] = described_by(TrainParamsBase)
    if finding := fixed_attribute(params, name):
        yield finding
    elif name in described:
        if isinstance(value, Mapping):  # It changes parts of what the class, or the run that goes on, has.
            return
        where = f"{name} in {ATTRIBUTES}"
        try:
            value = merge.overridden(name, getattr(params, name, None), value)
        except UserError as error:
            yield str(error).replace(f"{merge.PARAMS}.{name}", where)
        else:
            yield from broken(described[name].rule, where, value)
    elif not hasattr(params, name) and other_libraries.meant(name) is None:
        yield from (
            f"{name} in {ATTRIBUTES} is not known: {right} is meant" for _, right in near_misses([name], described)
        )


def _findings_of_config(overrides: Overrides, config: Mapping[str, Any]) -> list[str]:
    try:
        return check_env_config(overrides.merged(config))
    except SettingsError as error:
        return [*error.findings, *_findings_of_config(overrides.without(error.names), config)]
    except UserError as error:
        return list(error.findings)
