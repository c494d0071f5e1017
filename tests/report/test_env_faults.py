"""How simulator faults are counted over workers and their restarts, and how they are told."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.statuses import NOW, status
from tfagents_system.report.status import fault_lines, fault_words, plain_table, problems
from tfagents_system.report.terminal import progress_line
from tfagents_system.run_files.heartbeat import Heartbeat, read_heartbeat


def test_counts_of_a_worker_grow_over_its_restarts(tmp_path: Path) -> None:
    for faults, last, expected in ((3, "a", (3, 30, "a")), (0, "", (3, 30, "a")), (2, "b", (5, 50, "b"))):
        heartbeat = Heartbeat(tmp_path / "worker_0.json", "worker_0", min_secs=0.0)
        heartbeat.beat("starting")
        heartbeat.beat("collecting", env_faults=faults, eval_env_faults=0, episodes=10 * faults, last_env_fault=last)
        beat = read_heartbeat(tmp_path / "worker_0.json") or {}
        assert (beat["env_faults"], beat["episodes"], beat.get("last_env_fault")) == expected


def with_faults(faults: int, evaluating: int, episodes: int, **run: Any) -> dict[str, Any]:
    content = status(workers=2, **run)
    content["roles"]["worker_0"] |= {"env_faults": faults, "eval_env_faults": evaluating, "episodes": episodes}
    content["roles"]["worker_1"] |= {"env_faults": 0, "eval_env_faults": 0, "episodes": 0, "last_env_fault": "x"}
    return content


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
    content = with_faults(faults, evaluating, episodes)
    assert fault_words(content) == words
    assert fault_lines(content) == ([f"{words}, last: x"] if words else [])


@pytest.mark.parametrize("state", ["running", "done", "stopped", "failed"])
def test_they_are_told_whatever_became_of_the_run(state: str) -> None:
    content = with_faults(8, 0, 1000, state=state)
    assert problems(content, NOW) == ["8 environment faults, last: x"]
    assert "pendulum: 8 environment faults, last: x" in plain_table([content], NOW)
    assert progress_line(content).endswith("  ! 8 environment faults")
