"""Another agent learns from the ring of the one before: what counts anew, and what stays."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.support.run_for_tests import CAPACITY, SLACK
from tests.support.segments_for_tests import LAYOUT, append_more, numbered_segment
from tests.support.waiting import until
from tfagents_system.replay.priorities import Priorities
from tfagents_system.replay.recovery import RingFolders, open_ring
from tfagents_system.replay.ring import INIT_ITERATION
from tfagents_system.replay.snapshots import SnapshotWriter
from tfagents_system.run_files import run_checkpoints


def opened(exp_dir, *, epoch=1, counts_kept_steps=False, from_checkpoint=False):
    places = RingFolders(
        exp_dir / "replay",
        exp_dir / "replay",
        exp_dir / "checkpoints",
        (exp_dir / "before_reset_1" / "checkpoints",),
    )
    ring, copy = open_ring(
        places,
        LAYOUT,
        CAPACITY,
        SLACK,
        from_checkpoint=from_checkpoint,
        epoch=epoch,
        counts_kept_steps=counts_kept_steps,
    )
    return ring, SnapshotWriter(ring, copy, places.checkpoints)


def checkpoint(exp_dir, snapshots, train_step):
    partial = run_checkpoints.begin(exp_dir / "checkpoints", train_step)
    (partial / "agent.index").write_bytes(b"index")
    assert snapshots.take(run_checkpoints.finished_name(partial))
    until((partial / run_checkpoints.REPLAY).exists, 20.0, "the header")
    return run_checkpoints.finish(partial, train_step, train_step, {})


def append_of_new_process(ring, number=0, iteration=0):
    """As a worker that starts after the reset sends it."""
    segment = numbered_segment(number=number, steps=5, iteration=iteration)
    assert ring.append(dataclasses.replace(segment, incarnation=ring.worker(0).incarnation + (number == 0)))


def rows_of(ring):
    return [column[ring.held_rows].tolist() for column in ring.rows.columns]


def test_a_new_agent_has_the_experience_and_counts_iterations_anew(tmp_path):
    ring, _ = opened(tmp_path)
    append_more(ring, 13)
    rows, env_steps, record = rows_of(ring), ring.env_steps, ring.worker(0)
    ring, _ = opened(tmp_path, epoch=2)
    assert (rows_of(ring), ring.env_steps, ring.epoch) == (rows, env_steps, 2)
    assert ring.steps_up_to(0) == 0, "kept steps do not count for the ratio"
    assert (ring.iterations_done <= INIT_ITERATION).all()
    assert ring.worker(0).number == record.number and ring.worker(0).incarnation == record.incarnation + 1
    append_of_new_process(ring)
    assert ring.steps_up_to(0) == 5
    again, _ = opened(tmp_path, epoch=2)
    assert again.env_steps == ring.env_steps and again.worker(0) == ring.worker(0), "once, not at every start"


def test_an_agent_that_catches_up_counts_the_steps_that_the_ring_holds(tmp_path):
    ring, _ = opened(tmp_path)
    append_more(ring, 13)
    kept = ring.ring_steps
    assert kept < ring.env_steps - ring.init_steps, "some were given up"
    ring, _ = opened(tmp_path, epoch=2, counts_kept_steps=True)
    assert ring.steps_up_to(0) == kept


def test_an_agent_that_catches_up_counts_steps_that_the_one_before_did_not(tmp_path):
    ring, _ = opened(tmp_path)
    random = numbered_segment(number=0, steps=7, iteration=INIT_ITERATION)
    assert ring.append(random)
    append_more(ring, 3)
    ring, _ = opened(tmp_path, epoch=2)
    append_of_new_process(ring)
    assert (ring.steps_up_to(0), ring.ring_steps, ring.random_steps) == (5, 27, 7)
    ring, _ = opened(tmp_path, epoch=3, counts_kept_steps=True)
    assert ring.steps_up_to(0) == 20, "all that are there, but the random ones"


def test_a_process_of_before_the_reset_is_not_the_next_of_its_worker(tmp_path):
    ring, _ = opened(tmp_path)
    append_more(ring, 3)
    before = ring.worker(0)
    ring, _ = opened(tmp_path, epoch=2)
    stale = numbered_segment(number=before.number + 1, steps=5, iteration=before.number + 1)
    assert not ring.append(stale), "it is of an iteration of the agent before"
    append_of_new_process(ring)


@pytest.mark.parametrize("is_deterministic", [False, True])
def test_without_a_checkpoint_of_its_own_a_new_agent_goes_back_to_that_of_the_one_before(tmp_path, is_deterministic):
    ring, snapshots = opened(tmp_path)
    append_more(ring, 10)
    checkpoint(tmp_path, snapshots, 10)
    rows, env_steps = rows_of(ring), ring.env_steps
    (tmp_path / "before_reset_1").mkdir()
    (tmp_path / "checkpoints").rename(tmp_path / "before_reset_1" / "checkpoints")
    ring, _ = opened(tmp_path, epoch=2)
    append_of_new_process(ring)
    if not is_deterministic:
        (tmp_path / "replay" / "origin.json").unlink()  # As after a power cut.
    ring, snapshots = opened(tmp_path, epoch=2, from_checkpoint=is_deterministic)
    assert (rows_of(ring), ring.env_steps, ring.epoch) == (rows, env_steps, 2)
    (tmp_path / "checkpoints").mkdir()
    append_of_new_process(ring)
    checkpoint(tmp_path, snapshots, 5)
    total = ring.total_rows
    append_of_new_process(ring, 1, 1)
    ring, _ = opened(tmp_path, epoch=2, from_checkpoint=True)
    assert (ring.total_rows, ring.epoch) == (total, 2)


def test_priorities_are_those_of_one_agent(tmp_path):
    ring, _ = opened(tmp_path)
    append_more(ring, 5)
    Priorities(ring, 1.0).measure(np.arange(20), np.full(20, 3, np.float32))
    assert (tmp_path / "replay/priorities.bin").exists()
    opened(tmp_path)
    assert (tmp_path / "replay/priorities.bin").exists()
    opened(tmp_path, epoch=2)
    assert not (tmp_path / "replay/priorities.bin").exists()
