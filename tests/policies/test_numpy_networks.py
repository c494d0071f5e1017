"""What the default actors can have beside plain layers, in NumPy and in a session, equals the network."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.policies import greedy_policy, policy_loader
from tf_agents.trajectories import time_step as ts

from tests.support.numpy_actors import ACTION, VECTOR, as_after_training, build
from tfagents_system.envs.actions import actions_of
from tfagents_system.policies import numpy_network, weights
from tfagents_system.policies.worker_policy import make_worker_policy
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.trainer.policy_export import PolicyExport

NESTED = {"camera": tf.TensorSpec((2, 3, 1), tf.uint8), "x": tf.TensorSpec((), tf.float32), "y": tf.TensorSpec((3,))}


def time_steps(spec, count, seed):
    rng = np.random.default_rng(seed)

    def draw(leaf):
        if leaf.dtype == tf.uint8:
            return rng.integers(0, 256, leaf.shape).astype(np.uint8)
        return np.asarray(3 * rng.standard_normal(leaf.shape), np.float32)

    return {
        env: ts.TimeStep(np.int32(1), np.float32(0), np.float32(1), tf.nest.map_structure(draw, spec))
        for env in range(count)
    }


def batched(step):
    return tf.nest.map_structure(lambda value: tf.constant(np.asarray(value)[None]), step)


@pytest.mark.parametrize(
    ("spec", "attributes"),
    [
        (tf.TensorSpec((6,), tf.uint8), {}),
        (VECTOR, {"normalize_observations": True}),
        (NESTED, {"normalize_observations": True}),
        (NESTED, {"normalize_observations": True, "image_encoder_layers": ()}),
        (VECTOR, {"normalize_observations": True, "recurrent": True}),
        (VECTOR, {"batch_renormalization": True}),
        (NESTED, {"batch_renormalization": True, "normalize_observations": True}),
        (VECTOR, {"network": "simba"}),
        (NESTED, {"network": "simba", "actor_fc_layer_params": (16,)}),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) and "camera" not in value else "",
)
def test_actors_of_all_kinds_run_in_numpy_and_equal_the_network(spec, attributes):
    agent = build(spec, **attributes)
    values = as_after_training(agent, seed=1)
    for num_envs in (1, 9):
        policy = make_worker_policy(agent, seed=0, num_envs=num_envs)
        assert policy.inference == "numpy"
        policy.assign(values)
        weights.assign_weights(weights.named_variables(agent.collect_policy), values)
        greedy = greedy_policy.GreedyPolicy(agent.policy)
        states = {env: greedy.get_initial_state(1) for env in range(num_envs)}
        for seed in range(3):
            steps = time_steps(spec, num_envs, seed)
            found = policy.actions(steps, greedy=True)
            for env in list(steps)[:3]:
                expected = greedy.action(batched(steps[env]), states[env])
                states[env] = expected.state
                np.testing.assert_allclose(found[env], expected.action[0], atol=2e-5)


@pytest.mark.parametrize("num_envs", [1, 9])
def test_statistics_that_are_not_taken_over_are_seen_though_they_begin_with_0_and_1(monkeypatch, num_envs):
    agent = build(VECTOR, normalize_observations=True)
    variables = agent.collect_policy.variables()
    before = [variable.numpy() for variable in variables]
    with monkeypatch.context() as patched:
        patched.setattr(numpy_network, "_fill_normalization", lambda center, scale, names, arrays: scale.fill(1.0))
        policy = make_worker_policy(agent, seed=0, num_envs=num_envs)
    assert policy.inference == "tensorflow session"
    assert make_worker_policy(agent, seed=0, num_envs=num_envs).inference == "numpy"
    for variable, value in zip(variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    steps = time_steps(VECTOR, num_envs, 0)
    found = policy.actions(steps, greedy=True)
    for env, step in steps.items():
        expected = greedy_policy.GreedyPolicy(agent.policy).action(batched(step)).action[0]
        np.testing.assert_allclose(found[env], expected, atol=1e-6)


def test_saved_policies_carry_the_statistics(tmp_path):
    agent = build(VECTOR, normalize_observations=True)
    agent.actor.normalization.leaves[0].mean.assign([100.0, -5.0, 2.0])
    agent.actor.normalization.leaves[0].variance.assign([4.0, 9.0, 1.0])
    PolicyExport(RunPaths(tmp_path), agent, actions_of(ACTION), agent.train_step_counter).save_models()
    step = time_steps(VECTOR, 1, 0)[0]._replace(observation=np.array([102.0, -2.0, 2.5], np.float32))
    expected = greedy_policy.GreedyPolicy(agent.policy).action(batched(step)).action
    agent.actor.normalization.leaves[0].mean.assign([0.0, 0.0, 0.0])
    loaded = policy_loader.load(str(tmp_path / "policies" / "greedy_policy"))
    played = loaded._policy.action(batched(step), loaded._policy.get_initial_state(1)).action
    np.testing.assert_allclose(played, expected, atol=1e-6)
    assert np.abs(greedy_policy.GreedyPolicy(agent.policy).action(batched(step)).action - played).max() > 1e-3
