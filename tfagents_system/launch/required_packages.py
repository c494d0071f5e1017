"""Whether this Python holds the packages that pyproject.toml asks for, in versions within its ranges.

    python tfagents_system/launch/required_packages.py [--dev]

Exit code 0 if it does; else 1, with what is missing. Needs only Python 3.11 itself.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
_NOT_IN_LOCK = ("envpool", "gpu")  # Extras that `.venv` does not have.


def required(dev: bool, pyproject: Path = _PYPROJECT) -> list[str]:
    """Requirements such as `numpy>=1.26,<2`; `dev` includes the extras that requirements.lock has."""
    if not pyproject.exists():  # Installed with pip.
        return [line for line in importlib.metadata.requires("tfagents_system") or () if "extra ==" not in line]
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].items() if dev else ()
    return [*project["dependencies"], *(line for name, extra in extras if name not in _NOT_IN_LOCK for line in extra)]


def missing(dev: bool) -> list[str]:
    """`numpy>=1.26,<2 (found 2.0.0)` for each package that is absent or of a version outside of its range."""
    findings = []
    for line in required(dev):
        wanted = line.partition(";")[0].strip()
        requirement = _parsed(line)
        if requirement and requirement.marker and not requirement.marker.evaluate():
            continue
        version = _installed(re.split(r"[^\w.-]", wanted)[0])
        if version is None or (requirement and not requirement.specifier.contains(version, prereleases=True)):
            findings.append(f"{wanted} (found {version or 'none'})")
    return findings


def violated_pins(folder: Path) -> Iterator[tuple[Path, str, str]]:
    """(file, requirement, installed version) of packages that requirements.txt or pyproject.toml of a folder pins."""
    lines = dict[Path, list[str]]()
    if (file := folder / "requirements.txt").is_file():
        lines[file] = [line.partition(" #")[0] for line in file.read_text(errors="replace").splitlines()]
    if (file := folder / "pyproject.toml").is_file() and file.resolve() != _PYPROJECT:
        try:
            lines[file] = tomllib.loads(file.read_text()).get("project", {}).get("dependencies", [])
        except ValueError:
            pass  # It is for other programs.
    for path, line in ((path, line) for path, entries in lines.items() for line in entries):
        if "==" not in line or (requirement := _parsed(line)) is None:
            continue
        version, pinned = _installed(requirement.name), [pin for pin in requirement.specifier if pin.operator == "=="]
        is_meant = requirement.marker is None or requirement.marker.evaluate()
        if is_meant and version is not None and not all(pin.contains(version, prereleases=True) for pin in pinned):
            yield path, f"{requirement.name}{requirement.specifier}", version


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _parsed(line: str) -> Requirement | None:
    """None for what is no requirement, and without the package `packaging`: that is required, so it is missing."""
    try:
        from packaging.requirements import InvalidRequirement, Requirement
    except ImportError:
        return None
    try:
        return Requirement(line)
    except InvalidRequirement:  # Such as `-r other.txt`.
        return None


if __name__ == "__main__":
    lacking = missing(dev="--dev" in sys.argv[1:])
    print("\n".join(lacking))
    sys.exit(1 if lacking else 0)
