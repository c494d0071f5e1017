"""Files that are replaced as a whole, JSON among them: nobody reads half a file. And private folders."""

from __future__ import annotations

import contextlib
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from tfagents_system.errors import UserError


@contextlib.contextmanager
def replacing(path: Path, mode: int = 0o666, *, is_durable: bool = True) -> Iterator[BinaryIO]:
    """Opens a new file, which replaces the one at `path` at the end of the `with` block, unless the block fails.

    Args:
      path: The file; its folder must exist.
      mode: Permissions of the new file, before the umask.
      is_durable: A power cut leaves the old file or the new one, never an empty one. It costs a write to the disk.

    Raises:
      OSError: The disk is full or the folder is gone; the old file stays as it was.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    beside.unlink(missing_ok=True)  # A leftover file would keep its mode.
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            yield file
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def write_atomically(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Replaces a file; see `replacing`."""
    with replacing(path, mode) as file:
        file.write(content)


@contextlib.contextmanager
def held(folder: Path) -> Iterator[Path]:
    """Yields another path of a folder, which leads to it even when it is moved, and to nothing when it is gone.

    For what makes missing parents, as TensorFlow's savers do: by its own path, a run directory that was moved away
    meanwhile would be made again, and could not be put back.

    Raises:
      OSError: It can't be opened.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def sync_all(folder: Path) -> None:
    """Makes a folder, with all files and folders in it, survive a power cut."""
    for path in (*folder.rglob("*"), folder):
        sync(path)


def sync(path: Path) -> None:
    """Makes a file's content, or the names in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def existing_ancestor(path: Path) -> Path:
    """The path itself if it exists, even as a dangling link; else the nearest existing folder above it."""
    return next(folder for folder in (path, *path.parents) if os.path.lexists(folder) or folder == folder.parent)


def leads_into(path: Path, folder: Path) -> bool:
    """Whether a path is that of a folder, or of something in it: as it is written, or where its links lead."""
    ways = (path.absolute(), path.resolve())
    return folder.resolve() in {parent.resolve() for way in ways for parent in (way, *way.parents)}


def json_text(content: Any, indent: int | None = None) -> str:
    """JSON that every reader accepts: NaN and infinity become null, objects that JSON lacks their text."""
    return json.dumps(_plain(content), allow_nan=False, indent=indent)


def write_json(path: Path, content: Any, indent: int | None = None, mode: int = 0o666, is_durable: bool = True) -> None:
    """Replaces a JSON file; see `replacing` and `json_text`. Its folder must exist."""
    with replacing(path, mode, is_durable=is_durable) as file:
        file.write(json_text(content, indent).encode() + b"\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object from a file, None where the file is missing or is anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _plain(value: Any) -> Any:
    """Only what every JSON reader accepts: no NaN, no infinity, no arrays; anything else as its text."""
    if hasattr(value, "tolist"):  # NumPy's scalars and arrays, without importing NumPy for them.
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def make_private(folder: Path) -> None:
    """Makes a folder that only its user can enter, or closes the one that is there.

    Raises:
      UserError: It can't be made, or see `fault_of_private`.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        if (fault := fault_of_private(folder)) is not None:
            raise UserError(fault)
        os.chmod(folder, 0o700)
    except OSError as error:
        raise UserError(f"{folder} can't be made ({error.strerror}): set SAC_REPLAY_DIR to another folder") from None


def fault_of_private(folder: Path) -> str | None:
    """Why a ring can't be kept in a folder of SAC_REPLAY_DIR; None if it can, or nothing is there. Writes nothing.

    Scratch may be shared, and the folder's name follows from the run directory's: anybody may have made it, or a link.
    """
    try:
        status = os.lstat(folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"{folder} can't be read ({error.strerror}): set SAC_REPLAY_DIR to another folder"
    others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not others_write:
        return None
    return (
        f"{folder} is a link, another user's, or can be written by others: remove it, or set SAC_REPLAY_DIR to a "
        "folder that is yours alone"
    )
