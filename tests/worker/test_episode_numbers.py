"""Episodes of a worker have numbers that no other of its episodes in the run's experience has."""

from __future__ import annotations

from tfagents_system.worker.segment_builder import EpisodeNumbers


def test_each_start_of_a_worker_goes_on_with_others() -> None:
    starts = [EpisodeNumbers(1_700_000_000_000_000_000 + 10**9 * start) for start in range(3)]
    found = [numbers.of(iteration, number) for numbers in starts for iteration in (-1, 0, 7) for number in (0, 1, 2)]
    assert len(set(found)) == 3 * 3, "of one start the number alone counts"


def test_in_a_deterministic_run_any_start_gives_an_episode_the_same() -> None:
    """There numbers may begin anew with each iteration."""
    found = {
        EpisodeNumbers(None).of(iteration, number) for iteration in (-1, 0, 1, 2**31 - 2) for number in (0, 1, 10**6)
    }
    assert len(found) == 4 * 3 and min(found) >= 0 and max(found) < 2**63
