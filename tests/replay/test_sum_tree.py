"""The sum tree against plain NumPy: what is drawn how often, and that a tree built anew is the same."""

from __future__ import annotations

import numpy as np
import pytest

from tfagents_system.replay.priorities import GROUP, SumTree

SIZE = 10 * GROUP
ALPHA = 0.6
PARTS = [
    [slice(0, SIZE)],
    [slice(3, 4)],
    [slice(17, 30)],  # Under one inner node.
    [slice(5, 100)],
    [slice(130, SIZE), slice(0, 40)],
    [slice(100, SIZE), slice(0, 99)],  # Both have leaves under one inner node.
]


def priorities(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Priorities of three orders of magnitude, a fifth of them not measured, and which leaves are drawn."""
    rng = np.random.default_rng(seed)
    values = (10 ** rng.uniform(-2, 1, SIZE)).astype(np.float32)
    values[rng.random(SIZE) < 0.2] = 0
    is_drawn = rng.random(SIZE) < 0.9
    is_drawn[3] = True
    return values, is_drawn


def shares(values: np.ndarray, is_drawn: np.ndarray, parts: list[slice], exponent: float = ALPHA) -> np.ndarray:
    """P(i) of each leaf, by the definition."""
    inside = np.zeros(SIZE, bool)
    for part in parts:
        inside[part] = True
    inside &= is_drawn
    measured = inside & (values > 0)
    new = 2 * values[measured].astype(np.float64).mean() if measured.any() else 1.0
    weights = np.where(measured, values, new).astype(np.float64) ** exponent * inside
    return weights / weights.sum()


@pytest.mark.parametrize("parts", PARTS)
def test_leaves_are_drawn_in_proportion_to_their_weights(parts: list[slice]) -> None:
    values, is_drawn = priorities()
    expected, count = shares(values, is_drawn, parts), 200_000
    tree = SumTree(values.copy(), is_drawn, ALPHA)
    places, likelihood = tree.draw(np.random.default_rng(1).random(count), parts)
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
    places, _ = tree.draw(np.array([0.0, np.nextafter(1, 0)]), [slice(0, SIZE)])
    assert places.tolist() == [drawn[0], drawn[-1]]
    near = 1 - np.logspace(-16, -5, 50)
    assert is_drawn[tree.draw(near, [slice(20, 150)])[0]].all()


@pytest.mark.parametrize("count", [1, 2, 7, 500])
def test_a_tree_that_is_built_anew_is_the_same_bit_by_bit(count: int) -> None:
    """However many leaves are measured at once, and after draws, new leaves and edges."""
    (values, is_drawn), rng = priorities(), np.random.default_rng(2)
    tree = SumTree(values, is_drawn, ALPHA)
    for _ in range(20):
        tree.measure(rng.integers(SIZE, size=count), rng.gamma(1.0, 1.0, count))
        begin = int(rng.integers(SIZE - 20))
        part = slice(begin, begin + int(rng.integers(1, 20)))
        is_drawn[part] = rng.random(part.stop - part.start) < 0.9
        tree.renew(part, is_drawn[part])
        tree.draw(rng.random(5), [slice(130, SIZE), slice(0, begin + 1)] if begin < 130 else [slice(1, begin)])
    again = SumTree(values.copy(), is_drawn, ALPHA)
    np.testing.assert_array_equal(tree._weights, again._weights)
    np.testing.assert_array_equal(tree._nodes, again._nodes)
    u = np.sort(rng.random(50))
    for ours, theirs in zip(tree.draw(u, PARTS[4]), again.draw(u, PARTS[4]), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_new_leaves_count_as_twice_the_mean_of_those_that_were_measured() -> None:
    tree = SumTree(np.zeros(SIZE, np.float32), np.ones(SIZE, bool), ALPHA)
    _, likelihood = tree.draw(np.linspace(0, 0.99, 100), [slice(0, SIZE)])
    np.testing.assert_allclose(likelihood, 1, rtol=1e-6)  # All are new: they are alike.
    tree.measure(np.array([0, 1]), np.array([1.0, 3.0]))  # Their mean is 2.
    total = 1 + 3**ALPHA + (SIZE - 2) * 4**ALPHA
    u = np.array([0.5, 1 + 0.5 * 3**ALPHA, 1 + 3**ALPHA + 0.5 * 4**ALPHA]) / total
    places, likelihood = tree.draw(u, [slice(0, SIZE)])
    assert places.tolist() == [0, 1, 2]
    np.testing.assert_allclose(likelihood, SIZE * np.array([1, 3**ALPHA, 4**ALPHA]) / total, rtol=1e-5)
    tree.renew(slice(1, 2), np.array([True]))
    _, likelihood = tree.draw(np.array([0.9]), [slice(0, SIZE)])
    assert likelihood == pytest.approx(SIZE * 2**ALPHA / (1 + (SIZE - 1) * 2**ALPHA), rel=1e-5)


def test_of_two_priorities_of_a_leaf_the_last_one_counts_and_leaves_that_are_not_drawn_get_none() -> None:
    values, is_drawn = np.zeros(GROUP, np.float32), np.ones(GROUP, bool)
    is_drawn[5] = False
    tree = SumTree(values, is_drawn, 1.0)
    tree.measure(np.array([2, 5, 2]), np.array([8.0, 9.0, 4.0]))
    assert values[2] == 4 and values.sum() == 4 and tree._weights[0, 5] == 0


def test_there_may_be_nothing_to_draw_and_what_no_priority_can_be_is_none() -> None:
    odd = np.array([np.nan, np.inf, -1, 0] * 4, np.float32)
    tree = SumTree(odd, np.zeros(GROUP, bool), ALPHA)
    assert len(tree.draw(np.array([0.5]), [slice(0, GROUP)])[0]) == 0
    assert (odd == 0).all()
    tree = SumTree(np.array([np.nan] * GROUP, np.float32), np.ones(GROUP, bool), ALPHA)
    assert tree.draw(np.array([0.5]), [slice(0, GROUP)])[1] == pytest.approx(1)
