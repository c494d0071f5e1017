"""The trainer's GPU. All other programs of a run see none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

# CUDA_VISIBLE_DEVICES as the launcher found it.
FOUND = "TFAGENTS_CUDA_VISIBLE_DEVICES"
_ALL = "all"  # It was not set.
_NONE = ("", "-1", "NoDevFiles")  # The last one is SLURM's word for a job without a GPU.


def gpu_of_trainer(environ: Mapping[str, str], devices: Path = Path("/dev")) -> str | None:
    """The first GPU that may be used, as CUDA_VISIBLE_DEVICES names it; None where there is none.

    Args:
      environ: Of the launchers.
      devices: Where NVIDIA's device files are.
    """
    found = environ.get(FOUND, _ALL)
    if found == _ALL:
        return "0" if any(devices.glob("nvidia[0-9]*")) else None
    first = found.split(",")[0].strip()
    return None if first in _NONE else first
