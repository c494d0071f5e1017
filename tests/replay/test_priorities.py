"""Draws by priority from a ring: which rows, with which weights, and what their TD errors change."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.segments_for_tests import LAYOUT, append_more, filled_ring, numbered_segment
from tfagents_system.checks.schedules import Schedule
from tfagents_system.replay import sampling
from tfagents_system.replay.priorities import EPSILON, GROUP, NO_ROW, Priorities, SumTree
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.sampling import DrawSettings, MiniRaces, PriorData, TransitionForm

B, STEPS = 32, 5
FORM = TransitionForm(is_prioritized=True)


def prioritized(ring: Ring, exponent: float = 1.0, beta: float = 1.0, **others: Any) -> DrawSettings:
    given = {"form": FORM, "batch_size": B, "max_block_minibatches": 8, "seed": 3, **others}
    return DrawSettings(priorities=Priorities(ring, exponent), beta=beta, **given)


def priorities_of(settings: DrawSettings) -> Priorities:
    assert settings.priorities is not None
    return settings.priorities


def drawn(ring: Ring, settings: DrawSettings, count: int = 60, **options: bool) -> dict[str, np.ndarray]:
    """Arrays by name, `[K * B, ...]`; those of the last part, where there are two."""
    arrays = sampling.draw(ring, np.random.default_rng(1), settings, count, **options)
    names = list(settings.form.arrays(has_returns=False))
    names.insert(1, "image")
    names.insert(names.index("next_observation") + 1, "next image")
    return dict(zip(names, (array.reshape(-1, *array.shape[2:]) for array in arrays[-len(names) :]), strict=True))


def measured(ring: Ring, settings: DrawSettings, errors: dict[tuple[int, int], float], other: float = 1.0) -> None:
    """Gives the steps (episode, step) these errors, and all others that are trained on another one."""
    places = np.flatnonzero(ring.is_training_start(slice(0, ring.num_rows)))
    ids = ring.observation[0][places, 1:].astype(int)
    values = [errors.get((int(episode), int(step)), other) for episode, step in ids]
    priorities = priorities_of(settings)
    priorities.measure(priorities.numbers(places), np.array(values, np.float32) - EPSILON)


def counts(samples: dict[str, np.ndarray]) -> dict[tuple[int, int], int]:
    steps, found = np.unique(samples["observation"][:, -2:].astype(int), axis=0, return_counts=True)
    return {(int(episode), int(step)): int(count) for (episode, step), count in zip(steps, found, strict=True)}


def test_steps_are_drawn_by_their_errors_and_weights_make_up_for_it(tmp_path: Path) -> None:
    ring = filled_ring(tmp_path / "ring", segments=2)
    settings = prioritized(ring, exponent=0.5)
    measured(ring, settings, {(0, 0): 16.0, (1, 4): 4.0})
    samples = drawn(ring, settings, 400)
    total, number = 4.0 + 2.0 + 8.0, 10  # Roots of the errors.
    found, draws = counts(samples), 400 * B
    for step, root in (((0, 0), 4.0), ((1, 4), 2.0), ((1, 3), 1.0)):
        assert found[step] == pytest.approx(draws * root / total, abs=4 * np.sqrt(draws * root / total))
    roots = np.array([{(0, 0): 4.0, (1, 4): 2.0}.get((e, s), 1.0) for _, e, s in samples["observation"].astype(int)])
    raw = 1 / (number * roots / total)
    largest = raw.reshape(400, B).max(axis=1)
    np.testing.assert_allclose(samples["weight"].reshape(400, B), raw.reshape(400, B) / largest[:, None], rtol=1e-5)
    half = drawn(ring, dataclasses.replace(settings, beta=0.5))
    assert sorted(set(np.round(half["weight"], 5))) == pytest.approx([0.5, np.sqrt(0.5), 1], abs=1e-5)
    np.testing.assert_array_equal(drawn(ring, settings)["row"], half["row"])


def test_rows_are_counted_from_the_runs_beginning_and_those_overwritten_since_are_passed_over(tmp_path: Path) -> None:
    ring = filled_ring(tmp_path / "ring")
    settings = prioritized(ring)
    measured(ring, settings, {})
    samples = drawn(ring, settings)
    np.testing.assert_array_equal(
        samples["row"], samples["observation"][:, 1] * (STEPS + 1) + samples["observation"][:, 2]
    )
    append_more(ring, 14)  # Episodes 14 to 23 are held, in the places 0 to 59 of 84.
    measured(ring, settings, {})
    priorities = priorities_of(settings)
    gone, to_come = np.array([0, 7, 14 * 6 - 1, 44]), np.array([3 * 84 + 2, 2 * 84 + 3, NO_ROW])
    priorities.measure(np.concatenate([gone, to_come]), np.full(7, 1e6, np.float32))
    found = counts(drawn(ring, settings))
    assert set(found) == {(episode, step) for episode in range(14, 24) for step in range(STEPS)}
    assert max(found.values()) < 100, "all are alike"
    priorities.measure(np.array([14 * 6 + 2]), np.array([1e6], np.float32))
    assert set(counts(drawn(ring, settings))) == {(14, 2)}


def test_held_out_episodes_are_drawn_for_validation_alone_and_without_priorities(tmp_path: Path) -> None:
    ring = filled_ring(tmp_path / "ring", segments=6)
    ring.append(numbered_segment(number=6, held_out=True))
    settings = prioritized(ring)
    measured(ring, settings, {(2, 2): 100.0})
    assert not any(episode == 6 for episode, _ in counts(drawn(ring, settings)))
    held_out = drawn(ring, dataclasses.replace(settings, held_out=True))
    assert {episode for episode, _ in counts(held_out)} == {6}
    assert (held_out["weight"] == 1).all() and (held_out["row"] == NO_ROW).all()


def test_only_the_beginning_of_a_mini_race_changes_priorities(tmp_path: Path) -> None:
    ring = filled_ring(tmp_path / "ring", segments=4, capacity=60, steps=9)
    form = TransitionForm(3, races=MiniRaces(100, (20, 2)), is_prioritized=True)
    samples = drawn(ring, prioritized(ring, form=form), 200)
    t = np.round(samples["horizon_time"] * 100).astype(int)
    np.testing.assert_array_equal(samples["row"] == NO_ROW, t >= 60)
    rows = samples["observation"][:, 1] * 10 + samples["observation"][:, 2]
    np.testing.assert_array_equal(samples["row"][t < 60], rows[t < 60])
    assert (t >= 60).any() and (t < 60).any()


def test_prior_data_have_no_priorities_and_share_the_scale_of_weights(tmp_path: Path) -> None:
    ring = filled_ring(tmp_path / "ring")
    prior = Ring.open(tmp_path / "prior", LAYOUT, 60, 24)
    prior.take_over([numbered_segment(7, number) for number in range(4)])
    settings = prioritized(ring, prior=PriorData(prior, 12))
    measured(ring, settings, {(3, 3): 50.0})  # P is 50 / 99 there, and 1 / 99 elsewhere: weights 0.0396 and 1.98.
    others = drawn(ring, settings)
    assert set(others["observation"][:, 0]) == {7} and (others["row"] == NO_ROW).all()
    np.testing.assert_allclose(others["weight"], 50 / 99, rtol=1e-4)
    offline = drawn(ring, settings, is_offline=True)
    assert (offline["weight"] == 1).all() and (offline["row"] == NO_ROW).all()


def test_beta_may_be_a_schedule(tmp_path: Path) -> None:
    settings = prioritized(filled_ring(tmp_path / "ring"))
    schedule = Schedule.of({"points": [[0, 0.4], [100, 1.0]], "by": "train_steps"})
    settings = dataclasses.replace(settings, schedules={"beta": schedule})
    assert settings.at(0, 50, 0).beta == pytest.approx(0.7)


def test_a_snapshot_is_of_the_rows_that_were_known_and_of_no_others(tmp_path: Path) -> None:
    ring = filled_ring(tmp_path / "ring")
    priorities = Priorities(ring, 0.6)
    priorities.measure(np.arange(30), np.linspace(0, 3, 30, dtype=np.float32))
    append_more(ring, 12)
    priorities.measure(np.arange(80, 132), np.linspace(1, 3, 52, dtype=np.float32))
    kept, header = priorities.snapshot(), ring.snapshot()

    def draw(of: Priorities) -> list[np.ndarray]:
        return [*of.draw(np.random.default_rng(4), 200)]

    before = draw(priorities)
    np.testing.assert_equal(draw(Priorities(ring, 0.6, kept)), before)
    append_more(ring, 2)
    later = Priorities(ring, 0.6, kept)
    assert (later._column[132 % 84 : 144 % 84] == 0).all(), "not what other rows had there"
    np.testing.assert_equal(draw(later), draw(priorities))
    ring.rollback(header)
    assert Priorities(ring, 0.6, kept).snapshot() == kept
    np.testing.assert_equal(draw(Priorities(ring, 0.6, kept)), before)
    np.testing.assert_allclose(draw(Priorities(ring, 0.6))[1], 1, rtol=1e-5)
    ring.clear()
    append_more(ring, 2)
    assert not any(Priorities(ring, 0.6, kept).snapshot()[8:]), "rows are counted anew: these are others"


# The sum tree against plain NumPy.


SIZE = 10 * GROUP
ALPHA = 0.6


def priorities(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Priorities of three orders of magnitude, a fifth of them not measured, and which leaves are drawn."""
    rng = np.random.default_rng(seed)
    values = (10 ** rng.uniform(-2, 1, SIZE)).astype(np.float32)
    values[rng.random(SIZE) < 0.2] = 0
    is_drawn = rng.random(SIZE) < 0.9
    is_drawn[3] = True
    return values, is_drawn


