"""Reverb servers that leave nothing behind."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence

import reverb


def make_server(all_tables: Sequence[reverb.Table], port: int | None = None) -> reverb.Server:
    """Without the folder for checkpoints that Reverb makes by default, and leaves."""
    with tempfile.TemporaryDirectory() as unused:
        checkpointer = reverb.platform.checkpointers_lib.DefaultCheckpointer(unused)
        return reverb.Server(all_tables, port, checkpointer)
