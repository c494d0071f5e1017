"""Attributes that a user's TrainParams have beside ours: whether anything reads them, and whether ours are meant."""

from __future__ import annotations

import ast
import functools
import inspect
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tfagents_system.errors import shown
from tfagents_system.settings import other_libraries
from tfagents_system.train_params_base import TrainParamsBase

_INSTALLED = (Path(__file__).parent, *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))
_NOT_THE_USERS = tuple(f"{folder}{os.sep}" for folder in _INSTALLED)
_OURS = ("env_config", "compute_config")  # They are on the instance, not on the class.
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
    names = [name for name in _own_values(params) if other_libraries.meant(name)]
    read = names_read(params) if names else set()
    return [
        f"{_with_value(params, name)} is a setting of {other_libraries.in_words(setting.libraries)}: {setting.ours}"
        for name in names
        if name not in read and (setting := other_libraries.meant(name))
    ]


def notes(params: TrainParamsBase) -> list[str]:
    """Values that nothing reads, and values that only the user's own code reads though another library has the name."""
    names = _own_values(params)
    read = names_read(params) if names else set()
    told = []
    for name in names:
        setting = other_libraries.meant(name)
        if setting and name in read:
            told.append(
                f"{_with_value(params, name)} is read by your own code alone. If the setting of "
                f"{other_libraries.in_words(setting.libraries)} is meant: {setting.ours}"
            )
        elif name not in read and not setting and isinstance(inspect.getattr_static(params, name), _PLAIN):
            told.append(
                f"{_with_value(params, name)} is read by nothing: neither the toolkit nor your own code has the name. "
                "Correct it, or remove it"
            )
    return told


def names_read(params: TrainParamsBase) -> set[str]:
    """Every name that the user's own code reads, in the files of its classes and in the modules beside them.

    A text counts as well: it may be the argument of a `getattr`.
    """
    return {name for path in _own_files(params) for name in _names_read_of(path)}


@functools.lru_cache(maxsize=1000)
def _names_read_of(path: str) -> frozenset[str]:
    try:
        return frozenset(_names_read_in(ast.parse(Path(path).read_bytes())))
    except (OSError, SyntaxError, ValueError):
        return frozenset()


def _names_read_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.ClassDef):  # A bare name is the class's only in its body, not in its methods.
            values = [part for part in node.body if not isinstance(part, ast.FunctionDef | ast.ClassDef)]
            inside = (each for value in values for each in ast.walk(value))
            yield from (each.id for each in inside if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load))


def _own_classes(params: TrainParamsBase) -> list[type]:
    return [cls for cls in type(params).__mro__ if cls not in TrainParamsBase.__mro__]


def _own_values(params: TrainParamsBase) -> list[str]:
    """Names of values, without ours and without private ones."""
    names = own_names(params, is_hook=False)
    return [name for name in names if name[0] != "_" and name not in _OURS and not hasattr(TrainParamsBase, name)]


def _own_files(params: TrainParamsBase) -> set[str]:
    """The files of the user's classes, and of the modules that were imported from their folders."""
    files = {name: file for name, module in list(sys.modules.items()) if (file := _file_of(module)) is not None}
    own = {files[cls.__module__] for cls in _own_classes(params) if cls.__module__ in files}
    folders = tuple({f"{os.path.dirname(file)}{os.sep}" for file in own})
    own |= {file for file in files.values() if file.startswith(folders) and not file.startswith(_NOT_THE_USERS)}
    return own | {str(params._source.path)} if params._source is not None else own


def _file_of(module: object) -> str | None:
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) and file.endswith(".py") else None


def _with_value(params: TrainParamsBase, name: str) -> str:
    return f"TrainParams.{name}={shown(inspect.getattr_static(params, name))}"