def shares(values: np.ndarray, is_drawn: np.ndarray) -> np.ndarray:
    """P(i) of each leaf, by the definition."""
    measured = is_drawn & (values > 0)
    new = 2 * values[measured].astype(np.float64).mean() if measured.any() else 1.0
    weights = np.where(measured, values, new).astype(np.float64) ** ALPHA * is_drawn
    return weights / weights.sum()


def test_leaves_are_drawn_in_proportion_to_their_weights() -> None:
    values, is_drawn = priorities()
    expected, count = shares(values, is_drawn), 200_000
    tree = SumTree(values.copy(), is_drawn, ALPHA)
    places, likelihood = tree.draw(np.random.default_rng(1).random(count))
    found = np.bincount(places, minlength=SIZE)
    possible = expected > 0
    assert found[~possible].sum() == 0
    np.testing.assert_allclose(likelihood, possible.sum() * expected[places], rtol=1e-5)
    degrees = max(1, possible.sum() - 1)
    chi_square = float(((found - count * expected)[possible] ** 2 / (count * expected[possible])).sum())
    assert abs(chi_square - (possible.sum() - 1)) < 4 * np.sqrt(2 * degrees)
    np.testing.assert_array_equal(tree._nodes, SumTree(values, is_drawn, ALPHA)._nodes, "a draw changes nothing")


