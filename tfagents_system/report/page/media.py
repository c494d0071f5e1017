"""Videos of a run as text inside its page, as far as there is room."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfagents_system.run_files.run_paths import RunPaths

MOST_BYTES = 4_500_000  # Of all videos of a page, before they become text (4/3 of it).
_MONTAGE = "montage.mp4"


def videos_of(runs: Sequence[RunPaths], most_bytes: int = MOST_BYTES) -> list[list[dict[str, Any]]]:
    """The videos of each run: the montage first, then the newest; `data` is None where there was no room.

    Runs take turns, so that each shows its first before any shows its second.
    """
    files = [_ordered(paths.videos) for paths in runs]
    told: list[list[dict[str, Any]]] = [[] for _ in runs]
    left = most_bytes
    for turn in range(max(map(len, files), default=0)):
        for k, of_run in enumerate(files):
            if turn < len(of_run):
                content = _read(of_run[turn], left)
                left -= len(content or b"")
                told[k].append(_video(of_run[turn], content))
    return told


def _ordered(folder: Path) -> list[Path]:
    found = []
    for path in folder.glob("*.mp4") if folder.is_dir() else ():
        try:
            found.append((path.name != _MONTAGE, -path.stat().st_mtime, path))
        except OSError:
            continue
    return [path for _, _, path in sorted(found)]


def _read(path: Path, most_bytes: int) -> bytes | None:
    try:
        return path.read_bytes() if path.stat().st_size <= most_bytes else None
    except OSError:
        return None


def _video(path: Path, content: bytes | None) -> dict[str, Any]:
    data = None if content is None else f"data:video/mp4;base64,{base64.b64encode(content).decode()}"
    return {"name": path.stem, "path": str(path), "data": data}
