"""Gives the ring of a new run the experience that it takes from another one, before the replay server serves.

It happens once, before the run's first checkpoint: the ring's header then has the mark of the run. A server that is
killed meanwhile begins again with an empty ring.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from absl import logging

from tfagents_system.errors import UserError
from tfagents_system.hyperparameters import FrameStack
from tfagents_system.replay.priorities import discard
from tfagents_system.replay.recovery import RingFolders
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.ring_files import RingFiles
from tfagents_system.replay.stored_ring import StoredRing, differences, fitted
from tfagents_system.run_files.kept_checkpoints import newest_complete
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.run_files.taken import Taken
from tfagents_system.transport.segments import Layout, Segment

_SEGMENTS_AT_ONCE = 1000


def folders_of_ring(paths: RunPaths, ring: Path, taken: Taken | None) -> RingFolders:
    """Where the experience of a run is, and where it was before it was moved.

    Args:
      paths: Of the run.
      ring: Folder of its ring.
      taken: What it takes of another run.
    """
    moves = taken is not None and taken.has_rows and taken.moves
    earlier = RunPaths(Path(taken.run)).trainer_checkpoints if moves and taken is not None else None
    return RingFolders(ring, paths.replay, paths.trainer_checkpoints, earlier)


def move_ring(taken: Taken, places: RingFolders, layout: Layout, capacity_rows: int) -> None:
    """Moves the ring of a run that was moved aside, where it has the columns and the size of this run's; before
    `open_ring`. Others are copied by `fill`.
    """
    if not taken.moves or places.is_copied or places.home.exists():
        return
    theirs = RunPaths(Path(taken.run)).replay
    files = RingFiles.find(theirs)
    if files is not None and (files.layout, files.capacity_rows) == (layout, capacity_rows):
        os.rename(theirs, places.home)


def fill(ring: Ring, taken: Taken, places: RingFolders, frame_stack: FrameStack = 1, *, counts: bool = False) -> None:
    """Fills the ring, unless that was done or the run has a checkpoint.

    Args:
      ring: Of the run.
      taken: What the run takes.
      places: Where its experience is.
      frame_stack: How many frames of which leaves samples see at once.
      counts: The rows count for the ratio of updates to steps.

    Raises:
      UserError: The other ring has another layout, can't be read, or has segments that are too long for this one, or
        numbers that are not finite.
    """
    if ring.run == taken.mark or newest_complete(places.checkpoints) is not None:
        return
    began, source = time.monotonic(), Path(taken.run)
    discard(ring.folder)
    if taken.moves and not RunPaths(source).replay.exists():
        logging.info("the ring was moved from %s", source)
    else:
        ring.clear()
        stored = StoredRing(source)
        if lines := differences(ring.layout, stored.layout):
            raise UserError(f"SAC_FROM={source} has another layout than this run: {'; '.join(lines)}")
        segments = finite(stored.segments(ring.capacity_rows), f"SAC_FROM={source}")
        add_segments(ring, segments, source, frame_stack)
        if stored.damaged_steps:
            logging.error("%s: %d steps were damaged and are left out", source, stored.damaged_steps)
    ring.begin_run(taken.mark, taken.env_steps, counts_rows=counts)
    ring.make_durable()
    logging.info("the ring has %d steps of %s after %.1f s", ring.ring_steps, source, time.monotonic() - began)


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
        try:
            ring.take_over(together)
        except ValueError as error:
            raise UserError(f"SAC_FROM={source}: {error}: raise buffer_size") from None


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


def _fit(segment: Segment, layout: Layout, frame_stack: FrameStack) -> Segment:
    """The segment for a ring of perhaps longer stacks: no sample starts where frames before it are missing."""
    segment = fitted(segment, layout)
    missing = layout.history_rows(frame_stack) - segment.history
    if segment.starts_episode or missing <= segment.context:
        return segment
    context = min(missing, len(segment.reward) - segment.deferred)
    return dataclasses.replace(segment, lead=context, context=context)
