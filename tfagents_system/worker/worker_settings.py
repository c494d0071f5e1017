"""What a run's variables say about its workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from tfagents_system.envs.env_process import step_timeout_secs


@dataclasses.dataclass(frozen=True)
class WorkerSettings:
    """How a worker deals with its environments.

    Attributes:
      envs_per_worker: SAC_ENVS_PER_WORKER: environments that it steps together.
      step_timeout_secs: SAC_STEP_TIMEOUT_SECS: what they may take for a step or reset.
      memory_mb: SAC_WORKER_MEMORY_MB; None: no limit.
      env_python: SAC_ENV_PYTHON; None: they run in the worker itself.
      straggler_secs: SAC_STRAGGLER_SECS: what the others wait for it.
    """

    envs_per_worker: int = 1
    step_timeout_secs: float = 300.0
    memory_mb: int | None = None
    env_python: Path | None = None
    straggler_secs: float = 120.0

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> WorkerSettings:
        """The variables, as the supervisor sets them."""
        memory_mb, python = environ.get("SAC_WORKER_MEMORY_MB"), environ.get("SAC_ENV_PYTHON")
        return cls(
            int(environ.get("SAC_ENVS_PER_WORKER") or 1),
            step_timeout_secs(environ),
            int(memory_mb) if memory_mb else None,
            Path(python) if python else None,
            float(environ.get("SAC_STRAGGLER_SECS") or 120),
        )
