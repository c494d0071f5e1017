"""TD3+BC's term in the actor's loss: its value, its gradient, and when it counts."""

from __future__ import annotations

import itertools
import types
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.checkpoints_for_tests import checkpoints_of
from tests.support.fakes import agent_of
from tests.support.tiny_agents import (
    ACTION,
    ACTOR_RATE,
    OBSERVATION,
    Minibatch,
    NumpyAgent,
    TinyParams,
    build,
    numeric_gradient,
    with_sgd,
)
from tests.support.updates import update_once
from tfagents_system.agents.agent import ScheduledValues, check_scheduled
from tfagents_system.errors import UserError
from tfagents_system.trainer.trainer_checkpoints import signature_of

CLOSE: Any = {"rtol": 2e-5, "atol": 2e-5}
WEIGHT = 0.4
OFFLINE: Any = {"prior_data": ["demonstrations.npz"], "offline_updates": 5}


def test_the_actor_s_loss_has_the_distance_to_the_data_in_units_of_q() -> None:
    agent = build(algorithm="redq", num_critics=3, num_target_critics=3, behaviour_cloning_weight=WEIGHT, **OFFLINE)
    batch, before = Minibatch(), NumpyAgent(agent)
    measured = update_once(with_sgd(agent), batch.transition(), batch.noise())
    critics = NumpyAgent(agent).critics  # The actor is judged by the critics after their step.

    def values(action: np.ndarray) -> np.ndarray:
        return np.mean([before.values(critic, batch.observation, action) for critic in critics], axis=0)

    q_size = np.mean(np.abs(values(before.sample(batch.observation, batch.actor_noise)[0])))  # Has no gradient.

    def loss() -> float:
        action, log_pi = before.sample(batch.observation, batch.actor_noise)
        sac = np.mean(before.alpha * log_pi - values(action)[:, 0])
        return float(sac + WEIGHT * q_size * np.mean((action - batch.action) ** 2))

    np.testing.assert_allclose(float(measured["actor_loss"][0]), loss(), **CLOSE)
    for weights, after in zip(before.actor, NumpyAgent(agent).actor, strict=True):
        np.testing.assert_allclose(after, weights - ACTOR_RATE * numeric_gradient(loss, weights), **CLOSE)


def test_it_counts_in_offline_updates_alone() -> None:
    def actor_loss(weight: float, iteration: int) -> float:
        params = {"behaviour_cloning_weight": weight, **OFFLINE}
        tf.keras.utils.set_random_seed(4)
        agent = agent_of(TinyParams, OBSERVATION, ACTION, **params)
        owner = TinyParams({"horizon": 5})
        vars(owner).update(params)
        ScheduledValues(owner, agent).assign(0, 0, iteration)
        batch = Minibatch()
        return float(update_once(agent, batch.transition(), batch.noise())["actor_loss"][0])

    assert actor_loss(WEIGHT, 0) == actor_loss(0.0, 0) == actor_loss(0.0, -1)
    assert actor_loss(WEIGHT, -1) > actor_loss(0.0, -1) + 0.01


def test_an_agent_of_one_s_own_must_follow_the_weight() -> None:
    own = {"agent_ctor": lambda self, *args: None, "behaviour_cloning_weight": WEIGHT, **OFFLINE}
    params = type("TrainParams", (TinyParams,), own)({"horizon": 5})
    with pytest.raises(UserError, match=r" is 0.4 for offline updates, but the agent of agent_ctor does not follow it"):
        check_scheduled(params, types.SimpleNamespace())
    weight = tf.Variable(0.0, trainable=False)
    check_scheduled(params, types.SimpleNamespace(scheduled={"behaviour_cloning_weight": weight}))


def test_a_run_goes_on_with_another_weight_or_none(tmp_path: Any) -> None:
    weights = (0.0, WEIGHT, 0.0)
    agents = [agent_of(TinyParams, OBSERVATION, ACTION, behaviour_cloning_weight=w, **OFFLINE) for w in weights]
    assert signature_of(agents[0]) == signature_of(agents[1])
    for before, after in itertools.pairwise(agents):
        saved = train_and_save(tmp_path, before)
        assert checkpoints_of(tmp_path, after)[0].restore() is not None
        np.testing.assert_array_equal(after.actor.trainable_variables[0], saved)


def train_and_save(folder: Any, agent: Any) -> np.ndarray:
    agent.actor.trainable_variables[0].assign_add([[0.5] * 4] * 3)
    agent.train_step_counter.assign_add(1)
    checkpoints_of(folder, agent)[0].save(5.0, wait=True)
    return agent.actor.trainable_variables[0].numpy()
