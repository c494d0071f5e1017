"""Checkpoints with a replay server that answers at once, or never."""

from __future__ import annotations

import types

from tfagents_system.trainer.state import TrainerState
from tfagents_system.trainer.trainer_checkpoints import TrainerCheckpoints


def checkpoints_of(folder, agent, state=None, answer=True, record=None):
    """With a replay server that answers at once, or never."""
    asked = []

    def ask(name):
        asked.append(name)
        if answer:
            (folder / f"{name}.partial" / "replay.bin").write_bytes(b"rows")

    counted = state or TrainerState(), agent.train_step_counter
    snapshots = types.SimpleNamespace(ask=ask, is_far=False)
    return TrainerCheckpoints(folder, agent, *counted, snapshots, record), asked
