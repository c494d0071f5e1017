"""Attributes that a user's TrainParams have beside ours, and whether ours are meant."""

from __future__ import annotations

import inspect

from tfagents_system.errors import shown
from tfagents_system.settings import other_libraries
from tfagents_system.train_params_base import TrainParamsBase

_PLAIN = (bool, int, float, str, list, tuple, dict, type(None))


def own_names(params: TrainParamsBase, is_hook: bool) -> list[str]:
    """The user's own names, on the instance and on its own classes: methods, or values.

    Separate, because a value such as `collect_env_kwargs` is a natural name beside the hook `collect_env_args_kwargs`.
    """
    names = dict.fromkeys([*vars(params), *(name for cls in _own_classes(params) for name in vars(cls))])
    # getattr_static: a user's property is not evaluated, since it may take long or raise.
    return [name for name in names if inspect.isroutine(inspect.getattr_static(params, name)) == is_hook]


def is_set(params: TrainParamsBase, name: str) -> bool:
    """Whether the user's class, its constructor or `--set` gives an attribute a value."""
    return name in vars(params) or any(name in vars(cls) for cls in _own_classes(params))


def findings(params: TrainParamsBase) -> list[str]:
    """Names of other libraries' settings, which would change nothing, one sentence each."""
    values = {name: inspect.getattr_static(params, name) for name in own_names(params, is_hook=False)}
    return [
        f"TrainParams.{name}={shown(value)} is a setting of {other_libraries.in_words(setting.libraries)}: "
        f"{setting.ours}; rename it if it is your own"
        for name, value in values.items()
        if (setting := other_libraries.meant(name)) and isinstance(value, _PLAIN)
    ]


def _own_classes(params: TrainParamsBase) -> list[type]:
    return [cls for cls in type(params).__mro__ if cls not in TrainParamsBase.__mro__]
