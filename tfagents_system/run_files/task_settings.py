"""Whether a run is that of its task: of a sweep or a job array, whose grid and seeds may have changed since."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from tfagents_system.run_files.run_directory import has_begun, read_run_json
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.early_end import SETTINGS_OF_END
from tfagents_system.settings.overrides import Overrides, Setting
from tfagents_system.settings.values import in_words
from tfagents_system.settings.variables import SEED


def faults_of_task(paths: RunPaths, own: Sequence[Setting], variables: Collection[str] = ()) -> list[str]:
    """Why the run in a task's directory is not that of the task: it has other values of the task's settings.

    They are compared with the overrides of the run's newest start and with its seed. Settings that say when a run ends
    may change. Those of a key that has left the grid are not compared.

    Args:
      own: The settings of the grid and of --seeds for this task.
      variables: SAC_ names that are known beside our own.
    """
    if not own or not has_begun(paths):
        return []
    began, wanted = _of_run(paths), Overrides.from_settings(own, variables)[0].settings()
    if SEED in wanted and SEED not in began:
        del wanted[SEED]
    other = {
        name: value for name, value in wanted.items() if not (_says_when_it_ends(name) or _is_in(began, name, value))
    }
    if not other:
        return []
    found = in_words({name: began[name] for name in other if name in began})
    return [
        f"{in_words(other)} is not what the run in {paths.exp_dir} began with ({found or 'nothing was given for it'}): "
        "it is the run of another task, so choose another SAC_EXP_NAME for changed seeds or another grid"
    ]


def _of_run(paths: RunPaths) -> dict[str, Any]:
    run = read_run_json(paths)
    return Overrides.of_run(run).settings() | {SEED: str(run["seed"])}


def _says_when_it_ends(name: str) -> bool:
    return name.split(".")[0] in SETTINGS_OF_END


def _is_in(began: dict[str, Any], name: str, value: Any) -> bool:
    if name == SEED and value.strip().isdecimal():
        return int(value) == int(began[name])
    return name in began and began[name] == value
