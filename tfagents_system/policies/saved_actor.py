"""What an actor begins with where it begins with a policy that was saved: a SavedModel or a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfagents_system.agents.algorithms import ACTOR, ENCODER, NORMALIZER
from tfagents_system.agents.starting_values import (
    SavedGraph,
    SavedVariable,
    StartingValues,
    difference,
    networks_of,
    statistics_by_source,
    statistics_of,
)
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


def _take_statistics(found: StartingValues, agent: Any, statistics: Statistics) -> None:
    """For all networks that see these leaves, which have a copy each."""
    networks = [network for of_part in networks_of(agent).values() for network in of_part]
    for variable, place in statistics_by_source(networks):
        if place in statistics and tuple(variable.shape) == np.shape(statistics[place]):
            found.add(NORMALIZER, variable, statistics[place])
