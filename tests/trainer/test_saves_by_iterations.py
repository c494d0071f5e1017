"""Checkpoints are never so many iterations apart that the ring has forgotten how many steps each of them had."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.settings_for_tests import variables_with
from tfagents_system.replay.ring_header import COUNTED_ITERATIONS
from tfagents_system.run_files.heartbeat import TimeShares
from tfagents_system.trainer.iteration_plan import IterationPlan
from tfagents_system.trainer.state import TrainerState
from tfagents_system.trainer.trainer_checkpoints import TrainerSaves

STEPS = 25


def saved_iterations(resumed_at: int = 0, **attributes: Any) -> list[int]:
    """Iterations of 25 steps with a checkpoint's period of 50,000 steps: after which a checkpoint is written."""
    values: dict[str, Any] = {
        "num_iter": 10_000,
        "asynchronous": False,
        "env_steps_per_iter": STEPS,
        "updates_per_env_step": None,
        "updates_per_iter": 1000,
        "checkpoint_period_iters": 1,
        "checkpoint_period_env_steps": 50_000,
        "num_eval_episodes": 0,
        "keep_policies": True,
    }
    params: Any = SimpleNamespace(**(values | attributes))
    state, saved = TrainerState(iteration=resumed_at), list[int]()
    state.env_steps = state.end_env_steps = STEPS * resumed_at
    plan = IterationPlan(state, lambda: state.iteration * STEPS, params.num_iter, None, 1.0)
    checkpoints: Any = SimpleNamespace(save=lambda *args, **options: saved.append(state.iteration))

    class Learner:
        """An update a step."""

        @property
        def train_step(self) -> int:
            return state.iteration * STEPS

    learner: Any = Learner()
    learner.state, learner.checkpoints = state, checkpoints
    told, deleted = list[int](), list[Any]()
    export: Any = SimpleNamespace(
        save_checkpoint=lambda iteration, is_periodic: told.append(iteration),
        save_model=told.append,
        delete_earlier=deleted.append,
    )
    role: Any = SimpleNamespace(params=params, variables=variables_with())
    saves = TrainerSaves(role, learner, plan, export, TimeShares())
    saves.begin(restored=resumed_at > 0)
    while state.iteration < resumed_at + 1900:
        state.env_steps += STEPS
        plan.end()
        saves.save_if_due({}, lambda: False, lambda: None)
    assert told == [iteration for iteration in saved if iteration == 2000 for _ in range(2)], "policies say theirs"
    keeps = params.keep_policies or params.num_eval_episodes > 0
    assert len(deleted) == (0 if keeps else len(told) // 2), "the earlier ones, each time"
    return saved


@pytest.mark.parametrize("resumed_at", [0, 130])
def test_the_older_of_two_checkpoints_is_among_the_iterations_that_are_counted(resumed_at: int) -> None:
    saved = [resumed_at, *saved_iterations(resumed_at)]
    apart = [later - earlier for earlier, later in zip(saved, saved[2:], strict=False)]
    assert len(saved) > 4 and max(apart) < COUNTED_ITERATIONS


def test_where_an_iteration_has_its_own_number_of_updates_the_period_alone_counts() -> None:
    assert saved_iterations(env_steps_per_iter=None) == []


@pytest.mark.parametrize(("num_eval_episodes", "keep_policies"), [(0, False), (5, False)])
def test_only_the_newest_policy_stays_where_nothing_is_evaluated(num_eval_episodes: int, keep_policies: bool) -> None:
    assert 2000 in saved_iterations(130, num_eval_episodes=num_eval_episodes, keep_policies=keep_policies)
