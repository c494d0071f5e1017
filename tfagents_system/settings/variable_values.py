"""What the text of a variable means, by its kind."""

from __future__ import annotations

import contextlib
import math
import os
import re
import urllib.parse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tfagents_system.machine.worker_slots import KINDS

MOST = 4096  # CPUs of a role, workers, environments: the ring has room for as many workers.
_SHOWN_CHARS = 200
_COUNT_OR_AUTO = "a whole number of at least 1, or auto"


# What a run takes from another one, see `run_files/taken.py`.
TAKES = AGENT, NETWORKS, REPLAY, ALL = "agent", "networks", "replay", "all"


def value_of(kind: str, text: str, folders: list[Path]) -> Any:
    """Reads a variable's text.

    Args:
      kind: Says how.
      text: Not empty.
      folders: Where files with relative paths are looked for, the first one that has it wins.

    Raises:
      ValueError: It is impossible; says what it must be.
    """
    find = _FINDERS.get(kind)
    return find(text, folders) if find else _PARSERS[kind](text)


def shown_value(text: str) -> str:
    """As it is where it can be printed, and not longer than a message should be."""
    text = text if text.isprintable() else ascii(text)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def _find_program(text: str, folders: list[Path]) -> Path:
    """An executable file. Its links are not followed: a virtual environment's Python needs them to know where it is."""
    path = _find_file(text, folders)
    if not os.access(path, os.X_OK):
        raise ValueError(f"a program, {path} is not executable")
    return path


def _find_file(text: str, folders: list[Path]) -> Path:
    return _find(text, folders, "file", Path.is_file)


def _find_either(text: str, folders: list[Path]) -> Path:
    return _find(text, folders, "file or folder", Path.exists)


def _find_agent(text: str, folders: list[Path]) -> Path:
    """RUN or RUN@CHECKPOINT with an absolute path. A run that has begun needs it no more: it may be gone."""
    path, at, name = text.rpartition("@")
    if not (at and path) or "/" in name or any(_is_dir(folder / _path(text)) for folder in folders):
        path, at, name = text, "", ""
    candidates = [(folder / _path(path)).absolute() for folder in folders]
    parents = [candidate for candidate in candidates if _is_dir(candidate.parent)]
    place = next(filter(_is_dir, candidates), (parents or candidates)[0])
    return Path(f"{os.path.normpath(place)}{at}{name}")


def _is_dir(path: Path) -> bool:
    with contextlib.suppress(OSError):  # Too long, or below a folder that is not ours to look into.
        return path.is_dir()
    return False


def _find(text: str, folders: list[Path], what: str, is_one: Callable[[Path], bool]) -> Path:
    """`text` below the first folder that has it.

    Raises:
      ValueError: None has it.
    """
    path = Path(_path(text))
    candidates = list(dict.fromkeys((folder / path).absolute() for folder in folders))
    for candidate in candidates:
        with contextlib.suppress(OSError):  # Too long, or below a folder that is not ours to look into.
            if is_one(candidate):
                return Path(os.path.normpath(candidate))
    raise ValueError(f"an existing {what}, none of these is one: {', '.join(shown_value(str(c)) for c in candidates)}")


def _path(text: str) -> str:
    """With the home directory in place of a leading `~`."""
    if not text.isprintable():
        raise ValueError("a path of printable characters")
    try:
        return str(Path(text).expanduser())
    except RuntimeError:
        raise ValueError("a path; there is no user of that name after ~") from None


def absolute_uri(uri: str, folder: Path) -> str:
    """An address of MLflow, where `sqlite:///FILE` and `file:FOLDER` have an absolute path.

    Args:
      folder: That of relative paths.
    """
    scheme, _, rest = uri.partition(":")
    if scheme == "file" and rest[:1] not in ("", "/"):
        return f"file://{urllib.parse.quote(str(folder.absolute()))}/{os.path.normpath(rest)}"
    if scheme.startswith("sqlite") and rest[:3] == "///" and rest[3:4] not in ("", "/", ":", "?"):
        return f"{scheme}:///{os.path.normpath(folder.absolute() / rest[3:])}"
    return uri


def _integer(text: str, low: int, high: int, rule: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ValueError(rule) from None
    if not low <= value <= high:
        raise ValueError(f"{rule} and at most {high}" if value > high and str(high) not in rule else rule)
    return value


def _positive(text: str, rule: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(rule) from None
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(rule)
    return value


def _address(text: str) -> str:
    match = re.fullmatch(r"([^\s:/]+|\[[0-9A-Fa-f:]+\]):([0-9]{1,5})", text)
    if match is None or not 1 <= int(match[2]) <= 65535:
        raise ValueError("HOST:PORT, such as node7:8443")
    return text


def _one_of(text: str, names: Sequence[str]) -> str:
    if text not in names:
        raise ValueError(f"one of {', '.join(names)}")
    return text


def run_name(text: str) -> str:
    """The name of a run.

    Raises:
      ValueError: It can be none; says what it must be.
    """
    parts = Path(text).parts
    if not parts or Path(text).is_absolute() or ".." in parts or not text.isprintable():
        raise ValueError(
            "a name for the run directory below logs/, such as pendulum; SAC_LOGS_DIR names another folder than logs"
        )
    return text


_PARSERS: dict[str, Callable[[str], Any]] = {
    "count": lambda text: _integer(text, 1, MOST, "a whole number of at least 1"),
    "count or auto": lambda text: None if text == "auto" else _integer(text, 1, MOST, _COUNT_OR_AUTO),
    "few": lambda text: _integer(text, 0, MOST, "a whole number of at least 0"),
    "whole": lambda text: _integer(text, 0, 10**9, "a whole number of at least 0"),
    "seed": lambda text: _integer(text, 0, 2**31 - 1, "a whole number from 0 to 2147483647"),
    "megabytes": lambda text: _integer(text, 1, 10**9, "a whole number of MiB of at least 1"),
    "port": lambda text: _integer(text, 1, 65535, "a TCP port from 1 to 65535"),
    "gateway port": lambda text: _integer(text, 0, 65535, "a TCP port from 1 to 65535, or 0 for any free one"),
    "flag": lambda text: bool(_integer(text, 0, 1, "0 or 1")),
    "seconds": lambda text: _positive(text, "a number of seconds above 0, such as 60"),
    "minutes": lambda text: _positive(text, "a number of minutes above 0, such as 10"),
    "address": lambda text: _address(text),
    "role": lambda text: _one_of(text, KINDS),
    "name": run_name,
    "take": lambda text: _one_of(text, TAKES),
    "wandb mode": lambda text: _one_of(text, ("online", "offline")),
    "path": _path,
    "text": lambda text: text,
}
_FINDERS: dict[str, Callable[[str, list[Path]], Any]] = {
    "file": _find_file,
    "file or folder": _find_either,
    "agent": _find_agent,
    "program": _find_program,
}
