"""A ratio that changes moves what is due, and nothing that follows the train step."""

from types import SimpleNamespace
from typing import Any

import pytest

from tfagents_system.checks.schedules import Schedule
from tfagents_system.replay.pacing import Asynchronous
from tfagents_system.replay.sample_forms import TransitionForm
from tfagents_system.replay.sampling import DrawSettings
from tfagents_system.trainer.iteration_plan import IterationPlan
from tfagents_system.trainer.state import TrainerState
from tfagents_system.transport.tables import Block, Progress, Request
from tfagents_system.worker.newest_policy import BackPressure

DISCOUNT = Schedule.of({"points": [[0, 0.0], [100_000, 1.0]], "by": "train_steps"})


@pytest.mark.parametrize(("old", "new"), [(1.0, 10.0), (10.0, 1.0), (1.0, 1.0)])
def test_schedules_by_train_steps_stay_where_they_are(old: float, new: float) -> None:
    steps, done = 5000, int(5000 * old)
    state = TrainerState(25, steps, iteration_start=done, end_policy_steps=steps, policy_steps=steps, ratio=old)
    plan = IterationPlan(state, lambda: done, 1000, None, new)
    plan.begin()
    request = plan.request(1, 25)
    assert request is not None
    request = Request.from_wire(request.to_wire())
    assert request.counted_updates == steps * new, "what the new ratio asks of these steps counts as done"
    settings = DrawSettings(1, TransitionForm(1), 10, 0, gamma=DISCOUNT)
    assert settings.at(steps, request.updates - request.first, 25).discount == pytest.approx(done / 100_000)


@pytest.mark.parametrize(
    ("before", "least", "most"),
    [
        pytest.param((None, 1.0), 2.0, 4.0, id="raised"),
        pytest.param((0.5, 4.0), 0.5, 1.0, id="lowered"),
        pytest.param((0.1, 1.0), 0.9, 1.0, id="least alone"),
    ],
)
def test_neither_trainer_nor_workers_wait_for_ever_whatever_the_ratios_were(
    before: tuple[float | None, float], least: float, most: float
) -> None:
    """A run of 1,000,000 steps, with as many updates as its last ratio allowed, goes on for 3000 steps."""
    steps, under_way = 1_000_000, 100

    class Ring:
        env_steps, init_steps, init_episodes = steps, 0, 1

    done = [int(steps * before[1])]
    state = TrainerState(
        9,
        steps,
        iteration_start=done[0],
        end_policy_steps=steps,
        policy_steps=steps,
        ratio=before[1],
        least_ratio=before[0],
    )
    plan = IterationPlan(state, lambda: done[0], 10**6, under_way, most, 0, least)
    plan.begin()
    params: Any = SimpleNamespace(
        min_updates_per_env_step=least,
        updates_per_env_step=most,
        asynchronous=True,
        env_steps_per_iter=None,
        updates_per_iter=under_way,
    )
    pressure, pacing = BackPressure(params), Asynchronous(Ring(), most, 1, 0)  # type: ignore[arg-type]
    own, first = 0, done[0]

    def held() -> bool:
        updates, counted = plan.paced
        progress = Progress(1, state.iteration, done[0], -1, paced_updates=updates, paced_steps=counted)
        return pressure.holds(Progress.from_wire(progress.to_wire()), own)

    while not held():  # The trainer does nothing: workers wait soon.
        own, Ring.env_steps = own + 1, Ring.env_steps + 1
        assert own <= (under_way + 1) / least + 1, "workers wait for updates"
    for _ in range(30_000):
        request = plan.request(1, state.iteration)
        assert request is not None
        if count := pacing.allowed(request, 0):
            block = Block(1, state.iteration, request.first, count, Ring.env_steps, under_way, 0, [])
            done[0] += plan.take(block)
            if plan.is_complete:
                plan.end()
        else:
            assert not held(), "one of both can go on"
            own, Ring.env_steps = own + 1, Ring.env_steps + 1
        if own >= 3000:
            break
    assert own >= 3000 and least <= (done[0] - first) / own <= most + under_way / own
