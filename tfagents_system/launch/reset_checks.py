"""What a start that resets a run (`--reset_training`) checks, says, and completes if it was interrupted."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tfagents_system.agents.iteration_counts import updates_ratio
from tfagents_system.checks.checklist import Check
from tfagents_system.launch.run_settings import CATCH_UP, RESET
from tfagents_system.replay.ring_columns import lacks_frames
from tfagents_system.replay.ring_files import RingFiles, find_any_files, is_of_agent_before
from tfagents_system.replay.ring_resize import Wanted
from tfagents_system.replay.ring_sizes import capacity_rows, ring_bytes
from tfagents_system.replay.stored_ring import differences
from tfagents_system.run_files import install_inputs
from tfagents_system.run_files.metrics import read_metrics
from tfagents_system.run_files.resets import AGENT, agents_before, agents_in
from tfagents_system.run_files.run_lock import RunLock
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport.layout import OPTIONAL_COLUMNS, Layout

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
            f"--catch_up has no effect with num_steps_per_iter={params.num_steps_per_iter} updates in each iteration: "
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


def agent_number(environ: Mapping[str, str], paths: RunPaths) -> int:
    """Which of the run's agents learns from this start on, from 1."""
    return 1 + agents_before(paths) + (environ.get(RESET) == AGENT)


def layout_findings(layout: Layout, folder: Path, agent: int) -> list[str]:
    """How a run's observations and actions differ from those of the experience in its ring, and what else it lacks.

    With another agent, what samples do not need any more is left out, and what can be made up is made up, see
    `replay.ring_columns`. One that goes on may have prior data and checkpoints with the same columns.

    Args:
      layout: Of the experience from now on.
      folder: Of the ring.
      agent: Which of the run's agents learns from now on, from 1.
    """
    found = find_any_files(folder)
    if found is None:
        return []
    words = ("now", "before")
    lines = differences(layout, found.layout, makes_do=is_of_agent_before(found, agent), words=words)
    if not lines:
        return []
    computed = {OPTIONAL_COLUMNS[name].name for name in ("returns", "potential")}
    remedy = "Restore what it was, or begin another run (SAC_EXP_NAME)"
    if not differences(layout, found.layout):
        remedy = (
            "Restore what it was (normalize_rewards, potential, hindsight_share, n_step, cut_at_exploration), or let "
            f"another agent begin with this experience ({_OPTION})"
        )
    elif {line.partition(":")[0] for line in lines} <= computed:
        remedy = (
            "These are computed while an episode is collected: restore what it was (normalize_rewards, potential), or "
            "begin another run (SAC_EXP_NAME)"
        )
    return [f"the experience in {folder} does not fit: {'; '.join(lines)}. {remedy}"]


def size_changes(
    params: TrainParamsBase, layout: Layout, folders: Iterable[Path], check: Check, agent: int = 1
) -> None:
    """Tells whether the run's ring will get another size, other columns or flags, which its parameters ask for.

    What is in the way is told as an error.

    Args:
      params: Of the run, as they are now.
      layout: Of its experience; the ring has the same.
      folders: Those that may have the ring or its copy; the new files are made beside the old ones in each that does.
      check: Gets what was found.
      agent: As of `layout_findings`.
    """
    history_rows = layout.history_rows(params.frame_stack)
    needs, found = capacity_rows(params, layout), [find_any_files(folder) for folder in folders]
    sealed = [files for files in found if files and lacks_frames(files, agent, history_rows)]
    changed = [
        files
        for files in found
        if files and (files in sealed or files.capacity_rows != needs or files.layout != layout)
    ]
    on_disk = defaultdict[int, list[RingFiles]](list)
    for files in changed:
        on_disk[files.folder.stat().st_dev].append(files)
    for together in on_disk.values():
        needed = sum(_bytes_beside(files, params, layout) for files in together)
        free = shutil.disk_usage(together[0].folder).free
        if needed > free:
            check.errors.append(
                f"the ring in {' and that in '.join(str(files.folder) for files in together)} gets another size, "
                f"other columns or flags for frames (buffer_size={params.buffer_size}), "
                f"for which {needed:,} bytes must be free beside it, {free:,} are: "
                "free space, or restore what it was"
            )
    if check.errors or not changed:
        return
    has = changed[0]
    begun_anew = ", and priorities begin anew" if params.sample_form_ctor().is_prioritized else ""
    if has.capacity_rows != needs:
        is_larger = needs > has.capacity_rows
        rest = "all that it holds stays" if is_larger else "the newest experience that fits stays, the rest is given up"
        check.notes.append(
            f"the ring gets room for {needs:,} rows instead of {has.capacity_rows:,}: {rest}{begun_anew}"
        )
    check.notes += _column_notes(has.layout, layout)
    check.notes += ["no sample starts at kept steps where frames before them are missing"] * bool(sealed)


def _bytes_beside(files: RingFiles, params: TrainParamsBase, layout: Layout) -> int:
    """Of the new files of a ring, while the old ones are there."""
    needs = capacity_rows(params, layout)
    if needs != files.capacity_rows:
        return ring_bytes(params, layout)
    return Wanted(layout, needs, files.slack_rows).files_beside(files).num_bytes


def _column_notes(before: Layout, now: Layout) -> list[str]:
    """What becomes of the columns of a ring that only one of two layouts has."""
    made_up = {
        "explored": "as if none of the kept actions had explored",
        "episode": "each kept segment counts as an episode of its own",
    }
    notes = [
        f"the ring gets a column {name}: {made_up[name]}"
        for name in now.optional
        if name in made_up and name not in before.optional
    ]
    dropped = [OPTIONAL_COLUMNS[name].name for name in before.optional if name not in now.optional]
    if dropped:
        notes.append(f"the ring loses what samples do not need any more: {', '.join(dropped)}")
    return notes
