"""Policy checkpoints: the names of their folders; and when they, and SavedModels, were written."""

from __future__ import annotations

import json
from pathlib import Path

PREFIX = "policy_checkpoint_"
MOMENT = "moment.json"  # When it was.


def checkpoint_name(train_step: int) -> str:
    """`policy_checkpoint_<10 digits>`."""
    return f"{PREFIX}{train_step:010d}"


def iteration_of(policy: Path) -> int | None:
    """Iterations completed when a policy checkpoint or SavedModel was written; None if it does not say."""
    try:
        return int(json.loads((policy / MOMENT).read_text())["iteration"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
