"""What a start that resets a run (`--reset_training`) checks, says, and completes if it was interrupted."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.agents.iteration_counts import updates_ratio
from tfagents_system.checks.checklist import Check
from tfagents_system.launch.early_answers import what_goes_on
from tfagents_system.launch.run_settings import CATCH_UP, RESET
from tfagents_system.replay.ring_sizes import capacity_rows, ring_bytes
from tfagents_system.run_files import install_inputs, run_directory
from tfagents_system.run_files.heartbeat import read_json
from tfagents_system.run_files.metrics import read_metrics
from tfagents_system.run_files.resets import NETWORKS
from tfagents_system.run_files.run_lock import RunLock
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.early_end import settings_of_end
from tfagents_system.settings.params_check import resolved_attributes
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport.layout import Column, Layout

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
    if environ.get(RESET) == NETWORKS:
        return "networks are drawn anew, counters and settings stay"
    counted = "count for the ratio of updates to steps" if CATCH_UP in environ else "do not count for the ratio"
    return f"a new agent learns from the experience that is there; its steps {counted}"


def reset_findings(environ: Mapping[str, str], params: TrainParamsBase, paths: RunPaths, agent: Any) -> list[str]:
    """What is wrong with a reset of this run.

    Args:
      agent: Of the run from now on; None if it could not be built, which others report.
    """
    findings = _of_networks(params, paths, agent) if environ[RESET] == NETWORKS else []
    findings = findings or _of_ends(params, paths)
    if CATCH_UP in environ and not params.asynchronous and updates_ratio(params) is None:
        findings.append(
            f"--catch_up has no effect with num_steps_per_iter={params.num_steps_per_iter} updates in each iteration: "
            "remove it, or set updates_per_env_step"
        )
    return findings


def _of_networks(params: TrainParamsBase, paths: RunPaths, agent: Any) -> list[str]:
    """Why nothing can be drawn anew, or nobody would learn with it."""
    # Imported here, where an agent was built: a start that only says what it does needs no TensorFlow.
    from tfagents_system.agents.action_sampling import UnsupportedAgentError
    from tfagents_system.agents.network_parts import networks_of

    findings = list[str]()
    ends_for = settings_of_end(resolved_attributes(params))
    if run_directory.has_ended_with(paths, params.num_iter, ends_for):
        goes_on = what_goes_on(run_directory.why_early(paths))
        findings.append(
            f"{_OPTION} {NETWORKS}: the run is finished, so no update would follow: let it go on as well, with --set "
            f"{goes_on}"
        )
    try:
        if agent is not None:
            networks_of(agent)
    except UnsupportedAgentError as error:
        findings.append(
            f"{_OPTION} {NETWORKS} draws the networks of the toolkit's own agents and of TF-Agents' SacAgent anew, and "
            f"{error}: begin with a new agent ({_OPTION})"
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


def layout_findings(layout: Layout, folder: Path) -> list[str]:
    """How a run's observations and actions differ from those of the experience in its ring."""
    found = read_json(folder / "layout.json") or {}
    kept = {each["name"]: _column(each) for each in found.get("columns", [])}
    now = {column.name: column for column in layout.columns}
    if not kept or kept == now:
        return []
    rows = [
        f"{name} {_in_words(kept.get(name))} before, {_in_words(now.get(name))} now"
        for name in dict.fromkeys([*kept, *now])
        if kept.get(name) != now.get(name)
    ]
    return [
        f"the experience in {folder} does not fit: {'; '.join(rows)}. Restore what it was, or begin another run "
        "(SAC_EXP_NAME)"
    ]


def size_changes(params: TrainParamsBase, layout: Layout, folders: Iterable[Path], check: Check) -> None:
    """Tells whether the run's ring will get another size, which its parameters ask for; or why it can't.

    Args:
      params: Of the run, as they are now.
      layout: Of its experience; the ring has the same.
      folders: Those that may have the ring or its copy; the new files are made beside the old ones in each that does.
      check: Gets what was found.
    """
    needs, capacities = capacity_rows(params, layout), {folder: _capacity(folder) for folder in folders}
    resized = {folder: has for folder, has in capacities.items() if has is not None and has != needs}
    on_disk = defaultdict[int, list[Path]](list)
    for folder in resized:
        on_disk[folder.stat().st_dev].append(folder)
    for together in on_disk.values():
        needed, free = len(together) * ring_bytes(params, layout), shutil.disk_usage(together[0]).free
        if needed > free:
            check.errors.append(
                f"the ring in {' and that in '.join(map(str, together))} gets another size "
                f"(n_episodes_in_buffer={params.n_episodes_in_buffer} of horizon={params.horizon} steps), for which "
                f"{needed:,} bytes must be free beside it, {free:,} are: free space, or restore what it was"
            )
    if check.errors or not resized:
        return
    has = next(iter(resized.values()))
    rest = "all that it holds stays" if needs > has else "the newest experience that fits stays, the rest is given up"
    begun_anew = ", and priorities begin anew" if params.sample_form_ctor().is_prioritized else ""
    check.notes.append(f"the ring gets room for {needs:,} rows instead of {has:,}: {rest}{begun_anew}")


def _capacity(folder: Path) -> int | None:
    """Rows of the ring in a folder."""
    return (read_json(folder / "layout.json") or {}).get("capacity_rows")


def _column(described: Mapping[str, Any]) -> Column:
    shape: Sequence[int] = described["shape"]
    return Column(described["name"], tuple(shape), described["dtype"], described.get("count"))


def _in_words(column: Column | None) -> str:
    if column is None:
        return "absent"
    return f"one of {column.count}" if column.count else f"{column.dtype} {list(column.shape)}"
