"""The report has a line for each check, and one for each note and error; nothing is told twice."""

from tfagents_system.checks.findings import Findings
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
