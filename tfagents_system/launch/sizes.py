"""Networks and minibatches that a trainer can't hold, from shapes alone: building them would take minutes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import tree

from tfagents_system.agents.algorithms import ALGORITHMS, value
from tfagents_system.agents.encoder import convolutions, has_own_networks, is_encoded
from tfagents_system.envs.history import leaf_names
from tfagents_system.errors import shown
from tfagents_system.launch.machine_checks import in_words
from tfagents_system.train_params_base import TrainParamsBase, overrides_any
from tfagents_system.transport.segments import Layout

_MOST_FEATURE_WEIGHTS = 2**26  # Of the dense layer behind an encoder; 84 x 84 pixels give 2 million.
_WEIGHT_BYTES = 16  # float32: value, gradient and Adam's two moments.
_SHORT_SIDE = 96  # Pixels, of what is proposed in place of an image that is too large.


def too_large(
    params: TrainParamsBase, observation_spec: Any, layout: Layout, available: tuple[int, str] | None
) -> list[str]:
    """What does not fit, with the attribute to lower or the size to resize to.

    Memory is a lower bound: dense layers of actor and critics without their targets, and one minibatch.

    Args:
      observation_spec: As environments have it.
      available: As of `machine_checks.available_memory`; None: unknown.
    """
    if has_own_networks(params) or overrides_any(params, "agent_ctor"):
        return []
    inputs, images = 0, list[str]()
    for name, leaf in zip(leaf_names(observation_spec), tree.flatten(observation_spec), strict=True):
        shape = tuple(leaf.shape)
        if not is_encoded(leaf, convolutions(params)):
            inputs += math.prod(shape)
            continue
        inputs += params.image_encoder_features
        rows, columns, filters = features = _encoded(params, shape)
        weights = math.prod(features) * params.image_encoder_features
        if weights > _MOST_FEATURE_WEIGHTS:
            size = tuple(max(1, round(side * _SHORT_SIDE / min(shape[:2]))) for side in shape[:2])
            images.append(
                f'the encoder makes {rows} x {columns} x {filters} features of "{name}" {shape}, which need '
                f"{weights:,} weights: resize it to {size[0]} x {size[1]} in env_ctor, as by SmallPictures(env, "
                f'size={size}, key="{name}") of tfagents_system.envs.pictures, or give image_encoder_layers larger '
                "strides"
            )
    if images or available is None:
        return images
    return [*_beyond_memory(params, inputs, layout, available)]


def _encoded(params: TrainParamsBase, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """What the convolutions make of an image: height, width, filters."""
    height, width, filters = shape
    for filters, kernel, stride in convolutions(params):  # noqa: B007
        height, width = ((side - kernel) // stride + 1 for side in (height, width))
    return height, width, filters


def _beyond_memory(params: TrainParamsBase, inputs: int, layout: Layout, available: tuple[int, str]) -> Iterator[str]:
    has_actor = ALGORITHMS[params.algorithm].has_actor
    networks = {"critic_joint_fc_layer_params": int(value(params, "num_critics")) if has_actor else 1}
    if has_actor:
        networks["actor_fc_layer_params"] = 1
    steps = params.batch_size * (params.sample_form_ctor().sequence_length or 1)
    sizes = {f"batch_size={params.batch_size}": 2 * steps * layout.stacked_step_bytes(params.frame_stack)}
    for name, count in networks.items():
        widths = (inputs, *getattr(params, name))
        weights = sum(math.prod(pair) for pair in itertools.pairwise(widths))
        sizes[f"{name}={shown(getattr(params, name))}"] = count * weights * _WEIGHT_BYTES
    (free, limit), needed, largest = available, sum(sizes.values()), max(sizes, key=lambda name: sizes[name])
    if needed > free:
        yield (
            f"an update needs at least {in_words(needed)} of memory (networks with gradients and Adam's moments, a "
            f"minibatch), {in_words(free)} {limit} are available: lower {largest}, which takes "
            f"{in_words(sizes[largest])}, or make observations smaller in env_ctor"
        )
