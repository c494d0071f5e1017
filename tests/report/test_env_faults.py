"""How simulator faults are counted over workers, restarts and starts of a run, and how they are told."""

from typing import Any

import pytest

from tests.support.statuses import NOW, status
from tfagents_system.report.status import FaultTally, fault_lines, fault_words, plain_table, problems
from tfagents_system.report.terminal import progress_line


def said(faults: int, episodes: int, *, pid: int = 1, host: str = "a", evaluating: int = 0, **more: Any) -> dict:
    counts = {"env_faults": faults, "eval_env_faults": evaluating, "episodes": episodes}
    return {"state": "collecting", "pid": pid, "host": host, **counts, "last_env_fault": f"fault {faults}", **more}


def counted(tally: FaultTally) -> tuple[int, int, int]:
    told = tally.to_json()
    return told["env_faults"], told["eval_env_faults"], told["episodes"]


def test_a_total_is_of_all_workers_and_grows_over_their_restarts() -> None:
    tally = FaultTally()
    for role in ("worker_0", "worker_1", "worker_17"):
        for faults in (0, 1, 1, 3):
            tally.take(role, said(faults, 10 * faults, evaluating=faults // 3))
    assert counted(tally) == (9, 3, 90)
    tally.take("worker_1", {"state": "starting", "pid": 2, "host": "a"})
    assert counted(tally) == (9, 3, 90)
    tally.take("worker_1", said(0, 0, pid=2))
    tally.take("worker_1", said(5, 50, pid=2))  # More than its earlier process had.
    tally.take("worker_17", said(2, 20, host="b"))  # The same process id, of another machine.
    tally.take("worker_0", said(1, 1))  # An id that was given again.
    assert counted(tally) == (17, 3, 161)
    assert tally.to_json()["last_env_fault"] == "fault 1"


def test_a_run_that_is_started_again_goes_on_counting() -> None:
    first = FaultTally()
    left = {"worker_0": said(3, 7), "worker_9": said(2, 5, host="joined", remote=True)}
    for role, beat in left.items():
        first.take(role, beat)
    again = FaultTally({"run": first.to_json(), "roles": left})
    again.take("worker_0", said(1, 2, pid=77))
    again.take("worker_9", said(3, 6, host="joined"))  # It has outlived the supervisor: counted since its own start.
    assert counted(again) == (7, 0, 15)


@pytest.mark.parametrize(
    ("faults", "evaluating", "episodes", "words"),
    [
        (0, 0, 100, ""),
        (1, 0, 1, "1 environment fault"),
        (2, 0, 2, "2 environment faults"),
        (8, 0, 153, "8 environment faults"),
        (8, 0, 152, "8 environment faults (they have cut 5% of its episodes)"),
        (8, 6, 10, "8 environment faults"),  # Those of evaluation cut nothing that is trained on.
        (1234, 0, 1234, "1,234 environment faults (they have cut 50% of its episodes)"),
    ],
)
def test_the_words_say_from_which_rate_on_it_matters(faults: int, evaluating: int, episodes: int, words: str) -> None:
    run = {"env_faults": faults, "eval_env_faults": evaluating, "episodes": episodes}
    assert fault_words(run) == words
    assert fault_lines({**run, "last_env_fault": "x"}) == ([f"{words}, last: x"] if words else [])


@pytest.mark.parametrize("state", ["running", "done", "stopped", "failed"])
def test_they_are_told_whatever_became_of_the_run(state: str) -> None:
    content = status(state=state)
    content["run"] |= {"env_faults": 8, "eval_env_faults": 0, "episodes": 1000, "last_env_fault": "worker 1: boom"}
    assert problems(content, NOW) == ["8 environment faults, last: worker 1: boom"]
    assert "pendulum: 8 environment faults, last: worker 1: boom" in plain_table([content], NOW)
    assert progress_line(content).endswith("  ! 8 environment faults")
