"""Blocks: minibatches of one request that leave the replay server at once.

Random numbers depend only on the position in the run, so nothing has to be saved for a restart.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfagents_system.replay import sampling
from tfagents_system.replay.draw_settings import DrawSettings
from tfagents_system.replay.ring import Ring
from tfagents_system.transport import tables

# Distinguish the random numbers of drawing from those of other roles.
_DRAW_STREAM, _HELD_OUT_STREAM, _OFFLINE_STREAM = 1, 2, 3


def make_block(ring: Ring, settings: DrawSettings, request: tables.Request, done: int, count: int) -> tables.Block:
    """Draws the next minibatches of a request; behind the last ones come those that are held out, to be measured.

    Args:
      ring: What is drawn from.
      settings: Of the run.
      request: Its `count` is known.
      done: Minibatches of it that are sent already.
      count: Those of this block; 0 where the request has none.

    Raises:
      NothingToDrawError: The ring holds no sample of the kind.
    """
    first, held_out = request.first + done, 0
    arrays: list[np.ndarray] = []
    if request.iteration == tables.OFFLINE:
        position = [settings.seed, _OFFLINE_STREAM, first, request.recoveries]
        arrays, total = (
            sampling.draw(ring, _rng(position), settings, count, is_offline=True),
            request.first + request.count,
        )
        return tables.Block(request.session, request.iteration, first, count, 0, total, 0, arrays)
    if count:
        position = [settings.seed, _DRAW_STREAM, request.iteration, first, request.recoveries]
        arrays = sampling.draw(ring, _rng(position), settings, count)
    if count and done + count == request.count and settings.held_out_minibatches:
        measured = _draw_held_out(ring, settings, request)
        if measured:
            held_out = len(measured[0])
            arrays = [np.concatenate(pair) for pair in zip(arrays, measured, strict=True)]
    return tables.Block(
        request.session,
        request.iteration,
        first,
        count,
        ring.env_steps,
        total=request.first + request.count,
        held_out=held_out,
        arrays=arrays,
    )


def _draw_held_out(ring: Ring, settings: DrawSettings, request: tables.Request) -> list[np.ndarray]:
    """Empty while nothing of the kind is held out."""
    position = [settings.seed, _HELD_OUT_STREAM, request.iteration, request.recoveries]
    try:
        return sampling.draw(ring, _rng(position), settings, settings.held_out_minibatches, held_out=True)
    except sampling.NothingToDrawError:
        return []


def _rng(position: Sequence[int]) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(position))
