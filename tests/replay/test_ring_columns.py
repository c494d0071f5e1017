"""A run that is reset keeps its experience where samples need other columns or longer stacks, whatever is killed."""

from __future__ import annotations

import dataclasses
import functools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.killed_starts import killed_at
from tests.support.run_for_tests import RunFolders
from tests.support.segments_for_tests import LAYOUT, numbered_segment
from tfagents_system.errors import UserError
from tfagents_system.experience.episodes import episodes_of
from tfagents_system.replay import recovery
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.sampling import draw_transitions
from tfagents_system.replay.stored_ring import StoredRing
from tfagents_system.report.long_work import LongWork
from tfagents_system.transport.layout import OPTIONAL_COLUMNS, Column, Layout
from tfagents_system.transport.segments import Segment

IMAGES = dataclasses.replace(LAYOUT, observation=(LAYOUT.observation[0], Column("observation/i", (1, 1, 1), "uint8")))


def layout_with(*names: str) -> Layout:
    optional: dict[str, Any] = {name: OPTIONAL_COLUMNS[name] for name in names}
    return dataclasses.replace(LAYOUT, **optional)


def append(ring: Ring, count: int, steps: int = 5) -> None:
    """The next segments of worker 0, with all that the ring's layout asks for."""
    optional: dict[str, np.ndarray] = {
        "returns": np.arange(steps, dtype=np.float32),
        "explored": np.ones(steps, np.uint8),
        "potential": np.arange(steps + 1, dtype=np.float32),
    }
    record = ring.worker(0)
    for number in range(record.number + 1, record.number + 1 + count):
        own: dict[str, Any] = {name: each for name, each in optional.items() if name in ring.layout.optional}
        if ring.layout.episode is not None:
            own["episode"] = np.array([[number, 0]])
        segment = numbered_segment(number=number, steps=steps, iteration=number, incarnation=max(1, record.incarnation))
        assert ring.append(dataclasses.replace(segment, **own))


def rewards(ring: Ring) -> list[float]:
    rows = ring.held_rows
    return ring.reward[rows[ring.steps_left[rows] > 0]].tolist()


@pytest.fixture
def without_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fsync", "fdatasync"):  # What costs most of the time, and matters to a power cut alone.
        monkeypatch.setattr(os, name, lambda descriptor: None)


@pytest.mark.parametrize("scratch", [None, "scratch"])
@pytest.mark.parametrize("capacity", [60, 90])
def test_columns_are_left_out_and_made_up(tmp_path: Path, scratch: str | None, capacity: int) -> None:
    where = tmp_path / "run", tmp_path / scratch if scratch else None
    run = RunFolders(*where, layout=layout_with("returns", "potential"))
    append(run.ring, 17)  # Around the files' end.
    expected = rewards(run.ring)
    run.checkpoint(10)
    inode = run.ring.files.column(LAYOUT.observation[0]).stat().st_ino
    new = layout_with("explored", "episode")
    again = RunFolders(*where, layout=new, epoch=2, capacity=capacity)
    assert (again.ring.layout, again.ring.epoch, again.ring.env_steps) == (new, 2, 85)
    assert rewards(again.ring) == expected and again.ring.verify() == 0
    assert (again.ring.files.column(LAYOUT.observation[0]).stat().st_ino == inode) == (capacity == 60), "not copied"
    for folder in {again.places.ring, again.places.home}:
        assert not [name for name in ("return", "potential") if (folder / f"{name}.bin").exists()]
        assert not (folder / "resized").exists()
    assert again.ring.explored is not None and not again.ring.explored[again.ring.held_rows].any()
    found = [each for each in episodes_of(StoredRing(again.places.ring)) if each.starts]
    assert [each.reward.tolist() for each in found] == np.reshape(expected[-5 * len(found) :], (-1, 5)).tolist()
    segments = [each for each in StoredRing(again.places.ring).segments() if each.episode is not None]
    numbers = [tuple(each.episode[0].tolist()) for each in segments if each.episode is not None]
    assert len(set(numbers)) == len(segments) == len(found) and all(k < 0 and first == 0 for k, first in numbers)
    append(again.ring, 2)
    assert rewards(RunFolders(*where, layout=new, epoch=2, capacity=capacity).ring) == rewards(again.ring)


