"""A ring that gets another size keeps what fits, whenever its process is killed, and can still go back."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.killed_starts import killed_at
from tests.support.run_for_tests import RunFolders
from tests.support.segments_for_tests import append_more, content
from tfagents_system.errors import UserError
from tfagents_system.replay import recovery, ring_resize
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.stored_ring import StoredRing
from tfagents_system.report.long_work import LongWork

SIZES = [(60, 24), (150, 40), (30, 24), (31, 24), (300, 75), (60, 24)]  # Capacity and slack.


@pytest.fixture
def machine_was_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Calling it gives the machine another boot id."""

    def switch() -> None:
        path = tmp_path / "another_boot_id"
        path.write_text(f"{os.urandom(8).hex()}\n")
        monkeypatch.setattr(recovery, "_BOOT_ID", path)

    return switch


def steps(ring: Ring) -> list[tuple[int, int]]:
    """Episode and step of each transition that it holds, oldest first; all that is stored with them is checked."""
    rows = ring.held_rows
    rows = rows[ring.steps_left[rows] > 0]
    episode, step = ring.observation[0][rows, 1:].T
    np.testing.assert_array_equal(ring.reward[rows], 1000 * episode + step)
    np.testing.assert_array_equal(ring.observation[0][(rows + 1) % ring.num_rows, 2], step + 1)
    return list(zip(episode.astype(int).tolist(), step.astype(int).tolist(), strict=True))


