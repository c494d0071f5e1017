"""Weights of a policy as named arrays, as the trainer sends them to the workers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_KERAS_NUMBER = re.compile(r"_\d+(?=/|:|$)")


def named_variables(policy: Any) -> dict[str, tf.Variable]:
    """The policy's variables by name, without the numbers that Keras increments over a whole process.

    If a worker's environment has its own network, its `dense_7` may be the trainer's `dense_5`. Repeated names get
    `#1`, `#2`, ... in the order in which the policy lists them.
    """
    variables: dict[str, tf.Variable] = {}
    for variable in policy.variables():
        name = plain = f"{_KERAS_NUMBER.sub('', variable.name).removesuffix(':0')}:0"
        repeat = 0
        while name in variables:
            repeat += 1
            name = f"{plain}#{repeat}"
        variables[name] = variable
    return variables


def read_weights(variables: Mapping[str, tf.Variable]) -> dict[str, np.ndarray]:
    """Copies the values of `named_variables`."""
    return {name: variable.numpy() for name, variable in variables.items()}


def assign_weights(variables: Mapping[str, tf.Variable], weights: Mapping[str, np.ndarray]) -> None:
    """Sets `named_variables` to `weights`.

    Raises:
      ValueError: The names differ: the two sides were built from different parameters.
    """
    if variables.keys() != weights.keys():
        differing = sorted(variables.keys() ^ weights.keys())
        raise ValueError(
            f"the policy's variables and the weights differ in {differing}: both sides need the same params"
        )
    for name, variable in variables.items():
        variable.assign(weights[name])


def to_arrays(weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """A flat list: the names as JSON bytes, then the values."""
    names = np.frombuffer(json.dumps(list(weights)).encode(), np.uint8)
    return [names, *(np.asarray(value) for value in weights.values())]


def from_arrays(arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """The inverse of `to_arrays`."""
    names = json.loads(arrays[0].tobytes())
    return dict(zip(names, arrays[1:], strict=True))
