"""Networks that are drawn anew: which updates they come before, and what of the agent stays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.tiny_agents import ACTION, OBSERVATION, TinyParams
from tfagents_system.agents.agent import make_agent, statistics_of
from tfagents_system.trainer.iteration_plan import TrainerState
from tfagents_system.trainer.learner import Learner


class Params(TinyParams):
    actor_fc_layer_params = (4,)
    critic_joint_fc_layer_params = (4,)
    normalize_observations = True

    def actor_ctor(self, observation_spec, action_spec):
        return super(TinyParams, self).actor_ctor(observation_spec, action_spec)

    def critic_ctor(self, observation_spec, action_spec):
        return super(TinyParams, self).critic_ctor(observation_spec, action_spec)


def agent(algorithm):
    params = Params({"horizon": 5})
    params.algorithm = algorithm
    if algorithm == "redq":
        params.num_critics = 3
    return make_agent(params, OBSERVATION, ACTION, tf.Variable(7, dtype=tf.int64))


def values(networks):
    return [variable.numpy() for network in networks for variable in network.variables]


@pytest.mark.parametrize("algorithm", ["sac", "redq"])
def test_weights_alpha_and_moments_begin_again_and_statistics_and_counters_stay(algorithm):
    old, fresh = agent(algorithm), agent(algorithm)
    for network in [network for part in old.networks().values() for network in part]:
        for variable in statistics_of(network):
            variable.assign(tf.fill(variable.shape, 3.0))
    old.log_alpha.assign(-1.5)
    for optimizer, variables in old.optimized.values():
        optimizer.apply_gradients([(tf.ones_like(variable), variable) for variable in variables])
    before = {part: values(networks) for part, networks in old.networks().items()}
    drawn = {part: values(networks) for part, networks in fresh.networks().items()}
    statistics = {id(v) for part in old.networks().values() for n in part for v in statistics_of(n)}
    assert statistics
    old.redraw(fresh)
    for part, networks in old.networks().items():
        variables = [variable for network in networks for variable in network.variables]
        for variable, was, new in zip(variables, before[part], drawn[part], strict=True):
            wanted = was if id(variable) in statistics else new
            np.testing.assert_allclose(variable.numpy(), wanted, rtol=1e-6)
    assert float(old.log_alpha) == TinyParams.sac_log_alpha and int(old.train_step_counter) == 7
    of_optimizers = [variable.numpy() for optimizer, _ in old.optimized.values() for variable in optimizer.variables()]
    assert len(of_optimizers) > 20 and not any(np.any(value) for value in of_optimizers)


class Resetting(Learner):
    """Its train step is that of the update."""

    @property
    def train_step(self):
        return self.block_update.train_step


class CountingUpdate:
    """Writes down updates, and what comes before which."""

    kind, measure = "fake", None

    def __init__(self):
        self.train_step, self.events = 0, []

    def __call__(self, arrays):
        first, self.train_step = self.train_step, self.train_step + len(arrays[0])
        self.events.append((first, self.train_step))
        return {"loss": float(np.mean(arrays[0]))}

    def redraw(self):
        self.events.append("redrawn")


def resetting(update: CountingUpdate, period: int) -> Any:
    learner: Any = Resetting.__new__(Resetting)
    learner._role = SimpleNamespace(params=SimpleNamespace(reset_period_updates=period))
    learner.block_update, learner.state, learner._redraw = update, TrainerState(), update.redraw
    return learner


def test_a_reset_comes_right_before_the_update_after_each_multiple_of_the_period():
    update = CountingUpdate()
    learner = resetting(update, 4)
    assert learner.update([np.arange(10.0)]) == {"loss": 4.5}, "the mean is over all updates of the block"
    assert update.events == [(0, 4), "redrawn", (4, 8), "redrawn", (8, 10)]
    learner.update([np.arange(2.0)])
    assert update.events[-1] == (10, 12) and learner.state.network_resets == 2, "none at the end: nothing is trained"


def test_a_run_that_is_resumed_at_a_multiple_does_the_same_reset():
    update = CountingUpdate()
    update.train_step = 4
    resetting(update, 4).update([np.zeros(1)])
    assert update.events == ["redrawn", (4, 5)]
