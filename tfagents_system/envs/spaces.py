"""The kind of a space, whichever library it is from.

Runs under SAC_ENV_PYTHON as well: standard library and NumPy only, Python 3.9, NumPy 1 or 2.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tfagents_system.errors import UserError

_KNOWN = ("Box", "Dict", "Tuple", "Discrete", "MultiDiscrete", "MultiBinary")


def space_kind(space: Any) -> str:
    """`Box`, `Dict`, ...: the same for the spaces of gym, of Gymnasium and for classes that only look like them."""
    for cls in type(space).__mro__:
        if cls.__name__ in _KNOWN:
            return cls.__name__
    return "Box" if all(hasattr(space, name) for name in ("low", "high", "shape")) else type(space).__name__


def is_known(space: Any) -> bool:
    """Whether observations may have such a space."""
    return space_kind(space) in _KNOWN


def no_fixed_shape(name: str, space: Any) -> str:
    """The error message for a space of unknown kind."""
    return f"{name} has the space {space}, which has no fixed shape: use {', '.join(_KNOWN[:-1])} or {_KNOWN[-1]}"


def space_nest(space: Any) -> Any:
    """The nest of a space's parts that are arrays, each a space itself.

    Raises:
      UserError: A key is not a string.
    """
    kind = space_kind(space)
    if kind == "Dict":
        return {text_key(key): space_nest(part) for key, part in space.spaces.items()}
    if kind == "Tuple":
        return tuple(map(space_nest, space.spaces))
    return space


def leaf_name(*path: Any) -> str:
    """`observation/camera`. TensorFlow allows few characters in names."""
    return "/".join([path[0], *(re.sub(r"[^A-Za-z0-9_.-]", "_", str(part)) for part in path[1:])])


def box_dtype(space: Any) -> np.dtype:
    """The dtype of a Box, or of a class that looks like one."""
    return np.dtype(getattr(space, "dtype", None) or np.asarray(space.low).dtype)


def one_hot_sizes(space: Any) -> np.ndarray:
    """Number of values of each element of a Discrete or MultiDiscrete space."""
    return np.asarray(space.nvec if hasattr(space, "nvec") else [space.n], np.int64).reshape(-1)


def text_key(key: Any) -> str:
    """The key of a dictionary of spaces.

    Raises:
      UserError: It is not a string.
    """
    if not isinstance(key, str):
        raise UserError(f"a dictionary of spaces has the key {key!r}: keys must be strings")
    return key
