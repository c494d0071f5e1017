"""Targets, losses and steps of the variants of SAC against plain NumPy, on linear networks and given noise."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.tiny_agents import (
    ACTOR_RATE,
    ALPHA_RATE,
    CRITIC_RATE,
    B,
    Minibatch,
    NumpyAgent,
    build,
    numeric_gradient,
    project,
    softmax,
    with_sgd,
)
from tests.support.updates import noise_of, quantile_loss_by_pairs, update_once
from tfagents_system.agents.minibatch import Noise

GAMMA, TAU = 0.9, 0.25
CLOSE = {"rtol": 2e-5, "atol": 2e-5}


def step(agent, batch):
    """One update; its measurements as numbers, and the NumPy agent of before."""
    before = NumpyAgent(agent)
    measured = update_once(with_sgd(agent), batch.transition(), batch.noise())
    return {name: float(value) for name, (value, _) in measured.items()}, before


def soft_values(before, batch, reduce, weights=None):
    """reduce(Q(s', a')) - alpha * log pi(a'|s')."""
    action, log_pi = before.sample(batch.next_observation, batch.next_noise)
    q = np.stack([before.values(critic, batch.next_observation, action) for critic in weights or before.targets])
    return reduce(q) - before.alpha * log_pi[:, None]


def td_targets(before, batch, reduce, weights=None):
    values = soft_values(before, batch, reduce, weights)
    return batch.reward[:, None] + GAMMA * batch.discount[:, None] * values


def stepped(critic, x, gradient_of_outputs):
    """Weights after a gradient step; x `[B, n]`, the gradient of the loss `[B, outputs]`."""
    kernel, bias = critic
    return kernel - CRITIC_RATE * x.T @ gradient_of_outputs, bias - CRITIC_RATE * gradient_of_outputs.sum(0)


def check_squared_update(agent, batch, y, numbers, before, judge):
    """Losses and weights after a step in which all critics learn y, `[B, 1]`, by their squared errors."""
    x = np.concatenate([batch.observation, batch.action], -1)
    q = [before.values(critic, batch.observation, batch.action) for critic in before.critics]
    np.testing.assert_allclose(numbers["critic_loss"], 0.5 * sum(np.mean((each - y) ** 2) for each in q), **CLOSE)
    np.testing.assert_allclose(numbers["q_mean"], np.mean(q), **CLOSE)
    critics = [stepped(critic, x, (each - y) / B) for critic, each in zip(before.critics, q, strict=True)]
    check_critics(agent, critics, before)
    check_actor_and_alpha(agent, batch, critics, numbers, before, judge)


def check_critics(agent, critics, before):
    """The critics are as given, and each target is tau of its way further."""
    after = NumpyAgent(agent)
    for ours, expected in zip(after.critics, critics, strict=True):
        np.testing.assert_allclose(ours[0], expected[0], **CLOSE)
        np.testing.assert_allclose(ours[1], expected[1], **CLOSE)
    for ours, old, critic in zip(after.targets, before.targets, critics if before.targets else [], strict=True):
        np.testing.assert_allclose(ours[0], (1 - TAU) * old[0] + TAU * critic[0], **CLOSE)


def check_actor_and_alpha(agent, batch, critics, numbers, before, judge):
    """The actor is judged by the critics after their step; alpha's step follows from log pi before the actor's."""

    def actor_loss():
        action, log_pi = before.sample(batch.observation, batch.actor_noise)
        q = np.stack([before.values(critic, batch.observation, action) for critic in critics])
        return np.mean(before.alpha * log_pi - judge(q))

    np.testing.assert_allclose(numbers["actor_loss"], actor_loss(), **CLOSE)
    for weights, after in zip(before.actor, NumpyAgent(agent).actor, strict=True):
        np.testing.assert_allclose(after, weights - ACTOR_RATE * numeric_gradient(actor_loss, weights), **CLOSE)
    _, log_pi = before.sample(batch.observation, batch.actor_noise)
    gradient = np.mean(-log_pi - -2.0)
    np.testing.assert_allclose(numbers["alpha_loss"], -0.5 * gradient, **CLOSE)
    np.testing.assert_allclose(agent.log_alpha, -0.5 - ALPHA_RATE * gradient, **CLOSE)


def mean_of_all(q):
    return q.mean(0)[..., 0]


@pytest.mark.parametrize("num_target_critics", [1, 2, 3])
def test_redq_learns_the_minimum_over_the_set_and_the_actor_follows_the_mean(num_target_critics):
    agent = build(algorithm="redq", num_critics=3, num_target_critics=num_target_critics, actor_update_period=1)
    batch = Minibatch()
    drawn = np.flatnonzero(agent.drawn(noise_of(agent)))
    assert len(drawn) == num_target_critics
    numbers, before = step(agent, batch)
    y = td_targets(before, batch, lambda q: q[drawn].min(0))
    check_squared_update(agent, batch, y, numbers, before, mean_of_all)


def test_redqs_targets_that_are_not_drawn_do_not_matter():
    def critic_loss(outsiders):
        agent = build(algorithm="redq", num_critics=4, num_target_critics=2)
        for i in np.flatnonzero(~agent.drawn(noise_of(agent)).numpy()):
            agent.targets[i].variables[1].assign(outsiders)
        return step(agent, Minibatch())[0]["critic_loss"]

    assert critic_loss([-1e6]) == critic_loss([float("nan")]) < 1e3


def test_redqs_sets_are_uniform_new_in_each_update_and_follow_from_seed_and_train_step():
    agent = build(algorithm="redq", num_critics=4, num_target_critics=2)

    def sets(seed, steps):
        found, drawn = [], tf.function(lambda: agent.drawn(Noise(seed, agent.train_step_counter)))
        for train_step in range(steps):
            agent.train_step_counter.assign(train_step)
            found.append(tuple(np.flatnonzero(drawn())))
        return found

    found = sets(seed=1, steps=600)
    counts = {members: found.count(members) for members in set(found)}
    assert len(counts) == 6 and all(len(members) == 2 for members in counts)
    # 100 each are expected; 5 standard deviations of a count.
    assert all(abs(count - 100) < 5 * np.sqrt(600 * (1 / 6) * (5 / 6)) for count in counts.values()), counts
    repeats = sum(a == b for a, b in zip(found[1:], found[:-1], strict=True))
    assert abs(repeats - 599 / 6) < 5 * np.sqrt(599 * (1 / 6) * (5 / 6)), "a set says nothing of the next one"
    assert sets(seed=1, steps=30) == found[:30]
    assert sets(seed=2, steps=30) != found[:30]


def test_droq_learns_the_minimum_over_both_targets_and_the_actor_follows_the_mean():
    agent = build(algorithm="droq", actor_update_period=1)
    assert len(agent.critics) == 2
    batch = Minibatch()
    numbers, before = step(agent, batch)
    y = td_targets(before, batch, lambda q: q.min(0))
    check_squared_update(agent, batch, y, numbers, before, mean_of_all)


def test_tqc_learns_what_is_left_of_the_pooled_quantiles():
    agent = build(algorithm="tqc", num_critics=3)
    batch = Minibatch()
    numbers, before = step(agent, batch)
    # 3 critics of 4 quantiles: of 12 the largest 3 go.
    y = td_targets(before, batch, lambda q: np.sort(np.concatenate(list(q), -1), -1)[:, :9])
    assert y.shape == (B, 9)
    x = np.concatenate([batch.observation, batch.action], -1)
    losses, critics = [], []
    for critic in before.critics:
        theta = before.values(critic, batch.observation, batch.action)
        loss, gradient = quantile_loss_by_pairs(y, theta, np.tile([0.125, 0.375, 0.625, 0.875], (B, 1)))
        losses.append(loss.mean() / 4)
        critics.append(stepped(critic, x, gradient / 4 / B))
    np.testing.assert_allclose(numbers["critic_loss"], sum(losses), **CLOSE)
    check_critics(agent, critics, before)
    check_actor_and_alpha(agent, batch, critics, numbers, before, lambda q: q.mean((0, -1)))


def test_crossqs_statistics_are_over_both_halves():
    """Inputs without the mean of (s, a) and (s', a') together, in both what is learned and what is learned from."""
    agent = build(algorithm="crossq", is_centred=True, actor_update_period=1)
    assert agent.targets == []
    batch = Minibatch()
    numbers, before = step(agent, batch)
    next_action, next_log_pi = before.sample(batch.next_observation, batch.next_noise)
    x = np.concatenate([batch.observation, batch.action], -1)
    next_x = np.concatenate([batch.next_observation, next_action], -1)
    centre = np.concatenate([x, next_x]).mean(0)
    x, next_x = x - centre, next_x - centre
    q, next_q = ([inputs @ kernel + bias for kernel, bias in before.critics] for inputs in (x, next_x))
    soft = np.minimum(*next_q)[:, 0] - before.alpha * next_log_pi
    y = (batch.reward + GAMMA * batch.discount * soft)[:, None]
    np.testing.assert_allclose(numbers["critic_loss"], 0.5 * sum(np.mean((each - y) ** 2) for each in q), **CLOSE)
    # No gradient flows through y, but one does through the mean, which is nothing to the weights: x is given.
    critics = [stepped(critic, x, (each - y) / B) for critic, each in zip(before.critics, q, strict=True)]
    check_critics(agent, critics, before)
    check_actor_and_alpha(agent, batch, critics, numbers, before, lambda q: q.min(0)[..., 0])


ATOMS = np.linspace(-3.0, 3.0, 11)
CATEGORIES = {"critic_head": "categorical", "categorical": {"num_atoms": 11, "value_range": (-3, 3)}}


def expected_values(logits):
    return softmax(logits) @ ATOMS


def lowest_values(logits):
    return expected_values(logits).min(0)


@pytest.mark.parametrize(
    ("attributes", "judge"),
    [
        ({}, lowest_values),
        ({"algorithm": "redq", "num_critics": 4}, lambda logits: expected_values(logits).mean(0)),
        ({"algorithm": "crossq", "is_centred": True, "actor_update_period": 1}, lowest_values),
    ],
    ids=["sac", "redq", "crossq"],
)
def test_categorical_critics_learn_the_projected_distribution_of_the_critic_with_the_lowest_mean(attributes, judge):
    """Of those that are drawn, with redq; the loss is half the sum of the critics' cross-entropies."""
    agent = build(**CATEGORIES, **attributes)
    batch, drawn = Minibatch(), slice(None)
    if attributes.get("algorithm") == "redq":
        drawn = np.flatnonzero(agent.drawn(noise_of(agent)))
        for i in set(range(4)) - set(drawn):  # The lowest of all, had it been drawn.
            agent.targets[i].variables[1].assign(np.float32(10.0 * (np.arange(11) == 0)))
    numbers, before = step(agent, batch)
    next_action, next_log_pi = before.sample(batch.next_observation, batch.next_noise)
    x = np.concatenate([batch.observation, batch.action], -1)
    next_x = np.concatenate([batch.next_observation, next_action], -1)
    if "is_centred" in attributes:
        centre = np.concatenate([x, next_x]).mean(0)
        x, next_x = x - centre, next_x - centre
    judges = (
        (before.targets or before.critics)[drawn] if isinstance(drawn, slice) else [before.targets[i] for i in drawn]
    )
    following = softmax(np.stack([next_x @ kernel + bias for kernel, bias in judges]))
    lower = following[(following @ ATOMS).argmin(0), np.arange(B)]
    values = batch.reward[:, None] + GAMMA * batch.discount[:, None] * (ATOMS - before.alpha * next_log_pi[:, None])
    y = project(lower, values, ATOMS)
    q = [softmax(x @ kernel + bias) for kernel, bias in before.critics]
    losses = [-(y * np.log(each)).sum(-1).mean() for each in q]
    np.testing.assert_allclose(numbers["critic_loss"], 0.5 * sum(losses), **CLOSE)
    np.testing.assert_allclose(numbers["q_mean"], np.mean(q @ ATOMS), **CLOSE)
    outside = np.abs(values) > 3.0
    np.testing.assert_allclose(numbers["clipped_mass"], (lower * outside).sum(-1).mean(), **CLOSE)
    critics = [stepped(critic, x, 0.5 * (each - y) / B) for critic, each in zip(before.critics, q, strict=True)]
    check_critics(agent, critics, before)
    check_actor_and_alpha(agent, batch, critics, numbers, before, judge)
