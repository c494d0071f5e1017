"""Which slots workers may have that join: only those meant for their kind."""

import pytest

from tfagents_system.machine.claims import SlotCounts


def test_planned_slots_are_for_those_who_collect_and_a_runs_own_experts_keep_theirs():
    counts = SlotCounts(local=1, planned=3, most=5)
    assert (counts.for_kind("collect"), counts.for_kind("eval")) == (range(1, 5), range(3, 5))
    assert SlotCounts(local=1, planned=1, most=5, experts=2).for_kind("collect") == range(3, 5)


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (SlotCounts(1, 1, 5, experts=2), "all 2 slots for workers of kind eval that join are taken"),
        (SlotCounts(0, 2, 2), "this run has no slot for a worker of kind eval that joins (SAC_MAX_WORKERS=2"),
    ],
)
def test_a_refusal_says_what_there_is(counts, words):
    assert words in counts.refusal("eval") and "larger SAC_MAX_WORKERS" in counts.refusal("eval")


def test_evaluations_are_shared_by_the_runs_own_evaluators_or_else_by_the_planned_workers():
    assert SlotCounts(2, 3, 9, experts=2).sharing_evaluations == range(3)
    counts = SlotCounts(3, 3, 9, experts=2, evaluators=2)
    assert (counts.beside, counts.sharing_evaluations) == (range(3, 7), range(5, 7))
    assert counts.for_kind("eval") == counts.for_kind("collect") == range(7, 9)
    assert "SAC_EXPERT_WORKERS=2, SAC_EVAL_WORKERS=2" in counts.refusal("eval")
