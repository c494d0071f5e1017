"""history.jsonl: what has happened to a run's roles since it began, and where their time went.

One JSON object a line, with `time` (Unix seconds), `env_steps` and `train_step` as far as they are known, and `kind`:

    state     {"state": "running", "text": ""}: a new state of the run
    event     {"role": "worker_1", "text": "worker_1 ended with SIGKILL: restart in 1 s"}
    resume    {"role": "trainer", "text": ...}: the trainer went on from a checkpoint
    fault     {"role": "worker_0", "text": ...}: a simulator failed
    recovery  {"role": "trainer", "text": ...}: the trainer went back, a loss or a weight was not finite
    time      {"spent": {"trainer": {"updates": 8.1, "waiting": 1.6, ...}}}: seconds since the line before of this kind
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from tfagents_system.run_files.beats import clean_text

_MOST_BYTES = 64 * 1024 * 1024


def append(path: Path, entry: dict[str, Any]) -> None:
    """Adds a line; a disk that is full loses it, and nothing else."""
    line = json.dumps(entry, allow_nan=False, separators=(",", ":")) + "\n"
    with contextlib.suppress(OSError), path.open("ab") as file:
        torn = file.tell() > 0 and not _ends_whole(path)
        file.write(b"\n" * torn + line.encode())


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"


def read_history(path: Path) -> list[dict[str, Any]]:
    """The whole lines, in their order; none where there is no such file."""
    try:
        with path.open("rb") as file:
            lines = file.read(_MOST_BYTES).splitlines()
    except OSError:
        return []
    return [entry for line in lines if (entry := _parsed(line)) is not None]


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:  # Torn by a crash.
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("time"), int | float) or "kind" not in entry:
        return None
    return {name: clean_text(value) if isinstance(value, str) else value for name, value in entry.items()}
