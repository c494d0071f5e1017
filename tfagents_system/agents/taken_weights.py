"""An agent begins with what fits of another one's checkpoint (SAC_FROM)."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import tensorflow as tf

# Attributes of an agent: of the toolkit's own ones, and of any TFAgent.
_NETWORKS = re.compile("(actor|critics|targets|encoder|reward_scale)$|.*network")
_REST = re.compile("log_alpha|optimizer")
_VALUE, _SLOT = "/.ATTRIBUTES/VARIABLE_VALUE", "/.OPTIMIZER_SLOT/"
_SHOWN = 4  # Variables of a network.

Shapes = dict[str, list[int]]  # Of a checkpoint's variables, by key.


class TakenWeights:
    """Compares an agent with a checkpoint. An attribute of the agent fits if it has the same variables in both.

    Args:
      agent: A TFAgent. It stays as it is until `assign`.
      prefix: Of the checkpoint's files, which have the other agent as `agent`.
      networks_alone: Without alpha and the optimizers.

    Attributes:
      parts: What fits, by the name of its attribute.
      misfits: A line for each network, alpha or optimizer that does not, but none for the optimizer of such a network.

    Raises:
      ValueError: The checkpoint can't be read.
    """

    def __init__(self, agent: Any, prefix: Path, *, networks_alone: bool) -> None:
        self._prefix = prefix
        with tempfile.TemporaryDirectory() as folder:  # A checkpoint says under which keys the agent would be saved.
            tf.train.Checkpoint(agent=agent).write(f"{folder}/agent")
            theirs, ours = _shapes(prefix), _shapes(Path(folder) / "agent")
        children = tf.train.TrackableView.children(agent)
        names = [name for name in children if _NETWORKS.match(name)]
        if not networks_alone:
            is_alpha_learned = any("alpha_optimizer" in name for name in children)  # Else it stays.
            rest = [name for name in children if _REST.search(name) and (is_alpha_learned or "alpha" not in name)]
            names += sorted(rest, key=lambda name: "optimizer" in name)
        self.parts: dict[str, Any] = {}
        misfits: dict[str, list[str]] = {}
        for name in names:
            if "optimizer" not in name:
                lines = _shape_lines(_below(name, theirs), _below(name, ours))
            elif any(name.strip("_").partition("_")[0] in other for other in misfits):
                continue  # It steps what does not fit.
            else:
                lines = _slot_lines(name, children[name], theirs)
            if lines:
                misfits[name] = lines
            else:
                self.parts[name] = children[name]
        self.misfits = [f"{_in_words(name)}: {'; '.join(lines[:_SHOWN])}" for name, lines in misfits.items()]

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


def _shapes(prefix: Path) -> Shapes:
    try:
        return dict(tf.train.load_checkpoint(str(prefix)).get_variable_to_shape_map())
    except (tf.errors.OpError, OSError) as error:
        raise ValueError(f"{prefix} can't be read: {getattr(error, 'message', error)}: take another") from None


def _below(name: str, shapes: Shapes) -> Shapes:
    """Of an attribute's variables, by their paths from there, without an optimizer's slots."""
    key = re.compile(rf"agent/{re.escape(name)}(/.*)?{re.escape(_VALUE)}")
    found = {match[1] or name: shape for path, shape in shapes.items() if (match := key.fullmatch(path))}
    return {path.strip("/_"): shape for path, shape in found.items() if _SLOT not in path}


def _shape_lines(theirs: Shapes, ours: Shapes) -> list[str]:
    """`normalization/leaves/0/mean is 3 there, 4 here`, for each variable that differs."""
    if ours and not theirs:
        return ["absent there"]

    def words(shape: list[int] | None) -> str:
        return "absent" if shape is None else "x".join(map(str, shape)) or "a scalar"

    return [
        f"{path} is {words(theirs.get(path))} there, {words(ours.get(path))} here"
        for path in {**ours, **theirs}
        if ours.get(path) != theirs.get(path)
    ]


def _slot_lines(name: str, optimizer: Any, theirs: Shapes) -> list[str]:
    """Why the moments of an optimizer are not taken."""
    slots = {key.split(_SLOT)[1].split("/")[2] for key in theirs if f"{_SLOT}agent/{name}/" in key}
    wanted = {"m", "v"} if isinstance(optimizer, tf.keras.optimizers.legacy.Adam) else set[str]()
    wanted |= {"momentum"} if getattr(optimizer, "_momentum", False) else set()
    if not slots or slots == wanted:
        return []
    return [f"it keeps {', '.join(sorted(slots))} there, {', '.join(sorted(wanted)) or 'nothing'} here"]


def _in_words(name: str) -> str:
    return name.strip("_").replace("_", " ")
