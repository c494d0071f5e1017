"""DQN, IQN and discrete SAC: targets, losses and what is learned, against plain NumPy."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step, trajectory
from tf_agents.trajectories import time_step as ts

from tests.support.acting import action
from tests.support.fakes import FakeParams, agent_of
from tests.support.updates import losses_of, noise_of, quantile_loss_by_pairs, update_once
from tfagents_system.agents import iqn
from tfagents_system.agents.agent import make_worker_agent
from tfagents_system.agents.dqn import FRACTIONS, TARGET_FRACTIONS
from tfagents_system.agents.minibatch import TD_ERRORS, Drawing, Minibatch
from tfagents_system.agents.tqc import quantile_loss
from tfagents_system.errors import UserError
from tfagents_system.policies.weights import named_variables
from tfagents_system.policies.worker_policy import make_worker_policy

B, OBS, N = 6, 3, 4
OBSERVATION = tf.TensorSpec((OBS,), tf.float32, "observation")
ACTION = tensor_spec.BoundedTensorSpec((), tf.int32, 0, N - 1, "action")
SMALL = {"critic_joint_fc_layer_params": (16,), "actor_fc_layer_params": (16,), "value_head_units": 8}
ALGORITHMS = ("dqn", "iqn", "sac_discrete")
WEIGHTS = np.array([1.0, 0.1, 0.7, 0.2, 0.5, 0.9], np.float32)


def build(algorithm, **attributes):
    tf.keras.utils.set_random_seed(3)
    agent = agent_of(FakeParams, OBSERVATION, ACTION, algorithm=algorithm, **{**SMALL, **attributes})
    rng = np.random.default_rng(1)
    for network in (*agent.critics, *agent.targets, agent.acting.network):
        for variable in network.trainable_variables:
            variable.assign(0.5 * rng.standard_normal(variable.shape))
    return agent


def arrays(updates, seed=0):
    rng = np.random.default_rng(seed)
    outer = (updates, B)
    return [
        rng.standard_normal((*outer, OBS)).astype(np.float32),
        rng.integers(0, N, outer).astype(np.int32),
        rng.standard_normal(outer).astype(np.float32),
        rng.choice([0.0, 0.81], outer).astype(np.float32),
        rng.standard_normal((*outer, OBS)).astype(np.float32),
    ]


def transition(sample):
    observation, action, reward, bootstrap, following = (tf.constant(array[0]) for array in sample)
    mid, zeros = tf.ones(B, tf.int32), tf.zeros(B)
    return trajectory.Transition(
        ts.TimeStep(mid, zeros, zeros + 1, observation),
        policy_step.PolicyStep(action),
        ts.TimeStep(mid, reward, bootstrap, following),
    )


def check_weighted(agent, sample, errors, q, seed=0):
    """One update with importance weights: its TD errors, and the mean of the values."""
    measured = update_once(agent, transition(sample), weight=WEIGHTS, seed=seed)
    np.testing.assert_allclose(measured[TD_ERRORS][0], errors, rtol=1e-3, atol=1e-5)
    assert float(measured["q_mean"][0]) == pytest.approx((q * WEIGHTS).sum() / WEIGHTS.sum(), rel=1e-3)
    return measured


@pytest.mark.parametrize("outer", [(B,), (2, B // 2)], ids=["transitions", "sequences"])
@pytest.mark.parametrize("kappa", [0.005, 1.0])
def test_the_loss_of_quantiles_and_its_gradient_are_those_of_the_definition(kappa, outer):
    rng = np.random.default_rng(0)
    y, theta, tau = rng.standard_normal((B, 5)), rng.standard_normal((B, 8)), rng.random((B, 8))
    given = [tf.constant(array.reshape(*outer, -1), tf.float32) for array in (y, theta, tau)]
    with tf.GradientTape() as tape:
        tape.watch(given[1])
        loss = tf.reshape(quantile_loss(*given, kappa), [B])
    expected, gradient = quantile_loss_by_pairs(y, theta, tau, kappa)
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    np.testing.assert_allclose(tf.reshape(tape.gradient(loss, given[1]), theta.shape), gradient, rtol=1e-4, atol=1e-5)


def test_fractions_are_stratified_and_symmetric_and_follow_the_train_step():
    first, again, later = (iqn.symmetric_fractions(Drawing(7, step, 2), 1000, 8).numpy() for step in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, later)
    k = np.arange(4)
    assert np.all((first[:, :4] >= k / 8) & (first[:, :4] <= (k + 1) / 8))
    np.testing.assert_allclose(first[:, 4:], 1.0 - first[:, :4], rtol=1e-6)
    np.testing.assert_allclose(first[:, :4].mean(0), (k + 0.5) / 8, atol=5e-3)


@pytest.mark.parametrize("double_q", [False, True])
def test_iqns_targets_are_of_the_next_action_that_has_the_highest_mean(double_q):
    agent = build("iqn", double_q=double_q)
    sample, noise = arrays(1), noise_of(agent, seed=4)
    observation, action, reward, bootstrap, following = (array[0] for array in sample)
    tau, next_tau = (agent.fractions(noise, purpose, B) for purpose in (FRACTIONS, TARGET_FRACTIONS))
    (critic,), (target,) = agent.critics, agent.targets
    z, next_z, own = (
        network(tf.constant(seen), tau=fractions)[0].numpy()
        for network, seen, fractions in (
            (critic, observation, tau),
            (target, following, next_tau),
            (critic, following, next_tau),
        )
    )
    assert z.shape == (B, 8, N)
    best = (own if double_q else next_z).mean(1).argmax(1)
    targets = reward[:, None] + bootstrap[:, None] * next_z[range(B), :, best]
    expected, _ = quantile_loss_by_pairs(targets, z[range(B), :, action], tau.numpy())
    losses = agent.losses(Minibatch(transition(sample)), noise)
    y, q = reward + bootstrap * next_z[range(B), :, best].mean(1), z[range(B), :, action].mean(1)
    check_weighted(build("iqn", double_q=double_q), sample, np.abs(y - q), q, seed=4)
    told = agent.update(Minibatch(transition(sample)), noise)
    assert float(told["critic_loss"][0]) == pytest.approx(np.mean(expected), rel=1e-3)
    assert float(losses["critic_loss"]) == pytest.approx(np.mean(expected), rel=1e-3)
    assert float(told["q_mean"][0]) == pytest.approx(q.mean(), rel=1e-3)
    assert float(told["grad_norm"][0]) > 0.0


@pytest.mark.parametrize("double_q", [False, True])
@pytest.mark.parametrize("dueling", [False, True])
def test_dqns_loss_is_hubers_of_the_target(double_q, dueling):
    agent = build("dqn", double_q=double_q, dueling=dueling)
    observation, action, reward, bootstrap, following = (array[0] for array in arrays(1))
    (critic,), (target,) = agent.critics, agent.targets
    q, next_q, own = (
        network(tf.constant(seen))[0].numpy()
        for network, seen in ((critic, observation), (target, following), (critic, following))
    )
    best = (own if double_q else next_q).argmax(1)
    d = reward + bootstrap * next_q[np.arange(B), best] - q[np.arange(B), action]
    sizes = np.where(np.abs(d) <= 1, 0.5 * d * d, np.abs(d) - 0.5)
    assert float(losses_of(agent, transition(arrays(1)))["critic_loss"]) == pytest.approx(sizes.mean(), rel=1e-4)
    measured = check_weighted(agent, arrays(1), np.abs(d), q[np.arange(B), action])
    assert float(measured["critic_loss"][0]) == pytest.approx((sizes * WEIGHTS).mean(), rel=1e-4)


def test_discrete_sacs_losses_are_expectations_over_actions():
    agent = build("sac_discrete", sac_log_alpha=-0.5)
    observation, action, reward, bootstrap, following = (array[0] for array in arrays(1))
    alpha, rows = np.exp(-0.5), np.arange(B)

    def log_pi(seen):
        logits = agent.acting.network(tf.constant(seen))[0].numpy()
        return logits - np.log(np.exp(logits).sum(1, keepdims=True))

    def values(networks, seen):
        return np.array([network(tf.constant(seen))[0].numpy() for network in networks])

    next_log_pi, own_log_pi = log_pi(following), log_pi(observation)
    next_values = values(agent.targets, following).mean(0)
    soft = (np.exp(next_log_pi) * (next_values - alpha * next_log_pi)).sum(1)
    y = reward + bootstrap * soft
    q = values(agent.critics, observation)
    critic_loss = sum(0.5 * (y - each[rows, action]) ** 2 for each in q).mean()
    actor_loss = (np.exp(own_log_pi) * (alpha * own_log_pi - q.mean(0))).sum(1).mean()
    entropy = -(np.exp(own_log_pi) * own_log_pi).sum(1).mean()
    losses = losses_of(agent, transition(arrays(1)))
    assert float(losses["critic_loss"]) == pytest.approx(critic_loss, rel=1e-4)
    assert float(losses["actor_loss"]) == pytest.approx(actor_loss, rel=1e-4)
    assert float(losses["alpha_loss"]) == pytest.approx(-0.5 * (entropy - 0.3 * np.log(N)), rel=1e-3)
    taken = q[:, rows, action]
    check_weighted(agent, arrays(1), np.abs(y - taken).mean(0), taken.mean(0))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_only_the_actors_network_goes_to_workers(algorithm):
    params = type("P", (FakeParams,), {"algorithm": algorithm, **SMALL})({"horizon": 10})
    worker = make_worker_agent(params, ts.time_step_spec(OBSERVATION), ACTION)
    assert named_variables(worker.collect_policy).keys() == named_variables(build(algorithm).collect_policy).keys()


def test_actions_that_are_no_numbers_of_actions_are_refused_with_the_remedy():
    continuous = tensor_spec.BoundedTensorSpec((2,), tf.float32, -1.0, 1.0)
    with pytest.raises(UserError, match="algorithm='dqn' chooses one of n actions.*choose 'sac', or an environment"):
        agent_of(FakeParams, OBSERVATION, continuous, algorithm="dqn")


@pytest.mark.parametrize("algorithm", ["iqn", "sac_discrete"])
def test_dropout_of_the_critics_is_for_updates_and_no_policy_drops_anything(algorithm):
    agent = build(algorithm, critic_dropout=0.5)
    seen = tf.constant(arrays(1)[0][0])
    first, again = (agent.acting.network.acting_values(seen).numpy() for _ in range(2))
    np.testing.assert_array_equal(first, again)
    critic = agent.critics[0]
    tau = {"tau": tf.fill([B, 8], 0.5)} if algorithm == "iqn" else {}
    with noise_of(agent).of_dropout():
        assert not np.array_equal(critic(seen, **tau)[0], critic(seen, **tau)[0]), "an update does"
    policy = make_worker_policy(agent, 0)
    assert policy.inference == "numpy"
    chosen = [action(policy, ts.restart(row), True) for row in seen.numpy()]
    np.testing.assert_array_equal(chosen, first.argmax(1))


def test_layer_normalisation_and_dropout_of_the_critics_are_not_the_actors():
    agent = build("sac_discrete", critic_layer_norm=True, critic_dropout=0.5)
    networks = [agent.acting.network, *agent.critics, *agent.targets]
    kinds = [[type(layer).__name__ for layer in network.body.hidden_layers] for network in networks]
    assert kinds == [["Dense"], *[["Dense", "Dropout", "LayerNormalization", "Activation"]] * 4]
