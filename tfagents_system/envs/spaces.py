"""What kind of space a space is, whichever library it is from.

Runs under SAC_ENV_PYTHON as well: standard library and NumPy only, Python 3.9, NumPy 1 or 2.
"""

from __future__ import annotations

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
    """Whether it is of a kind that observations may have."""
    return space_kind(space) in _KNOWN


def no_fixed_shape(name: str, space: Any) -> str:
    """What to tell the user of a space that is none of the known kinds."""
    return f"{name} has the space {space}, which has no fixed shape: use {', '.join(_KNOWN[:-1])} or {_KNOWN[-1]}"


def box_dtype(space: Any) -> np.dtype:
    """The dtype of a Box, also of one that only looks like it."""
    return np.dtype(getattr(space, "dtype", None) or np.asarray(space.low).dtype)


def one_hot_sizes(space: Any) -> np.ndarray:
    """Number of values of each element of a Discrete or MultiDiscrete space."""
    return np.asarray(space.nvec if hasattr(space, "nvec") else [space.n], np.int64).reshape(-1)


def text_key(key: Any) -> str:
    """The key of a dictionary of spaces.

    Raises:
      UserError: It is no text.
    """
    if not isinstance(key, str):
        raise UserError(f"a dictionary of spaces has the key {key!r}: keys must be strings")
    return key
