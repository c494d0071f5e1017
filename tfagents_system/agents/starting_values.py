"""What an agent begins with where it begins with another agent's values instead of random ones.

Only what is taken is looked at: another algorithm's actor fits where its layers do.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from tfagents_system.agents.agent import TARGETS, Agent, statistics_of
from tfagents_system.agents.algorithms import ACTOR, ALPHA, CRITICS, ENCODER, NORMALIZER, OPTIMIZERS, USUAL_PARTS
from tfagents_system.agents.normalization import ObservationNormalization, RunningNormalization


class UnsupportedAgentError(Exception):
    """The agent is none of the toolkit's algorithms: nobody knows its networks."""


def networks_of(agent: Any) -> dict[str, list[Any]]:
    """As of `Agent.networks`.

    Raises:
      UnsupportedAgentError: It is none of the toolkit's agents.
    """
    if not isinstance(agent, Agent):
        raise UnsupportedAgentError(f"{type(agent).__name__} is none of the toolkit's algorithms")
    return agent.networks()


def normalizations_of(network: Any) -> list[RunningNormalization]:
    """What normalises the leaves of the network's observation, in the order in which checkpoints number them."""
    found = [layer for layer in network.submodules if isinstance(layer, ObservationNormalization)]
    return [leaf for layer in found for leaf in layer.leaves]


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


_STATISTIC = re.compile(r"leaves/\d+/(count|mean|variance)$")
MOMENTS = ("count", "mean", "variance")  # Of RunningNormalization.
_LABELS = {ACTOR: "actor", CRITICS: "critic", TARGETS: "target critic", ENCODER: "encoder"}
_OPTIMIZERS = {ACTOR: "actor_optimizer", CRITICS: "critic_optimizer", ALPHA: "alpha_optimizer"}


@dataclasses.dataclass
class StartingValues:
    """Values for an agent's variables.

    Attributes:
      values: Of variables that exist.
      moments: Of optimizers: for each its slots, (variable, slot's name, value).
      counts: How many weights of each part.
      findings: Why they do not fit, layer by layer; then nothing may be assigned.
    """

    values: list[tuple[tf.Variable, np.ndarray]] = dataclasses.field(default_factory=list)
    moments: list[tuple[Any, list[tuple[tf.Variable, str, np.ndarray]]]] = dataclasses.field(default_factory=list)
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    findings: list[str] = dataclasses.field(default_factory=list)

    def add(self, part: str, variable: tf.Variable, value: np.ndarray) -> None:
        self.values.append((variable, value))
        self.counts[part] = self.counts.get(part, 0) + int(np.size(value))

    def assign(self) -> None:
        """Gives them to the agent. Optimizers get the variables that their first step would have made."""
        for variable, value in self.values:
            variable.assign(value)
        for optimizer, slots in self.moments:
            optimizer._create_all_weights(list({variable.ref(): variable for variable, _, _ in slots}.values()))
            for variable, name, value in slots:
                optimizer.get_slot(variable, name).assign(value)

    def in_words(self) -> str:
        """`actor 70,658, critics 141,826 numbers`."""
        return ", ".join(f"{part} {count:,}" for part, count in self.counts.items()) + " numbers"


def of_checkpoint(agent: Any, prefix: Path, parts: Sequence[str] | None = None) -> StartingValues:
    """Values of the agent in a trainer's checkpoint.

    Args:
      agent: One that `networks_of` knows. It stays as it is.
      prefix: Of the checkpoint's files.
      parts: Of AGENT_PARTS; None: the usual ones, as far as this agent has them.

    Raises:
      ValueError: The files can't be read.
      UnsupportedAgentError: As of `networks_of`.
    """
    return _Fit(agent, SavedGraph(prefix), parts).found


