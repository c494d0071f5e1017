"""Loads a user's `class TrainParams(TrainParamsBase)` and its JSON; what a run has where they say nothing.

Environments' own processes import this: it needs nothing but Python 3.9 and NumPy.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfagents_system.agents.iteration_counts import random_steps
from tfagents_system.checks.rules import near_misses
from tfagents_system.envs.faults import describe_error
from tfagents_system.errors import UserError, shown
from tfagents_system.hyperparameters import described_by
from tfagents_system.machine import process_settings
from tfagents_system.settings import other_libraries, values
from tfagents_system.train_params_base import ParamsSource, TrainParamsBase, overrides_any

if TYPE_CHECKING:
    from tfagents_system.envs.env_process import ProcessSettings

_PACKAGE_DIR = Path(__file__).resolve().parents[1]
_MODULE_NAME = "sac_params"
_SPAWNED = str(Path(__file__).with_name("spawned"))  # Its module of this name is for processes that users' code starts.
LOADED = "TFAGENTS_PARAMS"  # For these: JSON of the last file that was loaded, and of its origin.
_PERIODS = ("eval_period", "checkpoint_period")
_COMPUTE_CONFIG = ("num_collect_workers", "collect_worker_cpus", "train_cpus", "reverb_cpus", "seed")


def load_env_config(path: Path) -> dict[str, Any]:
    """Reads the JSON of SAC_CONFIG.

    Raises:
      UserError: The file is missing, is not JSON, or is not an object.
    """
    config: dict[str, Any] = values.read_json(path, f"SAC_CONFIG={path}", '{"horizon": 200}')
    return config


def load_params_class(path: Path, origin: Path | None = None) -> type[TrainParamsBase]:
    """Imports a params file and returns its class TrainParams.

    Args:
      path: The file to execute.
      origin: Where `path` was copied from. Modules and data files beside the original are found as if the original
        itself were imported: its folder leads sys.path, and `__file__` names it.

    Raises:
      UserError: The file is missing, raises, or holds no subclass of TrainParamsBase named TrainParams.
    """
    origin = (origin or path).resolve()
    try:
        source = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"SAC_PARAMS={path} cannot be read ({error.strerror}): give the path of a Python file"
        ) from None
    folder = str(origin.parent)
    if folder not in sys.path:
        # Modules of the package, such as `checks`, must not hide others that have the same name.
        sys.path.insert(len(sys.path) if _PACKAGE_DIR in origin.parents else 0, folder)
    if _SPAWNED not in sys.path:
        sys.path.append(_SPAWNED)
    os.environ[LOADED] = json.dumps([str(path.resolve()), str(origin)])
    module = types.ModuleType(_MODULE_NAME)
    module.__file__ = str(origin)
    sys.modules[module.__name__] = module
    try:
        with process_settings.kept():
            exec(compile(source, str(origin), "exec"), module.__dict__)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"SAC_PARAMS={origin} cannot be imported, correct it: {_where(error, origin)}") from error
    params_class = getattr(module, "TrainParams", None)
    if not (isinstance(params_class, type) and issubclass(params_class, TrainParamsBase)):
        ours = vars(module).items()
        others = [name for name, kind in ours if isinstance(kind, type) and TrainParamsBase in kind.__mro__[1:]]
        found = "" if params_class is None else f", found TrainParams = {shown(params_class)}"
        hint = f"rename {others[0]}" if others else "derive one from tfagents_system.train_params_base.TrainParamsBase"
        raise UserError(f"SAC_PARAMS={origin} has no `class TrainParams(TrainParamsBase)`{found}: {hint}")
    if "env_ctor" in getattr(params_class, "__abstractmethods__", ()):
        own = [name for cls in params_class.__mro__ if cls not in TrainParamsBase.__mro__ for name in vars(cls)]
        meant = [wrong for wrong, _ in near_misses(own, ["env_ctor"])]
        hint = f"rename {meant[0]}" if meant else "add `def env_ctor(self, *args, seed=None, **kwargs)`"
        raise UserError(f"TrainParams of {origin} has no env_ctor, which builds the environment: {hint}")
    return params_class


def load_params(
    params_path: Path,
    env_config: Mapping[str, Any],
    *,
    origin: Path | None = None,
    compute_config: Mapping[str, Any] | None = None,
    attributes: Mapping[str, Any] | None = None,
    process: ProcessSettings | None = None,
    findings: list[str] | None = None,
) -> TrainParamsBase:
    """Builds `TrainParams(env_config)`, with `compute_config` filled in.

    Args:
      params_path: The file to execute.
      env_config: What the constructor gets, with the paths at which its `input_files` are.
      origin: See `load_params_class`.
      compute_config: The run's size, which a constructor with that argument gets as well; what the user's class says
        wins.
      attributes: Overridden ones. They have these values from the start and keep them while `__init__` runs, so that
        what it computes from them follows. What the body of the class has computed before does not. Dictionaries are
        merged into those that they override.
      process: Of each of its environments; None: they run where they are built.
      findings: Gets what is wrong with `attributes`, which are left out; None: that is raised.

    Raises:
      UserError: See `load_params_class`; also where the constructor raises, and for impossible `attributes`.
    """
    params_class = load_params_class(params_path, origin)
    file = origin or params_path
    fixed = {name: finding for name in attributes or () if (finding := fixed_attribute(params_class, name))}
    given = {name: value for name, value in (attributes or {}).items() if name not in fixed}
    env_config = with_paths(env_config, params_path)
    try:
        with process_settings.kept():
            params, unknown, wrong = _build(params_class, dict(env_config), dict(compute_config or {}), given)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(
            f"TrainParams(env_config) of {file} raises {_where(error, file.resolve())}: correct it"
        ) from error
    if not isinstance(getattr(params, "env_config", None), dict):
        raise UserError(
            f"TrainParams.__init__ of {file} does not call super().__init__(env_config), or replaces self.env_config: "
            "add that call, or choose another name for yours"
        )
    impossible = fixed | wrong | {name: _unknown_attribute(params, name, file) for name in unknown}
    if impossible and findings is None:
        raise UserError(*impossible.values())
    if findings is not None:
        findings += impossible.values()
    given = {name: value for name, value in given.items() if name not in impossible}
    params.compute_config = {**dict(compute_config or {}), **params.compute_config}
    for kind in _PERIODS:
        lengths = {f"{kind}_iters", f"{kind}_env_steps"}
        if len(lengths & given.keys()) == 1:  # `--set` may give the other kind than the file.
            (other,) = lengths - given.keys()
            setattr(params, other, getattr(TrainParamsBase, other))
    if isinstance(params.num_env_steps, int) and not is_set(params, "num_iter"):
        params.num_iter = max(1, params.num_env_steps)  # No bound: an iteration has a step at least.
    params._source = ParamsSource(params_path, origin, dict(env_config), dict(compute_config or {}), given, process)
    return params


def _build(
    params_class: type[TrainParamsBase],
    env_config: dict[str, Any],
    compute_config: dict[str, Any],
    attributes: Mapping[str, Any],
) -> tuple[TrainParamsBase, list[str], dict[str, str]]:
    """The params, unknown names in `attributes`, and what is wrong with values, by name: they are not overridden."""
    takes_size = "compute_config" in inspect.signature(params_class).parameters
    size = {"compute_config": compute_config} if takes_size else {}
    if not attributes:
        return params_class(env_config, **size), [], {}
    if params_class.__module__ != _MODULE_NAME:  # Imported from elsewhere, where it stays as it is.
        params_class = type(params_class.__name__, (params_class,), {"__module__": _MODULE_NAME})
    known = {name for name in attributes if hasattr(params_class, name)}
    wrong = dict[str, str]()

    def overridden(name: str, before: Any) -> Any:
        wrong.pop(name, None)  # What __init__ assigns last decides.
        try:
            return values.overridden(name, before, attributes[name])
        except UserError as error:
            wrong[name] = str(error)
            return before

    class Overridden(params_class):  # type: ignore[misc, valid-type]
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, overridden(name, value) if name in attributes else value)

    for name in known:
        setattr(params_class, name, overridden(name, getattr(params_class, name)))
    params = Overridden(env_config, **size)
    object.__setattr__(params, "__class__", params_class)  # From now on they are attributes like any others.
    for name in known:
        object.__setattr__(params, name, getattr(params, name))  # A copy in another process has only these.
    for name in attributes.keys() & vars(params).keys():  # Those that self.__dict__.update has set, too.
        setattr(params, name, overridden(name, vars(params)[name]))
    return params, [name for name in attributes if name not in known | vars(params).keys()], wrong


def fixed_attribute(params_class: type, name: str) -> str | None:
    """Why an attribute can't be overridden; None where it can."""
    value = inspect.getattr_static(params_class, name, None)
    if name == "horizon":
        return "horizon is a key of the JSON: override config.horizon"
    if isinstance(value, property):
        return f"TrainParams.{name} is computed by a method: override what it is computed from"
    if inspect.isroutine(value):
        return f"TrainParams.{name} is a method, which no setting can override: change it in SAC_PARAMS"
    return None


