"""Where a TrainParams came from."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfagents_system.envs.env_process import ProcessSettings


def run_name_of(params: Path) -> str:
    """The name of a run for which none is given: the file's without `_params`, of `params.py` its folder's.

    Args:
      params: Absolute.
    """
    return params.parent.name if params.stem == "params" else params.stem.removesuffix("_params")


@dataclasses.dataclass(frozen=True)
class ParamsSource:
    """The source of TrainParams, from which another process can load the same.

    Attributes:
      path: The file.
      origin: Where it was copied from; None: it is the original.
      env_config, compute_config: What the constructor got, and what was filled in.
      attributes: What was overridden.
      process: Of each environment; None: it runs where it is built.
    """

    path: Path
    origin: Path | None
    env_config: dict[str, Any]
    compute_config: dict[str, Any]
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)
    process: ProcessSettings | None = None
