"""The variables in TensorFlow's checkpoints and SavedModels, found by the attributes that hold them.

No object needs to be built for that: a checkpoint describes the graph of the objects that it was written from.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

_KERAS_NUMBER = re.compile(r"_\d+(?=/|:|$)")
_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


@dataclasses.dataclass(frozen=True)
class SavedVariable:
    """A variable in a file.

    Attributes:
      node: Its number in the graph.
      key: Its key in the file.
      name: As its program named it, without the numbers that Keras counts.
      shape: Of its value.
    """

    node: int
    key: str
    name: str
    shape: tuple[int, ...]


class SavedGraph:
    """An object graph on disk.

    Args:
      prefix: Of the files, such as `checkpoint_0000001000/agent`.

    Raises:
      ValueError: It has no such graph, or can't be read.
    """

    def __init__(self, prefix: Path) -> None:
        try:
            self._reader = tf.train.load_checkpoint(str(prefix))
            graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(self._reader.get_tensor(_GRAPH))
        except (tf.errors.OpError, OSError) as error:
            raise ValueError(f"{prefix} can't be read: {getattr(error, 'message', error)}") from None
        self._nodes = graph.nodes
        self._shapes = self._reader.get_variable_to_shape_map()

    def has(self, *path: str) -> bool:
        """Whether there is such an attribute, from the root on."""
        return self._find(path) is not None

    def variable(self, *path: str) -> SavedVariable | None:
        """The variable that an attribute is; None if there is none."""
        node = self._find(path)
        return None if node is None else self._variable(node)

    def variables(self, *path: str) -> dict[str, SavedVariable]:
        """All variables below an attribute, by their paths from there; each path to a variable counts."""
        node = self._find(path)
        return {} if node is None else dict(self._below(node, (), frozenset()))

    def slots(self, *path: str) -> dict[str, dict[int, SavedVariable]]:
        """The slots of an optimizer: by slot's name, then by the number of the variable that it belongs to."""
        node, found = self._find(path), dict[str, dict[int, SavedVariable]]()
        for slot in [] if node is None else self._nodes[node].slot_variables:
            variable = self._variable(slot.slot_variable_node_id)
            if variable is not None:
                found.setdefault(slot.slot_name, {})[slot.original_variable_node_id] = variable
        return found

    def value(self, variable: SavedVariable) -> np.ndarray:
        """What it was."""
        value: np.ndarray = np.asarray(self._reader.get_tensor(variable.key))
        return value

    def _find(self, path: tuple[str, ...]) -> int | None:
        node = 0
        for name in path:
            child = self._children(node).get(name)
            if child is None:
                return None
            node = child
        return node

    def _children(self, node: int) -> dict[str, int]:
        return {child.local_name: child.node_id for child in self._nodes[node].children}

    def _variable(self, node: int) -> SavedVariable | None:
        for attribute in self._nodes[node].attributes:
            if attribute.checkpoint_key in self._shapes:
                shape = tuple(self._shapes[attribute.checkpoint_key])
                return SavedVariable(node, attribute.checkpoint_key, without_numbers(attribute.full_name), shape)
        return None

    def _below(self, node: int, path: tuple[str, ...], above: frozenset[int]) -> Iterator[tuple[str, SavedVariable]]:
        if (variable := self._variable(node)) is not None:
            yield "/".join(path), variable
        for name, child in self._children(node).items():
            if child not in above and child != node:
                yield from self._below(child, (*path, name), above | {node})


def own_variables(network: Any) -> dict[str, tf.Variable]:
    """The variables of an object in memory by their paths, as a graph on disk would have them; each once."""
    found: dict[str, tf.Variable] = {}
    _collect(network, (), found, set())
    return found


def _collect(each: Any, path: tuple[str, ...], found: dict[str, tf.Variable], seen: set[int]) -> None:
    if id(each) in seen:
        return
    seen.add(id(each))
    if isinstance(each, tf.Variable):
        found["/".join(path)] = each
        return
    for name, child in tf.train.TrackableView.children(each).items():
        _collect(child, (*path, name), found, seen)


def without_numbers(name: str) -> str:
    """The name of a variable without the numbers that Keras increments over a whole process."""
    return _KERAS_NUMBER.sub("", name).removesuffix(":0")
