"""Schedules reach the agent's variables: learning rates act in compiled updates, other variables get their values."""

from __future__ import annotations

import types
from typing import Any

import pytest
import tensorflow as tf

from tests.support.agent_for_tests import B, Params, block, build
from tests.support.checkpoints_for_tests import checkpoints_of
from tfagents_system.agents.agent import ScheduledValues, check_scheduled
from tfagents_system.agents.block_update import BlockUpdate
from tfagents_system.errors import UserError
from tfagents_system.replay.sampling import TransitionForm

RATE = {"points": [[0, 0.4], [2, 0.2], [4, 0.1]], "by": "iterations"}
RATES = [0.4, 0.3, 0.2, 0.15, 0.1]


def params_with(**attributes: Any) -> Params:
    return type("TrainParams", (Params,), attributes)({"horizon": 100})


def test_a_scheduled_learning_rate_acts_in_an_update_that_is_compiled_already() -> None:
    """Alpha's loss is log(alpha) times its gradient, and SGD subtracts rate * gradient."""
    attributes: dict[str, Any] = {"alpha_optimizer": {"name": "sgd"}, "alpha_learning_rate": RATE, "sac_log_alpha": 0.5}
    agent = build(**attributes)
    values, update = ScheduledValues(params_with(**attributes), agent), BlockUpdate(agent, B, TransitionForm())
    for iteration, rate in enumerate(RATES):
        values.assign(10**6, 10**6, iteration)
        before = float(agent.log_alpha)
        gradient = update(block(1, seed=iteration))["alpha_loss"] / before
        assert abs(gradient) > 0.1
        assert float(agent.log_alpha) == pytest.approx(before - rate * gradient, rel=1e-5), iteration


@pytest.mark.usefixtures("uncompiled")
def test_a_checkpoint_of_a_number_goes_on_with_a_schedule_and_back(tmp_path: Any) -> None:
    before, after = build(), build(critic_learning_rate=RATE)
    (first, _), (second, _) = checkpoints_of(tmp_path, before), checkpoints_of(tmp_path, after)
    BlockUpdate(before, B, TransitionForm())(block(2))
    first.save(5.0, wait=True)
    assert second.restore() is not None and list(after.scheduled) == ["critic_learning_rate"]
    learned = [[*agent.actor_variables, *agent.critic_variables, agent.log_alpha] for agent in (before, after)]
    for old, new in zip(*learned, strict=True):
        assert (old.numpy() == new.numpy()).all()


def agent_with(**variables: float) -> Any:
    scheduled = {name: tf.Variable(value, dtype=tf.float32, trainable=False) for name, value in variables.items()}
    return types.SimpleNamespace(scheduled=scheduled)


def test_variables_and_metrics_have_the_values_of_the_position_alone() -> None:
    agent = agent_with(exploration=0.0, mixing=0.0)
    gamma = {"points": [[0, 0.9], [100, 1.0]], "by": "iterations"}  # The replay server follows it.
    params = params_with(exploration={"points": [[0, 1.0], [100, 0.0]]}, mixing=0.25, discount=gamma)
    values = ScheduledValues(params, agent)
    for env_steps, expected in ((0, 1.0), (30, 0.7), (1000, 0.0), (30, 0.7)):
        values.assign(env_steps, 5, 6)
        assert float(agent.scheduled["exploration"]) == pytest.approx(expected)
        assert float(agent.scheduled["mixing"]) == 0.25, "a number holds whatever the variable began with"
        expected_metrics = {"schedule/exploration": expected, "schedule/discount": 0.95}
        assert values.metrics(env_steps, 5, 50) == pytest.approx(expected_metrics)


def test_variables_and_attributes_must_fit_each_other() -> None:
    with pytest.raises(UserError) as caught:
        check_scheduled(params_with(mixing="much"), agent_with(exploration=0.0, mixing=0.0))
    assert caught.value.findings == (
        "agent.scheduled has 'exploration', which TrainParams has no attribute for: add it",
        "TrainParams.mixing must be a finite number, or a schedule, found 'much'",
    )
    own = params_with(agent_ctor=lambda self, *args: None, actor_learning_rate=RATE)
    with pytest.raises(UserError, match="TrainParams.actor_learning_rate is a schedule, but the agent of agent_ctor"):
        check_scheduled(own, agent_with())
    check_scheduled(own, agent_with(actor_learning_rate=0.1))
