"""A worker chooses one of n actions in NumPy as the network does, and says when it explored."""

import numpy as np
import pytest
import tensorflow as tf
import tree
from tf_agents.policies import greedy_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tests.support.fakes import FakeParams, agent_of
from tests.support.numpy_actors import as_after_training
from tfagents_system.policies.lane_steps import LaneSteps
from tfagents_system.policies.weights import assign_weights, named_variables
from tfagents_system.policies.worker_policy import make_worker_policy

N = 5
ACTION = tensor_spec.BoundedTensorSpec((), tf.int32, 0, N - 1, "action")
VECTOR = tf.TensorSpec((3,), tf.float32, "observation")
NEST = {"pixels": tf.TensorSpec((2, 3), tf.uint8), "x": VECTOR}
KINDS = {
    "dqn": ({"algorithm": "dqn"}, VECTOR),
    "dueling": ({"algorithm": "dqn", "dueling": True}, NEST),
    "iqn": ({"algorithm": "iqn", "normalize_observations": True}, NEST),
    "plain iqn": ({"algorithm": "iqn", "dueling": False, "critic_layer_norm": True}, VECTOR),
    "simba": ({"algorithm": "dqn", "network": "simba", "critic_joint_fc_layer_params": (16, 16)}, VECTOR),
    "sac_discrete": ({"algorithm": "sac_discrete"}, VECTOR),
}


def trained(kind, num_envs=1, **rates):
    attributes, spec = KINDS[kind]
    small = {"critic_joint_fc_layer_params": (16,), "actor_fc_layer_params": (16,), "value_head_units": 8}
    agent = agent_of(FakeParams, spec, ACTION, **{**small, **attributes})
    values = as_after_training(agent, seed=2)
    for name, rate in {"exploration_epsilon": 0.0, "boltzmann_epsilon": 0.0, **rates}.items():
        if f"{name}:0" in values:
            values[f"{name}:0"] = np.float32(rate)
    policy = make_worker_policy(agent, seed=0, num_envs=num_envs)
    assert policy.inference == "numpy"
    policy.assign(values)
    assign_weights(named_variables(agent.collect_policy), values)
    return agent, policy, spec


