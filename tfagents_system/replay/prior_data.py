"""The ring of prior data, which the start of a run makes of files, and to which nothing is added."""

from __future__ import annotations

from pathlib import Path

from absl import logging

from tfagents_system.errors import UserError
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.ring_files import RingFiles
from tfagents_system.replay.stored_ring import StoredRing, differences
from tfagents_system.transport.layout import Layout


def open_prior(folder: Path, layout: Layout) -> Ring:
    """Opens it without damaged segments, where nothing of it is written but what marks these.

    Args:
      folder: Of the ring.
      layout: Of the run.

    Raises:
      UserError: It is not there, is of another layout than the run, or nothing of it is whole.
    """
    stored = StoredRing(folder)
    if lines := differences(layout, stored.layout):
        raise UserError(f"{folder} has another layout than this run: {'; '.join(lines)}")
    ring = Ring(RingFiles.prepare(stored.folder, layout, stored.capacity_rows, stored.slack_rows))
    damaged = ring.verify()
    logging.info("%s: %d steps, %d were damaged and are left out", folder, ring.training_steps, damaged)
    if not ring.training_steps:
        raise UserError(f"{folder} holds no step that may be trained on: begin another run (SAC_EXP_NAME)")
    return ring
