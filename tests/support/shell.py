"""Calls of the scripts of the top level."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(*command: object, cwd: Path = ROOT, **environ: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SAC_")}
    return subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**inherited, "SAC_ALLOW_LOGIN": "1", **environ},
        capture_output=True,
        text=True,
        timeout=240,
    )
