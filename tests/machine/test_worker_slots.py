"""Which number a joining worker gets: no two the same one, and only those meant for its kind."""

import pytest

from tfagents_system.errors import UserError
from tfagents_system.machine.worker_slots import SlotCounts, Slots

PORT = 7  # Of no server.
pytestmark = pytest.mark.usefixtures("claims_prefix")


@pytest.fixture
def make():
    made = []

    def slots(local=1, planned=3, most=5, port=PORT, experts=0):
        made.append(Slots(port, SlotCounts(local, planned, most, experts)))
        return made[-1]

    yield slots
    for one in made:
        for slot in range(5):
            one.release(slot)


def test_each_gets_another_one_planned_ones_first(make):
    first, second = make(), make()
    assert [first.take("collect"), second.take("collect"), first.take("collect")] == [1, 2, 3]


def test_what_is_no_collector_gets_no_planned_slot(make):
    assert [make().take(kind) for kind in ("eval", "expert")] == [3, 4]


def test_a_worker_that_comes_again_has_the_slot_that_it_had(make):
    first, second = make(), make()
    assert first.take("collect") == 1
    assert second.take("collect", wanted=2) == 2
    second.release(2)
    assert make().take("collect", wanted=2) == 2


def test_a_wish_that_is_taken_or_not_meant_for_the_kind_is_no_reason_to_refuse(make):
    assert make().take("collect", wanted=4) == 4
    assert make().take("collect", wanted=4) == 1
    assert make().take("test", wanted=2) == 3
    assert make().take("collect", wanted=99) == 2


def test_runs_on_other_ports_have_slots_of_their_own(make):
    assert make(port=8).take("collect") == 1
    assert make(port=9).take("collect") == 1


def test_where_all_are_taken_it_says_so(make):
    slots = make(local=1, planned=1, most=2)
    assert slots.take("collect") == 1
    with pytest.raises(UserError, match=r"all 1 slots.*SAC_MAX_WORKERS=2.*larger SAC_MAX_WORKERS"):
        make(local=1, planned=1, most=2).take("collect")


@pytest.mark.parametrize("kind", ["collect", "eval", "expert"])
def test_a_runs_own_experts_keep_their_slots(make, kind):
    slots = make(local=1, planned=1, most=5, experts=2)
    assert [slots.take(kind, wanted=2), slots.take(kind)] == [3, 4]
    with pytest.raises(UserError, match=r"all 2 slots.*SAC_NUM_COLLECT_WORKERS=1, SAC_EXPERT_WORKERS=2"):
        slots.take(kind)


def test_where_there_are_none_it_says_that(make):
    with pytest.raises(UserError, match=r"no slot for a worker of kind eval.*SAC_MAX_WORKERS=2"):
        make(local=0, planned=2, most=2).take("eval")


def test_evaluations_are_shared_by_the_runs_own_evaluators_or_else_by_the_planned_workers():
    assert SlotCounts(2, 3, 9, experts=2).sharing_evaluations == range(3)
    counts = SlotCounts(3, 3, 9, experts=2, evaluators=2)
    assert (counts.beside, counts.sharing_evaluations) == (range(3, 7), range(5, 7))
    assert counts.for_kind("eval") == counts.for_kind("collect") == range(7, 9)
    assert "SAC_EXPERT_WORKERS=2, SAC_EVAL_WORKERS=2" in counts.refusal("eval")
