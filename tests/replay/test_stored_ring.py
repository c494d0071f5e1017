"""A new run's ring begins with the experience of another one, once, whatever is killed meanwhile."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.draws import draw_transitions
from tests.support.fakes import FakeParams
from tests.support.killed_starts import killed_at
from tests.support.segments_for_tests import LAYOUT, append_more, content, filled_ring, numbered_segment
from tests.support.settings_for_tests import variables_with
from tfagents_system.errors import UserError
from tfagents_system.replay import server, stored_ring
from tfagents_system.replay.pacing import Asynchronous
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.stored_ring import StoredRing, differences, fill
from tfagents_system.report.long_work import LongWork
from tfagents_system.run_files import kept_checkpoints
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.run_files.taken import Taken
from tfagents_system.transport.segments import NEVER, Column, Layout, Segment


def run_with(folder: Path, segments: int = 4) -> Path:
    """A run directory whose ring has so many episodes of five steps."""
    filled_ring(folder / "replay", segments)
    return folder


def new_ring(run: Path, capacity: int = 60) -> Ring:
    return Ring.open(run / "replay", LAYOUT, capacity, 24)


def of(source: Path, **more: Any) -> Taken:
    return Taken(str(source), "replay", str(source), mark=7, **more)


def fill_run(run: Path, source: Path, capacity: int = 60, **more: Any) -> Ring:
    ring = new_ring(run, capacity)
    fill(ring, of(source), run / "checkpoints", **more)
    return ring


@pytest.mark.parametrize("name", ["header.bin", "reward.bin"])
def test_a_ring_that_can_not_be_read_is_told_without_advice_on_its_size(tmp_path: Path, name: str) -> None:
    Ring.open(tmp_path, LAYOUT, 100, 30)
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    with pytest.raises(UserError, match=r"can't be read \(Is a directory\): give another run"):
        StoredRing(tmp_path)


def test_what_is_read_is_what_was_stored(tmp_path: Path) -> None:
    ring = Ring.open(tmp_path, LAYOUT, 100, 30)
    parts = [
        numbered_segment(number=0, steps=5, held_out=True, terminates=True),
        dataclasses.replace(numbered_segment(number=1, steps=6, ends_episode=False), deferred=2),
        dataclasses.replace(numbered_segment(number=2, steps=7, first_step=3), lead=3, context=1),
    ]
    for part in parts:
        assert ring.append(part)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    stored = StoredRing(tmp_path)
    read = list(stored.segments())
    assert (stored.steps, stored.rows) == (5 + (6 - 2) + (7 - 1), 6 + 7 + 8), "each step counts once"
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    for part, found in zip(parts, read, strict=True):
        for field in dataclasses.fields(Segment):
            if field.name not in ("worker_id", "incarnation", "number", "iteration", "lead"):
                ours, theirs = getattr(part, field.name), getattr(found, field.name)
                np.testing.assert_equal(theirs, ours, field.name)


def test_a_new_run_has_the_experience_and_none_of_its_counts(tmp_path: Path) -> None:
    ring = fill_run(tmp_path / "new", run_with(tmp_path / "one", 3))
    assert (ring.ring_steps, ring.env_steps, ring.init_steps, ring.segments, ring.run) == (15, 0, 0, 0, 7)
    assert ring.steps_up_to(10**6) == 0 and ring.worker(0).iteration_done == NEVER
    starts = ring.held_rows[ring.steps_left[ring.held_rows] > 0]
    episodes = ring.observation[0][starts][:, 1].tolist()
    assert episodes == [0] * 5 + [1] * 5 + [2] * 5
    assert ring.verify() == 0, "checksums are of the new places"
    append_more(ring, 1)
    assert (ring.ring_steps, ring.env_steps, ring.worker(0).number) == (20, 5, 0), (
        "a worker's first segment is its first"
    )


def test_numbers_that_are_not_finite_are_refused_and_not_taken_over(tmp_path: Path) -> None:
    segment = numbered_segment(steps=5)
    segment.observation[0][2] = np.nan
    ring = Ring.open(tmp_path / "source" / "replay", LAYOUT, 60, 24)
    ring.take_over([segment])
    told = f"SAC_FROM={tmp_path / 'source'} has numbers that are not finite"
    for _ in range(2):
        with pytest.raises(UserError, match=told):
            fill_run(tmp_path / "new", tmp_path / "source")
    assert new_ring(tmp_path / "new").ring_steps == 0


def test_a_kill_at_any_moment_of_filling_loses_and_doubles_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, run = run_with(tmp_path / "source", 2), tmp_path / "new"
    monkeypatch.setattr(stored_ring, "_SEGMENTS_AT_ONCE", 1)
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda descriptor: None)
    monkeypatch.setattr(stored_ring.logging, "info", lambda *args: None)
    expected, place = content(fill_run(run, source)), 0
    while True:
        shutil.rmtree(run)
        place += 1
        if not killed_at(place, lambda: fill_run(run, source), (Ring, "take_over")):
            break
        assert content(fill_run(run, source)) == expected and new_ring(run).verify() == 0, place
    assert place > 10 and content(new_ring(run)) == expected


def test_a_disk_that_is_full_at_the_end_of_filling_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(ring: Ring) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Ring, "make_durable", full)
    with pytest.raises(UserError, match="the replay ring needs .*No space left on device.*free space"):
        fill_run(tmp_path / "new", run_with(tmp_path / "source"))


def test_a_run_with_a_checkpoint_keeps_what_it_has(tmp_path: Path) -> None:
    source, run = run_with(tmp_path / "source"), tmp_path / "new"
    ring = new_ring(run)
    append_more(ring, 1)
    partial = kept_checkpoints.begin(run / "checkpoints", 10)
    (partial / "agent.index").write_bytes(b"index")
    kept_checkpoints.finish(partial, 10, 1, {})
    assert fill_run(run, source).ring_steps == 5


@pytest.mark.parametrize("counts", [False, True])
def test_a_run_that_counts_on_begins_where_the_other_one_was(tmp_path: Path, counts: bool) -> None:
    """In lock-step iterations promise updates for their own steps alone; elsewhere the rows count as well."""
    source, run = run_with(tmp_path / "source", 3), tmp_path / "new"
    ring = new_ring(run)
    fill(ring, of(source, env_steps=800, iteration=40, train_step=400), run / "checkpoints", counts=counts)
    assert (ring.env_steps, ring.init_steps) == (800, 800 - 15 * counts)
    assert Asynchronous(ring, 0.5, 0, 0)._budget() == 7 * counts, "half of 15 steps"
    assert ring.append(numbered_segment(iteration=40))
    assert (ring.env_steps, ring.steps_up_to(40)) == (805, 5 + 15 * counts)


def test_the_server_fills_the_ring_with_what_run_json_says(tmp_path: Path) -> None:
    params = type("TrainParams", (FakeParams,), {"buffer_size": 60})({"horizon": 20})
    paths, source = RunPaths(tmp_path / "new"), run_with(tmp_path / "source", 2)
    paths.exp_dir.mkdir()
    own = {"params": params, "paths": paths, "variables": variables_with()}
    role: Any = types.SimpleNamespace(**own, deterministic=False)
    for take, steps in (("agent", 0), ("replay", 10)):
        taken = dataclasses.replace(of(source), take=take)
        paths.run_json.write_text(json.dumps({"from": dataclasses.asdict(taken)}))
        assert server._open_ring(role, LAYOUT, LongWork("ring")).ring_steps == steps


def test_damaged_segments_are_left_out_and_a_small_ring_keeps_the_newest(tmp_path: Path) -> None:
    source = tmp_path / "source"
    filled_ring(source / "replay", 7, capacity=30)
    stored = StoredRing(source)
    assert [segment.observation[0][0, 1] for segment in stored.segments()] == [2, 3, 4, 5, 6]
    assert not stored.damaged_steps
    damaged = Ring.open(source / "replay", LAYOUT, 30)
    damaged.reward[damaged.held_rows[6 * 3 + 2]] += 1  # Of episode 5.
    assert [segment.observation[0][0, 1] for segment in stored.segments()] == [2, 3, 4, 6]
    assert stored.damaged_steps == 5
    ring = fill_run(tmp_path / "new", source, capacity=13)
    starts = ring.held_rows[ring.steps_left[ring.held_rows] > 0]
    assert ring.observation[0][starts][:, 1].tolist() == [4] * 5 + [6] * 5


def test_no_sample_starts_where_frames_before_it_are_missing(tmp_path: Path) -> None:
    layout = dataclasses.replace(
        LAYOUT, observation=(LAYOUT.observation[0], Column("observation/i", (1, 1, 1), "uint8"))
    )

    def segment(number: int, first_step: int) -> Segment:
        made = numbered_segment(number=number, first_step=first_step, episode=0, ends_episode=False)
        made.observation[1] = made.observation[0][:, 2].astype(np.uint8).reshape(-1, 1, 1, 1)
        return made

    source = Ring.open(tmp_path / "source", layout, 60, 24)
    source.extend([segment(0, 0), segment(1, 5)])  # The second has no history.
    ring = Ring.open(tmp_path / "new/replay", layout, 60, 24)
    fill(ring, of(tmp_path / "source"), tmp_path / "new/checkpoints", frame_stack=3)
    drawn = draw_transitions(ring, np.random.default_rng(0), 20, 32, frame_stack=3)
    steps = drawn.observation[0][..., 2].astype(int)
    assert set(steps.ravel()) == {0, 1, 2, 3, 4, 7, 8, 9}
    frames = drawn.observation[1].reshape(*steps.shape, 3)
    np.testing.assert_array_equal(frames, np.maximum(steps[..., None] + np.arange(-2, 1), 0))


def test_other_layouts_are_told_column_by_column(tmp_path: Path) -> None:
    ours = dataclasses.replace(LAYOUT, returns=Column("return", (), "float32"))
    other = dataclasses.replace(LAYOUT, action=(Column("action", (4,), "float32"),))
    told = differences(ours, other)
    assert told == ["action: here float32 [2], there float32 [4]", "return: here float32 [], there none"]
    assert differences(LAYOUT, ours) == [], "nobody needs those that are there"
    Ring.open(tmp_path / "other", other, 60, 24)
    with pytest.raises(UserError, match=r"another layout.*action: here float32 \[2\], there float32 \[4\]"):
        fill_run(tmp_path / "new", tmp_path / "other")


def test_columns_that_were_not_asked_for_there_or_here(tmp_path: Path) -> None:
    """Nobody has said what explored: nothing has. Potentials can't be made up; those that nobody wants are left out."""
    optional = Layout.from_specs(np.zeros(1), np.zeros(1), ["explored", "potential"])
    full = dataclasses.replace(LAYOUT, explored=optional.explored, potential=optional.potential)
    cutting = dataclasses.replace(full, potential=None)
    run_with(tmp_path / "plain", 2)
    ring = Ring.open(tmp_path / "cutting" / "replay", cutting, 60, 24)
    fill(ring, of(tmp_path / "plain"), tmp_path / "cutting/checkpoints")
    assert ring.explored is not None and ring.ring_steps == 10 and not ring.explored[ring.held_rows].any()
    assert differences(full, LAYOUT) == differences(full, cutting) == ["potential: here float32 [], there none"]
    other = Ring.open(tmp_path / "full", full, 60, 24)
    explored, potential = np.array([0, 1, 0, 0, 1], np.uint8), np.arange(6, dtype=np.float32)
    assert other.append(dataclasses.replace(numbered_segment(), explored=explored, potential=potential))
    for layout in (LAYOUT, cutting, full):
        folder = tmp_path / f"of {layout.optional}"
        ring = Ring.open(folder, layout, 60, 24)
        fill(ring, of(tmp_path / "full"), folder / "checkpoints")
        (segment,) = StoredRing(folder).segments()
        for name, wanted in (("explored", explored.tolist()), ("potential", potential.tolist())):
            found = getattr(segment, name)
            assert (found is not None) == (name in layout.optional)
            assert found is None or found.tolist() == wanted


def test_what_is_no_ring_or_has_segments_that_are_too_long_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no replay ring: give the directory of a run"):
        StoredRing(tmp_path)
    run = run_with(tmp_path / "run")
    description = json.loads((run / "replay/layout.json").read_text())
    (run / "replay/layout.json").write_text(json.dumps(description | {"version": 2}))
    with pytest.raises(UserError, match="another version of this program made"):
        StoredRing(run)
    (run / "replay/layout.json").write_text("{")
    with pytest.raises(UserError, match="can't be read"):
        StoredRing(run)
    filled_ring(tmp_path / "long", 2, capacity=100, slack=60, steps=40)
    with pytest.raises(UserError, match="a segment of 41 rows does not fit a ring of 20: raise buffer_size"):
        fill_run(tmp_path / "new", tmp_path / "long", capacity=20)
