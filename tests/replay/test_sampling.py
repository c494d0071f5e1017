"""What is drawn are true transitions, uniformly, and nothing crosses an episode's end."""

import numpy as np
import pytest
from segments_for_tests import LAYOUT, numbered_segment

from tfagents_system.replay.ring import Ring
from tfagents_system.replay.sampling import NothingToDrawError, draw_sequences, draw_transitions


def assert_uniform(counts):
    """Pearson's chi-squared statistic, which for k cells has mean k - 1 and variance 2 (k - 1): within 4 sigma."""
    freedom = len(counts) - 1
    statistic = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
    assert abs(statistic - freedom) < 4 * np.sqrt(2 * freedom)


@pytest.fixture
def ring(tmp_path):
    """Three workers' episodes of 3 to 9 steps, interleaved, some cut into two segments, around the ring's end."""
    ring = Ring.open(tmp_path / "ring", LAYOUT, 150)
    rng = np.random.default_rng(0)
    numbers = [0, 0, 0]
    for episode in range(40):
        worker_id, steps = episode % 3, int(rng.integers(3, 10))
        cut = steps // 2
        parts = [(0, cut, False), (cut, steps - cut, True)] if episode % 4 == 0 else [(0, steps, True)]
        for first_step, length, ends in parts:
            segment = numbered_segment(
                worker_id,
                numbers[worker_id],
                length,
                episode=episode,
                first_step=first_step,
                ends_episode=ends,
                terminates=ends and episode % 2 == 0,
            )
            assert ring.append(segment)
            numbers[worker_id] += 1
    return ring


def test_every_row_is_a_true_transition(ring):
    batch = draw_transitions(ring, np.random.default_rng(1), num_minibatches=20, batch_size=64)
    ids, next_ids = batch.observation[0].reshape(-1, 3), batch.next_observation[0].reshape(-1, 3)
    np.testing.assert_array_equal(next_ids[:, :2], ids[:, :2], "same worker and episode")
    np.testing.assert_array_equal(next_ids[:, 2], ids[:, 2] + 1, "the step after")
    np.testing.assert_allclose(batch.action[0].reshape(-1, 2), ids[:, 1:] / 1e4)
    np.testing.assert_array_equal(batch.reward.reshape(-1), 1000 * ids[:, 1] + ids[:, 2])
    np.testing.assert_array_equal(batch.observation[1][..., 0, 0].reshape(-1), ids[:, 2])
    np.testing.assert_array_equal(batch.next_observation[1][..., 0, 0].reshape(-1), next_ids[:, 2])


def test_the_discount_is_zero_in_terminating_transitions_only(ring):
    batch = draw_transitions(ring, np.random.default_rng(2), 50, 64)
    rows = ring.held_rows[ring.discount[ring.held_rows] == 0]
    terminating = {tuple(ring.observation[0][row]) for row in rows if ring.steps_left[row] > 0}
    drawn = {tuple(row) for row in batch.observation[0].reshape(-1, 3)[batch.discount.reshape(-1) == 0]}
    assert drawn == terminating
    assert len(terminating) > 3


def test_transitions_are_drawn_uniformly(ring):
    draws = 400 * ring.ring_steps
    batch = draw_transitions(ring, np.random.default_rng(3), draws // 64, 64)
    _, counts = np.unique(batch.observation[0].reshape(-1, 3), axis=0, return_counts=True)
    assert len(counts) == ring.ring_steps, "every transition is drawn"
    assert_uniform(counts)


def test_sequences_stay_within_an_episode_and_are_uniform_over_their_starts(ring):
    length = 4
    batch = draw_sequences(ring, np.random.default_rng(4), 400, 64, length)
    ids = batch.observation[0].reshape(-1, length + 1, 3)
    assert (ids[:, :, :2] == ids[:, :1, :2]).all(), "one worker, one episode"
    np.testing.assert_array_equal(np.diff(ids[:, :, 2], axis=1), 1)
    starts = int(np.count_nonzero(ring.steps_left[ring.held_rows] >= length))
    _, counts = np.unique(ids[:, 0], axis=0, return_counts=True)
    assert len(counts) == starts
    assert_uniform(counts)
    first = ids[:, 0, 2] == 0
    np.testing.assert_array_equal(batch.step_type.reshape(-1, length + 1)[:, 0] == 0, first, "FIRST where it is")
    assert (batch.step_type[..., 1:-1] == 1).all()


def test_rare_starts_are_found_by_listing_them(tmp_path):
    ring = Ring.open(tmp_path / "ring", LAYOUT, 4000)
    for number in range(999):
        ring.append(numbered_segment(number=number, steps=1))
    ring.append(numbered_segment(number=999, steps=6))
    batch = draw_sequences(ring, np.random.default_rng(5), 2, 32, length=6)
    assert (batch.observation[0][..., 0, 1] == 999).all()


def test_the_same_random_numbers_draw_the_same_minibatches(ring):
    first, second = (draw_transitions(ring, np.random.default_rng(6), 2, 8).to_arrays() for _ in range(2))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


def test_nothing_to_draw_is_said(tmp_path):
    ring = Ring.open(tmp_path / "ring", LAYOUT, 100)
    rng = np.random.default_rng(7)
    with pytest.raises(NothingToDrawError, match="is empty"):
        draw_transitions(ring, rng, 1, 8)
    ring.append(numbered_segment(steps=5))
    with pytest.raises(NothingToDrawError, match="has 6 steps"):
        draw_sequences(ring, rng, 1, 8, length=6)
