"""New weights in mid-episode: acted with from the next step on, with the state of the episode."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.policies import greedy_policy
from tf_agents.trajectories import time_step as ts

from tests.support.acting import action
from tests.support.numpy_actors import VECTOR, as_after_training, build
from tfagents_system.policies import weights
from tfagents_system.policies.weights import SharedWeights
from tfagents_system.policies.worker_policy import make_worker_policy
from tfagents_system.transport import tables
from tfagents_system.worker.newest_policy import NewestPolicy

STEPS, PERIOD = 8, 4


def published(values, step):
    return [np.array([7, 0, step], np.int64), *weights.to_arrays(values)]


def test_a_policy_goes_on_with_newer_weights_and_its_state():
    agent = build(VECTOR, recurrent=True, normalize_observations=True)
    drawn = [as_after_training(agent, seed) for seed in range(STEPS + 2)]
    shared = SharedWeights(published(drawn[0], 1))
    shared.write(published(drawn[0], 1))
    policy = make_worker_policy(agent, 0)
    assert policy.inference == "numpy"
    worker = NewestPolicy(SimpleNamespace(get=lambda: pytest.fail("the server was asked")), policy)
    worker.follow(tables.Progress(7, 0, 1, -1, memory=shared.place))

    greedy, variables = greedy_policy.GreedyPolicy(agent.policy), weights.named_variables(agent.collect_policy)
    rng, state, newest = np.random.default_rng(0), greedy.get_initial_state(1), drawn[0]
    policy.reset([0])
    for step in range(STEPS):
        observation = rng.standard_normal(VECTOR.shape).astype(np.float32)
        time_step = ts.TimeStep(np.int32(step > 0), np.float32(0), np.float32(1), observation)
        if step % PERIOD == PERIOD - 1:
            newest = drawn[step]
            worker.refresh()
        weights.assign_weights(variables, newest)
        expected = greedy.action(tf.nest.map_structure(lambda value: tf.constant(value[None]), time_step), state)
        state = expected.state
        found = action(policy, time_step, True)
        np.testing.assert_allclose(found, expected.action[0], atol=1e-5, err_msg=f"step {step}")
        shared.write(published(drawn[step + 1], step + 2))
        for _ in range(2):  # What was read before is overwritten: the policy has copied it.
            assert worker._memory.read() is not None
    assert worker.train_step == STEPS
