"""A run directory for programs that use a run's saved params and policy checkpoints.

This module imports neither TensorFlow nor Reverb.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tfagents_system.checks.rules import is_meant
from tfagents_system.envs.env_process import ProcessSettings
from tfagents_system.errors import UserError
from tfagents_system.machine.files import read_json
from tfagents_system.policies.names import train_step_of
from tfagents_system.run_files.run_directory import origin_of_run, read_run_json
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.load_params import load_env_config, load_params
from tfagents_system.settings.params_check import check_env_config
from tfagents_system.settings.resolved import Overrides
from tfagents_system.settings.variables import read_variables
from tfagents_system.train_params_base import TrainParamsBase

_ROOT = Path(__file__).resolve().parents[2]


def find_path(text: str, flag: str, exists: Callable[[Path], bool]) -> Path:
    """A path as given, or relative to the repository.

    Args:
      exists: `Path.is_dir`, `Path.is_file` or `Path.exists`.

    Raises:
      UserError: It does not exist, or is of another kind.
    """
    if not text:
        raise UserError(f"{flag} is empty: give a path, or leave it out")
    name = text if flag == "RUN" else f"{flag}={text}"
    candidates = [Path(text).expanduser().absolute(), _ROOT / text]
    for candidate in candidates:
        if exists(candidate):
            return candidate
    if any(candidate.exists() for candidate in candidates):
        raise UserError(f"{name} is no {'directory' if exists is Path.is_dir else 'file'}: give the path of one")
    tried = " and ".join(dict.fromkeys(map(str, candidates)))
    raise UserError(f"{name} does not exist (looked for {tried}): give the path of an existing one")


def output_folder(text: str, flag: str) -> Path:
    """A folder to write to, which need not exist; a file is refused."""
    folder = Path(text).expanduser().absolute()
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{flag}={text} is a file: give a folder")
    return folder


def checkpoint_names(paths: RunPaths) -> list[str]:
    """The policy checkpoints of a run, oldest first."""
    folders = paths.policy_checkpoints.glob("policy_checkpoint_*")
    return sorted(path.name for path in folders if train_step_of(path.name) is not None and path.is_dir())


def best_checkpoint(paths: RunPaths) -> str | None:
    """The name of the checkpoint that is the best one now, see `read_best`; None where there is none."""
    name = (read_json(paths.best_json) or {}).get("checkpoint")
    return None if name is None else str(name)


def find_checkpoint(paths: RunPaths, name: str | None = None) -> Path:
    """The folder of a policy checkpoint.

    Args:
      name: Its name, `latest` or `best`; None: the best, or the latest where no policy was evaluated.

    Raises:
      UserError: There is none of that name.
    """
    names, best = checkpoint_names(paths), best_checkpoint(paths)
    if not names:
        folders = (paths.exp_dir, *paths.exp_dir.parents)  # Of a folder in a run, too.
        run = next((folder for folder in folders if RunPaths(folder).run_json.exists()), "the directory of a run")
        remedy = "wait for the run's first checkpoint" if run == paths.exp_dir else f"give {run}"
        raise UserError(f"{paths.exp_dir} has no policy: {remedy}")
    there_are = f"there are {', '.join(names)}"
    if name == "best" and best is None:
        raise UserError(
            f"{paths.exp_dir} has no best checkpoint, no policy was evaluated yet: wait for an evaluation, or take "
            f"latest ({there_are})"
        )
    name = {None: best if best in names else names[-1], "best": best, "latest": names[-1]}.get(name) or str(
        name
    ).rstrip("/")
    if name not in names:
        meant = is_meant(name, ("best", "latest"))
        raise UserError(f"{paths.policy_checkpoints} has no checkpoint {name}{meant}: {there_are}, latest and best")
    return paths.policy_checkpoints / name


def checkpoint_in_words(paths: RunPaths, checkpoint: Path) -> str:
    """`policy_checkpoint_0000004800 (best) of logs/pendulum`."""
    roles = {"best": best_checkpoint(paths), "latest": next(reversed(checkpoint_names(paths)), None)}
    words = " and ".join(role for role, name in roles.items() if name == checkpoint.name)
    return f"{checkpoint.name}{f' ({words})' if words else ''} of {paths.exp_dir}"


def milestones(paths: RunPaths) -> list[Path]:
    """The first checkpoint, the best (the latest if none was evaluated), and the middle one of those between.

    The latest replaces the middle one if there is none between; fewer checkpoints if there are fewer.

    Raises:
      UserError: There is none.
    """
    last, names = find_checkpoint(paths).name, checkpoint_names(paths)
    up_to = names[: names.index(last) + 1]
    chosen = dict.fromkeys((up_to[0], up_to[len(up_to) // 2], last))
    if len(chosen) < 3:
        chosen[names[-1]] = None
    return [paths.policy_checkpoints / name for name in chosen]


def load_run_params(paths: RunPaths | None, params_flag: str | None, config_flag: str | None) -> TrainParamsBase:
    """The TrainParams of a run with its settings, or those of other files (--params, --config), unchanged.

    Raises:
      UserError: A file is missing, or is not as it must be.
    """
    if paths is None and (params_flag is None or config_flag is None):
        raise UserError("the environment is unknown: give a run directory, or --params and --config")
    run = {} if paths is None else read_run_json(paths)
    own = [] if paths is None else [paths.params, paths.config]
    params_path = find_path(params_flag if params_flag is not None else str(own[0]), "--params", Path.is_file)
    config_path = find_path(config_flag if config_flag is not None else str(own[1]), "--config", Path.is_file)
    overrides, process, env_config = Overrides.of_run(run), _process(run), load_env_config(config_path)
    if paths is not None and config_path.resolve() == paths.config.resolve():
        env_config = overrides.merged(env_config)
    if findings := check_env_config(env_config):
        raise UserError(*findings)
    if paths is None or params_path.resolve() != paths.params.resolve():
        return load_params(params_path, env_config, process=process)
    origin, attributes = origin_of_run(paths), overrides.attributes
    return load_params(params_path, env_config, origin=origin, attributes=attributes, process=process)


def _process(run: Mapping[str, Any]) -> ProcessSettings | None:
    """As SAC_ENV_PYTHON and SAC_STEP_TIMEOUT_SECS say now; where one is not set, as the run was trained."""
    trained = run.get("start", {}).get("variables", {})
    values, findings = read_variables(os.environ, vars_file=None, root=_ROOT)
    if wrong := [text for text in findings if text.startswith(("SAC_ENV_PYTHON=", "SAC_STEP_TIMEOUT_SECS="))]:
        raise UserError(*wrong)
    if "SAC_ENV_PYTHON" not in os.environ and trained.get("env_python"):
        values["env_python"] = Path(trained["env_python"])
    if "SAC_STEP_TIMEOUT_SECS" not in os.environ and trained.get("step_timeout_secs"):
        values["step_timeout_secs"] = trained["step_timeout_secs"]
    return ProcessSettings.of(values)
