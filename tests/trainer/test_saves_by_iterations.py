"""Checkpoints are never so many iterations apart that the ring has forgotten how many steps each of them had."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from tests.support.settings_for_tests import variables_with
from tfagents_system.replay.ring_files import COUNTED_ITERATIONS
from tfagents_system.run_files.heartbeat import TimeShares
from tfagents_system.trainer.iteration_plan import IterationPlan, TrainerState
from tfagents_system.trainer.trainer_checkpoints import TrainerSaves

STEPS = 25


def saved_iterations(resumed_at: int, env_steps_per_iter: int | None) -> list[int]:
    """Iterations of 25 steps with a checkpoint's period of 50,000 steps: after which a checkpoint is written."""
    params: Any = SimpleNamespace(
        num_iter=10_000,
        asynchronous=False,
        env_steps_per_iter=env_steps_per_iter,
        updates_per_env_step=None,
        updates_per_iter=1000,
        checkpoint_period_iters=1,
        checkpoint_period_env_steps=50_000,
        num_eval_episodes=0,
        keep_policies=True,
    )
    state, saved = TrainerState(iteration=resumed_at), list[int]()
    state.env_steps = state.end_env_steps = STEPS * resumed_at
    plan = IterationPlan(state, lambda: state.iteration * STEPS, params.num_iter, None)
    checkpoints: Any = MagicMock()
    checkpoints.is_wanted.return_value = False
    checkpoints.save.side_effect = lambda *args, **options: saved.append(state.iteration)
    learner: Any = SimpleNamespace(state=state, checkpoints=checkpoints, train_step=0)
    role: Any = SimpleNamespace(params=params, variables=variables_with())
    saves = TrainerSaves(role, learner, plan, MagicMock(), TimeShares())
    saves.begin(restored=resumed_at > 0)
    while state.iteration < resumed_at + 1900:
        state.env_steps += STEPS
        plan.end()
        learner.train_step = STEPS * state.iteration
        if saves.is_due():
            assert saves.save()
    return saved


@pytest.mark.parametrize("resumed_at", [0, 130])
def test_the_older_of_two_checkpoints_is_among_the_iterations_that_are_counted(resumed_at: int) -> None:
    saved = [resumed_at, *saved_iterations(resumed_at, STEPS)]
    apart = [later - earlier for earlier, later in zip(saved, saved[2:], strict=False)]
    assert len(saved) > 4 and max(apart) < COUNTED_ITERATIONS


def test_where_an_iteration_has_its_own_number_of_updates_the_period_alone_counts() -> None:
    assert saved_iterations(0, None) == []
