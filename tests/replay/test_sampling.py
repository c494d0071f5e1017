"""What is drawn are true transitions, uniformly, and nothing crosses an episode's end."""

import dataclasses
import math

import numpy as np
import pytest

from tests.support.draws import draw_sequences, draw_transitions
from tests.support.segments_for_tests import LAYOUT, numbered_segment
from tfagents_system.checks.schedules import Schedule
from tfagents_system.replay import sampling
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.sampling import DrawSettings, MiniRaces, TransitionForm, draw_times, experience, mini_race
from tfagents_system.transport.segments import Column, Layout, MalformedSegmentError, from_wire


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
            from_wire(segment.to_wire(), LAYOUT)[0]
        assert ring.append(from_wire(segment.to_wire(), layout)[0])
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


# n-step returns, cuts at exploration, mini-races and potentials: rows computed by hand.


GAMMA, T = 0.5, 140
EVERYTHING = dataclasses.replace(
    LAYOUT,
    **{
        name: getattr(Layout.from_specs(np.zeros(1), np.zeros(1), ["explored", "potential"]), name)
        for name in ("explored", "potential")
    },
)


def columns(*rows):
    """Each step's numbers as the arrays `[N]` of one place."""
    return [np.array([value], np.float32) for value in rows]


def found(rewards=(1, 2, 4), discounts=(1, 1, 1), steps_left=3, explored=None):
    told = None if explored is None else [np.array([each], np.uint8) for each in explored]
    return experience(columns(*rewards), columns(*discounts), np.array([steps_left]), GAMMA, told)


def raced(t, **options):
    """Reward and g of a mini-race at t."""
    reward, discount = mini_race(found(**options), np.array([t]), T)
    return float(reward[0]), float(GAMMA * discount[0])


def test_rewards_and_gammas_of_three_steps():
    of = found()
    assert [float(each[0]) for each in of.rewards] == [1, 2, 3]  # 1, + 0.5 * 2, + 0.25 * 4
    assert [GAMMA * float(each[0]) for each in of.discounts] == [0.5, 0.25, 0.125]
    assert of.n_steps.tolist() == [3]


@pytest.mark.parametrize(
    ("explored", "steps_left", "steps", "reward", "g"),
    [
        ((0, 0, 0), 9, 3, 3.0, 0.125),
        ((1, 0, 0), 9, 3, 3.0, 0.125),  # The first action may explore.
        ((0, 1, 0), 9, 1, 1.0, 0.5),
        ((0, 0, 1), 9, 2, 2.0, 0.25),
        ((1, 1, 1), 9, 1, 1.0, 0.5),
        ((0, 0, 0), 2, 2, 2.0, 0.25),
        ((0, 0, 1), 1, 1, 1.0, 0.5),  # What is behind the segment's end is another's.
    ],
)
def test_a_transition_ends_before_the_next_action_that_explored(explored, steps_left, steps, reward, g):
    of = found(explored=explored, steps_left=steps_left)
    reached = of.n_steps.tolist(), of.rewards[-1].tolist(), (GAMMA * of.discounts[-1]).tolist()
    assert reached == ([steps], [reward], [g])


def test_the_environments_discounts_are_in_both():
    of = found(discounts=(0.5, 1, 0.5))
    assert [float(each[0]) for each in of.rewards] == [1, 1.5, 2]
    assert [GAMMA * float(each[0]) for each in of.discounts] == [0.25, 0.125, 0.03125]


@pytest.mark.parametrize(
    ("t", "reward", "g"),
    [
        (0, 3.0, 0.125),
        (136, 3.0, 0.125),  # t + n = 139
        (137, 3.0, 0.0),  # n' = 3, and t + n = T: over
        (138, 2.0, 0.0),  # n' = 2
        (139, 1.0, 0.0),  # n' = 1
    ],
)
def test_the_end_of_a_mini_race(t, reward, g):
    assert raced(t) == (reward, g)


@pytest.mark.parametrize(
    ("discounts", "t", "reward", "g"),
    [
        ((1, 1, 0), 0, 3.0, 0.0),  # The finish is the third step.
        ((1, 0, 1), 0, 2.0, 0.0),  # The second: nothing comes after it.
        ((1, 1, 0), 138, 2.0, 0.0),  # Over before it gets there,
        ((1, 1, 1), 138, 2.0, 0.0),  # which is the same.
        ((0, 1, 1), 139, 1.0, 0.0),
    ],
)
def test_a_finish_within_n_steps(discounts, t, reward, g):
    steps_left = 1 + int(np.argmin([*discounts[:-1], 0]))
    assert raced(t, discounts=discounts, steps_left=steps_left) == (reward, g)


