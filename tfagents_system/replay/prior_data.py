"""The ring of prior data in a run directory, as the replay server draws from it. It never changes."""

from __future__ import annotations

from pathlib import Path

from absl import logging

from tfagents_system.errors import UserError
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.stored_ring import StoredRing, differences
from tfagents_system.transport.segments import Layout


def open_prior(folder: Path, layout: Layout) -> Ring:
    """Opens the ring that a start has made of `prior_data`; damaged segments are left out.

    Args:
      folder: Where it is.
      layout: Of the run.

    Raises:
      UserError: It is not there, is of another layout, or nothing of it is whole.
    """
    stored = StoredRing(folder)
    if lines := differences(layout, stored.layout):
        raise UserError(f"{folder} has another layout than this run: {'; '.join(lines)}")
    ring = Ring.open(stored.folder, layout, stored.capacity_rows, stored.slack_rows)
    if damaged := ring.verify():
        logging.error("%s: %d steps were damaged and are left out", folder, damaged)
    if not ring.training_steps:
        raise UserError(f"{folder} holds no step that may be trained on: begin another run (SAC_EXP_NAME)")
    logging.info("%d steps of prior data", ring.training_steps)
    return ring
