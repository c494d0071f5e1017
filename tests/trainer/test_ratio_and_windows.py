"""A ratio that changes moves what is due, and nothing that follows the train step."""

import pytest

from tfagents_system.checks.schedules import Schedule
from tfagents_system.replay.draw_settings import DrawSettings
from tfagents_system.replay.pacing import Asynchronous
from tfagents_system.replay.sample_forms import TransitionForm
from tfagents_system.trainer.iteration_plan import IterationPlan
from tfagents_system.trainer.trainer_checkpoints import TrainerState
from tfagents_system.transport.tables import Request

WINDOW = Schedule.of({"points": [[0, 1000], [100_000, 101_000]], "by": "train_steps"})


@pytest.mark.parametrize(("old", "new"), [(1.0, 10.0), (10.0, 1.0), (1.0, 1.0)])
def test_windows_by_train_steps_stay_where_they_are(old: float, new: float) -> None:
    steps, done = 5000, int(5000 * old)
    state = TrainerState(25, steps, iteration_start=done, end_policy_steps=steps, policy_steps=steps, ratio=old)
    plan = IterationPlan(state, lambda: done, 1000, None, new)
    plan.begin()
    request = plan.request(1, 25)
    assert request is not None
    request = Request.from_wire(request.to_wire())
    assert request.counted_updates == steps * new, "what the new ratio asks of these steps counts as done"
    settings = DrawSettings(1, TransitionForm(1), 10, 0, window=WINDOW)
    assert settings.at(steps, request.updates - request.first, 25).window_steps == 1000 + done


def test_asynchronous_pacing_counts_the_offset() -> None:
    class Ring:
        env_steps, init_steps, init_episodes = 1100, 100, 1

    pacing = Asynchronous(Ring(), 2.0, 1, 100)  # type: ignore[arg-type]
    assert pacing.allowed(Request(1, 9, 0, 500, updates=900, ratio_offset=1000), 0) == 100
