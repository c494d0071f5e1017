"""The report has a line for each check, and one for each note and error."""

from tfagents_system.checks.checklist import Checklist
from tfagents_system.errors import UserError


def test_the_report() -> None:
    checks = Checklist()
    checks["CPUs"].facts += ["replay 0", "trainer 1"]
    checks["CPUs"].notes.append("shared")
    checks["nothing seen"]
    with checks["port"].catching():
        raise UserError("8008 is in use", "8009 is in use")
    assert checks.report().splitlines() == [
        "ok    CPUs            replay 0; trainer 1",
        "note  CPUs            shared",
        "ERROR port            8008 is in use",
        "ERROR port            8009 is in use",
        "2 errors, 1 note: correct the errors before a start",
    ]
    assert (checks.errors, checks.notes) == (["8008 is in use", "8009 is in use"], ["shared"])


def test_lists_are_joined_and_nothing_is_told_twice() -> None:
    checks, others = Checklist(), Checklist()
    for each in (checks, others):
        each["params"].notes.append("a note")
    others["config"].facts.append("fine")
    checks.extend(others)
    assert checks.notes == ["a note"] and checks.errors == []
    assert checks.report().splitlines()[-1] == "0 errors, 1 note: ready to start"
    assert "config" in checks
