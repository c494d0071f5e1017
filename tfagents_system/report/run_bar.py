"""How far a run is, as a line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfagents_system.report.long_work import LongWork
from tfagents_system.run_files.heartbeat import is_offline


class RunBar:
    """How far a run is: a line that is replaced on a terminal and in a notebook; nothing where it is not asked for."""

    def __init__(self, is_shown: bool) -> None:
        self._work = LongWork("starting", after_secs=0.0, in_place=True) if is_shown else None

    def __enter__(self) -> RunBar:
        if self._work is not None:
            self._work.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._work is not None:
            self._work.__exit__()

    def show(self, status: Mapping[str, Any]) -> None:
        """Shows what a run's status.json says."""
        if self._work is None or not status:
            return
        run, trainer = status.get("run", {}), status.get("roles", {}).get("trainer", {})
        is_by_steps = bool(trainer.get("num_env_steps"))
        self._work.unit = "steps" if is_by_steps else "iterations"
        done = max(0, trainer.get("env_steps" if is_by_steps else "iteration") or 0)
        total = trainer.get("num_env_steps") or trainer.get("num_iter")
        self._work.done, self._work.total = min(done, total or done), total  # The last iteration may have more steps.
        self._work.what = f"{run.get('name')}: {run.get('state')}"
        evaluated = trainer.get("eval_return")
        told = "offline updates" if is_offline(trainer) else ""
        self._work.doing = told if evaluated is None else f"evaluation {evaluated:.4g}"
