"""Which number a joining worker gets: no two the same one, and only those meant for its kind."""

import pytest

from tfagents_system.errors import UserError
from tfagents_system.machine.claims import Claims, SlotCounts, take_slot

PORT = 7  # Of no server.
pytestmark = pytest.mark.usefixtures("claims_prefix")


@pytest.fixture
def take():
    """Takes slots, each for another worker."""
    made = []

    def take(kind, wanted=None, local=1, planned=3, most=5, port=PORT, experts=0):
        made.append(Claims())
        return take_slot(made[-1], port, SlotCounts(local, planned, most, experts), kind, wanted)

    yield take
    for claims in made:
        claims.release_all()


def test_each_gets_another_one_planned_ones_first_and_other_kinds_no_planned_one(take):
    assert [take(kind) for kind in ("eval", "collect", "collect", "expert")] == [3, 1, 2, 4]
    assert take("collect", port=8) == 1, "another run"


def test_a_wish_is_granted_where_it_is_free_and_fits_the_kind(take):
    assert take("collect", wanted=2) == 2, "the slot that it had"
    assert take("collect", wanted=2) == 1, "it is taken"
    assert take("test", wanted=1) == 3, "it is a planned one"
    assert take("collect", wanted=99) == 4


@pytest.mark.parametrize("kind", ["collect", "eval", "expert"])
def test_a_runs_own_experts_keep_their_slots(take, kind):
    counts = {"local": 1, "planned": 1, "most": 5, "experts": 2}
    assert [take(kind, wanted=2, **counts), take(kind, **counts)] == [3, 4]
    with pytest.raises(UserError, match=r"all 2 slots.*SAC_NUM_COLLECT_WORKERS=1, SAC_EXPERT_WORKERS=2.*larger SAC_MA"):
        take(kind, **counts)
    with pytest.raises(UserError, match=r"no slot for a worker of kind eval.*SAC_MAX_WORKERS=2"):
        take("eval", local=0, planned=2, most=2)


def test_evaluations_are_shared_by_the_runs_own_evaluators_or_else_by_the_planned_workers():
    assert SlotCounts(2, 3, 9, experts=2).sharing_evaluations == range(3)
    counts = SlotCounts(3, 3, 9, experts=2, evaluators=2)
    assert (counts.beside, counts.sharing_evaluations) == (range(3, 7), range(5, 7))
    assert counts.for_kind("eval") == counts.for_kind("collect") == range(7, 9)
    assert "SAC_EXPERT_WORKERS=2, SAC_EVAL_WORKERS=2" in counts.refusal("eval")
