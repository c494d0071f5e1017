"""`frame_stack`: how many frames of each part of an observation networks see at once.

A number stacks all images. A dictionary stacks the parts that it names, images or not: `{"lidar": 4}`. The name of a
part is its path in the observation, `sensors/touch`; that of an observation without parts is `observation`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Union

from tfagents_system.checks.rules import Rule, is_integer

FrameStack = Union[int, Mapping[str, int]]  # noqa: UP007 (environments may run under Python 3.9)


def _is_frame_stack(value: Any) -> bool:
    counts = value.values() if isinstance(value, Mapping) else [value]
    has_names = not isinstance(value, Mapping) or all(isinstance(name, str) for name in value)
    return has_names and all(is_integer(count) and count >= 1 for count in counts)


RULE = Rule(
    'an integer of at least 1, or a dictionary of those such as {"lidar": 4, "camera": 4}',
    _is_frame_stack,
)


def leaf_name(path: Sequence[Any]) -> str:
    """The name of the leaf at a path of an observation."""
    return "/".join(map(str, path)) or "observation"


def frames_of_leaves(names: Sequence[str], are_images: Sequence[bool], frame_stack: FrameStack) -> tuple[int, ...]:
    """The frames of each leaf, 1 where it is not stacked.

    Args:
      names: Of the leaves, by `leaf_name`.
      are_images: Which leaves are images.
      frame_stack: The hyperparameter.
    """
    if isinstance(frame_stack, Mapping):
        return tuple(int(frame_stack.get(name, 1)) for name in names)
    return tuple(int(frame_stack) if is_image else 1 for is_image in are_images)
