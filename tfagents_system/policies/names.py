"""Names of policy checkpoints, and of the leaves of nests in files and signatures; nests by them. No TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.machine.files import read_json

PREFIX = "policy_checkpoint_"
MOMENT = "moment.json"  # When a checkpoint or a SavedModel was written.


def checkpoint_name(train_step: int) -> str:
    """`policy_checkpoint_<10 digits>`."""
    return f"{PREFIX}{train_step:010d}"


def train_step_of(name: str) -> int | None:
    """Updates before a policy checkpoint; None if it is no checkpoint's name."""
    match = re.fullmatch(rf"{PREFIX}(\d{{10,}})", name)
    return int(match[1]) if match else None


def iteration_of(policy: Path) -> int | None:
    """Iterations completed when a policy checkpoint or SavedModel was written; None if it does not say."""
    iteration = (read_json(policy / MOMENT) or {}).get("iteration")
    return iteration if isinstance(iteration, int) else None


def fit_names(
    names: Sequence[str], also_allowed: str = "", is_taken: Callable[[str], bool] = lambda name: False
) -> list[str]:
    """Names of leaves in ASCII letters, digits and `_`, each of them once.

    Keys of observations may be any text (`bottom burner`, `größe`). SavedModels, TFLite and ONNX files and file systems
    accept few characters, and some of them ignore case. A valid name stays unchanged. Others get `_` for each forbidden
    character, and a trailing `_` if that name is taken: `a b` beside `a_b` becomes `a_b_`.

    Args:
      also_allowed: Further characters.
      is_taken: Whether a name belongs to something else.
    """
    fit = [re.sub(rf"[^A-Za-z0-9_{re.escape(also_allowed)}]", "_", name) for name in names]
    fit = [f"{name}_" if name.endswith("/") else name for name in fit]  # TensorFlow interprets `a/` as a scope.
    taken: set[str] = set()
    for k in sorted(range(len(names)), key=lambda k: fit[k] != names[k]):
        while (alike := re.sub(r"[^a-z0-9]", "_", fit[k].lower())) in taken or is_taken(fit[k]):
            fit[k] += "_"
        taken.add(alike)
    return fit


def nest_of(leaves: Sequence[tuple[tuple[Any, ...], Any]]) -> Any:
    """The nest of dictionaries and tuples whose leaves have these paths: the inverse of `tree.flatten_with_path`."""
    if len(leaves) == 1 and not leaves[0][0]:
        return leaves[0][1]
    children: dict[Any, list[tuple[tuple[Any, ...], Any]]] = {}
    for path, leaf in leaves:
        children.setdefault(path[0], []).append((path[1:], leaf))
    nests = {key: nest_of(below) for key, below in children.items()}
    return tuple(nests.values()) if all(isinstance(key, int) for key in nests) else nests
