"""What is drawn are true transitions, uniformly, and nothing crosses an episode's end."""

import dataclasses

import numpy as np
import pytest

from tests.support.draws import draw_sequences, draw_transitions
from tests.support.segments_for_tests import LAYOUT, numbered_segment
from tfagents_system.replay import sampling
from tfagents_system.replay.ring import Ring
from tfagents_system.transport.segments import Column, MalformedSegmentError, Segment


def assert_uniform(counts):
    """Pearson's chi-squared statistic, which for k cells has mean k - 1 and variance 2 (k - 1): within 4 sigma."""
    freedom = len(counts) - 1
    statistic = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
    assert abs(statistic - freedom) < 4 * np.sqrt(2 * freedom)


@pytest.fixture
def ring(tmp_path):
    """Three workers' episodes of 3 to 9 steps, interleaved, some cut into two segments, around the ring's end."""
    ring = Ring.open(tmp_path / "ring", LAYOUT, 150, slack_rows=20)
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


def test_transitions_are_drawn_uniformly(ring):
    draws = 400 * ring.ring_steps
    batch = draw_transitions(ring, np.random.default_rng(3), draws // 64, 64)
    _, counts = np.unique(batch.observation[0].reshape(-1, 3), axis=0, return_counts=True)
    assert len(counts) == ring.ring_steps, "every transition is drawn"
    assert_uniform(counts)


class EveryWindow:
    """Draws each step in a ring with each of its places in a window, once, instead of at random."""

    def __init__(self, ring, size, monkeypatch):
        held = ring.held_rows
        self.rows = np.repeat(held[ring.steps_left[held] > 0], size)
        self.places = np.tile(np.arange(size), len(self.rows) // size)
        monkeypatch.setattr(sampling, "draw_rows", lambda *args: self.rows)

    def integers(self, high, size):
        return self.places.reshape(size)


@pytest.mark.parametrize("burn_in", [0, 3])
@pytest.mark.parametrize("size", [1, 4, 30])
def test_every_step_weighs_the_same_wherever_in_its_episode_it_is(ring, monkeypatch, size, burn_in):
    """Of episodes of 3 to 9 steps, whole or in two pieces: first, middle and terminal steps, in any segment."""
    every = EveryWindow(ring, size, monkeypatch)
    batch = draw_sequences(ring, every, 1, len(every.rows), size + burn_in, burn_in=burn_in)
    ids, weight = batch.observation[0][0], batch.weight[0]
    np.testing.assert_allclose(weight.sum(axis=1), size, rtol=1e-5)
    steps, inverse = np.unique(ids.reshape(-1, 3), axis=0, return_inverse=True)
    total = np.bincount(inverse.reshape(-1), weight.reshape(-1))
    held = ring.held_rows
    starts = {tuple(row) for row in ring.observation[0][held[ring.steps_left[held] > 0]]}
    assert {tuple(step) for step, each in zip(steps, total, strict=True) if each > 0} == starts
    np.testing.assert_allclose(total[total > 0], size * size, rtol=1e-5)
    terminal = batch.discount[0] == 0
    assert (terminal & (weight > 0)).any()


@pytest.mark.parametrize("burn_in", [0, 3])
def test_sequences_are_true_steps_of_one_segment_and_what_fills_them_up_is_of_it(ring, burn_in):
    """Whatever is behind a segment, NaN too, is never read."""
    total = 4 + burn_in
    last = ring.steps_left == 0
    ring.reward[last], ring.discount[last], ring.action[0][last] = np.nan, np.nan, np.nan
    batch = draw_sequences(ring, np.random.default_rng(4), 200, 64, total, burn_in=burn_in)
    ids, weight = batch.observation[0].reshape(-1, total + 1, 3), batch.weight.reshape(-1, total + 1)
    assert (ids[:, :, :2] == ids[:, :1, :2]).all(), "one worker, one episode"
    assert np.isin(np.diff(ids[:, :, 2], axis=1), [0, 1]).all()
    is_step = weight > 0
    assert not is_step[:, :burn_in].any() and not is_step[:, -1].any()
    assert (np.diff(is_step[:, burn_in:].astype(int), axis=1) <= 0).all(), "first the steps, then what fills up"
    np.testing.assert_allclose(weight[is_step], np.repeat(4 / is_step.sum(1), is_step.sum(1)))
    np.testing.assert_array_equal(ids[:, 1:, 2][is_step[:, :-1]], ids[:, :-1, 2][is_step[:, :-1]] + 1)
    for values, expected in (
        (batch.reward.reshape(weight.shape), 1000 * ids[..., 1] + ids[..., 2]),
        (batch.action[0].reshape(*weight.shape, 2), ids[..., 1:] / 1e4),
    ):
        np.testing.assert_allclose(values[is_step], expected[is_step])
        assert np.isfinite(values).all()
    assert set(is_step.sum(1)) == {1, 2, 3, 4}


def test_memories_begin_where_a_segment_has_no_more_steps_for_the_burn_in(tmp_path):
    ring = Ring.open(tmp_path / "ring", LAYOUT, 100)
    ring.append(numbered_segment(steps=4, ends_episode=False))
    ring.append(numbered_segment(number=1, steps=6, episode=0, first_step=4))
    batch = draw_sequences(ring, np.random.default_rng(0), 1, 500, 5, burn_in=3)
    for ids, step_type, weight in zip(batch.observation[0][0], batch.step_type[0], batch.weight[0], strict=True):
        first_step = int(ids[np.flatnonzero(weight)[0], 2])
        segment_start = 4 if first_step >= 4 else 0
        burnt_in = min(3, first_step - segment_start)
        np.testing.assert_array_equal(ids[3 - burnt_in : 4, 2], np.arange(first_step - burnt_in, first_step + 1))
        if burnt_in < 3 or first_step == 3:
            assert step_type[3 - burnt_in] == 0
        assert (step_type[4 - burnt_in :] != 0).all(), "no state is lost behind it"


def test_episodes_of_one_step_are_learned_from(tmp_path):
    ring = Ring.open(tmp_path / "ring", LAYOUT, 4000)
    for number in range(99):
        ring.append(numbered_segment(number=number, steps=1, terminates=True))
    ring.append(numbered_segment(number=99, steps=6))
    batch = draw_sequences(ring, np.random.default_rng(5), 100, 105, length=20)
    share = batch.weight[batch.observation[0][..., 1] < 99].sum() / batch.weight.sum()
    assert share == pytest.approx(99 / 105, abs=0.01)
    np.testing.assert_array_equal(batch.weight[batch.discount == 0][::21], 20, "the step, then what fills up")


# Transitions of several steps.


def n_step_transitions(ring, n_step, gamma):
    """(reward, discount, step that it led to) of all transitions in a ring, by (worker, episode, step)."""
    batch = draw_transitions(ring, np.random.default_rng(8), 40, 64, n_step=n_step, gamma=gamma)
    ids, next_ids = batch.observation[0].reshape(-1, 3), batch.next_observation[0].reshape(-1, 3)
    np.testing.assert_array_equal(next_ids[:, :2], ids[:, :2], "same worker and episode")
    values = zip(batch.reward.reshape(-1), batch.discount.reshape(-1), next_ids[:, 2], strict=True)
    return {tuple(map(int, key)): tuple(map(float, value)) for key, value in zip(ids, values, strict=True)}


@pytest.mark.parametrize(("n_step", "gamma"), [(2, 0.9), (20, 1.0)])
def test_n_steps_around_the_rings_end_equal_a_plain_loop(ring, n_step, gamma):
    """Whatever is behind a segment, NaN too, is never read."""
    assert ring.total_rows > ring.num_rows, "it has gone around"
    last, expected = ring.steps_left == 0, {}
    ring.reward[last], ring.discount[last] = np.nan, np.nan
    for row in ring.held_rows[ring.steps_left[ring.held_rows] > 0]:
        steps = min(n_step, int(ring.steps_left[row]))
        rows = [(int(row) + k) % ring.num_rows for k in range(steps + 1)]
        reward = sum(gamma**k * float(ring.reward[rows[k]]) for k in range(steps))
        discount = gamma ** (steps - 1) * float(ring.discount[rows[steps - 1]])
        expected[tuple(map(int, ring.observation[0][row]))] = reward, discount, ring.observation[0][rows[steps]][2]
    found = n_step_transitions(ring, n_step, gamma)
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        np.testing.assert_allclose(found[key], values, rtol=1e-5)


# Returns, where the ring has them.


def test_returns_travel_are_stored_and_are_drawn_with_their_steps(tmp_path):
    layout = dataclasses.replace(LAYOUT, returns=Column("return", (), "float32"))
    ring = Ring.open(tmp_path / "ring", layout, 60, slack_rows=20)
    for number in range(30):
        segment = numbered_segment(number=number, steps=3 + number % 5)
        segment.returns = segment.reward + 0.5
        with pytest.raises(MalformedSegmentError, match="arrays but found"):
            Segment.from_wire(segment.to_wire(), LAYOUT)
        assert ring.append(Segment.from_wire(segment.to_wire(), layout))
    ring = Ring.open(tmp_path / "ring", layout, 60, slack_rows=20)
    assert ring.verify() == 0 and ring.total_rows > ring.num_rows
    rng = np.random.default_rng(0)
    for batch in (draw_transitions(ring, rng, 4, 64), draw_sequences(ring, rng, 4, 64, 6, burn_in=2)):
        np.testing.assert_array_equal(batch.to_arrays()[-1], batch.reward + 0.5)
    ring.returns[ring.held_rows[ring.steps_left[ring.held_rows] > 0][-1]] += 1.0
    assert ring.verify() > 0, "checksums cover them"


# What is held out.


def ring_with_held_out(folder, share=4, segments=60, capacity=150, steps=5):
    """Every `share`-th episode is held out; the ring has gone around."""
    ring = Ring.open(folder, LAYOUT, capacity, slack_rows=24)
    for number in range(segments):
        held_out = number % share == share - 1
        assert ring.append(numbered_segment(number=number, steps=steps, held_out=held_out, terminates=number % 2 == 0))
    return ring


def episodes_of(batch):
    return batch.observation[0].reshape(-1, 3)[:, 1].astype(int)


@pytest.mark.parametrize("share", [2, 20])
def test_training_gets_all_but_what_is_held_out_uniformly_and_validation_the_rest(tmp_path, share):
    ring = ring_with_held_out(tmp_path / "ring", share)
    for held_out, steps in ((False, ring.training_steps), (True, ring.held_out_steps)):
        batch = draw_transitions(ring, np.random.default_rng(9), 5 * steps, 64, held_out=held_out)
        assert {number % share == share - 1 for number in episodes_of(batch)} == {held_out}
        _, counts = np.unique(batch.observation[0].reshape(-1, 3), axis=0, return_counts=True)
        assert len(counts) == steps
        assert_uniform(counts)
