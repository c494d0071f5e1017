"""environment.yml, pyproject.toml and requirements.lock name the same versions."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

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


@pytest.mark.parametrize(
    ("machine", "left_out"),
    [
        ("arm64", {"cryptography", "dm-reverb", "pybullet"}),
        ("x86_64", {"cryptography", "dm-reverb", "mujoco", "pybullet"}),
    ],
)
def test_what_has_no_wheels_for_macos_is_left_out_there(machine: str, left_out: set[str]) -> None:
    """As `uv pip compile --python-platform` found: all others have some."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [Requirement(line) for line in project["dependencies"]]
    mac = {"sys_platform": "darwin", "platform_machine": machine}
    assert {each.name for each in requirements if each.marker and not each.marker.evaluate(mac)} == left_out
    assert all(each.marker is None or each.marker.evaluate({"sys_platform": "linux"}) for each in requirements)


def test_this_environment_holds_them() -> None:
    assert missing(dev=True) == []
