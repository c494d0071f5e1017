"""Shares of an iteration's steps: they add up, differ by one at most, and take turns."""

import numpy as np
import pytest

from tfagents_system.transport.sharing import Sharing, find


@pytest.mark.parametrize("workers", [(0,), (0, 1), (0, 1, 2, 5, 9), tuple(range(8))], ids=str)
@pytest.mark.parametrize("steps", [8, 9, 50, 1001])
def test_shares_add_up_to_the_steps_and_take_turns(workers, steps):
    totals = dict.fromkeys(workers, 0)
    for iteration in range(2 * len(workers)):
        sharing = Sharing(iteration, steps, workers)
        shares = {worker: sharing.share(worker) for worker in workers}
        assert sum(shares.values()) == steps and max(shares.values()) - min(shares.values()) <= 1
        for worker in workers:
            totals[worker] += shares[worker]
    assert len(set(totals.values())) == 1, "over as many iterations as there are workers all have the same"


def test_a_worker_that_is_new_takes_the_share_that_it_would_have():
    assert Sharing(0, 40, (0, 1, 2)).share(7) == 10
    assert Sharing(3, 2, (0, 1)).share(7) == 1, "one step at least: the end of its iteration travels with it"


def test_planned_workers_have_a_step_each():
    assert Sharing.planned(4, 3, 8) == Sharing(4, 8, tuple(range(8)))
    assert [Sharing.planned(4, 3, 8).share(worker) for worker in range(8)] == [1] * 8


def test_it_travels():
    sharing = Sharing(12, 1003, (0, 4, 999))
    row = sharing.to_row()
    assert row.dtype == np.int64 and Sharing.from_row(row) == sharing
    assert find([Sharing(11, 1, (0,)), sharing], 12) is sharing and find([sharing], 13) is None
