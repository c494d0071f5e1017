"""The report has a line for each check, and one for each note and error; nothing is told twice."""

from pathlib import Path

import pytest

from tfagents_system.checks.findings import Findings, is_installed
from tfagents_system.errors import UserError


def test_the_report() -> None:
    findings, others = Findings(), Findings()
    findings.fact("CPUs", "replay 0", "trainer 1")
    with findings.catching("port"):
        raise UserError("8008 is in use", "8009 is in use")
    for each in (findings, others):
        each.note("CPUs", "shared")
    others.fact("config", "run_1/copy")
    findings.extend(others)
    findings.replace("run_1", "mine")
    assert findings.report().splitlines() == [
        "ok    CPUs            replay 0; trainer 1",
        "note  CPUs            shared",
        "ERROR port            8008 is in use",
        "ERROR port            8009 is in use",
        "ok    config          mine/copy",
        "2 errors, 1 note: correct the errors before a start",
    ]
    assert (findings.errors, findings.notes) == (["8008 is in use", "8009 is in use"], ["shared"])
    assert others.report().endswith("0 errors, 1 note: ready to start")


def test_a_folder_of_data_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose name is that of an extra: W&B makes a `wandb/` in the current folder, which is on sys.path."""
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("data_of_a_tracker", "whole_package"):
        (tmp_path / name).mkdir()
    (tmp_path / "whole_package/__init__.py").touch()
    names = ("data_of_a_tracker", "whole_package", "numpy", "sys", "none_")
    assert [is_installed(name) for name in names] == [False, True, True, True, False]
