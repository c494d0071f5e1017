"""Which edits of a run's files have changed its task: what is best begins anew with each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tfagents_system.run_files import run_checkpoints
from tfagents_system.run_files.heartbeat import read_json
from tfagents_system.run_files.install_inputs import copy_aside
from tfagents_system.run_files.meaning import digest_of_meaning
from tfagents_system.run_files.run_inputs import Inputs, inputs_of_run, is_decisive
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.run_files.used_files import used_files
from tfagents_system.settings.overrides import Overrides

_TASK_BEFORE = "task_before"  # Of an edit in the run directory: as of `digests_of_task`, before it.


def digests_of_task(
    inputs: Inputs, overrides: Overrides, may_change: Collection[str], *, of_all_kinds: bool = False
) -> dict[str, str]:
    """What decides which task a run trains on: digests of settings, and of what files mean.

    Of the folder of the params the files that these use, of the kinds that a run does not write itself.

    Args:
      inputs: Those that the run has, or gets.
      overrides: All of the run.
      may_change: Attributes that say nothing of the task.
      of_all_kinds: Also of the other kinds, as the user gave them.
    """
    own = {name: value for name, value in overrides.params.items() if name not in may_change}
    settings = json.dumps([own, overrides.config], sort_keys=True).encode()
    # Its own copies have these suffixes, whatever the user's files are called.
    files = {"params.py": (inputs.params, ".py"), "config.json": (inputs.config, ".json")}
    if inputs.reward is not None:
        files["reward"] = (inputs.reward, "")
    others = {}
    if inputs.folder is not None:
        name = inputs.name or inputs.params.name
        used = used_files(inputs.folder, name, inputs.digests, inputs.config, inputs.params) - {name}
        files |= {f"params/{each}": (inputs.folder / each, Path(each).suffix) for each in used if is_decisive(each)}
        others = {f"params/{each}": inputs.digests[each] for each in used if of_all_kinds and not is_decisive(each)}
    digests = {name: digest_of_meaning(*files[name]) for name in sorted(files)}
    return {**digests, **others, "settings": hashlib.sha256(settings).hexdigest()}


def is_other_task(paths: RunPaths, inputs: Inputs, overrides: Overrides, may_change: Collection[str]) -> bool:
    """Whether edited files mean something else than the run's copies and than what the run was trained with.

    Args:
      inputs: The edited files.
      overrides, may_change: As of `digests_of_task`.
    """
    copies, now = (
        digests_of_task(each, overrides, may_change, of_all_kinds=True) for each in (inputs_of_run(paths), inputs)
    )
    then = (read_json(paths.run_json) or {}).get("task", {})
    # What was edited in the run directory since then has trained nothing.
    return copies | {name: then[name] for name in then.keys() & (copies.keys() | now.keys())} != now


def edits_after(
    paths: RunPaths, before: Mapping[str, Any], task: Mapping[str, str], *, takes: bool, goes_on: bool, now: str
) -> list[dict[str, Any]]:
    """What run.json has of edits from a start on: each may have changed the task, and `best` begins anew.

    A start that neither updates nor evaluates takes no edit of the run directory: the next one looks for edits since
    the start before it, so an edit that was undone meanwhile is none.

    Args:
      before: The content of run.json.
      task: As of `digests_of_task`.
      takes: The start takes files of another task; the copies that there are go to `before_edits_<n>`.
      goes_on: The agent goes on: what was edited in the run directory since the last start counts, too.
      now: The time.
    """
    edits = list(before.get("edits", []))
    then = before.get("task", {})
    train_step = max(0, run_checkpoints.newest_train_step(paths.trainer_checkpoints))
    was_evaluated = bool(edits) and (read_json(paths.best_json) or {}).get("edits") == len(edits)
    if goes_on and edits and not was_evaluated and edits[-1]["train_step"] == train_step and _TASK_BEFORE in edits[-1]:
        then = edits.pop()[_TASK_BEFORE]
    edit = {"time": now, "train_step": train_step}
    if takes:
        edits.append({**edit, "before": copy_aside(paths).name})
    elif goes_on and any(then[name] != task[name] for name in then.keys() & task.keys()):
        edits.append({**edit, "before": None, _TASK_BEFORE: then})
    return edits
