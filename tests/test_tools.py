"""What checks the code, beside the tests: one list of tools."""

from __future__ import annotations

import tomllib
from pathlib import Path

import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parents[1]


def test_commits_are_checked_by_what_run_tests_runs() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    entries = [hook["entry"] for repository in config["repos"] for hook in repository["hooks"]]
    assert {entry.split()[0] for entry in entries} == {"ruff", "shellcheck", "codespell"}
    script = (ROOT / "run_tests.sh").read_text()
    for entry in entries:
        tool, *options = entry.split()
        assert tool in script and all(option in script for option in options), entry


def test_coverage_has_a_floor() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["coverage"]
    assert tool["run"]["source"] == ["tfagents_system"] and tool["report"]["fail_under"] >= 50


def test_issues_ask_for_what_an_answer_needs() -> None:
    for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text())
        assert form["name"] and form["description"] and form["body"], path
    bug = (ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text()
    assert "sac doctor" in bug and "logs/" in bug
