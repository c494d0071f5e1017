"""What an actor begins with where it begins with a policy that was saved: a SavedModel, a checkpoint, a policy.npz."""

from __future__ import annotations

import itertools
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfagents_system.agents.network_parts import networks_of, statistics_of
from tfagents_system.agents.normalization import VARIANCE_EPSILON, WINDOW
from tfagents_system.agents.part_names import ACTOR, ENCODER, NORMALIZER
from tfagents_system.agents.saved_graph import SavedGraph, SavedVariable
from tfagents_system.agents.starting_values import MOMENTS, StartingValues, difference, statistics_by_source
from tfagents_system.policies.network_layers import NetworkLayers, UnsupportedNetworkError
from tfagents_system.policies.weights import distinct, named_variables

VARIABLES = "variables/variables"  # Prefix in SavedModels and in policy checkpoints.
_PARTS = (ACTOR, ENCODER, NORMALIZER)
Statistics = dict[tuple[int, str], Any]  # Values by leaf of the agent's observation, see `statistics_by_source`.


def of_policy(agent: Any, folder: Path, parts: Sequence[str] | None = None) -> StartingValues:
    """Values of the actor in a run's SavedModel or policy checkpoint; arguments and errors as of `of_checkpoint`."""
    found = StartingValues(findings=_absent(agent, parts))
    graph = SavedGraph(folder / VARIABLES)
    saved = _saved_variables(graph)
    own = named_variables(agent.policy)
    networks = networks_of(agent)
    places = {variable.ref(): place for variable, place in statistics_by_source(networks[ACTOR])}
    of_encoder = {variable.ref() for network in networks[ENCODER] for variable in network.variables}
    statistics: Statistics = {}
    for name, variable in own.items():
        there, place = saved.get(name), places.get(variable.ref())
        part = NORMALIZER if place is not None else ENCODER if variable.ref() in of_encoder else ACTOR
        if part not in (parts or _PARTS):
            continue
        if there is None or there.shape != tuple(variable.shape):
            shape = None if there is None else there.shape
            found.findings.append(f"{part}: {difference(name.removesuffix(':0'), shape, variable.shape)}")
        elif place is not None:
            statistics[place] = graph.value(there)
        else:
            found.add(part, variable, graph.value(there))
    found.findings += [
        f"{ACTOR}: {difference(name.removesuffix(':0'), there.shape, None)}"
        for name, there in saved.items()
        if name not in own
    ]
    _take_statistics(found, agent, statistics)
    return found


def of_numpy_file(agent: Any, file: Path, parts: Sequence[str] | None = None) -> StartingValues:
    """Values of the actor in a policy.npz; arguments and errors as of `of_checkpoint`.

    The file has statistics of observations as mean and scale, without how many they are of: they count as many.
    """
    found = StartingValues(findings=_absent(agent, parts))
    try:
        with np.load(file, allow_pickle=False) as arrays:
            there = {name: arrays[name] for name in arrays.files}
        saved = json.loads(str(there.pop("description")))["layers"]
    except (OSError, EOFError, KeyError, ValueError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{file} is no exported policy ({type(error).__name__}: {error})") from None
    if found.findings:
        return found
    try:
        own = NetworkLayers(networks_of(agent)[ACTOR][0], named_variables(agent.policy))
    except UnsupportedNetworkError as error:
        found.findings.append(f"{ACTOR}: {error}, and policy.npz has no such layers: give the run or its checkpoint")
        return found
    wanted = parts or _PARTS
    for number, (layer, of_file) in enumerate(itertools.zip_longest(_flat(own.layers), _flat(saved)), 1):
        is_of_input = number == 1 and bool(own.statistics)
        if told := _layers_differ(layer, of_file, own, there, is_of_input):
            found.findings.append(f"{ACTOR}: layer {number} {told}")
        elif is_of_input and NORMALIZER in wanted:
            _take_statistics(
                found, agent, _unfolded(own, {part: there[key] for part, key in of_file["arrays"].items()})
            )
        elif not is_of_input and ACTOR in wanted:
            for part, key in layer["arrays"].items():
                found.add(ACTOR, own.variables[key], there[of_file["arrays"][part]])
    return found


def _absent(agent: Any, parts: Sequence[str] | None) -> list[str]:
    """What is asked for and is not to be had."""
    findings = [f"{part}: a policy has none" for part in parts or () if part not in _PARTS]
    networks = networks_of(agent)
    is_normalised = any(statistics_of(network) for network in networks[ACTOR])
    is_here = {ACTOR: bool(networks[ACTOR]), ENCODER: bool(networks[ENCODER]), NORMALIZER: is_normalised}
    return findings + [f"{part}: absent here" for part in parts or (ACTOR,) if not is_here.get(part, True)]


def _saved_variables(graph: SavedGraph) -> dict[str, SavedVariable]:
    """By the names of `named_variables`."""
    listed = graph.variables("model_variables")
    in_order = [listed[number] for number in sorted(listed, key=int)]
    return dict(zip(distinct([f"{each.name}:0" for each in in_order]), in_order, strict=True))


def _flat(layers: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Those in residual blocks, too."""
    for layer in layers:
        if "layers" in layer:
            yield {"kind": layer["kind"], "arrays": {}}
            yield from _flat(layer["layers"])
        else:
            yield layer


def _layers_differ(
    own: Mapping[str, Any] | None,
    saved: Mapping[str, Any] | None,
    layers: NetworkLayers,
    arrays: Mapping[str, np.ndarray],
    is_of_input: bool,
) -> str:
    """How two layers differ, in words; empty if they do not."""
    if own is None or saved is None or _kind(own) != _kind(saved):
        return f"is {_kind(saved)} there, {_kind(own)} here"
    if is_of_input:
        size = len(arrays[saved["arrays"]["mean"]])
        return "" if size == sum(layers.sizes) else f"has {size} numbers there, {sum(layers.sizes)} here"
    told = []
    for part, key in own["arrays"].items():
        there = arrays[saved["arrays"][part]]
        here = layers.variables.get(key)
        if here is None:
            return "is batch renormalisation, which policy.npz has in another form: give the run or its checkpoint"
        if there.shape != tuple(here.shape):
            told.append(difference(part, there.shape, here.shape))
    return ", ".join(told)


def _kind(layer: Mapping[str, Any] | None) -> str:
    return "absent" if layer is None else " ".join(filter(None, (layer["kind"], layer.get("activation"))))


def _unfolded(own: NetworkLayers, arrays: Mapping[str, np.ndarray]) -> Statistics:
    """The statistics of each leaf from mean and 1 / sqrt(variance + epsilon) of all of them."""
    bounds = np.cumsum([0, *own.sizes])
    found: Statistics = {}
    for leaf, layer in own.statistics.items():
        part = slice(bounds[leaf], bounds[leaf + 1])
        mean, scale = (arrays[name][part].reshape(layer.mean.shape) for name in ("mean", "scale"))
        variance = np.maximum(1.0 / np.square(scale, dtype=np.float64) - VARIANCE_EPSILON, 0.0)
        values = np.float32(WINDOW), mean, variance.astype(np.float32)
        found |= {(layer.source, name): value for name, value in zip(MOMENTS, values, strict=True)}
    return found


def _take_statistics(found: StartingValues, agent: Any, statistics: Statistics) -> None:
    """For all networks that see these leaves, which have a copy each."""
    networks = [network for of_part in networks_of(agent).values() for network in of_part]
    for variable, place in statistics_by_source(networks):
        if place in statistics and tuple(variable.shape) == np.shape(statistics[place]):
            found.add(NORMALIZER, variable, statistics[place])
