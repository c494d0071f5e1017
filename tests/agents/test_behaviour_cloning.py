"""TD3+BC's term in the actor's loss: its value, its gradient, and when it counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

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
    sgd_update,
)
from tfagents_system.agents.agent_interface import make_update
from tfagents_system.agents.scheduled import ScheduledValues

CLOSE: Any = {"rtol": 2e-5, "atol": 2e-5}
WEIGHT = 0.4


def test_the_actor_s_loss_has_the_distance_to_the_data_in_units_of_q() -> None:
    agent = build(algorithm="redq", num_critics=3, num_target_critics=3, behaviour_cloning_weight=WEIGHT)
    batch, before = Minibatch(), NumpyAgent(agent)
    measured = sgd_update(agent).step(batch.transition(), batch.noise())
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


@pytest.mark.parametrize("algorithm", ["sac", "redq", "crossq"])
def test_it_counts_in_offline_updates_alone(algorithm: str) -> None:
    def actor_loss(weight: float, iteration: int) -> float:
        params = {"algorithm": algorithm, "behaviour_cloning_weight": weight, "actor_update_period": 1}
        params |= {"num_critics": 3} if algorithm == "redq" else {}
        tf.keras.utils.set_random_seed(4)
        agent = agent_of(TinyParams, OBSERVATION, ACTION, **params)
        owner = TinyParams({"horizon": 5})
        vars(owner).update(params)
        ScheduledValues(owner, agent).assign(0, 0, iteration)
        batch = Minibatch()
        return float(make_update(agent).step(batch.transition(), noise=batch.noise())["actor_loss"][0])  # type: ignore

    assert actor_loss(WEIGHT, 0) == actor_loss(0.0, 0) == actor_loss(0.0, -1)
    assert actor_loss(WEIGHT, -1) > actor_loss(0.0, -1) + 0.01
