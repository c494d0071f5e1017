"""Weights & Biases, at a server or in files that `wandb sync` sends later.

A run that goes on at the server is told by it how far it has got. The files of an offline run are written anew from
metrics.csv at each start: what a killed process had not written yet, and what a resumed run does again, is then right.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfagents_system.report.tracking.rows import Sent
from tfagents_system.report.tracking.settings import TrackingSettings, group_of, wandb_project
from tfagents_system.run_files.run_paths import RunPaths

_INIT_SECS = 60


class ToWandb:
    """One run of Weights & Biases; see Destination.

    Args:
      settings: `wandb` is one of WANDB_MODES.
      paths: The run directory; the package's own files lie in its `wandb/`.
      run_id: Its name there, the same at each start.
      name: For people.
    """

    name = "Weights & Biases"

    def __init__(self, settings: TrackingSettings, paths: RunPaths, run_id: str, name: str) -> None:
        self._settings, self._paths, self._id, self._shown = settings, paths, run_id, name
        self._run: Any = None

    def begin(self, resolved: Mapping[str, Any]) -> Sent:
        import wandb

        is_offline = self._settings.wandb == "offline"
        self.finish(is_done=False)  # Of an attempt that failed.
        if is_offline:
            for folder in self._offline_folders():
                shutil.rmtree(folder)
        self._run = wandb.init(
            dir=str(self._paths.exp_dir),
            id=self._id,
            name=self._shown,
            project=wandb_project(),
            group=group_of(self._shown),
            config=dict(resolved),
            mode="offline" if is_offline else "online",
            resume=None if is_offline else "allow",
            # What the package would look for by itself: the console, code, git, the machine's load.
            settings=wandb.Settings(
                console="off",
                disable_code=True,
                disable_git=True,
                init_timeout=_INIT_SECS,
                silent=True,
                x_disable_meta=True,
                x_disable_stats=True,
                x_save_requirements=False,
            ),
        )
        self._run.define_metric("env_steps")
        self._run.define_metric("*", step_metric="env_steps")
        return Sent() if is_offline else Sent.told(dict(self._run.summary))

    def send(self, row: Mapping[str, float]) -> None:
        self._run.log(dict(row))

    def flush(self) -> None:
        """The package sends in a process of its own."""

    def finish(self, is_done: bool) -> None:
        if self._run is not None:
            self._run.finish(0 if is_done else 1)
            self._run = None

    def has_refused(self, error: Exception) -> bool:
        from wandb.errors import AuthenticationError, UsageError

        return isinstance(error, AuthenticationError | UsageError)

    def where(self) -> str:
        if self._settings.wandb == "offline":
            return f"in files; to send them: wandb sync {' '.join(map(str, self._offline_folders()))}"
        return f"project {wandb_project()}, run {self._id}"

    def _offline_folders(self) -> list[Path]:
        return sorted((self._paths.exp_dir / "wandb").glob(f"offline-run-*-{self._id}"))