def _unknown_attribute(params: TrainParamsBase, name: str, origin: Path) -> str:
    if name in params.env_config:
        return f"TrainParams of {origin} has no attribute {name}: the key of the JSON is config.{name}"
    if setting := other_libraries.BY_NAME.get(name):
        return f"{name} is a setting of {setting.libraries}: {setting.ours}"
    names = [known for known in dir(params) if known != name and not inspect.isroutine(getattr(type(params), known, 0))]
    names.append("config")
    meant = [right for _, right in near_misses([name], names, 0.7)]
    hint = f"{meant[0]} is meant" if meant else "correct the name, or add the attribute to the class"
    return f"TrainParams of {origin} has no attribute {name}: {hint}"


def compute_config_of(values: Mapping[str, Any]) -> dict[str, int]:
    """The run's size as its programs see it, of the variables by field."""
    return {name: values[name] for name in _COMPUTE_CONFIG if name in values}


def _where(error: BaseException, origin: Path) -> str:
    """`ValueError: text (params.py, line 12)`; see `describe_error`."""
    if isinstance(error, SyntaxError) and error.filename == str(origin):
        return f"SyntaxError: {error.msg} (line {error.lineno})"
    return describe_error(error)


# What the user's class says beside ours, and whether it says ours.


def own_names(params: TrainParamsBase, is_hook: bool) -> list[str]:
    """The user's own names, on the instance and on its own classes: methods, or values.

    Separate, because a value such as `collect_env_kwargs` is a natural name beside the hook `collect_env_args_kwargs`.
    """
    names = dict.fromkeys([*vars(params), *(name for cls in _own_classes(params) for name in vars(cls))])
    # getattr_static: a user's property is not evaluated, since it may take long or raise.
    return [name for name in names if inspect.isroutine(inspect.getattr_static(params, name)) == is_hook]


