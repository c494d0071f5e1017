"""Files that belong to a run beside its params: those that the JSON names under `input_files`.

    "input_files": {"trajectory_reward": "laps/reward.npz"}

A relative path is looked for beside the params file, then in the working directory. A run begins with copies of them,
compares them at later starts, and gives them to machines that join. `params.env_config["input_files"]` has the paths of
the copies.

Environments' own processes import this: it needs nothing but Python 3.9.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfagents_system.errors import shown

KEY = "input_files"
FOLDER = "input_files"  # Of the copies, beside the run's copy of the params file.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")


def check_input_files(env_config: Mapping[str, Any]) -> list[str]:
    """What is wrong with the key `input_files`. A file may be missing: a recorder writes it."""
    section = env_config.get(KEY, {})
    if not isinstance(section, Mapping):
        return [f'"{KEY}" must be an object of paths by name, found {shown(section)}: correct it']
    wrong = [name for name, text in section.items() if not (_NAME.fullmatch(name) and isinstance(text, str) and text)]
    rule = 'must be a path, and its name of letters, digits, "_" and "-"'
    return [f"{KEY}.{name} {rule}: correct it" for name in wrong] or [
        f"{KEY}.{name} must be a path of a known user, with names of at most 255 bytes, found {shown(text)}: correct it"
        for name, text in section.items()
        if (path := os.path.expanduser(text)).startswith("~")  # No such user.
        or "\0" in path
        or any(len(part.encode(errors="replace")) > 255 for part in path.split("/"))
    ]


def paths_of(env_config: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """The files that exist, by name.

    Args:
      folder: Of the params file.
    """
    found = {}
    for name, text in _texts(env_config).items():
        path = Path(text).expanduser()
        for candidate in ((folder / path).absolute(), path.absolute()):
            if os.path.isfile(candidate):  # Path.is_file raises where a folder can't be searched.
                found[name] = candidate
                break
    return found


def with_paths(env_config: Mapping[str, Any], params: Path) -> dict[str, Any]:
    """The JSON with the paths at which its files are: in a run those of its copies; a missing one stays as it is.

    Args:
      params: The params file; in a run its copy of it.
    """
    texts = _texts(env_config)
    if not texts:
        return dict(env_config)
    paths, folder = paths_of(env_config, params.parent), params.parent.absolute()
    if (folder / "run.json").is_file():
        copies = {name: folder / FOLDER / _copy_name(name, Path(text)) for name, text in texts.items()}
        paths |= {name: copy for name, copy in copies.items() if copy.is_file()}
    return {**env_config, KEY: {**texts, **{name: str(path) for name, path in paths.items()}}}


def copies_of(env_config: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """The files that exist, as in `paths_of`, by the names of their copies."""
    return {_copy_name(name, path): path for name, path in paths_of(env_config, folder).items()}


def _copy_name(name: str, path: Path) -> str:
    """With the suffix, which tells readers the format."""
    return name + path.suffix


def _texts(env_config: Mapping[str, Any]) -> dict[str, str]:
    return {} if check_input_files(env_config) else dict(env_config.get(KEY, {}))
