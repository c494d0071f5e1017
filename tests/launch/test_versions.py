"""environment.yml, pyproject.toml and requirements.lock name the same versions."""

import re
from pathlib import Path

from tfagents_system.launch.pinned_packages import missing, pinned

ROOT = Path(__file__).resolve().parents[2]


def versions_in(name: str) -> dict[str, str]:
    lines = re.findall(r"^\s*(?:- \"?)?([A-Za-z0-9._-]+)==([^\s;\"]+)", (ROOT / name).read_text(), re.MULTILINE)
    return {package.lower(): version for package, version in lines}


def test_the_three_files_agree() -> None:
    direct = {package.lower(): version for package, version in pinned(dev=True).items()}
    lock = versions_in("requirements.lock")
    assert len(direct) >= 20 and {package: lock.get(package) for package in direct} == direct
    assert versions_in("environment.yml") == direct


def test_the_lock_is_exact_and_names_no_place() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    assert all(re.fullmatch(r"[a-z0-9._-]+==[A-Za-z0-9.+!_]+", line) for line in lines)


def test_this_environment_holds_them() -> None:
    assert missing(dev=True) == []