def test_how_far_the_checksums_are_is_told(tmp_path: Path) -> None:
    run, told = RunFolders(tmp_path, layout=layout_with("returns")), list[tuple[str, Any]]()
    append(run.ring, 7)

    class Heard(LongWork):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if name == "done" and value and self.doing == "checksums":
                told.append((f"{self.done} of {self.total}", self.unit))

    recovery.open_ring(run.places, LAYOUT, 60, 24, epoch=2, work=Heard("ring"))
    assert told == [(f"{n} of 7", "segments") for n in range(1, 8)]


def test_what_can_not_be_made_up_is_refused(tmp_path: Path) -> None:
    append(RunFolders(tmp_path).ring, 3)
    with pytest.raises(UserError, match="was made for"):
        RunFolders(tmp_path, layout=layout_with("potential"), epoch=2)


def test_an_agent_that_goes_on_keeps_its_columns(tmp_path: Path) -> None:
    old = layout_with("potential")
    append(RunFolders(tmp_path, layout=old).ring, 3)
    with pytest.raises(UserError, match="was made for"):
        RunFolders(tmp_path)
    assert RunFolders(tmp_path, layout=old).ring.verify() == 0


@pytest.mark.parametrize("scratch", [None, "scratch"])
def test_checkpoints_of_the_agent_before_are_gone_back_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scratch: str | None
) -> None:
    where = tmp_path / "run", tmp_path / scratch if scratch else None
    run = RunFolders(*where, layout=layout_with("returns"))
    append(run.ring, 13)
    run.checkpoint(10)
    expected = rewards(run.ring)
    run.snapshots.close(5)
    again = RunFolders(*where, layout=layout_with("explored"), epoch=2)
    append(again.ring, 1)
    (tmp_path / "another_boot_id").write_text("other\n")
    monkeypatch.setattr(recovery, "_BOOT_ID", tmp_path / "another_boot_id")
    ring = RunFolders(*where, layout=layout_with("explored"), epoch=2).ring
    assert rewards(ring) == expected and (ring.env_steps, ring.epoch) == (65, 2)


@pytest.mark.usefixtures("without_syncs")
@pytest.mark.parametrize(("capacity", "offset"), [(60, 0), (60, 1), (90, 0)])
def test_a_kill_at_any_moment_loses_no_step(tmp_path: Path, capacity: int, offset: int) -> None:
    old, new = layout_with("returns"), layout_with("explored", "episode")
    run = RunFolders(tmp_path, layout=old)
    append(run.ring, 17)
    expected, place, kills = rewards(run.ring)[-40:], offset, 0
    start = functools.partial(RunFolders, tmp_path, layout=new, epoch=2, capacity=capacity)
    while True:
        place += 2
        was_killed = killed_at(place, start)
        kills += was_killed
        ring = start().ring
        assert rewards(ring)[-40:] == expected and (ring.env_steps, ring.verify()) == (85, 0), place
        assert ring.explored is not None and not ring.explored[ring.held_rows].any()
        if not was_killed:
            break
        # Without a reset the columns are those of before again: what was left out can't be made up.
        for path in (tmp_path / "replay").iterdir():
            path.unlink()
        append(RunFolders(tmp_path, layout=old).ring, 17)
    assert kills > 4


def image_segment(number: int, first_step: int, history: int = 0) -> Segment:
    """Of an episode that is cut into segments of five steps; pixels are the step's number."""
    made = numbered_segment(
        number=number, first_step=first_step, episode=0, ends_episode=False, steps=5 + history, iteration=number
    )
    made.observation[1] = made.observation[0][:, 2].astype(np.uint8).reshape(-1, 1, 1, 1)
    if history:
        own = made.action[0][history:], made.reward[history:], made.discount[history:]
        made = dataclasses.replace(made, history=history, action=[own[0]], reward=own[1], discount=own[2])
    return made


