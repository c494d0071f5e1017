"""Fills the ring of a new run with experience of other runs, before the replay server serves.

It happens once, before the run's first checkpoint. Every checkpoint from then on includes what was filled in. A server
that is killed meanwhile begins again with an empty ring.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from absl import logging

from tfagents_system.checks.frame_stacks import FrameStack
from tfagents_system.errors import UserError
from tfagents_system.replay.priorities import discard
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.stored_ring import StoredRing, differences, fitted
from tfagents_system.run_files.heartbeat import read_json, write_json
from tfagents_system.run_files.run_checkpoints import newest_complete
from tfagents_system.transport.layout import Layout
from tfagents_system.transport.segments import Segment

_DONE = "filled_from.json"
_SEGMENTS_AT_ONCE = 1000


def fill(
    ring: Ring,
    sources: Sequence[Path],
    home: Path,
    checkpoints: Path,
    frame_stack: FrameStack = 1,
    *,
    has_begun: bool = False,
) -> None:
    """Fills the ring, unless that was done or the run has a checkpoint.

    Args:
      ring: Of the run.
      sources: Rings, or run directories, oldest experience first.
      home: The run directory's `replay/`, which remembers that it is done.
      checkpoints: The run directory's checkpoints.
      frame_stack: How many frames of which leaves samples see at once.
      has_begun: The run has done updates: whatever is asked for now, its own steps stay.

    Raises:
      UserError: A source has another layout than the ring, can't be read, or has segments that are too long for it, or
        numbers that are not finite.
    """
    wanted = [str(source) for source in sources]
    is_done = wanted == (read_json(home / _DONE) or {}).get("sources", [])
    if newest_complete(checkpoints) is not None or (is_done and (ring.total_rows or not wanted)):
        return
    if has_begun and not is_done:
        return
    began = time.monotonic()
    ring.clear()
    discard(ring.folder)
    for source in sources:
        stored = StoredRing(source)
        if lines := differences(ring.layout, stored.layout):
            raise UserError(f"SAC_REPLAY_FROM={source} has another layout than this run: {'; '.join(lines)}")
        steps = ring.ring_steps
        segments = finite(stored.segments(ring.capacity_rows), f"SAC_REPLAY_FROM={source}")
        add_segments(ring, segments, source, frame_stack)
        logging.info("%s: %d steps taken over", source, ring.ring_steps - steps)
        if stored.damaged_steps:
            logging.error("%s: %d steps were damaged and are left out", source, stored.damaged_steps)
    ring.make_durable()
    write_json(home / _DONE, {"sources": wanted, "steps": ring.ring_steps})
    logging.info("the ring was filled with %d steps in %.1f s", ring.ring_steps, time.monotonic() - began)


def finite(segments: Iterable[Segment], what: str) -> Iterator[Segment]:
    """The same segments; raises UserError, which begins with `what`, at the first number that is not finite."""
    for segment in segments:
        arrays = [*segment.observation, *segment.action, segment.reward, segment.discount]
        if not all(np.isfinite(array).all() for array in arrays if array.dtype.kind == "f"):
            raise UserError(f"{what} has numbers that are not finite (NaN or infinite): give another run")
        yield segment


def add_segments(ring: Ring, segments: Iterable[Segment], source: Path, frame_stack: FrameStack) -> None:
    """Stores segments of others, as samples with such stacks may start in them; arguments and errors as of `fill`."""
    numbered = _renumbered(segments, ring.total_rows) if ring.layout.episode is not None else segments
    fitting = (_fit(segment, ring.layout, frame_stack) for segment in numbered)
    while together := list(itertools.islice(fitting, _SEGMENTS_AT_ONCE)):
        _take_over(ring, together, source)


def _renumbered(segments: Iterable[Segment], rows: int) -> Iterator[Segment]:
    """Gives episodes of others numbers that are nobody's: below 0, and below those of the ring's first `rows` rows.

    Where nobody has said what belongs together, each segment is an episode.
    """
    known: dict[object, int] = {}
    for segment in segments:
        number, first = (None, 0) if segment.episode is None else segment.episode[0].tolist()
        key = (segment.worker_id, number) if number is not None else object()
        new = known.setdefault(key, -1 - rows - len(known))
        yield dataclasses.replace(segment, worker_id=0, episode=np.array([[new, first]], np.int64))


def _take_over(ring: Ring, segments: Sequence[Segment], source: Path) -> None:
    try:
        ring.take_over(segments)
    except ValueError as error:
        raise UserError(f"SAC_REPLAY_FROM={source}: {error}: raise buffer_size") from None


def _fit(segment: Segment, layout: Layout, frame_stack: FrameStack) -> Segment:
    """The segment for a ring of perhaps longer stacks: no sample starts where frames before it are missing."""
    segment = fitted(segment, layout)
    missing = layout.history_rows(frame_stack) - segment.history
    if segment.starts_episode or missing <= segment.context:
        return segment
    context = min(missing, len(segment.reward) - segment.deferred)
    return dataclasses.replace(segment, lead=context, context=context)