class _Fit:
    def __init__(self, agent: Any, graph: SavedGraph, parts: Sequence[str] | None) -> None:
        self._agent, self._graph = agent, graph
        self._parts, self._is_explicit = parts or USUAL_PARTS, parts is not None
        self._networks = networks_of(agent)
        self._own_of_node: dict[int, tf.Variable] = {}
        self.found = StartingValues()
        for part in (ACTOR, CRITICS, ENCODER):
            if part in self._parts:
                self._take_networks(part)
        if ALPHA in self._parts:
            self._take_alpha()
        if CRITICS in self._parts:
            self._compare_rewards()
        if NORMALIZER in self._parts:
            self._take_statistics()
        if OPTIMIZERS in self._parts:
            for part, name in _OPTIMIZERS.items():
                if part in self._parts and getattr(agent, name) is not None:
                    self._take_optimizer(part, name)

    def _take_networks(self, part: str) -> None:
        own, saved = self._networks[part], self._saved(part)
        if not own:
            self._missing_here(part)
        elif not saved:
            self.found.findings.append(f"{part}: absent there")
        elif len(own) != len(saved):
            self.found.findings.append(f"{part}: {len(saved)} there, {len(own)} here")
        else:
            for number, (network, path) in enumerate(zip(own, saved, strict=True), 1):
                self._take_network(part, _label(part, number, len(own)), network, path)
            if part == CRITICS and self._networks[TARGETS]:
                targets = self._saved(TARGETS) or saved
                for number, (network, path) in enumerate(zip(self._networks[TARGETS], targets, strict=True), 1):
                    self._take_network(part, _label(TARGETS, number, len(own)), network, path)

    def _take_network(self, part: str, label: str, network: Any, path: tuple[str, ...]) -> None:
        """All of a network but the statistics of observations, which are not learned."""
        statistics = {variable.ref() for variable in statistics_of(network)}
        saved = self._graph.variables(*path)
        if bool(statistics) != any(_STATISTIC.search(each) for each in saved):
            where = "here" if statistics else "there"
            self.found.findings.append(f"{label}: observations are normalised {where} alone (normalize_observations)")
            return
        used = set()
        for each, variable in own_variables(network).items():
            if variable.ref() in statistics:
                continue
            there = saved.get(each)
            if there is not None:
                used.add(there.node)
            if there is None or there.shape != tuple(variable.shape):
                self.found.findings.append(f"{label}: {_difference(variable, there)}")
            else:
                self.found.add(part, variable, self._graph.value(there))
                self._own_of_node.setdefault(there.node, variable)
        left = {found.node: found for each, found in saved.items() if not _STATISTIC.search(each)}
        self.found.findings += [
            f"{label}: {difference(found.name, found.shape, None)}" for node, found in left.items() if node not in used
        ]

    def _take_alpha(self) -> None:
        own, there = self._agent.log_alpha, self._graph.variable("agent", "log_alpha")
        is_fixed = own is not None and self._agent.alpha_optimizer is None
        if own is None or is_fixed:
            self._missing_here(ALPHA, "it is fixed (learn_entropy_coef)" if is_fixed else "")
        elif there is None:
            self.found.findings.append(f"{ALPHA}: absent there")
        else:
            self.found.add(ALPHA, own, self._graph.value(there))
            self._own_of_node[there.node] = own

    def _compare_rewards(self) -> None:
        """Critics count in units of rewards."""
        here, there = hasattr(self._agent, "reward_scale"), self._graph.has("agent", "reward_scale")
        if here != there:
            where = "here" if here else "there"
            self.found.findings.append(f"{CRITICS}: rewards are normalised {where} alone (normalize_rewards)")

    def _take_statistics(self) -> None:
        scale = getattr(self._agent, "reward_scale", None)
        networks = [network for of_part in self._networks.values() for network in of_part]
        if scale is None and not any(statistics_of(network) for network in networks):
            self._missing_here(NORMALIZER)
            return
        for part, of_part in self._networks.items():
            saved = self._saved_statistics(CRITICS if part == TARGETS else part)
            for network in of_part:
                for place, layer in enumerate(normalizations_of(network)):
                    for name in MOMENTS:
                        self._take_statistic(getattr(layer, name), saved.get(f"leaves/{place}/{name}"))
        if scale is not None:
            there = self._graph.variables("agent", "reward_scale")
            for name, variable in own_variables(scale).items():
                self._take_statistic(variable, there.get(name))

    def _saved_statistics(self, part: str) -> dict[str, SavedVariable]:
        """Those of a part there, by the ends of their paths, such as `leaves/0/mean`.

        Where actor and critics see the same, and one of them is absent there, those of the other.
        """
        actor, critics = ({layer.source for layer in self._normalizations(each)} for each in (ACTOR, CRITICS))
        others = [other for other in (ACTOR, CRITICS) if other != part] if actor in (critics, set()) else []
        paths = [path for each in (part, *others) for path in self._saved(each)]
        return next((found for path in paths if (found := _statistics(self._graph.variables(*path)))), {})

    def _normalizations(self, part: str) -> list[Any]:
        return [layer for network in self._networks[part] for layer in normalizations_of(network)]

    def _take_statistic(self, variable: tf.Variable, there: SavedVariable | None) -> None:
        if there is None or there.shape != tuple(variable.shape):
            self.found.findings.append(f"{NORMALIZER}: {_difference(variable, there)}")
        else:
            self.found.add(NORMALIZER, variable, self._graph.value(there))

    def _take_optimizer(self, part: str, name: str) -> None:
        optimizer = getattr(self._agent, name)
        count, slots = self._graph.variable("agent", name, "iter"), self._graph.slots("agent", name)
        kind = count.name.partition("/")[0] if count is not None else "absent"
        has_momentum = bool(getattr(optimizer, "_momentum", False))
        if count is None or kind != optimizer._name or ("momentum" in slots) != has_momentum:
            self.found.findings.append(
                f"{OPTIMIZERS}: {part}'s is {kind}{_with(slots)} there, {optimizer._name}"
                f"{_with(['momentum'] if has_momentum else [])} here"
            )
            return
        self.found.add(OPTIMIZERS, optimizer.iterations, self._graph.value(count))
        moments = [
            (self._own_of_node[node], slot, self._graph.value(saved))
            for slot, of_nodes in slots.items()
            for node, saved in of_nodes.items()
            if node in self._own_of_node
        ]
        self.found.moments.append((optimizer, moments))
        self.found.counts[OPTIMIZERS] += sum(int(np.size(value)) for _, _, value in moments)

    def _saved(self, part: str) -> list[tuple[str, ...]]:
        """Paths of the networks of a part there."""
        paths = [("agent", part)]
        if part in (CRITICS, TARGETS):
            paths = [("agent", part, str(number)) for number in range(_MOST_NETWORKS)]
        return [path for path in paths if self._graph.has(*path)]

    def _missing_here(self, part: str, reason: str = "") -> None:
        if self._is_explicit:
            self.found.findings.append(f"{part}: {reason or 'absent here'}")


