"""The ring of prior data: what the start made of files, and behind it what experts bring while the run goes on.

It only grows, up to the room that it was made with: nothing of it is ever overwritten. The run's own ring counts the
segments of experts and decides which comes next. Before it counts one, its rows are stored here, under a record of the
worker that this ring has itself. A server that dies between the two has not acknowledged the segment, which comes again
and is then only counted.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from absl import logging

from tfagents_system.errors import UserError
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.ring_files import RingFiles, find_files
from tfagents_system.replay.ring_header import DamagedHeaderError
from tfagents_system.replay.stored_ring import StoredRing, differences
from tfagents_system.run_files.run_checkpoints import Checkpoint
from tfagents_system.transport.layout import Layout
from tfagents_system.transport.segments import Segment

REMEDY = "lower n_expert_episodes_in_prior_data, give less prior_data, or free space"
_MADE = "made.bin"  # In the ring's folder: its header as the start left it.


class PriorRing(Ring):
    """Prior data."""

    def keep(self, segment: Segment) -> None:
        """Stores a segment, unless it, or a later one of its worker, is here already, or there is no room for it."""
        with self.lock:
            record = self.worker(segment.worker_id)
            if (segment.incarnation, segment.number) <= (record.incarnation, record.number):
                return
            if self.filled_rows + segment.num_rows > self.capacity_rows:
                what, secs = "prior data has no room for more: what experts collect is counted, and not kept", 600
                logging.log_every_n_seconds(logging.WARNING, what, secs)
                return
            self.rows.write(segment, self.total_rows)
            self._commit([segment], segment.num_rows, are_own=True)


def mark_as_made(ring: Ring) -> None:
    """Remembers what the ring holds now, for `go_back`."""
    (ring.folder / _MADE).write_bytes(ring.snapshot())


def open_prior(folder: Path, layout: Layout, *, grows: bool = False, max_workers: int | None = None) -> PriorRing:
    """Opens the ring that a start has made, without damaged segments.

    Args:
      folder: Of the ring.
      layout: Of the run.
      grows: Experts add to it; it may be empty then. Else nothing of it is written but what marks damaged segments.
      max_workers: As of `RingFiles.prepare`, where it grows.

    Raises:
      UserError: It is not there, is of another layout than the run, or nothing of it is whole.
    """
    stored = StoredRing(folder)
    if lines := differences(layout, stored.layout):
        raise UserError(f"{folder} has another layout than this run: {'; '.join(lines)}")
    sizes = stored.capacity_rows, stored.slack_rows
    files = RingFiles.prepare(stored.folder, layout, *sizes, max_workers if grows else None, remedy=REMEDY)
    ring = PriorRing(files)
    damaged = ring.verify()
    logging.info("%s: %d steps, %d were damaged and are left out", folder, ring.training_steps, damaged)
    if not ring.training_steps and not grows:
        raise UserError(f"{folder} holds no step that may be trained on: begin another run (SAC_EXP_NAME)")
    return ring


def go_back(folder: Path, layout: Layout, checkpoint: Checkpoint | None, *, only_damaged: bool = False) -> None:
    """Goes back to a checkpoint of the agent that the ring was made for; None: to what the start made.

    For a ring that experts add to, where nobody knows which of its pages reached the disk.

    Args:
      folder: Of the ring.
      layout: Of the run.
      checkpoint: See above.
      only_damaged: Only a ring without a whole header: the run's own goes on with all that is whole, so does this.
    """
    files = find_files(folder, layout)
    if files is None:
        return  # Which `open_prior` reports.
    if not files.mend_header() and only_damaged:
        return
    ring = Ring(files)
    for source in (checkpoint.prior if checkpoint is not None else folder / _MADE, folder / _MADE):
        with contextlib.suppress(FileNotFoundError):
            try:
                ring.rollback(source.read_bytes())
            except DamagedHeaderError as error:
                logging.error("prior data can't go back to %s (%s)", source, error)
                continue
            logging.info("prior data goes back to %s: %d steps", source, ring.ring_steps)
            return
