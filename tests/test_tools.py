"""What checks the code, beside the tests: one list of tools."""

from __future__ import annotations

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
