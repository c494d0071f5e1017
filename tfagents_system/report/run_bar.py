"""How far a run is, as a bar."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class RunBar:
    """How far a run is: a bar of rich, which notebooks show as well; nothing where it is not asked for."""

    def __init__(self, is_shown: bool) -> None:
        self._progress: Any = None
        if is_shown:
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f}%"))
            self._progress = Progress(*columns, TimeElapsedColumn(), transient=False)

    def __enter__(self) -> RunBar:
        if self._progress is not None:
            self._progress.start()
            self._task = self._progress.add_task("starting", total=None)
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def show(self, status: Mapping[str, Any]) -> None:
        if self._progress is None or not status:
            return
        run, trainer = status.get("run", {}), status.get("roles", {}).get("trainer", {})
        unit = "env_steps" if trainer.get("num_env_steps") else "iteration"
        done, total = trainer.get(unit) or 0, trainer.get("num_env_steps") or trainer.get("num_iter")
        told = [
            f"{run.get('name')}: {run.get('state')}",
            f"{done:,} {'steps' if unit == 'env_steps' else 'iterations'}",
        ]
        if (evaluated := trainer.get("eval_return")) is not None:
            told.append(f"evaluation {evaluated:.4g}")
        self._progress.update(self._task, description=", ".join(told), completed=done, total=total)
