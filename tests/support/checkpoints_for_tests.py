"""Checkpoints with a replay server that answers at once, or never."""

from __future__ import annotations

from tfagents_system.trainer.trainer_checkpoints import TrainerCheckpoints, TrainerState


def checkpoints_of(folder, agent, state=None, answer=True, record=None):
    """With a replay server that answers at once, or never."""
    asked = []

    def ask(name):
        asked.append(name)
        if answer:
            (folder / f"{name}.partial" / "replay.bin").write_bytes(b"rows")

    counted = state or TrainerState(), agent.train_step_counter
    return TrainerCheckpoints(folder, agent, *counted, ask, record=record), asked
