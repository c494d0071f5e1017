"""What a start that resets a run (`--reset_training`) checks, says, and completes if it was interrupted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfagents_system.agents.iteration_counts import updates_ratio
from tfagents_system.launch.run_settings import CATCH_UP, RESET
from tfagents_system.replay.ring_files import find_any_files
from tfagents_system.replay.ring_sizes import capacity_rows
from tfagents_system.replay.stored_ring import differences
from tfagents_system.run_files import install_inputs
from tfagents_system.run_files.heartbeat import read_json
from tfagents_system.run_files.metrics import read_metrics
from tfagents_system.run_files.resets import AGENT, agents_before, agents_in
from tfagents_system.run_files.run_lock import RunLock
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport.layout import Layout

_OPTION = "--reset_training"


def finish_interrupted(paths: RunPaths | None) -> None:
    """Completes what a start was killed in the middle of, before anything is read from the run directory.

    Raises:
      UserError: Another start works in it.
    """
    if paths is not None and install_inputs.is_interrupted(paths):
        with RunLock(paths):
            install_inputs.finish_install(paths)


def reset_in_words(environ: Mapping[str, str]) -> str:
    """What a reset does."""
    counted = "count for the ratio of updates to steps" if CATCH_UP in environ else "do not count for the ratio"
    return f"a new agent learns from the experience that is there; its steps {counted}"


def reset_findings(environ: Mapping[str, str], params: TrainParamsBase, paths: RunPaths) -> list[str]:
    """What is wrong with a reset of this run."""
    findings = _of_ends(params, paths)
    if CATCH_UP in environ and not params.asynchronous and updates_ratio(params) is None:
        findings.append(
            f"--catch_up has no effect with updates_per_iter={params.updates_per_iter} updates in each iteration: "
            "remove it, or set updates_per_env_step"
        )
    return findings


def _of_ends(params: TrainParamsBase, paths: RunPaths) -> list[str]:
    """What the whole run has had of what it is to have: it would end after a moment."""
    rows, findings = read_metrics(paths.metrics_csv), list[str]()
    steps, hours = (max((row.get(name) or 0 for row in rows), default=0) for name in ("env_steps", "wall_time_s"))
    hours /= 3600
    if params.num_env_steps is not None and steps >= params.num_env_steps:
        findings.append(
            f"{_OPTION}: num_env_steps={params.num_env_steps} counts the steps of the whole run, which has "
            f"{steps:.0f}: say how many it is to have with --set num_env_steps=N"
        )
    if params.max_hours is not None and hours >= params.max_hours:
        findings.append(
            f"{_OPTION}: max_hours={params.max_hours:g} counts the hours of the whole run, which has had {hours:.2f}: "
            "say how many it is to have with --set max_hours=N"
        )
    return findings


def server_findings(environ: Mapping[str, str], values: Mapping[str, Any], paths: RunPaths) -> list[str]:
    """Why a trainer whose replay server is elsewhere can't have another agent now: it would be ahead of that run.

    A server that does not answer may have been told, too: they may be started in any order.

    Args:
      values: The variables that could be read, by field.
      paths: The trainer's own run directory.
    """
    server, credentials = values.get("trainer_server"), values.get("credentials_dir")
    if environ.get(RESET) != AGENT or server is None or credentials is None:
        return []
    from tfagents_system.transport.remote.check import run_there

    run, here = run_there(server, credentials, values.get("password_file")), agents_before(paths) + 1
    if run is None or (there := agents_in(run)) >= here:
        return []
    return [
        f"{_OPTION}: the agent of the run at {server} was replaced {there} times, and would be {here} times here: "
        f"start the replay server anew with {_OPTION} first, or go on without it"
    ]


def ring_findings(params: TrainParamsBase, layout: Layout, folder: Path, paths: RunPaths) -> list[str]:
    """How the experience of a run differs from what its ring was made for, which has one layout and size for life.

    Args:
      params: Of the run, as they are now.
      layout: Of its experience from now on.
      folder: Of the ring.
      paths: Of the run.
    """
    ring = find_any_files(folder)
    if ring is None:
        return []
    lines = differences(layout, ring.layout, makes_do=False, words=("now", "before"))
    if not lines and (rows := capacity_rows(params, layout)) != ring.capacity_rows:
        lines = [f"rows: now {rows:,} (buffer_size={params.buffer_size}), before {ring.capacity_rows:,}"]
    stack = ((read_json(paths.resolved) or {}).get("params") or {}).get("frame_stack", 1)
    if not lines and layout.history_rows(params.frame_stack) > layout.history_rows(stack):
        lines = [f"frame_stack: now {params.frame_stack}, before {stack}"]
    if not lines:
        return []
    fits = not differences(layout, ring.layout)
    takes = f", which may take this experience with SAC_REPLAY_FROM={paths.exp_dir}" if fits else ""
    return [
        f"the experience in {folder} does not fit: {'; '.join(lines)}. A run's replay buffer keeps its columns and its "
        f"size: restore what it was, or begin another run (SAC_EXP_NAME){takes}; --fresh moves this one aside"
    ]
