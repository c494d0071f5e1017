"""Keys of an environment's info that training uses.

Also for the interpreter of SAC_ENV_PYTHON: standard library and NumPy only, Python 3.9.
"""

from __future__ import annotations

from typing import Any

import numpy as np

LOG_PREFIX = "log/"  # Numbers under such keys are averaged over an episode.
RECORD_PREFIX = "record/"  # What is under such keys is kept of each step where episodes are recorded.
SUCCESS_KEYS = ("is_success", "success")
EVALUATION = "evaluation"  # In the options of a device's reset(): the episode is of an evaluation,
EVALUATION_EPISODE = "episode"  # and which of its episodes it is.


def recorded(value: Any) -> np.ndarray | None:
    """What an episode's record has of a value under `record/...`, as a copy; None if it is no numbers and no texts."""
    try:
        array = np.array(value)
    except Exception:  # Such as of a ragged list, or whatever the user's own class raises: no episode ends for that.
        return None
    return array if array.dtype.kind in "biufU" else None
