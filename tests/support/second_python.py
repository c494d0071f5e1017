"""Another Python environment, as a user's simulator may have one: other versions of Python and NumPy, no TensorFlow."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGES = ("numpy>=2,<3", "gymnasium>=1,<2")
_OLDEST, _NEWEST = (3, 9), (3, 13)
_DEADLINE_SECS = 240.0
_TRIES = 3  # Of an installation: an index may be out of reach for a moment.
_TELL = (
    "import sys, json, numpy, gymnasium; "
    "print(json.dumps([sys.version_info[:2], numpy.__version__, gymnasium.__version__]))"
)


def interpreters() -> list[Path]:
    """The oldest and the newest other Python here that environments can run in; this one alone if there is none."""
    found: dict[tuple[int, int], Path] = {}
    candidates = [shutil.which(f"python3.{minor}") for minor in range(_OLDEST[1], _NEWEST[1] + 1)]
    candidates += map(str, sorted(Path.home().glob(".pyenv/versions/3.*/bin/python")))
    for candidate in filter(None, candidates):
        version = _version(candidate)
        if version is not None and _OLDEST <= version <= _NEWEST and version != sys.version_info[:2]:
            found.setdefault(version, Path(candidate))
    if not found:
        return [Path(sys.executable)]
    return [found[version] for version in dict.fromkeys((min(found), max(found)))]


def _version(python: str) -> tuple[int, int] | None:
    command = [python, "-c", "import sys, venv, ensurepip; print(*sys.version_info[:2])"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return None
    return int(told[0]), int(told[1])


def make_environment(python: Path) -> Path:
    """A virtual environment with PACKAGES, made once and kept in the folder for temporary files; gives its Python."""
    version = _version(str(python))
    assert version is not None
    folder = Path(tempfile.gettempdir()) / f"tfagents_second_python_{version[0]}.{version[1]}_{os.getuid()}"
    made = folder / "bin" / "python"
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _run([str(python), "-m", "venv", str(folder)])
            _run([str(made), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES], _TRIES)
            (folder / "complete").touch()
    return made


def _run(command: list[str], tries: int = 1) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    told = ""
    for _ in range(tries):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_SECS, env=environ)
        except subprocess.TimeoutExpired as error:
            told = str(error)
            continue
        if done.returncode == 0:
            return
        told = done.stdout + done.stderr
    raise AssertionError(f"{' '.join(command)}:\n{told}")


def versions(python: Path) -> tuple[list[int], str, str]:
    """Versions of Python, NumPy and Gymnasium of an environment."""
    told = subprocess.run([str(python), "-c", _TELL], capture_output=True, text=True, timeout=60, check=True).stdout
    python_version, numpy_version, gymnasium_version = json.loads(told)
    return python_version, numpy_version, gymnasium_version
