"""Experts feed prior data: each of their steps is there once, and counted once, over kills and power cuts."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.support.ports import free_port
from tests.support.replay_service import DRAW, Server, ask, take_block
from tests.support.run_for_tests import RunFolders
from tests.support.segments_for_tests import LAYOUT, numbered_segment
from tfagents_system.replay import recovery
from tfagents_system.replay.draw_settings import PriorData
from tfagents_system.replay.prior_data import PriorRing, mark_as_made, open_prior
from tfagents_system.replay.ring import Ring
from tfagents_system.transport import bundles, tables
from tfagents_system.transport.segments import Segment

OWN, EXPERT, FILE = 0, 1, 7
ROOM = 60


def make_prior(folder: Path, episodes_of_files: int = 2, room: int = ROOM) -> Path:
    """Episodes of five steps, and room for so many rows of experts, as a start makes them."""
    ring = Ring.open(folder, LAYOUT, 6 * episodes_of_files + room, 24)
    ring.take_over([numbered_segment(FILE, number=number) for number in range(episodes_of_files)])
    mark_as_made(ring)
    return folder


def of_expert(number: int, **others: int | bool) -> Segment:
    return dataclasses.replace(numbered_segment(EXPERT, number=number, iteration=number, **others), is_prior=True)  # type: ignore[arg-type]


def steps(ring: Ring | None) -> list[tuple[int, int, int]]:
    """Worker, episode and step of each transition that is held, oldest first."""
    assert ring is not None
    rows = ring.held_rows[ring.steps_left[ring.held_rows] > 0]
    return [(int(worker), int(episode), int(step)) for worker, episode, step in ring.observation[0][rows]]


def episodes(worker: int, *numbers: int) -> list[tuple[int, int, int]]:
    return [(worker, number, step) for number in numbers for step in range(5)]


def test_that_it_is_prior_data_goes_over_the_wire() -> None:
    segments = [of_expert(0), of_expert(1), numbered_segment(number=2)]
    found = bundles.from_wire(bundles.to_wire(segments), LAYOUT)
    assert [each.is_prior for each in found] == [True, True, False]
    assert Segment.from_wire(of_expert(0, held_out=True).to_wire(), LAYOUT).is_prior


def test_rows_of_experts_are_prior_data_and_counted_with_the_run_s_own(tmp_path: Path) -> None:
    run = RunFolders(tmp_path, prior=make_prior(tmp_path / "prior_data"))
    stored = run.ring.extend([numbered_segment(), of_expert(0), of_expert(1), of_expert(3), numbered_segment(number=1)])
    assert stored == 4, "the one of number 3 comes too early"
    assert steps(run.ring) == episodes(OWN, 0, 1) and run.ring.ring_steps == run.ring.training_steps == 10
    assert steps(run.prior) == episodes(FILE, 0, 1) + episodes(EXPERT, 0, 1)
    assert (run.ring.env_steps, run.ring.segments, run.ring.filled_rows) == (20, 4, 12)
    assert run.ring.worker(EXPERT).number == 1 and run.ring.steps_up_to(1) == 20
    again = RunFolders(tmp_path, prior=tmp_path / "prior_data")
    assert (steps(again.ring), steps(again.prior)) == (steps(run.ring), steps(run.prior))


def test_a_server_killed_between_the_two_rings_stores_it_once_and_counts_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolders(tmp_path, prior=make_prior(tmp_path / "prior_data"))
    run.ring.append(of_expert(0))

    class KilledError(Exception):
        pass

    def die(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(Ring, "_commit", die)
        patch.setattr(PriorRing, "_commit", lambda *args, **given: None)
        with pytest.raises(KilledError):
            run.ring.append(of_expert(1))  # Before the rows are valid.
    again = RunFolders(tmp_path, prior=tmp_path / "prior_data")
    assert again.ring.env_steps == 5 and steps(again.prior)[10:] == episodes(EXPERT, 0)
    with monkeypatch.context() as patch:
        patch.setattr(PriorRing, "_commit", Ring._commit, raising=False)
        patch.setattr(Ring, "_commit", die)
        with pytest.raises(KilledError):
            again.ring.append(of_expert(1))  # Between the two.
    last = RunFolders(tmp_path, prior=tmp_path / "prior_data")
    assert last.ring.env_steps == 5 and steps(last.prior)[10:] == episodes(EXPERT, 0, 1)
    assert last.ring.extend([of_expert(1), of_expert(2), of_expert(2)]) == 2
    assert last.ring.env_steps == 15 and steps(last.prior)[10:] == episodes(EXPERT, 0, 1, 2)
    # A worker that was started again, and sends what it collects then.
    assert last.ring.append(of_expert(0, incarnation=2, episode=3))
    assert steps(last.prior)[10:] == episodes(EXPERT, 0, 1, 2, 3)


def test_what_has_no_room_is_counted_and_nothing_is_overwritten(tmp_path: Path) -> None:
    run = RunFolders(tmp_path, prior=make_prior(tmp_path / "prior_data", room=15))
    for number in range(5):
        assert run.ring.append(of_expert(number))
    assert run.ring.env_steps == 25 and run.ring.worker(EXPERT).number == 4
    assert steps(run.prior) == episodes(FILE, 0, 1) + episodes(EXPERT, 0, 1)
    assert run.prior is not None and run.prior.verify() == 0


def test_both_rings_go_back_to_one_checkpoint_after_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prior = make_prior(tmp_path / "prior_data")
    run = RunFolders(tmp_path, prior=prior)
    run.ring.extend([numbered_segment(), of_expert(0)])
    switch_off(tmp_path, monkeypatch, "first")  # Before any checkpoint.
    run = RunFolders(tmp_path, prior=prior)
    assert steps(run.ring) == [] and steps(run.prior) == episodes(FILE, 0, 1)
    run.ring.extend([numbered_segment(), of_expert(0)])
    run.checkpoint(10)
    run.ring.extend([numbered_segment(number=1), of_expert(1), of_expert(2)])
    killed = RunFolders(tmp_path, prior=prior)
    assert killed.ring.env_steps == 25 and len(steps(killed.prior)) == 25, "a process alone loses nothing"
    switch_off(tmp_path, monkeypatch, "second")
    run = RunFolders(tmp_path, prior=prior)
    assert steps(run.ring) == episodes(OWN, 0) and steps(run.prior) == episodes(FILE, 0, 1) + episodes(EXPERT, 0)
    run.ring.append(of_expert(1, episode=9))
    assert steps(run.prior)[10:] == episodes(EXPERT, 0, 9)
    # Another agent has prior data of its own, of which the checkpoint before it says nothing.
    other = make_prior(tmp_path / "other")
    opened = open_prior(other, LAYOUT, grows=True)
    opened.keep(of_expert(5))
    switch_off(tmp_path, monkeypatch, "third")
    places = dataclasses.replace(
        run.places, checkpoints=tmp_path / "new", earlier=(tmp_path / "checkpoints",), prior=other
    )
    ring, _ = recovery.open_ring(places, LAYOUT, run.ring.capacity_rows, None, epoch=2)
    assert steps(ring) == episodes(OWN, 0) and steps(open_prior(other, LAYOUT)) == episodes(FILE, 0, 1)


def switch_off(tmp_path: Path, patch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / name).write_text(name)
    patch.setattr(recovery, "_BOOT_ID", tmp_path / name)


def test_steps_of_experts_alone_are_counted_where_they_are_kept_after_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ring without rows may have counted those that prior data hold."""
    prior = make_prior(tmp_path / "prior_data")
    run = RunFolders(tmp_path, prior=prior)
    run.ring.extend([of_expert(0), of_expert(1)])
    switch_off(tmp_path, monkeypatch, "before_any_checkpoint")
    run = RunFolders(tmp_path, prior=prior)
    assert run.ring.env_steps == 0 and steps(run.prior) == episodes(FILE, 0, 1)
    run.ring.append(of_expert(0))
    run.checkpoint(10)
    run.ring.append(of_expert(1))
    switch_off(tmp_path, monkeypatch, "after_one")
    run = RunFolders(tmp_path, prior=prior)
    assert run.ring.env_steps == 5 and run.ring.worker(EXPERT).number == 0
    assert steps(run.prior) == episodes(FILE, 0, 1) + episodes(EXPERT, 0)


