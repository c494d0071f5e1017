"""Which slots the gateway gives out, beside workers of its own machine, who claim slots as it does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tfagents_system.machine.claims import Claims
from tfagents_system.machine.worker_slots import COLLECT, SlotCounts, Slots
from tfagents_system.transport.remote import remote_slots
from tfagents_system.transport.remote.messages import SLOT_LOST
from tfagents_system.transport.remote.remote_slots import NoSlotError, RemoteSlots

PORT = 1  # No run has it.
COUNTS = SlotCounts(local=1, planned=1, most=3)


@pytest.fixture
def claims() -> Iterator[Claims]:
    claims = Claims()
    yield claims
    claims.release_all()


@pytest.fixture
def local() -> Iterator[Slots]:
    slots = Slots(PORT, COUNTS)
    yield slots
    for slot in COUNTS.for_kind(COLLECT):
        slots.release(slot)


def slots_of(folder: Path, claims: Claims) -> RemoteSlots:
    return RemoteSlots(COUNTS, PORT, folder / "slots.json", claims)


def vanish(slots: RemoteSlots, number: int, connection: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker is away for longer than its slot is kept."""
    slots.leave(number, connection, for_good=False)
    monkeypatch.setattr(remote_slots, "KEEP_SECS", 0.0)
    slots.tend()


def test_a_worker_that_comes_back_has_its_slot_while_nobody_else_wants_it(
    tmp_path: Path, claims: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = slots_of(tmp_path, claims)
    assert slots.take(COLLECT, None, "first", "a") == (1, None)
    assert slots.take(COLLECT, None, "second", "b") == (2, None)
    assert slots.take(COLLECT, 1, "first", "c") == (1, "a"), "the dead connection is told"
    vanish(slots, 1, "c", monkeypatch)
    assert slots.take(COLLECT, 1, "first", "d") == (1, None)


def test_no_slot_is_given_to_two_workers(
    tmp_path: Path, claims: Claims, local: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = slots_of(tmp_path, claims)
    assert slots.take(COLLECT, None, "laptop", "a") == (1, None)
    assert local.take(COLLECT, 1) == 2, "it is kept"
    local.release(2)
    vanish(slots, 1, "a", monkeypatch)
    assert local.take(COLLECT, 1) == 1
    with pytest.raises(NoSlotError, match="slot 1 was given to another worker meanwhile") as raised:
        slots.take(COLLECT, 1, "laptop", "b")
    assert (raised.value.reason, raised.value.final) == (SLOT_LOST, True), "its process is started again"
    assert slots.take(COLLECT, None, "laptop", "c") == (2, None)
    assert slots.take(COLLECT, 2, "laptop", "d") == (2, "c"), "that is its own from now on"


def test_a_restarted_gateway_keeps_the_slots_of_those_who_were_in(tmp_path: Path, claims: Claims, local: Slots) -> None:
    slots = slots_of(tmp_path, claims)
    slots.take(COLLECT, None, "first", "a")
    slots.take(COLLECT, None, "second", "b")
    slots.leave(2, "b", for_good=True)
    claims.release_all()
    slots = slots_of(tmp_path, claims)
    assert local.take(COLLECT, 1) == 2, "who has said goodbye wants none"
    assert slots.take(COLLECT, 1, "first", "c") == (1, None)
    claims.release_all()
    local.take(COLLECT, 1)
    slots = slots_of(tmp_path, claims)
    with pytest.raises(NoSlotError):
        slots.take(COLLECT, 1, "first", "d")
