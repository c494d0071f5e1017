"""A policy that no update changes acts as it did where it was saved."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.policies import greedy_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tests.support.acting import action, actions
from tests.support.numpy_actors import ACTION, VECTOR, build
from tfagents_system.envs.actions import actions_of
from tfagents_system.errors import UserError
from tfagents_system.policies.files import load_policy
from tfagents_system.policies.worker_policy import FixedPolicy
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.trainer.policy_export import PolicyExport

BOUNDS = tensor_spec.BoundedTensorSpec((2,), tf.float64, [-3.0, 0.0], [5.0, 1.0], "action")
OBSERVATIONS = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)


def step(observation):
    return ts.transition(observation, np.float32(0.0), np.float32(1.0))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A recurrent agent, and the run directory with its policies and the checkpoint of them."""
    tf.random.set_seed(3)
    agent = build(VECTOR, recurrent=True)
    paths = RunPaths(tmp_path_factory.mktemp("run"))
    export = PolicyExport(paths, agent, actions_of(ACTION), tf.Variable(7, dtype=tf.int64))
    export.save_model()
    return agent, paths, paths.policy_checkpoints / export.save_checkpoint()


def test_a_function_acts_in_the_environments_units_and_workers_get_what_is_between_minus_1_and_1():
    policy = FixedPolicy(lambda observation: np.array([observation[0], 0.75]), actions_of(BOUNDS))
    np.testing.assert_allclose(action(policy, step(np.array([1.0])), False), [0.0, 0.5])
    np.testing.assert_allclose(action(policy, step(np.array([5.0])), False), [1.0, 0.5])
    np.testing.assert_allclose(action(policy, step(np.array([9.0])), False), [1.0, 0.5], err_msg="clipped")
    assert action(policy, step(np.array([1.0])), True).dtype == np.float32
    assert policy.inference == "function of the params"


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_an_action_that_is_not_finite_is_the_experts_fault(wrong):
    told = r"^the action of the expert \(expert_policy_ctor\) is not finite \(.*\): correct that policy$"
    for spec in (BOUNDS, tensor_spec.BoundedTensorSpec((2,), tf.int32, 0, 3, "action")):
        policy = FixedPolicy(lambda observation: np.array([wrong, 0.5]), actions_of(spec))
        with pytest.raises(FloatingPointError, match=told):
            action(policy, step(np.array([1.0])), False)


@pytest.mark.parametrize("kind", ["model", "checkpoint"])
def test_a_saved_policy_remembers_each_environments_own_episode(saved, kind):
    agent, paths, checkpoint = saved
    path = paths.policies / "greedy_policy" if kind == "model" else checkpoint
    policy = FixedPolicy(load_policy(path, "SAC_EXPERT_POLICY"), actions_of(ACTION), num_lanes=2)
    network = greedy_policy.GreedyPolicy(agent.policy)
    state = network.get_initial_state(1)
    for k, observation in enumerate(OBSERVATIONS):
        batched = tf.nest.map_structure(lambda leaf: tf.constant(np.asarray(leaf)[None]), step(observation))
        expected = network.action(batched, state)
        state = expected.state
        chosen = actions(policy, dict.fromkeys((0, 1), step(observation)), False)[0]
        np.testing.assert_allclose(chosen, expected.action.numpy()[0], atol=1e-5)
        if k == 1:
            policy.reset([1])  # Of another environment: this one's memory stays.


@pytest.mark.parametrize("name", ["nowhere", "policies", "policies/checkpoints/policy_checkpoint_0000000009"])
def test_what_is_no_policy_is_named(saved, name):
    _, paths, _ = saved
    with pytest.raises(UserError, match=r"SAC_EXPERT_POLICY=.* (is neither a SavedModel, nor|can't be loaded)"):
        load_policy(paths.exp_dir / name, "SAC_EXPERT_POLICY")
