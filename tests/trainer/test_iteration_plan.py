"""The number of updates is exact, whatever stops the trainer and however often it asks."""

import dataclasses
import random

import pytest

from tests.support.segments_for_tests import LAYOUT, numbered_segment
from tfagents_system.agents.iteration_counts import updates_due
from tfagents_system.replay.pacing import Lockstep
from tfagents_system.replay.ring import Ring
from tfagents_system.trainer.iteration_plan import IterationPlan
from tfagents_system.trainer.state import TrainerState
from tfagents_system.transport.tables import AS_DUE, OFFLINE, Block, Request

SESSION = 5


def make_plan(num_iter=10, updates_of_iteration=None, state=None):
    state, steps = state or TrainerState(), [0]
    return IterationPlan(state, lambda: steps[0], num_iter, updates_of_iteration), state, steps


def block(total, first=0, count=None):
    return Block(SESSION, 0, first, total - first if count is None else count, 0, total, 0, [])


def test_iterations_of_equal_length_are_asked_for_ahead():
    plan, state, steps = make_plan(num_iter=2, updates_of_iteration=20)
    assert plan.request(SESSION, 0) == Request(SESSION, 0, 0, 20, 0)
    assert plan.request(SESSION, 1) == Request(SESSION, 1, 0, 20, 20)
    steps[0] = 8
    assert plan.request(SESSION, 0) == Request(SESSION, 0, 8, 12, 8)
    steps[0] = 20
    assert plan.is_complete and plan.request(SESSION, 0) is None
    plan.end()
    assert (state.iteration, state.iteration_start, plan.done) == (1, 20, 0)
    assert plan.request(SESSION, 2) is None, "the run has two"


def test_the_next_iteration_is_asked_for_when_this_one_has_told_its_updates():
    plan, state, steps = make_plan()
    assert plan.request(SESSION, 0) == Request(SESSION, 0, 0, AS_DUE, 0)
    assert plan.request(SESSION, 1) is None
    assert plan.take(block(total=30, count=12)) == 12
    assert plan.request(SESSION, 1) == Request(SESSION, 1, 0, AS_DUE, 30)
    steps[0] = 12
    assert plan.request(SESSION, 0) == Request(SESSION, 0, 12, 18, 12)
    assert plan.take(block(total=40, first=12)) == 18, "what has come meanwhile is for the next iteration"
    assert not plan.is_complete
    steps[0] = 30
    assert plan.is_complete


def test_an_iteration_without_updates_is_complete_at_once():
    plan, state, steps = make_plan()
    assert plan.take(block(total=0)) == 0
    assert plan.is_complete
    plan.end()
    assert (state.iteration, plan.mean_updates) == (1, 0.0)


@pytest.mark.parametrize("ratio", [0.07, 1.0, 2.5])
@pytest.mark.parametrize("seed", range(5))
def test_updates_are_exact_whatever_is_lost_killed_or_ahead(tmp_path, ratio, seed):
    """A trainer of two workers, one of which may be ahead; it is killed and its blocks are lost at random."""
    rng, num_iter = random.Random(seed), 12
    ring = Ring.open(tmp_path / "ring", LAYOUT, 4000)
    pacing = Lockstep(ring, 2, straggler_secs=60.0, updates_per_env_step=ratio)
    numbers, policy_steps = [0, 0], 0

    def collect(worker, iteration, ends):
        nonlocal policy_steps
        steps = rng.randint(1, 40)
        ring.append(numbered_segment(worker, numbers[worker], steps, iteration=iteration, end_of_iteration=ends))
        numbers[worker] += 1
        policy_steps += steps if iteration >= 0 else 0

    for worker in range(2):
        collect(worker, -1, True)
    plan, state, steps = make_plan(num_iter)
    saved = dataclasses.replace(state), 0
    collected = [-1, -1]
    while state.iteration < num_iter:
        for worker in range(2):  # At most one iteration ahead, in any order.
            while collected[worker] < min(state.iteration + 1, num_iter - 1) and rng.random() < 0.5:
                if rng.random() < 0.3:
                    collect(worker, collected[worker] + 1, False)
                collected[worker] += 1
                collect(worker, collected[worker], True)
        settled = pacing.settle(plan.request(SESSION, state.iteration))
        if settled is None or rng.random() < 0.2:  # Not complete yet, or the block is lost.
            continue
        count = min(settled.count, 25)
        steps[0] += plan.take(block(settled.first + settled.count, settled.first, count))
        if plan.is_complete:
            assert steps[0] == updates_due(ring.steps_up_to(state.iteration), ratio)
            plan.end()
        event = rng.random()
        if event < 0.3:
            saved = dataclasses.replace(state), steps[0]
        elif event < 0.5:  # The trainer is killed: it goes on from what was saved.
            plan, state, steps = make_plan(num_iter, state=dataclasses.replace(saved[0]))
            steps[0] = saved[1]
    assert steps[0] == updates_due(policy_steps, ratio)


@pytest.mark.parametrize("ratio, due", [(2.0, 80), (0.5, 20), (1.0, 40)])
def test_a_ratio_that_is_changed_counts_from_then_on(tmp_path, ratio, due):
    """100 steps and 100 updates are done with a ratio of 1; 40 steps more."""
    state = TrainerState(iteration=1, iteration_start=100, end_policy_steps=100, policy_steps=100, ratio=1.0)
    plan = IterationPlan(state, lambda: 100, 10, None, ratio)
    plan.begin()
    request = plan.request(SESSION, 1)
    assert request is not None and request.count == AS_DUE
    assert updates_due(140, ratio) - request.counted_updates == due and state.ratio == ratio
    plan.begin()
    assert plan.request(SESSION, 1) == request, "once"


def test_offline_updates_come_first_and_count_for_no_ratio():
    state, steps = TrainerState(iteration=OFFLINE, ratio_offset=-50), [0]
    plan = IterationPlan(state, lambda: steps[0], 10, None, 1.0, 50)
    plan.begin()
    assert plan.is_offline and plan.total == 50 and plan.mean_updates is None
    assert plan.request(SESSION, OFFLINE) == Request(SESSION, OFFLINE, 0, 50, 0, 0, -50)
    ahead = plan.request(SESSION, 0)
    assert ahead == Request(SESSION, 0, 0, AS_DUE, 50, 0, -50) and ahead.counted_updates == 0, "none of them counts"
    assert Request.from_wire(plan.request(SESSION, OFFLINE).to_wire()).iteration == OFFLINE
    assert plan.take(block(total=50, count=8)) == 8
    steps[0] = 8
    again = IterationPlan(dataclasses.replace(state), lambda: 8, 10, None, 1.0, 50)
    again.begin()
    assert again.request(SESSION, OFFLINE) == Request(SESSION, OFFLINE, 8, 42, 8, 0, -50), "a stop within them"
    steps[0] = 50
    assert plan.is_complete
    plan.end()
    assert (state.iteration, state.iteration_start, plan.done, plan.total) == (0, 50, 0, None)
    assert (state.end_env_steps, state.earlier_end_env_steps) == (0, -1), "nothing has been collected"
    assert not plan.is_offline and plan.request(SESSION, 0) == ahead
    plan.take(block(total=20))
    steps[0] = 70
    plan.end()
    assert plan.mean_updates == 20 and plan.request(SESSION, 1) == Request(SESSION, 1, 0, AS_DUE, 70, 0, -50)
