"""The GPUs of trainers. All other programs of a run see none."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

# CUDA_VISIBLE_DEVICES as the launcher found it.
FOUND = "TFAGENTS_CUDA_VISIBLE_DEVICES"
_ALL = "all"  # It was not set.
_NONE = ("", "-1", "NoDevFiles")  # The last one is SLURM's word for a job without a GPU.


def found(environ: Mapping[str, str]) -> str:
    """CUDA_VISIBLE_DEVICES as it was when the launcher was started."""
    return environ.get(FOUND, environ.get("CUDA_VISIBLE_DEVICES", _ALL))


def usable_gpus(environ: Mapping[str, str], devices: Path = Path("/dev")) -> list[str]:
    """The GPUs that may be used, as CUDA_VISIBLE_DEVICES names them.

    Args:
      environ: The launcher's.
      devices: Where NVIDIA's device files are.
    """
    if found(environ) == _ALL:
        # WSL 2 has one device file, whatever GPUs there are: at least one.
        count = len(list(devices.glob("nvidia[0-9]*"))) or int((devices / "dxg").exists())
        return [str(number) for number in range(count)]
    names = [name.strip() for name in found(environ).split(",")]
    # CUDA itself stops at the first invalid one.
    return list(itertools.takewhile(lambda name: name not in _NONE, names))


def gpu_of_trainer(environ: Mapping[str, str], devices: Path = Path("/dev")) -> str | None:
    """The first of `usable_gpus`; None where there is none."""
    return next(iter(usable_gpus(environ, devices)), None)