_MOST_NETWORKS = 1000


def _label(part: str, number: int, count: int) -> str:
    return f"{_LABELS[part]} {number}" if count > 1 else _LABELS[part]


def _difference(variable: tf.Variable, there: SavedVariable | None) -> str:
    return difference(without_numbers(variable.name), None if there is None else there.shape, variable.shape)


def difference(name: str, there: Any, here: Any) -> str:
    """`dense/kernel is 3x64 there, 3x256 here`, of two shapes; None: absent."""
    return f"{name} is {_shape(there)} there, {_shape(here)} here"


def _shape(shape: Any) -> str:
    return "absent" if shape is None else "x".join(map(str, shape)) or "scalar"


def _with(slots: Sequence[str] | Mapping[str, Any]) -> str:
    return " with momentum" if "momentum" in slots else ""


def _statistics(saved: Mapping[str, SavedVariable]) -> dict[str, SavedVariable]:
    """By the ends of their paths, such as `leaves/0/mean`."""
    found = {_STATISTIC.search(path): variable for path, variable in saved.items()}
    return {match[0]: variable for match, variable in found.items() if match is not None}


def statistics_by_source(networks: Sequence[Any]) -> Iterator[tuple[tf.Variable, tuple[int, str]]]:
    """The running statistics of observations in networks: each with its leaf of the agent's observation and its name.

    Those of one leaf are alike in all networks that see it.
    """
    for network in networks:
        for layer in normalizations_of(network):
            for name in MOMENTS:
                yield getattr(layer, name), (layer.source, name)
