"""n-step returns, cuts at exploration, mini-races and potentials: rows computed by hand."""

import dataclasses
import math

import numpy as np
import pytest

from tests.support.segments_for_tests import LAYOUT, numbered_segment
from tfagents_system.checks.schedules import Schedule
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.sampling import DrawSettings, MiniRaces, TransitionForm, draw_times, experience, mini_race
from tfagents_system.transport.segments import Layout

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
