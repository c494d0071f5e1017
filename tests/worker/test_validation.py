"""Held-out episodes are as many as were asked for, wherever one begins to count."""

import pytest

from tfagents_system.worker.held_out import HeldOutEpisodes


def decisions(share, seed, count, number=0):
    episodes = HeldOutEpisodes(share, seed)
    episodes.number = number
    return [episodes.is_next() for _ in range(count)]


@pytest.mark.parametrize("share", [0.05, 0.07, 0.1, 0.25, 0.3, 0.5])
def test_the_share_is_exact_and_the_first_episode_is_trained_on(share):
    for seed in range(20):
        held_out = decisions(share, seed, 1000)
        assert sum(held_out) == pytest.approx(1000 * share, abs=1e-6)
        assert not held_out[0]
        assert max(sum(held_out[start : start + 100]) for start in range(900)) <= 100 * share + 2


def test_nothing_is_held_out_where_no_share_is():
    assert not any(decisions(0.0, 3, 100))


def test_seed_and_number_decide_alone():
    assert decisions(0.2, 5, 100) == decisions(0.2, 5, 100)
    assert decisions(0.2, 5, 100) != decisions(0.2, 6, 100)
    assert decisions(0.2, 5, 60, number=40) == decisions(0.2, 5, 100)[40:]


def test_no_place_among_several_environments_is_preferred():
    places = [place % 4 for place, held_out in enumerate(decisions(0.25, 7, 8000)) if held_out]
    assert all(400 < places.count(place) < 600 for place in range(4))
