"""What the actions in a ring are in the environment that they were taken in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tree

from tfagents_system.envs import specs
from tfagents_system.envs.actions import LeafActions, in_words
from tfagents_system.replay.stored_ring import StoredRing, ring_folder
from tfagents_system.run_files.run_paths import RunPaths

SPECS = "specs.pbtxt"


def actions_beside(stored: StoredRing) -> list[LeafActions] | None:
    """Of each leaf, as the specs file of the ring's run or folder has them; None where there is none."""
    folder = stored.folder
    for candidate in (folder / SPECS, RunPaths(folder.parent).specs):
        if candidate.is_file() and ring_folder(candidate.parent) == folder:
            return tree.flatten(specs.load_actions(candidate))
    return None


def action_differences(ours: Sequence[LeafActions], stored: StoredRing) -> list[str]:
    """A line for each action of the same layout that means another one there; empty where nobody says what it means.

    A ring has actions in the agent's units: shares of the environment's bounds, or numbers of rows of a table.
    """
    theirs = actions_beside(stored) or ours
    return [
        f"{own.spec.name}: here {in_words(own)}, there {in_words(other)}, and not the same ones"
        for own, other in zip(ours, theirs, strict=True)
        if not mean_the_same(own, other)
    ]


def mean_the_same(own: LeafActions, other: LeafActions) -> bool:
    """Whether the agent's actions are the same ones of the environment."""
    if own.rows is not None and other.rows is not None:
        return np.array_equal(own.rows, other.rows)
    bounds = ((each.environment_spec.minimum, each.environment_spec.maximum) for each in (own, other))
    is_same_kind = (own.rows is None) == (other.rows is None)
    return is_same_kind and all(np.array_equal(*pair) for pair in zip(*bounds, strict=True))