def test_the_distribution_of_times():
    """Of T + 40 equally likely numbers, 2 b + 1 give 0, two each of 1 to 30, one each of those behind."""
    races = MiniRaces(T)
    count = 400_000
    times = draw_times(np.random.default_rng(0), count, races)
    assert (times.min(), times.max()) == (0, T - 1)
    shares = np.array([11] + [2] * 30 + [1] * (T - 31)) / (T + 40)
    assert shares.sum() == pytest.approx(1.0)
    seen = np.bincount(times, minlength=T)
    statistic = float(((seen - count * shares) ** 2 / (count * shares)).sum())
    assert abs(statistic - (T - 1)) < 4 * math.sqrt(2 * (T - 1))


def full_ring(folder, segments=6, steps=9):
    """Explored in each fourth step; the potential is 100 + step."""
    ring = Ring.open(folder, EVERYTHING, 100, slack_rows=20)
    for number in range(segments):
        segment = numbered_segment(number=number, steps=steps, terminates=number % 2 == 0, held_out=number == 5)
        explored = (np.arange(steps) % 4 == 3).astype(np.uint8)
        potential = 100 + np.arange(steps + 1, dtype=np.float32)
        assert ring.append(dataclasses.replace(segment, explored=explored, potential=potential))
    return ring


@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_draws_from_the_ring(tmp_path, held_out, whole):
    """Each sample against the rules, from the step that it shows."""
    ring, races, steps, n = full_ring(tmp_path), MiniRaces(12, (4, 1)), 9, 3
    form = TransitionForm(n, cuts_at_exploration=True, races=races)
    settings = DrawSettings(64, form, 9, 0, discount=0.9, whole_bootstrap=whole, held_out=held_out)
    batch = form.draw(ring, np.random.default_rng(3), settings, 20)
    ids = batch.observation[0].reshape(-1, 3).astype(int)
    assert set(ids[:, 1]) == ({5} if held_out else {0, 1, 2, 3, 4})
    next_step = batch.next_observation[0].reshape(-1, 3)[:, 2]
    drawn = zip(
        ids.tolist(),
        next_step,
        *(each.reshape(-1) for each in (batch.reward, batch.discount, batch.horizon_time, batch.next_horizon_time)),
        strict=True,
    )
    seen = set()
    for (_, episode, step), following, reward, discount, before, behind in drawn:
        cut = next((k for k in range(1, n) if (step + k) % 4 == 3), n)
        count = min(n, steps - step, cut)
        t = round(before * races.steps)
        assert following == step + count
        assert behind == pytest.approx((t + count) / races.steps)
        within = count - max(0, t + count - races.steps)
        ends = t + count >= races.steps or (episode % 2 == 0 and step + within == steps)
        g = 0.0 if ends else 0.9**within
        rewards = sum(0.9**k * (1000 * episode + step + k) for k in range(within))
        shaped = rewards + g * (100 + following) - (100 + step)
        assert reward == pytest.approx(shaped, rel=1e-5, abs=1e-3)
        assert discount == pytest.approx(g if whole else g / 0.9)
        seen.add((within, ends))
    assert seen == {(k, end) for k in (1, 2, 3) for end in (False, True)}


def test_a_scheduled_discount_is_that_of_the_iteration(tmp_path):
    """The whole factor of the next value, and of the rewards between."""
    ring = full_ring(tmp_path)
    form = TransitionForm(2)
    follow = Schedule.of({"points": [[0, 0.5], [100, 0.9]], "by": "env_steps"})
    settings = DrawSettings(64, form, 9, 0, discount=0.5, schedules={"discount": follow}, whole_bootstrap=True)
    for env_steps, discount in ((0, 0.5), (50, 0.7), (900, 0.9)):
        batch = form.draw(ring, np.random.default_rng(3), settings.at(env_steps, 7, 1), 10)
        ids, following = (leaf.reshape(-1, 3) for leaf in (batch.observation[0], batch.next_observation[0]))
        count, rest = following[:, 2] - ids[:, 2], following[:, 2] == 9
        g = np.where(rest & (ids[:, 1] % 2 == 0), 0.0, discount**count)
        np.testing.assert_allclose(batch.discount.reshape(-1), g, rtol=1e-5)
        reward = 1000 * ids[:, 1] + ids[:, 2] + (count == 2) * discount * (1000 * ids[:, 1] + ids[:, 2] + 1)
        shaped = reward + g * (100 + following[:, 2]) - (100 + ids[:, 2])
        np.testing.assert_allclose(batch.reward.reshape(-1), shaped, rtol=1e-4, atol=1e-2)