def test_the_ends_of_the_interval_are_leaves_too() -> None:
    values, is_drawn = priorities()
    tree = SumTree(values, is_drawn, ALPHA)
    drawn = np.flatnonzero(is_drawn)
    places, _ = tree.draw(np.array([0.0, np.nextafter(1, 0)]))
    assert places.tolist() == [drawn[0], drawn[-1]]
    near = 1 - np.logspace(-16, -5, 50)
    assert is_drawn[tree.draw(near)[0]].all()


@pytest.mark.parametrize("count", [1, 2, 7, 500])
def test_a_tree_that_is_built_anew_is_the_same_bit_by_bit(count: int) -> None:
    """However many leaves are measured at once, and after new leaves."""
    (values, is_drawn), rng = priorities(), np.random.default_rng(2)
    tree = SumTree(values, is_drawn, ALPHA)
    for _ in range(20):
        tree.measure(rng.integers(SIZE, size=count), rng.gamma(1.0, 1.0, count))
        begin = int(rng.integers(SIZE - 20))
        part = slice(begin, begin + int(rng.integers(1, 20)))
        is_drawn[part] = rng.random(part.stop - part.start) < 0.9
        tree.renew(part, is_drawn[part])
    again = SumTree(values.copy(), is_drawn, ALPHA)
    np.testing.assert_array_equal(tree._weights, again._weights)
    np.testing.assert_array_equal(tree._nodes, again._nodes)
    u = np.sort(rng.random(50))
    for ours, theirs in zip(tree.draw(u), again.draw(u), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_new_leaves_count_as_twice_the_mean_of_those_that_were_measured() -> None:
    tree = SumTree(np.zeros(SIZE, np.float32), np.ones(SIZE, bool), ALPHA)
    _, likelihood = tree.draw(np.linspace(0, 0.99, 100))
    np.testing.assert_allclose(likelihood, 1, rtol=1e-6)  # All are new: they are alike.
    tree.measure(np.array([0, 1]), np.array([1.0, 3.0]))  # Their mean is 2.
    total = 1 + 3**ALPHA + (SIZE - 2) * 4**ALPHA
    u = np.array([0.5, 1 + 0.5 * 3**ALPHA, 1 + 3**ALPHA + 0.5 * 4**ALPHA]) / total
    places, likelihood = tree.draw(u)
    assert places.tolist() == [0, 1, 2]
    np.testing.assert_allclose(likelihood, SIZE * np.array([1, 3**ALPHA, 4**ALPHA]) / total, rtol=1e-5)
    tree.renew(slice(1, 2), np.array([True]))
    _, likelihood = tree.draw(np.array([0.9]))
    assert likelihood == pytest.approx(SIZE * 2**ALPHA / (1 + (SIZE - 1) * 2**ALPHA), rel=1e-5)


def test_of_two_priorities_of_a_leaf_the_last_one_counts_and_leaves_that_are_not_drawn_get_none() -> None:
    values, is_drawn = np.zeros(GROUP, np.float32), np.ones(GROUP, bool)
    is_drawn[5] = False
    tree = SumTree(values, is_drawn, 1.0)
    tree.measure(np.array([2, 5, 2]), np.array([8.0, 9.0, 4.0]))
    assert values[2] == 4 and values.sum() == 4 and tree._weights[0, 5] == 0


def test_what_no_priority_can_be_is_none() -> None:
    odd = np.array([np.nan, np.inf, -1, 0] * 4, np.float32)
    SumTree(odd, np.zeros(GROUP, bool), ALPHA)
    assert (odd == 0).all()
    tree = SumTree(np.array([np.nan] * GROUP, np.float32), np.ones(GROUP, bool), ALPHA)
    assert tree.draw(np.array([0.5]))[1] == pytest.approx(1)
