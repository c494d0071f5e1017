"""The sum of the steps of all iterations stays what was asked for, whoever collects them."""

import types

import pytest

from tfagents_system.replay.step_shares import StepShares


class Run:
    """Iterations are collected as they are shared, by the workers that are there."""

    def __init__(self, steps=100, num_workers=4, lag=1):
        self.collected: dict[int, int] = {}
        ring = types.SimpleNamespace(
            steps_up_to=lambda iteration: sum(count for i, count in self.collected.items() if i <= iteration)
        )
        self.shares = StepShares(ring, steps, num_workers, lag)
        self.known: dict[int, object] = {}
        self.next = 0

    def iterate(self, count, workers, present=None):
        """Workers that are waited for, and those that really collect."""
        for _ in range(count):
            iteration, self.next = self.next, self.next + 1
            sharing = self.known.get(iteration) or self.shares._of(iteration)
            self.collected[iteration] = sum(sharing.share(worker) for worker in (present or workers))
            for later in self.shares.after(iteration, workers):
                assert self.known.setdefault(later.iteration, later) == later, "nothing that was told is changed"


@pytest.mark.parametrize("lag", [0, 1, 3])
@pytest.mark.parametrize("num_workers", [1, 2, 8])
def test_each_iteration_has_its_steps(num_workers, lag):
    run = Run(num_workers=num_workers, lag=lag)
    run.iterate(30, range(num_workers))
    assert set(run.collected.values()) == {100}


@pytest.mark.parametrize("lag", [0, 1])
def test_what_a_lost_worker_did_not_collect_others_collect_later(lag):
    run = Run(lag=lag)
    run.iterate(10, range(4))
    run.iterate(1, range(3), present=range(3))  # Worker 3 is lost, and left out when it is late.
    run.iterate(20, range(3))
    assert sum(run.collected.values()) == 3100
    assert run.collected[10] == 75 and run.collected[30] == 100


@pytest.mark.parametrize("lag", [0, 1])
def test_what_a_new_worker_collects_unasked_is_taken_off(lag):
    run = Run(lag=lag)
    run.iterate(10, range(4))
    run.iterate(1, [0, 1, 2, 3, 7], present=[0, 1, 2, 3, 7])
    run.iterate(20, [0, 1, 2, 3, 7])
    assert sum(run.collected.values()) == 3100 and run.collected[30] == 100


def test_much_that_is_lacking_is_made_up_for_over_several_iterations():
    run = Run(num_workers=10)
    run.iterate(5, range(10))
    run.iterate(3, range(10), present=[0])
    run.iterate(30, range(10))
    assert sum(run.collected.values()) == 3800
    assert max(run.collected.values()) == 200


def test_a_server_that_is_started_anew_goes_on_from_there():
    run = Run()
    run.iterate(10, range(4))
    again = Run()
    again.collected, again.next = run.collected, run.next
    again.iterate(10, range(4))
    assert set(again.collected.values()) == {100}
