"""Whether this Python holds the packages that pyproject.toml asks for, in versions within its ranges.

    python tfagents_system/launch/required_packages.py [--dev]

Exit code 0 if it does; else 1, with what is missing. Needs only Python 3.11 itself.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

_PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
_NOT_IN_LOCK = ("envpool", "gpu")  # Extras that `.venv` does not have.


def required(dev: bool, pyproject: Path = _PYPROJECT) -> list[str]:
    """Requirements such as `numpy>=1.26,<2`; `dev` includes the extras that requirements.lock has."""
    if not pyproject.exists():  # Installed with pip.
        return [line for line in importlib.metadata.requires("tfagents_system") or () if "extra ==" not in line]
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].items() if dev else ()
    return [*project["dependencies"], *(line for name, extra in extras if name not in _NOT_IN_LOCK for line in extra)]


def missing(dev: bool) -> list[tuple[str, str | None]]:
    """`numpy>=1.26,<2` and its installed version, None without one, for each package that is not in its range.

    Without the package `packaging`, which is required as well, nothing else can be compared.
    """
    try:
        from packaging.requirements import Requirement
    except ImportError:
        return [("packaging", None)]
    lacking = []
    for line in required(dev):
        package = Requirement(line)
        version = _installed(package.name)
        is_right = version is not None and package.specifier.contains(version, prereleases=True)
        if not is_right and (package.marker is None or package.marker.evaluate()):
            lacking.append((line.partition(";")[0].strip(), version))
    return lacking


def violated_pins(folder: Path) -> Iterator[tuple[Path, str, str]]:
    """(file, requirement, installed version) of packages that requirements.txt or pyproject.toml of a folder pins."""
    from packaging.requirements import InvalidRequirement, Requirement

    lines = dict[Path, list[str]]()
    if (file := folder / "requirements.txt").is_file():
        lines[file] = [line.partition(" #")[0] for line in file.read_text(errors="replace").splitlines()]
    if (file := folder / "pyproject.toml").is_file() and file.resolve() != _PYPROJECT:
        with contextlib.suppress(ValueError):  # It is for other programs.
            lines[file] = tomllib.loads(file.read_text()).get("project", {}).get("dependencies", [])
    for path, line in ((path, line) for path, entries in lines.items() for line in entries if "==" in line):
        with contextlib.suppress(InvalidRequirement):  # Such as `-r other.txt`.
            package = Requirement(line)
            if (version := _installed(package.name)) is None or (package.marker and not package.marker.evaluate()):
                continue
            pins = [pin for pin in package.specifier if pin.operator == "=="]
            if not all(pin.contains(version, prereleases=True) for pin in pins):
                yield path, f"{package.name}{package.specifier}", version


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.path += os.environ.get("TFAGENTS_OWN_PYTHONPATH", "").split(os.pathsep)  # As of a run's programs.
    lacking = missing(dev="--dev" in sys.argv[1:])
    print("\n".join(f"{package} (found {version or 'none'})" for package, version in lacking))
    sys.exit(1 if lacking else 0)