def test_prior_data_stay_as_they_are_where_the_run_s_own_ring_can_t_go_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prior = make_prior(tmp_path / "prior_data")
    run = RunFolders(tmp_path, prior=prior)
    run.ring.extend([numbered_segment(), of_expert(0)])
    run.checkpoint(10)
    run.ring.append(of_expert(1))
    for number in range(1, 20):  # Over the rows of the checkpoint.
        run.ring.append(numbered_segment(number=number))
    switch_off(tmp_path, monkeypatch, "later")
    run = RunFolders(tmp_path, prior=prior)
    assert run.ring.env_steps == 110 and run.ring.worker(EXPERT).number == 1
    assert steps(run.prior) == episodes(FILE, 0, 1) + episodes(EXPERT, 0, 1)
    (prior / "header.bin").write_bytes(b"damaged")
    switch_off(tmp_path, monkeypatch, "still_later")
    run = RunFolders(tmp_path, prior=prior)
    assert steps(run.prior) == episodes(FILE, 0, 1) + episodes(EXPERT, 0), "what the checkpoint says of them"


@pytest.mark.parametrize("count", [tables.AS_DUE, 3])
def test_nothing_is_learned_before_there_is_prior_data(tmp_path: Path, count: int) -> None:
    """Updates that are due become so with a later iteration: who would bring some is never waited for in vain."""
    due = count == tables.AS_DUE
    server = Server(tmp_path / "ring", free_port(), num_workers=2, updates_per_env_step=0.5 if due else None)
    try:
        ring = open_prior(make_prior(tmp_path / "prior_data", 0), LAYOUT, grows=True)
        server.ring.keep_prior = ring.keep
        server.service._draw_settings = dataclasses.replace(DRAW, prior=PriorData(ring, 2))
        server.service._pacing._waited_for = {OWN}
        reader = server.connection.reader(tables.BLOCKS)

        def bring(segment: Segment) -> None:
            server.connection.put(tables.SEGMENTS, segment.to_wire())
            server.turn_until(lambda: server.ring.worker(segment.worker_id).number == segment.number)

        bring(numbered_segment(end_of_iteration=True))
        ask(server, 0, count=count, updates=0)
        if due:
            assert take_block(server, reader).total == 0
            bring(numbered_segment(number=1, iteration=1))
            ask(server, 1, count=count, updates=0)
        server.turn()
        told = server.service.waiting_for
        assert told is not None and "no expert has brought any prior data yet: set SAC_EXPERT_WORKERS" in told
        bring(of_expert(0, end_of_iteration=True))
        if due:
            bring(numbered_segment(number=2, iteration=1, end_of_iteration=True))
            bring(of_expert(1, end_of_iteration=True))
        block = take_block(server, reader)
        assert block.total == (12 if due else 3), "0.5 of 20 steps of the run's own worker and 10 of the expert"
        own, prior = block.arrays[0], block.arrays[len(block.arrays) // 2]
        assert set(own[..., 0].ravel()) == {OWN} and set(prior[..., 0].ravel()) == {EXPERT}
        assert np.shape(prior)[1] == 2
    finally:
        server.close()