@pytest.mark.parametrize("history", [0, 1, 2])
@pytest.mark.parametrize("scratch", [None, "scratch"])
def test_no_sample_of_longer_stacks_starts_where_frames_are_missing(
    tmp_path: Path, history: int, scratch: str | None
) -> None:
    where = tmp_path / "run", tmp_path / scratch if scratch else None
    run = RunFolders(*where, layout=IMAGES)
    run.ring.extend([image_segment(0, 0), image_segment(1, 5 - history, history)])
    run.checkpoint(10)
    assert RunFolders(*where, layout=IMAGES, history_rows=2).ring.ring_steps == 10, "its own agent's goes on"
    ring = RunFolders(*where, layout=IMAGES, epoch=2, history_rows=2).ring
    drawn = draw_transitions(ring, np.random.default_rng(0), 20, 32, frame_stack=3)
    steps = drawn.observation[0][..., 2].astype(int)
    assert set(steps.ravel()) == {0, 1, 2, 3, 4, 5, 6, 7, 8, 9} - set(range(5, 7 - history))
    frames = drawn.observation[1].reshape(*steps.shape, 3)
    np.testing.assert_array_equal(frames, np.maximum(steps[..., None] + np.arange(-2, 1), 0))
    assert ring.ring_steps == 8 + history and ring.verify() == 0 and ring.env_steps == 10
    assert RunFolders(*where, layout=IMAGES, epoch=2, history_rows=2).ring.ring_steps == ring.ring_steps


def test_what_is_left_of_the_oldest_segment_stays_where_only_stacks_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut: the checkpoint of the agent before has a checksum of it as it was."""
    run = RunFolders(tmp_path, layout=IMAGES, capacity=35)
    run.ring.extend([image_segment(number, 5 * number) for number in range(7)])
    run.checkpoint(10)
    assert run.ring.held[0] % 6 == 1 and run.ring.ring_steps == 29
    again = functools.partial(RunFolders, tmp_path, layout=IMAGES, capacity=35, epoch=2, history_rows=2)
    expected = again().ring.ring_steps
    (tmp_path / "another_boot_id").write_text("other\n")
    monkeypatch.setattr(recovery, "_BOOT_ID", tmp_path / "another_boot_id")
    ring = again().ring
    assert ring.ring_steps == expected == 29 - 1 - 5 * 2 and ring.epoch == 2


@pytest.mark.parametrize("scratch", [None, "scratch"])
def test_a_checkpoint_that_a_damaged_header_goes_back_to_is_looked_at_as_well(
    tmp_path: Path, scratch: str | None
) -> None:
    where = tmp_path / "run", tmp_path / scratch if scratch else None
    run = RunFolders(*where, layout=IMAGES)
    run.ring.extend([image_segment(0, 0), image_segment(1, 5)])
    run.checkpoint(10)
    header = run.ring.files.header
    header.write_bytes(bytes(header.stat().st_size))
    ring = RunFolders(*where, layout=IMAGES, epoch=2, history_rows=2).ring
    assert (ring.ring_steps, ring.epoch, ring.env_steps, ring.verify()) == (8, 2, 10, 0)


def test_nor_where_the_ring_begins_within_an_episode(tmp_path: Path) -> None:
    """As with SAC_REPLAY_FROM of a ring that was full: nothing was given up, so all of it is drawn."""
    run = RunFolders(tmp_path, layout=IMAGES)
    run.ring.take_over([image_segment(0, 5), image_segment(1, 10)])
    assert run.ring.ring_steps == 10
    ring = RunFolders(tmp_path, layout=IMAGES, epoch=2, history_rows=2).ring
    drawn = draw_transitions(ring, np.random.default_rng(0), 20, 32, frame_stack=3)
    steps = drawn.observation[0][..., 2].astype(int)
    np.testing.assert_array_equal(drawn.observation[1].reshape(*steps.shape, 3), steps[..., None] + np.arange(-2, 1))
    assert ring.ring_steps == 6 and ring.verify() == 0
