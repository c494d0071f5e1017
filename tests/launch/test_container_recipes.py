"""container/Dockerfile and container/sac.def, as far as they can be read; tests/container.sh builds and runs them."""

from __future__ import annotations

import fnmatch
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = re.sub(
    r"\\\n", " ", re.sub(r"^#.*\n", "", (ROOT / "container/Dockerfile").read_text(), flags=re.MULTILINE)
)
RECIPE = (ROOT / "container/sac.def").read_text()


def stages() -> dict[str, list[str]]:
    """The instructions of each stage, after those of the stages that it continues."""
    found: dict[str, list[str]] = {}
    for line in DOCKERFILE.splitlines():
        words = line.split()
        if words[:1] == ["FROM"]:
            base, name = words[1], words[3]
            found[name] = list(found.get(base, []))
        elif words and found:
            found[name].append(" ".join(words))
    return found


def installed(stage: str) -> set[str]:
    lines = [line for line in stages()[stage] if "apt-get install" in line]
    words = " ".join(re.findall(r"apt-get install (.*?) &&", " ".join(lines))).split()
    return {word for word in words if not word.startswith("-")}


def test_the_python_and_uv_are_those_of_the_project() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert wanted == ">=3.11,<3.12" and "python3.11" in installed("train")
    assert set(re.findall(r"python3\.\d+", DOCKERFILE)) == {"python3.11"}
    (uv,) = re.findall(r"uv_version=(\S+)", (ROOT / "setup.sh").read_text())
    assert set(re.findall(r"uv==([\d.]+)", DOCKERFILE)) == {uv}


@pytest.mark.parametrize("stage", ["train", "tests"])
def test_nothing_runs_as_root(stage: str) -> None:
    users = [line.split()[1] for line in stages()[stage] if line.startswith("USER ")]
    assert users and users[-1].isdigit() and int(users[-1]) >= 1000, "a number, so that Kubernetes sees it is not root"
    after = stages()[stage][stages()[stage].index(f"USER {users[-1]}") + 1 :]
    assert [line.split()[0] for line in after] == ["CMD"]


def test_a_build_without_a_target_is_the_small_one_and_runs_what_the_readme_says() -> None:
    assert list(stages())[-1] == "train"
    readme = (ROOT / "README.md").read_text()
    for stage in ("train", "tests"):
        (command,) = [re.findall(r'"(.*?)"', line) for line in stages()[stage] if line.startswith("CMD ")]
        assert " ".join(command) in readme, command


def test_what_is_copied_is_there_and_nothing_private_is() -> None:
    copied = [line.split()[1:-1] for line in stages()["packages"] if line.startswith("COPY ")]
    assert all((ROOT / name).exists() for names in copied for name in names)
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    git = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines()]
    private = [".git/config", *(line.replace("*", "x") for line in git), "tfagents_system/logs/run", "a/__pycache__/b"]
    for path in (*private, "setup.sh", "config/minitaur.json", "tests/conftest.py"):
        heads = ["/".join(path.split("/")[: k + 1]) for k in range(path.count("/") + 1)]
        is_ignored = any(fnmatch.fnmatch(head, form) for form in ignored for head in (*heads, f"./{path}"))
        assert is_ignored == (path in private), path


def test_apptainers_recipe_takes_the_image_that_the_page_saves() -> None:
    page = (ROOT / "docs/how_to/container.md").read_text()
    (archive,) = re.findall(r"^From: (\S+)$", RECIPE, re.MULTILINE)
    assert "Bootstrap: docker-archive" in RECIPE and f"docker save --output {archive} sac" in page
    for path in re.findall(r"/opt/sac/(\S+)", RECIPE):
        assert (ROOT / path).exists(), path
