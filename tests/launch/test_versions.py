"""The lock lies in the ranges of pyproject.toml and can be installed whole; environment.yml has its versions."""

import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tfagents_system.launch import required_packages
from tfagents_system.launch.required_packages import missing, required

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def versions_in(name: str) -> dict[str, str]:
    lines = re.findall(r"^\s*(?:- \"?)?([A-Za-z0-9._-]+)==([^\s;\"]+)", (ROOT / name).read_text(), re.MULTILINE)
    return {package.lower(): version for package, version in lines}


LOCK = versions_in("requirements.lock")


def not_met(requirements: list[Requirement]) -> list[str]:
    """Those that the lock does not meet."""
    return [
        f"{each} (locked: {version})"
        for each in requirements
        if (version := LOCK.get(canonicalize_name(each.name))) is None or version not in each.specifier
    ]


def test_the_lock_lies_in_the_ranges_and_environment_yml_names_its_versions() -> None:
    direct = [Requirement(line) for line in required(dev=True)]
    assert len(direct) >= 20 and not_met(direct) == []
    assert versions_in("environment.yml") == {each.name.lower(): LOCK[each.name.lower()] for each in direct}


def test_every_range_ends_or_says_why_not() -> None:
    extras = [line for extra in PROJECT["optional-dependencies"].values() for line in extra]
    open_ended = {"packaging"}  # Numbered by year; what is used of it has been stable since 2014.
    for each in map(Requirement, [*PROJECT["dependencies"], *extras]):
        kinds = {specifier.operator for specifier in each.specifier}
        assert kinds in ({">=", "<"}, {"=="}) or each.name in open_ended, each


def test_the_lock_is_exact_and_names_no_place() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    assert all(re.fullmatch(r"[a-z0-9._-]+==[A-Za-z0-9.+!_]+", line) for line in lines)


def test_what_is_locked_can_be_installed_with_its_dependencies() -> None:
    """What `uv pip install --dry-run -r requirements.lock` asks the index, asked of what is installed here."""
    installed = {str(canonicalize_name(each.name)): each.version for each in importlib.metadata.distributions()}
    looked_at, conflicts = 0, {}
    for package, version in LOCK.items():
        if installed.get(package) != version:  # Another one within the ranges, with other requirements.
            continue
        needs = [Requirement(line) for line in importlib.metadata.requires(package) or ()]
        needed = [each for each in needs if each.marker is None or each.marker.evaluate({"extra": ""})]
        looked_at += len(needed)
        if lacking := not_met(needed):
            conflicts[f"{package}=={version}"] = lacking
    assert conflicts == {} and looked_at >= 20


@pytest.mark.parametrize(
    ("machine", "left_out"),
    [
        ("arm64", {"cryptography", "dm-reverb", "pybullet"}),
        ("x86_64", {"cryptography", "dm-reverb", "mujoco", "pybullet"}),
    ],
)
def test_what_has_no_wheels_for_macos_is_left_out_there(machine: str, left_out: set[str]) -> None:
    """As `uv pip compile --python-platform` found: all others have some."""
    requirements = [Requirement(line) for line in PROJECT["dependencies"]]
    mac = {"sys_platform": "darwin", "platform_machine": machine}
    assert {each.name for each in requirements if each.marker and not each.marker.evaluate(mac)} == left_out
    assert all(each.marker is None or each.marker.evaluate({"sys_platform": "linux"}) for each in requirements)


def test_this_environment_holds_them() -> None:
    assert missing(dev=True) == []


def test_a_version_outside_of_its_range_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    numpy = importlib.metadata.version("numpy")
    elsewhere, here = "no-such>=1; sys_platform == 'win32'", "no-such>=1,<2; sys_platform == 'linux'"
    lines = ["numpy>=1.26,<2", f"numpy=={numpy}", "numpy>=2,<3", "numpy<1.26", elsewhere, here]
    monkeypatch.setattr(required_packages, "required", lambda dev: lines)
    assert missing(dev=False) == [
        ("numpy>=2,<3", numpy),
        ("numpy<1.26", numpy),
        ("no-such>=1,<2", None),
    ]


def test_a_python_without_packaging_is_told_that_it_lacks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "packaging.requirements", None)
    assert missing(dev=False) == [("packaging", None)]
