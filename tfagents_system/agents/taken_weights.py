"""An agent begins with what fits of another one's checkpoint (SAC_FROM)."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

# Attributes of an agent: of the toolkit's own ones, and of any TFAgent.
_NETWORKS = re.compile("(actor|critics|targets|encoder|reward_scale)$|.*network")
_REST = re.compile("log_alpha|optimizer")
_VALUE, _SLOT = "/.ATTRIBUTES/VARIABLE_VALUE", "/.OPTIMIZER_SLOT/"
_SHOWN = 4  # Variables of a network.


class TakenWeights:
    """Compares an agent with a checkpoint. An attribute of the agent fits if it has the same variables in both.

    Args:
      agent: A TFAgent. It stays as it is until `assign`.
      prefix: Of the checkpoint's files, which have the other agent as `agent`.
      networks_alone: Without alpha and the optimizers.

    Attributes:
      parts: What fits, by the name of its attribute.
      misfits: A line for each network, alpha or optimizer that does not.

    Raises:
      ValueError: The checkpoint can't be read.
    """

    def __init__(self, agent: Any, prefix: Path, *, networks_alone: bool) -> None:
        self._prefix = prefix
        there, here = _shapes(prefix), _shapes_of(agent)
        self.parts: dict[str, Any] = {}
        self.misfits: list[str] = []
        children = tf.train.TrackableView.children(agent)
        networks = [name for name in children if _NETWORKS.match(name)]
        rest = [name for name in children if _REST.search(name)]
        if not any("alpha_optimizer" in name for name in rest):  # Alpha is fixed.
            rest = [name for name in rest if "alpha" not in name]
        misfits = set[str]()
        # Optimizers last: each belongs to what was compared before.
        for name in [*networks, *([] if networks_alone else sorted(rest, key=lambda name: "optimizer" in name))]:
            child = children[name]
            is_optimizer = "optimizer" in name
            stem = name.strip("_").partition("_")[0]
            if is_optimizer and any(stem in misfit for misfit in misfits):
                lines = [f"the {stem}'s weights do not fit"]
            else:
                lines = _moments_lines(name, child, there) if is_optimizer else _differences(name, there, here)
            if not lines:
                self.parts[name] = child
            else:
                misfits.add(name)
                more = f" and {len(lines) - _SHOWN} more" * (len(lines) > _SHOWN)
                self.misfits.append(f"{_in_words(name)}: {'; '.join(lines[:_SHOWN])}{more}")

    @property
    def has_network(self) -> bool:
        """Whether any network fits."""
        return any(_NETWORKS.match(name) and name != "reward_scale" for name in self.parts)

    @property
    def in_words(self) -> str:
        """`critics, actor, critic optimizer, ...`: what fits."""
        return ", ".join(map(_in_words, self.parts))

    def assign(self) -> None:
        """Gives the agent the values that fit. Optimizers get the slots that their first step would have made."""
        parts = tf.train.Checkpoint(**self.parts)
        tf.train.Checkpoint(agent=parts).read(str(self._prefix)).expect_partial()
        for name, part in self.parts.items():
            if "optimizer" in name:
                _ = part.iterations  # Made, and restored, when it is first asked for.


def _moments_lines(name: str, optimizer: Any, there: Mapping[str, Any]) -> list[str]:
    """Why the moments of an optimizer are not taken."""
    slots = {key.split(_SLOT)[1].split("/")[2] for key in there if f"{_SLOT}agent/{name}/" in key}
    wanted = {"m", "v"} if isinstance(optimizer, tf.keras.optimizers.legacy.Adam) else set[str]()
    wanted |= {"momentum"} if getattr(optimizer, "_momentum", False) else set()
    if slots and slots != wanted:
        return [f"it keeps {', '.join(sorted(slots))} there, {', '.join(sorted(wanted)) or 'nothing'} here"]
    return []


def _differences(name: str, there: Mapping[str, list[int]], here: Mapping[str, list[int]]) -> list[str]:
    """`normalization/leaves/0/mean is 3 there, 4 here`, for each variable of an attribute that differs."""
    ours, theirs = (_below(name, shapes) for shapes in (here, there))
    if ours and not theirs:
        return ["absent there"]
    return [
        f"{path} is {_shape(theirs.get(path))} there, {_shape(ours.get(path))} here"
        for path in {**ours, **theirs}
        if ours.get(path) != theirs.get(path)
    ]


def _below(name: str, shapes: Mapping[str, list[int]]) -> dict[str, list[int]]:
    start = f"agent/{name}"
    return {
        key.removeprefix(start).removesuffix(_VALUE).strip("/") or name.strip("_"): shape
        for key, shape in shapes.items()
        if key.startswith((f"{start}/", f"{start}{_VALUE}")) and _SLOT not in key and key.endswith(_VALUE)
    }


def _shapes(prefix: Path) -> dict[str, list[int]]:
    """Shapes of all variables in a checkpoint, by key."""
    try:
        shapes: dict[str, list[int]] = tf.train.load_checkpoint(str(prefix)).get_variable_to_shape_map()
        return shapes
    except (tf.errors.OpError, OSError) as error:
        raise ValueError(f"{prefix} can't be read: {getattr(error, 'message', error)}") from None


def _shapes_of(agent: Any) -> dict[str, list[int]]:
    """The same of an agent in memory: a checkpoint says under which keys it would be saved."""
    with tempfile.TemporaryDirectory() as folder:
        tf.train.Checkpoint(agent=agent).write(f"{folder}/agent")
        return _shapes(Path(folder) / "agent")


def _in_words(name: str) -> str:
    return name.strip("_").replace("_", " ")


def _shape(shape: list[int] | None) -> str:
    return "absent" if shape is None else "x".join(map(str, shape)) or "a scalar"