def newest(ring: Ring, rows: int) -> list[tuple[int, int]]:
    """What a ring of so many rows would hold of this one's segments of six rows."""
    end = ring.total_rows
    return [(n // 6, n % 6) for n in range(end - min(rows, ring.filled_rows), end) if n % 6 < 5]


@pytest.mark.parametrize("scratch", [None, "scratch"])
def test_what_fits_stays_and_the_run_goes_on(tmp_path: Path, scratch: str | None) -> None:
    where = tmp_path / "run", tmp_path / scratch if scratch else None
    run = RunFolders(*where)
    append_more(run.ring, 13)
    run.checkpoint(10)
    append_more(run.ring, 4)
    for capacity, slack in SIZES:
        expected, counters = newest(run.ring, capacity), content(run.ring)["counters"][:2]
        run = RunFolders(*where, capacity=capacity, slack=slack)
        assert run.ring.capacity_rows == capacity and run.ring.files.slack_rows >= slack
        assert (steps(run.ring), content(run.ring)["counters"][:2]) == (expected, counters)
        assert run.ring.verify() == 0 and not list(tmp_path.rglob("resized"))
        append_more(run.ring, 9)
        expected = newest(run.ring, capacity)
        assert steps(run.ring) == expected and run.ring.worker(0).number * 6 + 6 == run.ring.total_rows
        if capacity != 31:
            run.checkpoint(run.ring.env_steps)
        append_more(run.ring, 1)
        assert steps(RunFolders(*where, capacity=capacity).ring) == newest(run.ring, capacity)


def test_how_far_it_is_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_resize, "_BYTES_AT_ONCE", 1 << 16)
    run = RunFolders(tmp_path / "run", capacity=70_000, slack=4000)
    append_more(run.ring, 60, steps=999)
    told = set[str]()

    class Heard(LongWork):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if name == "done" and self.total:
                told.add(self._parts())

    work = Heard("ring")
    row_bytes = sum(column.step_bytes for column in run.ring.files.columns)
    recovery.open_ring(run.places, run.ring.layout, 80_000, None, work=work)
    mib = 60_000 * row_bytes >> 20
    assert {f"{n} of {mib} MiB ({100 * n // mib} %)" for n in range(1, mib + 1)} <= told and mib > 1
    assert work.total is None and not list(tmp_path.rglob("resized"))


@pytest.mark.parametrize("scratch", [None, "scratch"])
@pytest.mark.parametrize("capacity", [150, 40])
def test_checkpoints_of_before_are_gone_back_to(
    tmp_path: Path, machine_was_off: Callable[[], None], scratch: str | None, capacity: int
) -> None:
    where = tmp_path / "run", tmp_path / scratch if scratch else None
    run = RunFolders(*where)
    append_more(run.ring, 13)
    run.checkpoint(10)
    expected = newest(run.ring, capacity)
    append_more(run.ring, 2)
    run.snapshots.close(5)
    resized = RunFolders(*where, capacity=capacity)
    append_more(resized.ring, 1)
    machine_was_off()
    again = RunFolders(*where, capacity=capacity)
    assert steps(again.ring) == expected and again.ring.env_steps == 65
    machine_was_off()
    larger = steps(RunFolders(*where, capacity=60).ring)  # Which may still have been in the slack.
    assert larger == newest(again.ring, 60) or larger[-len(expected) :] == expected
    if scratch:
        shutil.rmtree(tmp_path / scratch)
        assert RunFolders(tmp_path / "run", tmp_path / "other", capacity=60).ring.env_steps == 65


@pytest.mark.parametrize("scratch", [None, "scratch"])
def test_a_smaller_ring_has_slack_enough_for_its_checkpoint(
    tmp_path: Path, machine_was_off: Callable[[], None], scratch: str | None
) -> None:
    where = tmp_path / "run", tmp_path / scratch if scratch else None
    run = RunFolders(*where)
    append_more(run.ring, 13)
    run.checkpoint(10)
    expected = newest(run.ring, 30)
    append_more(run.ring, 4)  # 24 rows, as the slack is.
    run.snapshots.close(5)
    assert RunFolders(*where, capacity=30, slack=6).ring.files.slack_rows == 24
    machine_was_off()
    assert steps(RunFolders(*where, capacity=30, slack=6).ring) == expected
    if scratch:  # The copy and a ring that is made of it have the same places.
        again = RunFolders(tmp_path / "run", tmp_path / "another", capacity=30, slack=6)
        assert steps(again.ring) == expected
        append_more(again.ring, 3)
        again.checkpoint(20)
        assert steps(RunFolders(tmp_path / "run", tmp_path / "third", capacity=30, slack=6).ring) == steps(again.ring)


def test_rows_that_were_overwritten_before_are_not_gone_back_to(
    tmp_path: Path, machine_was_off: Callable[[], None]
) -> None:
    run = RunFolders(tmp_path / "run")
    append_more(run.ring, 13)
    run.checkpoint(10)
    append_more(run.ring, 7)  # 42 rows, 24 are slack.
    machine_was_off()
    ring = RunFolders(tmp_path / "run", capacity=300, slack=100).ring
    assert ring.env_steps == 65
    assert steps(ring) == [(n // 6, n % 6) for n in range(120 - 84, 78) if n % 6 < 5]


@pytest.mark.parametrize(("scratch", "capacity", "offset"), [(None, 150, 0), (None, 40, 1), ("scratch", 150, 2)])
def test_a_kill_at_any_moment_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scratch: str | None, capacity: int, offset: int
) -> None:
    for name in ("fsync", "fdatasync"):  # What costs most of the time, and matters to a power cut alone.
        monkeypatch.setattr(os, name, lambda descriptor: None)
    original = tmp_path / "original"
    run = RunFolders(original, tmp_path / scratch if scratch else None)
    append_more(run.ring, 13)
    run.checkpoint(10)
    append_more(run.ring, 2)
    run.snapshots.close(5)
    kept, of_size = steps(run.ring), newest(run.ring, capacity)
    place, kills = offset, 0  # Another third of all changes in each case: one takes a fifth of a second.
    while True:
        place += 3
        where = original, tmp_path / scratch if scratch else None
        was_killed = killed_at(place, functools.partial(RunFolders, *where, capacity=capacity))
        kills += was_killed
        ring = RunFolders(*where, capacity=capacity).ring
        assert steps(ring) == of_size and ring.env_steps == 75, place
        if not was_killed:
            break
        back = steps(RunFolders(*where).ring)  # To where it was, without a loss if that was larger.
        assert back == (kept if capacity > 60 else of_size), place
    assert kills > 5


def test_a_full_disk_leaves_the_ring_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolders(tmp_path / "run")
    append_more(run.ring, 13)
    before = content(run.ring)

    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(UserError, match=r"No space left on device\): lower buffer_size, free space"):
            RunFolders(tmp_path / "run", capacity=150)
    assert content(RunFolders(tmp_path / "run").ring) == before and not list(tmp_path.rglob("resized"))


def test_with_a_damaged_header_it_goes_back_to_a_checkpoint(tmp_path: Path) -> None:
    run = RunFolders(tmp_path / "run")
    append_more(run.ring, 13)
    expected = steps(run.ring)
    run.checkpoint(10)
    append_more(run.ring, 1)
    (tmp_path / "run/replay/header.bin").write_bytes(b"x" * 30_000)
    again = RunFolders(tmp_path / "run", capacity=150)
    assert again.ring.env_steps == 65 and steps(again.ring)[-len(expected) :] == expected
    assert RunFolders(tmp_path / "run", capacity=150).ring.env_steps == 65


def test_a_damaged_header_is_refused_with_the_remedy_where_there_is_no_checkpoint(tmp_path: Path) -> None:
    run = RunFolders(tmp_path / "run")
    append_more(run.ring, 13)
    (tmp_path / "run/replay/header.bin").write_bytes(b"x" * 30_000)
    with pytest.raises(UserError, match="its header is damaged: restore .*header.bin, start once with buffer_size and"):
        RunFolders(tmp_path / "run", capacity=150)
    assert RunFolders(tmp_path / "run").ring.env_steps == 0


def test_others_read_the_experience_of_a_ring_with_another_size(tmp_path: Path) -> None:
    append_more(RunFolders(tmp_path / "run").ring, 13)
    RunFolders(tmp_path / "run", capacity=150)
    assert len(list(StoredRing(tmp_path / "run").segments())) == 10


def test_priorities_begin_anew(tmp_path: Path, machine_was_off: Callable[[], None]) -> None:
    run = RunFolders(tmp_path / "run", priority_exponent=0.6)
    append_more(run.ring, 13)
    assert run.priorities is not None
    run.priorities.measure(np.arange(30, 70), np.full(40, 9, np.float32))
    run.checkpoint(10)
    for is_off in (False, True):
        if is_off:
            machine_was_off()
        again = RunFolders(tmp_path / "run", capacity=54, slack=30, priority_exponent=0.6)  # As many rows in the files.
        assert again.priorities is not None
        rows, likelihood = again.priorities.draw(np.random.default_rng(0), 100, 0)
        assert len(set(rows.tolist())) > 20 and len(set(likelihood.tolist())) == 1


@pytest.mark.parametrize("sizes", [[(60, 24), (30, 12), (60, 24)], [(30, 12), (60, 24), (30, 12)]])
def test_scratch_of_another_node_is_made_as_the_copy_was(tmp_path: Path, sizes: list[tuple[int, int]]) -> None:
    """The first node has a ring of before two changes, which the second node made."""
    home, node = tmp_path / "run", tmp_path / "node1"
    run = RunFolders(home, node, capacity=sizes[0][0], slack=sizes[0][1])
    append_more(run.ring, 4)
    run.checkpoint(1)
    for number, (capacity, slack) in enumerate(sizes):
        run = RunFolders(home, tmp_path / "node2", capacity=capacity, slack=slack)
        append_more(run.ring, 4)  # As far behind the checkpoint as the slack of the next one has to be.
        run.checkpoint(2 + number)
    expected = steps(run.ring)
    again = RunFolders(home, node, capacity=sizes[-1][0], slack=sizes[-1][1])
    assert steps(again.ring) == expected and again.ring.verify() == 0
    append_more(again.ring, 2)
    again.checkpoint(9)
    assert steps(RunFolders(home, tmp_path / "node3", capacity=sizes[-1][0]).ring) == steps(again.ring)


def test_a_ring_that_has_its_first_size_again_checks_its_oldest_rows_too(
    tmp_path: Path, machine_was_off: Callable[[], None]
) -> None:
    where = tmp_path / "run"
    for capacity, slack in ((62, 24), (150, 40), (62, 24)):
        run = RunFolders(where, capacity=capacity, slack=slack)
        append_more(run.ring, 13)
    assert run.ring.files.fingerprint in run.ring.files.earlier
    run.checkpoint(1)
    oldest = run.ring.held[0]
    assert run.ring.steps_left[oldest % run.ring.num_rows] == 1, "of its segment the end alone is left"
    run.ring.reward[oldest % run.ring.num_rows] += 1.0
    machine_was_off()
    ring = RunFolders(where, capacity=62, slack=24).ring
    assert ring.ring_steps == run.ring.ring_steps - 1 and ring.steps_left[oldest % ring.num_rows] == 0


def test_a_ring_far_from_full_goes_back_to_its_checkpoint_also_when_it_is_smaller(
    tmp_path: Path, machine_was_off: Callable[[], None]
) -> None:
    run = RunFolders(tmp_path / "run", capacity=600, slack=60)
    append_more(run.ring, 5)
    run.checkpoint(1)
    expected = steps(run.ring)
    append_more(run.ring, 15)  # More rows than the slack has.
    machine_was_off()
    again = RunFolders(tmp_path / "run", capacity=60, slack=24)
    assert steps(again.ring) == expected and again.ring.verify() == 0


def test_a_ring_that_went_back_holds_the_same_when_it_is_smaller(
    tmp_path: Path, machine_was_off: Callable[[], None]
) -> None:
    run = RunFolders(tmp_path / "run", capacity=600, slack=60)
    append_more(run.ring, 5)
    run.checkpoint(1)
    expected = steps(run.ring)
    append_more(run.ring, 15)
    machine_was_off()
    assert steps(RunFolders(tmp_path / "run", capacity=600, slack=60).ring) == expected
    again = RunFolders(tmp_path / "run", capacity=60, slack=24)
    assert steps(again.ring) == expected and again.ring.verify() == 0
