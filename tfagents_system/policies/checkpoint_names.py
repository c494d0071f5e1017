"""Policy checkpoints: the names of their folders; and when they, and SavedModels, were written."""

from __future__ import annotations

import re
from pathlib import Path

from tfagents_system.machine.files import read_json

PREFIX = "policy_checkpoint_"
MOMENT = "moment.json"  # When it was.


def checkpoint_name(train_step: int) -> str:
    """`policy_checkpoint_<10 digits>`."""
    return f"{PREFIX}{train_step:010d}"


def train_step_of(name: str) -> int | None:
    """Updates before a policy checkpoint; None if it is no checkpoint's name."""
    match = re.fullmatch(rf"{PREFIX}(\d{{10,}})", name)
    return int(match[1]) if match else None


def iteration_of(policy: Path) -> int | None:
    """Iterations completed when a policy checkpoint or SavedModel was written; None if it does not say."""
    iteration = (read_json(policy / MOMENT) or {}).get("iteration")
    return iteration if isinstance(iteration, int) else None
