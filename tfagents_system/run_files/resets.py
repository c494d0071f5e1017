"""Resets of a run: its experience stays, and another agent learns from it.

    before_reset_1/                  of `--reset_training`: the agent before it
        checkpoints/ policies/ ...   moved there
        params.py config.json ...    copies
    run.json                         "resets": what was reset when (`Reset`), the oldest first

A reset is done when run.json says so. Trainer, replay server and workers find there what they have to do: a trainer
without a checkpoint begins, the ring begins to count anew where its header is of an earlier agent.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from tfagents_system.machine.files import copy_tree, sync, write_atomically
from tfagents_system.run_files.heartbeat import read_json
from tfagents_system.run_files.run_paths import TRAINER, RunPaths

AGENT: Literal["agent"] = "agent"


@dataclasses.dataclass(frozen=True)
class Reset:
    """One reset.

    Attributes:
      kind: `agent`.
      before: Name of the folder with what was there before.
      train_step: Updates of the newest checkpoint then.
      env_steps: Environment steps of the run then, as far as checkpoints and metrics tell.
      catch_up: Steps that the ring has kept count for the ratio of updates to steps.
      time: When, ISO 8601.
    """

    kind: str
    before: str
    train_step: int
    env_steps: int
    catch_up: bool
    time: str


def resets_of_run(paths: RunPaths) -> list[Reset]:
    """All of them, the oldest first."""
    return _resets_in(read_json(paths.run_json) or {})


def agents_before(paths: RunPaths) -> int:
    """How often the run's agent was replaced."""
    return agents_in(read_json(paths.run_json) or {})


def agents_in(run: Mapping[str, Any]) -> int:
    """The same, by the content of a run.json."""
    return len(_resets_in(run))


def _resets_in(run: Mapping[str, Any]) -> list[Reset]:
    return [Reset(**each) for each in run.get("resets", [])]


def catches_up(paths: RunPaths) -> bool:
    """Whether the newest agent's ratio of updates to steps counts the steps that the ring had when it began."""
    return any(reset.catch_up for reset in resets_of_run(paths)[-1:])


def steps_before(paths: RunPaths) -> int:
    """Environment steps of the run when its newest agent began; 0 for the first one."""
    return next((each.env_steps for each in reversed(resets_of_run(paths))), 0)


def earlier_checkpoints(paths: RunPaths) -> tuple[Path, ...]:
    """Folders with the checkpoints of earlier agents, the newest first."""
    return tuple(
        paths.exp_dir / reset.before / paths.trainer_checkpoints.name for reset in reversed(resets_of_run(paths))
    )


def next_folder(paths: RunPaths) -> str:
    """Name of the folder for the next reset."""
    return next(name for n in itertools.count(1) if not (paths.exp_dir / (name := f"before_reset_{n}")).exists())


def set_aside(paths: RunPaths, before: str) -> None:
    """Puts what a reset replaces into `before`; done again after it was interrupted, it goes on.

    The user's files and settings are copied, because the run goes on with them unless they are replaced as well.
    """
    folder = paths.exp_dir / before
    folder.mkdir(exist_ok=True)
    for path in (paths.run_json, paths.params, paths.config, paths.reward, paths.overrides, paths.resolved):
        copy = folder / path.name
        if path.exists() and not copy.exists():
            write_atomically(copy, path.read_bytes(), mode=path.stat().st_mode & 0o777)
    _copy_folder(paths.params_folder, folder)
    for path in _of_agent(paths):
        if path.exists():
            os.rename(path, folder / path.name)
    for path in (paths.status_json, paths.heartbeat(TRAINER)):  # They say how far the agent before was.
        path.unlink(missing_ok=True)
    sync(folder)
    sync(paths.exp_dir)


def _of_agent(paths: RunPaths) -> tuple[Path, ...]:
    return (
        paths.trainer_checkpoints,
        paths.saved,
        paths.agent_from,
        paths.prior_data,
        paths.policies,
        paths.episodes,  # Their checkpoints are in that folder, too, and their params.
        paths.journals,
        paths.train_summaries,
        paths.eval_summaries,
        paths.videos,
        paths.learning_curve,
    )


def _copy_folder(source: Path, target: Path) -> None:
    """Copies a folder into another one: whole, or not at all."""
    if not source.is_dir() or (target / source.name).exists():
        return
    partial = target / f".{source.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    copy_tree(source, partial)
    os.rename(partial, target / source.name)
