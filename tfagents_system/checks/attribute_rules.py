"""Rules for the values of single attributes of TrainParams. It needs nothing but Python 3.9."""

from __future__ import annotations

import os
from typing import Any, Literal

from tfagents_system.checks.rules import Rule, integer_from, is_integer, is_kept, number_where

_FROM_1, _FROM_2 = integer_from(1), integer_from(2)

OVERSAMPLING = Rule(
    "two integers (a, b) of at least 0, a at least 2 b, such as (40, 5)",
    lambda value: len(value) == 2 and all(is_integer(each) for each in value) and value[0] >= 2 * value[1] >= 0,
)
PARTS_OF_OBSERVATION = Rule(
    'a tuple of names such as ("proprio", "camera")',
    lambda value: isinstance(value, (list, tuple)) and bool(value) and all(isinstance(name, str) for name in value),
)


def _is_convolution(layer: Any) -> bool:
    if is_integer(layer):
        return is_kept(_FROM_1, layer)
    return len(layer) == 3 and all(is_kept(_FROM_1, size) for size in layer)


CONVOLUTIONS = Rule(
    "a tuple of filters such as (32, 32), or of (filters, kernel, stride) such as ((16, 4, 2), (32, 3, 1)), or ()",
    lambda value: isinstance(value, (list, tuple)) and all(map(_is_convolution, value)),
)
GoalStrategy = Literal["future", "final", "episode"]
EVEN = Rule("an even number of at least 2", lambda value: is_kept(_FROM_2, value) and value % 2 == 0)
SHARE = number_where("a number above 0 and below 1", lambda value: 0 < value < 1)
NOT_NEGATIVE = number_where("a number of at least 0", lambda value: value >= 0)


def _are_paths(value: Any) -> bool:
    paths = [value] if isinstance(value, (str, os.PathLike)) else list(value)
    return bool(paths) and all(isinstance(path, (str, os.PathLike)) and str(path) for path in paths)


PATHS = Rule("a path such as 'demos.npz', or a list of paths", _are_paths)
