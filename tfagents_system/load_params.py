"""Loads a user's file with `class TrainParams(TrainParamsBase)` and its JSON."""

from __future__ import annotations

import json
import os
import sys
import traceback
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfagents_system.errors import UserError
from tfagents_system.train_params_base import ParamsSource, TrainParamsBase

_PACKAGE_DIR = Path(__file__).resolve().parent


def load_env_config(path: Path) -> dict[str, Any]:
    """Reads the JSON of SAC_CONFIG.

    Raises:
      UserError: The file is missing, is not JSON, or is not an object.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"SAC_CONFIG={path} cannot be read ({error.strerror}): give the path of a JSON file") from None
    except ValueError as error:
        raise UserError(f"SAC_CONFIG={path} is not valid JSON: {error}") from None
    if not isinstance(config, dict):
        raise UserError(f'SAC_CONFIG={path} must hold a JSON object such as {{"horizon": 200}}, found {config!r}')
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
    if origin.parent != _PACKAGE_DIR and folder not in sys.path:
        sys.path.insert(0, folder)
    module = types.ModuleType("sac_params")
    module.__file__ = str(origin)
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, str(origin), "exec"), module.__dict__)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"SAC_PARAMS={origin} cannot be imported: {_where(error, origin)}") from error
    params_class = getattr(module, "TrainParams", None)
    if not (isinstance(params_class, type) and issubclass(params_class, TrainParamsBase)):
        raise UserError(
            f"SAC_PARAMS={origin} must define `class TrainParams(TrainParamsBase)`, "
            f"found TrainParams = {params_class!r}"
        )
    return params_class


def load_params(
    params_path: Path,
    env_config: Mapping[str, Any],
    *,
    origin: Path | None = None,
    compute_config: Mapping[str, Any] | None = None,
) -> TrainParamsBase:
    """Builds `TrainParams(env_config)`, with `compute_config` filled in.

    Raises:
      UserError: See `load_params_class`; also where the constructor raises.
    """
    params_class = load_params_class(params_path, origin)
    try:
        params = params_class(dict(env_config))
    except UserError:
        raise
    except Exception as error:
        where = _where(error, (origin or params_path).resolve())
        raise UserError(f"TrainParams(env_config) of {origin or params_path} raises {where}") from error
    if not hasattr(params, "env_config"):
        raise UserError(
            f"TrainParams.__init__ of {origin or params_path} does not call super().__init__(env_config): add that call"
        )
    params.compute_config = {**dict(compute_config or {}), **params.compute_config}
    params._source = ParamsSource(params_path, origin, dict(env_config), dict(compute_config or {}))
    return params


def compute_config_from(environ: Mapping[str, str] = os.environ) -> dict[str, int]:
    """The run's size as its programs see it, from the SAC_ variables that are set."""
    names = {
        "num_collect_workers": "SAC_NUM_COLLECT_WORKERS",
        "collect_worker_cpus": "SAC_COLLECT_WORKER_CPUS",
        "train_cpus": "SAC_TRAIN_CPUS",
        "reverb_cpus": "SAC_REVERB_CPUS",
        "seed": "SAC_SEED",
    }
    return {key: int(environ[name]) for key, name in names.items() if environ.get(name)}


def _where(error: BaseException, origin: Path) -> str:
    """`ValueError: text (line 12)`, with the last line of the user's file that is on the stack."""
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} (line {error.lineno})"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(origin)]
    line = f" (line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{line}"