def is_set(params: TrainParamsBase, *names: str) -> bool:
    """Whether the user's class, its constructor or `--set` gives one of these attributes a value."""
    return any(name in vars(source) for source in (params, *_own_classes(params)) for name in names)


def _own_classes(params: TrainParamsBase) -> list[type]:
    return [cls for cls in type(params).__mro__ if cls not in TrainParamsBase.__mro__]


# Defaults that follow from other attributes. They are decided once, when a run begins, and recorded in its run.json: a
# run keeps each of them for as long as nobody says something else.

# Costs 2 % of the throughput of iterations of 1000 steps (docs/explanations/experience.md has figures).
ENV_STEPS_PER_ITER = 200
OF_ITERATIONS = ("num_train_episodes_per_iter", "updates_per_iter", "env_steps_per_iter")
_OF_TARGETS = ("target_update_tau", "target_update_period")
# Of a run that takes another one's agent, or enough of its experience.
WITHOUT_RANDOM_STEPS = {"initial_collect_steps": 0}
_STEPS_AN_EVALUATION_STEP = 9  # Evaluations take at most a tenth of all steps of simulators,
_EVALUATIONS = 10  # unless so many need more: a run shows whether it learns.
_RANDOM_STEPS, _LOG_STEPS, _ROWS, _CHECKPOINT_STEPS = 1000, 1000, 20, 50_000


