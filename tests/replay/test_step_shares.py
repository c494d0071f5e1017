"""The sum of the steps of all iterations stays what was asked for, whoever collects them."""

import types

import numpy as np
import pytest

from tfagents_system.replay.step_shares import StepShares


class Run:
    """Iterations are collected as they are shared, by the workers that are there."""

    def __init__(self, steps=100, num_workers=4, lag=1):
        self.collected: dict[int, int] = {}
        self.ring = types.SimpleNamespace(
            steps_up_to=lambda iteration: sum(count for i, count in self.collected.items() if i <= iteration),
        )
        self.settings = steps, num_workers, lag
        self.known: dict[int, object] = {}
        self.next = 0
        self.start()

    def start(self):
        """A server, perhaps in place of one that was killed."""
        self.shares = StepShares(self.ring, *self.settings)

    def iterate(self, count, workers, present=None):
        """Workers that are waited for, and those that really collect."""
        for _ in range(count):
            iteration, self.next = self.next, self.next + 1
            sharing = self.known.get(iteration) or self.shares._of(iteration)
            self.collected[iteration] = sum(sharing.share(worker) for worker in (present or workers))
            for later in self.shares.after(iteration, workers):
                self.known[later.iteration] = later


@pytest.mark.parametrize("lag", [0, 1])
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


@pytest.mark.parametrize("lag", [0, 1])
def test_what_the_first_iteration_lacks_is_made_up_for(lag):
    run = Run(lag=lag)
    run.iterate(1, range(3), present=range(3))
    run.iterate(30, range(3))
    assert run.collected[0] == 75 and sum(run.collected.values()) == 3100


def test_a_server_that_is_started_anew_goes_on_with_those_that_have_joined():
    """Two workers are planned, and six have joined; what the earlier server told is not known any more."""
    run = Run(num_workers=2)
    run.iterate(20, range(8))
    again = Run(num_workers=2)
    again.collected, again.next = run.collected, run.next
    again.iterate(1, range(8), present=range(8))
    again.iterate(10, range(8))
    assert sum(again.collected.values()) == 100 * again.next
    assert [again.collected[i] for i in range(26, 31)] == [100] * 5


def test_where_all_have_left_the_planned_workers_share_again():
    run = Run(num_workers=2)
    run.iterate(3, range(2))
    told = run.shares.after(3, ())
    assert told[-1].workers == (0, 1) and all(type(told[-1]).from_row(each.to_row()) == each for each in told)


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("seed", range(8))
def test_no_step_is_lost_or_doubled_by_servers_that_are_killed(seed, lag):
    """Workers come and go meanwhile, and the trainer may not have had what was decided last."""
    rng = np.random.default_rng(seed)
    run = Run(num_workers=3, lag=lag)
    for _ in range(40):
        workers = np.flatnonzero(rng.random(6) < 0.5).tolist() or [0]
        lost = workers[: rng.integers(len(workers))]
        run.iterate(int(rng.integers(1, 4)), workers, present=[each for each in workers if each not in lost])
        if rng.random() < 0.6:
            run.start()
        if rng.random() < 0.3:
            told = run.shares.after(run.next - 1, workers)
            assert told == run.shares.after(run.next - 1, workers), "what it is asked for again is the same"
            run.known |= {each.iteration: each for each in told}
    run.iterate(40 + lag, [0, 1, 2])
    assert sum(run.collected.values()) == 100 * run.next
    assert [run.collected[run.next - k] for k in range(1, 6)] == [100] * 5
