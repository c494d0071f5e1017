"""Categories of critics: projections, means, losses and TD errors against numbers and plain NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support import tiny_agents
from tests.support.tiny_agents import ACTION, OBSERVATION, Minibatch, TinyParams, project, softmax, with_sgd
from tests.support.updates import update_once
from tfagents_system.agents.agent import make_agent
from tfagents_system.agents.categorical import Categories
from tfagents_system.agents.minibatch import TD_ERRORS

CATEGORIES = Categories(101, -5.0, 5.0)
ATOMS = np.linspace(-5.0, 5.0, 101)


@pytest.mark.parametrize(
    ("probabilities", "reward", "discount", "soft", "expected", "mean"),
    [
        (np.eye(101)[50], 0.123, 0.99, -0.02, {51: 0.572, 52: 0.428}, 0.1428),
        (np.eye(101)[50], -0.37, 0.0, 0.3, {46: 0.7, 47: 0.3}, -0.37),
        (np.full(101, 1 / 101), 1.0, 0.99, 0.0, {100: 0.104950}, 0.950050),
    ],
    ids=["between two atoms", "a terminal", "clipped"],
)
def test_a_projections_numbers(probabilities, reward, discount, soft, expected, mean):
    values = np.float32(reward + discount * (ATOMS - soft))
    moved, clipped = CATEGORIES.project(tf.constant(probabilities[None], tf.float32), tf.constant(values[None]))
    for atom, share in expected.items():
        assert float(moved[0, atom]) == pytest.approx(share, abs=1e-5 if len(expected) > 1 else 1e-6)
    assert float(CATEGORIES.mean(moved)[0]) == pytest.approx(mean, abs=2e-6)
    assert float(tf.reduce_sum(moved)) == pytest.approx(1.0, abs=1e-6)
    assert float(clipped[0]) == pytest.approx(10 / 101 if len(expected) == 1 else 0.0, abs=1e-6)


@pytest.mark.parametrize(("count", "low", "high"), [(101, -5.0, 5.0), (11, -3.0, 0.5), (2, 0.0, 40.0)])
def test_a_projection_is_the_dense_sum_over_hats_and_tells_the_clipped_share(count, low, high):
    """Of 200 random distributions `[20, 10]`; values far outside, between and on atoms."""
    rng, atoms = np.random.default_rng(0), np.linspace(low, high, count)
    probabilities = softmax(3.0 * rng.standard_normal((200, count)))
    values = low + (high - low) * (0.5 + rng.standard_normal((200, count)))
    values[:50] = rng.choice(atoms, (50, count))
    is_outside = (values < low) | (values > high)
    leading = [np.float32(array).reshape(20, 10, count) for array in (probabilities, values)]
    moved, clipped = Categories(count, low, high).project(*map(tf.constant, leading))
    np.testing.assert_allclose(moved, project(probabilities, values, atoms).reshape(20, 10, count), atol=1e-5)
    np.testing.assert_allclose(clipped, (probabilities * is_outside).sum(-1).reshape(20, 10), atol=1e-5)


def test_a_value_that_is_not_a_number_is_seen_in_the_loss():
    values = np.float32([ATOMS, ATOMS])
    values[0, 3] = np.nan
    moved, _ = CATEGORIES.project(tf.fill([2, 101], 1 / 101), tf.constant(values))
    losses = tf.nn.softmax_cross_entropy_with_logits(moved, tf.zeros([2, 101]))
    assert np.isnan(losses[0]) and float(losses[1]) == pytest.approx(np.log(101.0), rel=1e-5)


@pytest.mark.parametrize("leading", [(4,), (4, 3)])
def test_the_lowest_is_the_whole_distribution_of_the_critic_with_the_lower_mean(leading):
    logits = np.float32(2.0 * np.random.default_rng(1).standard_normal((3, *leading, 101)))
    means = softmax(logits) @ ATOMS
    first = means.argmin(0)
    assert len(set(first.ravel())) > 1
    np.testing.assert_allclose(CATEGORIES.mean(tf.nn.softmax(logits)), means, atol=1e-5)
    expected = np.take_along_axis(logits, first[None, ..., None], 0)[0]
    np.testing.assert_array_equal(CATEGORIES.lowest(list(map(tf.constant, logits))), expected)


def test_the_losss_gradient_is_softmax_minus_target():
    agent = tiny_agents.build(critic_head="categorical")
    rng = np.random.default_rng(2)
    logits, target = rng.standard_normal((5, 101)).astype(np.float32), softmax(rng.standard_normal((5, 101)))
    with tf.GradientTape() as tape:
        prediction = tf.Variable(logits)
        losses = agent.td_loss(tf.constant(target, tf.float32), prediction)
    np.testing.assert_allclose(losses, -(target * np.log(softmax(logits))).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(tape.gradient(losses, prediction), softmax(logits) - target, atol=1e-6)


def test_a_wrong_scale_of_rewards_shows_as_clipped_mass():
    """Rewards with a deviation of 100 are far beyond 5; divided by the deviation of returns they are not."""
    batch, clipped = Minibatch(), {}
    rewards = 100.0 * batch.reward / batch.reward.std()
    for is_scaled in (False, True):
        params = TinyParams({"horizon": 10})
        params.critic_head, params.sac_log_alpha = "categorical", -5.0
        params.normalize_rewards = None if is_scaled else False
        agent = make_agent(params, OBSERVATION, ACTION, tf.Variable(0, dtype=tf.int64))
        assert hasattr(agent, "reward_scale") == is_scaled, "categories are over scaled returns unless params say no"
        batch.reward = rewards
        if is_scaled:
            agent.reward_scale.update(tf.constant(rewards))
            batch.reward = agent.reward_scale(tf.constant(rewards)).numpy()
            assert batch.reward.std() == pytest.approx(1.0, abs=1e-4)
            assert float(agent.reward_scale(1e4)) == pytest.approx(100.0, rel=1e-4), (
                "no limit but that of the categories"
            )
        clipped[is_scaled] = float(update_once(agent, batch.transition(), batch.noise())["clipped_mass"][0])
    assert clipped[False] > 0.5 and clipped[True] < 0.1


def test_td_errors_are_of_expected_values():
    """|E m - E q| of the target m and each critic's q, the mean over the critics."""
    agent = tiny_agents.build(critic_head="categorical", categorical={"num_atoms": 11, "value_range": (-3, 3)})
    batch, before, atoms = Minibatch(), tiny_agents.NumpyAgent(agent), np.linspace(-3.0, 3.0, 11)
    weights = np.float32([1.0, 0.1, 0.7, 0.2, 0.5, 0.9])
    measured = update_once(with_sgd(agent), batch.transition(), batch.noise(), weights)
    action, log_pi = before.sample(batch.next_observation, batch.next_noise)
    following = softmax(np.stack([before.values(each, batch.next_observation, action) for each in before.targets]))
    lower = np.take_along_axis(following, (following @ atoms).argmin(0)[None, :, None], 0)[0]
    values = batch.reward[:, None] + 0.9 * batch.discount[:, None] * (atoms - before.alpha * log_pi[:, None])
    y = project(lower, values, atoms)
    q = softmax(np.stack([before.values(each, batch.observation, batch.action) for each in before.critics]))
    np.testing.assert_allclose(measured[TD_ERRORS][0], np.abs(y @ atoms - q @ atoms).mean(0), atol=1e-5)
    losses = -(y * np.log(q)).sum(-1)
    assert float(measured["critic_loss"][0]) == pytest.approx(0.5 * (losses * weights).mean(1).sum(), rel=1e-5)
    assert float(measured["q_mean"][0]) == pytest.approx(np.average((q @ atoms).mean(0), weights=weights), abs=1e-5)