def observation(spec, seed):
    rng = np.random.default_rng(seed)
    return tf.nest.map_structure(
        lambda leaf: (rng.random(leaf.shape) * (255 if leaf.dtype == tf.uint8 else 1)).astype(
            leaf.dtype.as_numpy_dtype
        ),
        spec,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_actions_and_values_are_those_of_the_network(kind):
    agent, policy, spec = trained(kind)
    greedy = greedy_policy.GreedyPolicy(agent.policy)
    for seed in range(20):
        seen = observation(spec, seed)
        batch = tf.nest.map_structure(lambda leaf: tf.constant(leaf[None]), seen)
        found = policy.action(ts.restart(seen), greedy=True)
        assert found.dtype == np.int32 and found.shape == ()
        assert found == greedy.action(ts.restart(batch, 1)).action[0]
        assert not policy.explored(0)
        scores = agent.acting.network.acting_values(batch)[0].numpy()
        if kind == "sac_discrete":
            assert policy.q_values(0) is None
        else:
            np.testing.assert_allclose(policy.q_values(0), scores, rtol=1e-3, atol=1e-4)
        whole = agent.acting.network(batch)[0].numpy()  # The mean in front of the last layer is the mean behind it.
        np.testing.assert_allclose(whole.mean(axis=1)[0] if whole.ndim == 3 else whole[0], scores, rtol=1e-3, atol=1e-4)


def test_epsilon_is_the_share_of_random_actions_and_explored_means_another_than_the_greedy_one():
    _, policy, spec = trained("iqn", exploration_epsilon=0.5)
    step = ts.restart(observation(spec, 0))
    best = int(policy.action(step, greedy=True))
    actions, explored = [], []
    for _ in range(4000):
        actions.append(int(policy.action(step, greedy=False)))
        explored.append(policy.explored(0))
    np.testing.assert_array_equal(np.array(actions) != best, explored)
    assert np.mean(explored) == pytest.approx(0.5 * (N - 1) / N, abs=0.03)


def test_boltzmanns_noise_exchanges_actions_of_nearly_equal_value_alone():
    agent, policy, spec = trained("dqn", boltzmann_epsilon=1.0)
    name = next(n for n, v in named_variables(agent.collect_policy).items() if "value/bias" in n)
    values = {n: v.numpy() for n, v in named_variables(agent.collect_policy).items()}
    for other in values:
        if "value/kernel" in other:
            values[other] = np.zeros_like(values[other])
    values[name] = np.float32([1.0, 0.0, 1.0, 0.99, -1.0])
    policy.assign(values)
    step = ts.restart(observation(spec, 0))
    assert policy.action(step, greedy=True) == 0  # Of equal ones the first.
    counts = np.bincount([int(policy.action(step, greedy=False)) for _ in range(3000)], minlength=N)
    assert counts[1] == counts[4] == 0 and 0.3 < counts[0] / 3000 < 0.55 and 0.05 < counts[3] / 3000 < 0.25


def test_discrete_sac_samples_its_probabilities():
    agent, policy, spec = trained("sac_discrete")
    seen = observation(spec, 0)
    logits = agent.acting.network(tf.constant(seen[None]))[0][0]
    counts = np.bincount([int(policy.action(ts.restart(seen), greedy=False)) for _ in range(5000)], minlength=N)
    np.testing.assert_allclose(counts / 5000, tf.nn.softmax(logits), atol=0.03)


def test_lanes_have_the_actions_that_each_would_have_alone_and_a_seed_repeats_them():
    _, policy, spec = trained("iqn", num_envs=4, exploration_epsilon=0.3)
    leaves = [np.stack(parts) for parts in zip(*(tree.flatten(observation(spec, k)) for k in range(4)), strict=True)]
    names = tree.map_structure(lambda leaf: leaf.name, spec)
    steps = LaneSteps(np.zeros(4, np.int32), np.zeros(4, np.float32), np.ones(4, np.float32), leaves, names)
    (found,) = policy.batch(steps, greedy=True)
    alone = policy.actions({lane: steps.of_lane(lane) for lane in range(4)}, greedy=True)
    assert found.tolist() == [int(alone[lane]) for lane in range(4)] and found.dtype == np.int32
    drawn = []
    for _ in range(2):
        policy.reseed(5)
        drawn.append([policy.batch(steps, greedy=False)[0].tolist() for _ in range(20)])
        explored = policy.explored_lanes(4)
        np.testing.assert_array_equal(explored, np.array(drawn[-1][-1]) != found)
    assert drawn[0] == drawn[1] and len({tuple(each) for each in drawn[0]}) > 1


def test_policies_in_tensorflow_know_their_values_and_when_they_explored():
    """Images and stacked frames: two environments, one of which steps alone in between."""
    spec = {"camera": tf.TensorSpec((17, 17, 1), tf.uint8), "x": tf.TensorSpec((6,), tf.float32)}
    agent = agent_of(
        FakeParams, spec, ACTION, algorithm="dqn", critic_joint_fc_layer_params=(16,), exploration_epsilon=0.5
    )
    policy = make_worker_policy(agent, seed=0, num_envs=2, frame_stack={"x": 2})
    assert policy.inference == "tensorflow session"
    rng = np.random.default_rng(0)
    seen = []
    for step in range(40):
        single = {"camera": rng.integers(0, 255, (17, 17, 1), np.uint8), "x": rng.standard_normal(3).astype(np.float32)}
        envs = [0, 1] if step % 2 else [1]
        chosen = policy.actions({env: ts.restart(single) for env in envs}, greedy=step >= 30)
        for env in envs:
            best = int(policy.q_values(env).argmax())
            assert policy.explored(env) == (int(chosen[env]) != best)
            assert policy.was_greedy(env) == (int(chosen[env]) == best)
            assert policy.q_values(env).shape == (N,)
            seen.append((step >= 30, policy.explored(env)))
    assert set(seen) == {(False, False), (False, True), (True, False)}
    stacked = {**single, "x": np.concatenate([single["x"]] * 2)}
    batched = tf.nest.map_structure(lambda leaf: tf.constant(leaf)[None], stacked)
    np.testing.assert_allclose(policy.q_values(1), agent.acting.network.acting_values(batched)[0], rtol=1e-4, atol=1e-5)
    policy.reset(1)
    assert policy.q_values(1) is None and not policy.explored(1)