def defaults_of(params: TrainParamsBase, num_workers: int) -> dict[str, Any]:
    """Values by attribute for a run that begins.

    Args:
      params: As the user gives them; every value is right by itself. Of a wrong horizon no default follows.
      num_workers: Planned workers: each has at least a step of an iteration.
    """
    if not isinstance(params.env_config.get("horizon"), int):
        return {}
    defaults = {
        attribute.name: attribute.by_algorithm.value(params)
        for attribute in described_by(TrainParamsBase).values()
        if attribute.replaces_default(params.algorithm)
        and not (is_set(params, attribute.name) or overrides_any(params, "agent_ctor"))
    }
    if is_set(params, *_OF_TARGETS):  # A small step needs a short period.
        defaults = {name: value for name, value in defaults.items() if name not in _OF_TARGETS}
    steps = params.num_env_steps
    if not is_set(params, *OF_ITERATIONS):
        shortest = ENV_STEPS_PER_ITER if steps is None else min(ENV_STEPS_PER_ITER, steps // (2 * _EVALUATIONS))
        defaults["env_steps_per_iter"] = max(shortest, num_workers)
    steps_per_iter = defaults.get("env_steps_per_iter", params.env_steps_per_iter)
    if steps_per_iter is None:
        defaults.pop("updates_per_env_step", None)  # It would decide instead of `updates_per_iter`.
    else:
        whole: int = params.num_iter * steps_per_iter
        steps = whole if steps is None else min(whole, steps)
        if not is_set(params, "log_period_iters"):
            defaults["log_period_iters"] = max(1, min(_LOG_STEPS, steps // _ROWS) // steps_per_iter)
        if not is_set(params, "checkpoint_period_iters", "checkpoint_period_env_steps"):
            defaults["checkpoint_period_env_steps"] = _CHECKPOINT_STEPS
        if not is_set(params, "initial_collect_steps", "num_initial_episodes"):
            defaults["initial_collect_steps"] = min(_RANDOM_STEPS, steps // 10)
    if params.num_eval_episodes and not is_set(params, "eval_period_iters", "eval_period_env_steps"):
        if steps is not None:
            first = defaults.get("initial_collect_steps", random_steps(params))
            most = (steps - min(first, steps // 2)) // _EVALUATIONS
            cheap = _STEPS_AN_EVALUATION_STEP * params.num_eval_episodes * params.horizon
            defaults["eval_period_env_steps"] = max(1, min(most, cheap))
        elif params.num_iter < _EVALUATIONS * params.eval_period_iters:
            defaults["eval_period_iters"] = max(1, params.num_iter // _EVALUATIONS)
    return defaults


def kept_defaults(params: TrainParamsBase, num_workers: int, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Values by attribute for a run that has begun. What its params say no more it has as a run that begins.

    Args:
      params, num_workers: As of `defaults_of`.
      recorded: Those that it had up to now.
    """
    kept = {name: recorded.get(name, value) for name, value in defaults_of(params, num_workers).items()}
    return kept | (WITHOUT_RANDOM_STEPS if WITHOUT_RANDOM_STEPS.items() <= recorded.items() else {})


# Files that belong to a run beside its params: those that the JSON names under `input_files`.
#
#     "input_files": {"trajectory_reward": "laps/reward.npz"}
#
# A relative path is looked for beside the params file, then in the working directory. A run begins with copies of them,
# compares them at later starts, and gives them to machines that join. `params.env_config["input_files"]` has the paths
# of the copies.

INPUT_FILES = "input_files"  # The key, and the folder of the copies beside the run's copy of the params file.
_INPUT_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")


def check_input_files(env_config: Mapping[str, Any]) -> list[str]:
    """What is wrong with the key `input_files`. A file may be missing: a recorder writes it."""
    section = env_config.get(INPUT_FILES, {})
    if not isinstance(section, Mapping):
        return [f'"{INPUT_FILES}" must be an object of paths by name, found {shown(section)}: correct it']
    findings = []
    for name, text in section.items():
        path = os.path.expanduser(text) if isinstance(text, str) else ""
        if not _INPUT_NAME.fullmatch(name) or not path:
            findings.append(f'{name} must be a path, and its name of letters, digits, "_" and "-": correct it')
        elif (
            path[0] == "~" or "\0" in path or max(len(name.encode(errors="replace")) for name in path.split("/")) > 255
        ):
            rule = "must be a path of a known user, with names of at most 255 bytes"
            findings.append(f"{name} {rule}, found {shown(text)}: correct it")
    return [f"{INPUT_FILES}.{finding}" for finding in findings]


def input_files_of(env_config: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """The files that exist, by the names of their copies: with the suffix, which tells readers the format.

    Args:
      folder: Of the params file.
    """
    return {name + path.suffix: path for name, path in _existing_input_files(env_config, folder).items()}


def _existing_input_files(env_config: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    paths = {}
    for name, text in _input_texts(env_config).items():
        path = Path(text).expanduser()
        candidates = ((folder / path).absolute(), path.absolute())
        if (found := next(filter(os.path.isfile, candidates), None)) is not None:  # Path.is_file may raise.
            paths[name] = found
    return paths


def with_paths(env_config: Mapping[str, Any], params: Path) -> dict[str, Any]:
    """The JSON with the paths at which its files are: in a run those of its copies; a missing one stays as it is.

    Args:
      params: The params file; in a run its copy of it.
    """
    if not (texts := _input_texts(env_config)):
        return dict(env_config)
    paths, folder = _existing_input_files(env_config, params.parent), params.parent.absolute()
    if (folder / "run.json").is_file():
        copies = {name: folder / INPUT_FILES / (name + Path(text).suffix) for name, text in texts.items()}
        paths |= {name: copy for name, copy in copies.items() if copy.is_file()}
    return {**env_config, INPUT_FILES: {**texts, **{name: str(path) for name, path in paths.items()}}}


def _input_texts(env_config: Mapping[str, Any]) -> dict[str, str]:
    return {} if check_input_files(env_config) else dict(env_config.get(INPUT_FILES, {}))
