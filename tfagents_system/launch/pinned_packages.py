"""Whether this Python holds the packages that pyproject.toml pins. Needs only Python 3.11 itself.

    python tfagents_system/launch/pinned_packages.py [--dev]

Exit code 0 if it does; else 1, with what is missing.
"""

from __future__ import annotations

import importlib.metadata
import sys
import tomllib
from pathlib import Path

_PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
_SIMULATORS = ("envpool",)  # Extras that `.venv` does not have.


def pinned(dev: bool, pyproject: Path = _PYPROJECT) -> dict[str, str]:
    """Versions by package, as pyproject.toml pins them; `dev` includes the extras, except simulators."""
    if not pyproject.exists():  # Installed with pip.
        told = importlib.metadata.requires("tfagents_system") or ()
        lines = [line for line in told if "extra ==" not in line]
        return dict(line.partition(";")[0].strip().split("==") for line in lines)
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].items() if dev else ()
    lines = [*project["dependencies"], *(line for name, extra in extras if name not in _SIMULATORS for line in extra)]
    requirements = (line.partition(";") for line in lines)
    return dict(requirement.strip().split("==") for requirement, _, _ in requirements)


def missing(dev: bool) -> list[str]:
    """`numpy==1.26.4 (found 2.0.0)` for each package that is absent or has another version."""
    findings = []
    for package, version in pinned(dev).items():
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found = "none"
        if found != version:
            findings.append(f"{package}=={version} (found {found})")
    return findings


if __name__ == "__main__":
    lacking = missing(dev="--dev" in sys.argv[1:])
    print("\n".join(lacking))
    sys.exit(1 if lacking else 0)
