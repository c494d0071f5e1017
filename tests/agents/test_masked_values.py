"""A mask of actions rules out what targets, losses and policies choose; no network sees it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step, trajectory
from tf_agents.trajectories import time_step as ts

from tests.support.acting import steps_of
from tests.support.fakes import FakeParams, agent_of
from tests.support.updates import losses_of, update_once
from tfagents_system.agents.minibatch import Minibatch
from tfagents_system.agents.networks import ValueNetwork, of_legal
from tfagents_system.policies.numpy_policy import ILLEGAL
from tfagents_system.policies.tensorflow_policy import TensorFlowWorkerPolicy
from tfagents_system.policies.worker_policy import make_worker_policy
from tfagents_system.worker.actors import RandomActor

N = 4
CHOICE = tensor_spec.BoundedTensorSpec((), tf.int32, 0, N - 1, "action")
SPEC = {"action_mask": tf.TensorSpec((N,), tf.uint8), "seen": tf.TensorSpec((2,), tf.float32)}
ALGORITHMS = ("dqn", "iqn", "sac_discrete")
MASK = np.array([0, 1, 1, 0], np.uint8)


def build(algorithm: str, spec: Any = SPEC, **attributes: Any) -> Any:
    small = {"critic_joint_fc_layer_params": (8,), "actor_fc_layer_params": (8,), "value_head_units": 8}
    tf.keras.utils.set_random_seed(1)
    return agent_of(FakeParams, spec, CHOICE, algorithm=algorithm, **{**small, **attributes})


def answers(monkeypatch: pytest.MonkeyPatch, *scores: list[float]) -> None:
    """Networks answer with these numbers, one list a call; quantiles are all alike."""
    given = iter(scores)

    def call(self: Any, observation: Any, step_type: Any = None, training: bool = False, tau: Any = None) -> Any:
        values = tf.constant([next(given)], tf.float32)
        return (values if tau is None else tf.repeat(values[:, None], tau.shape[1], axis=1)), ()

    monkeypatch.setattr(ValueNetwork, "call", call)
    monkeypatch.setattr(ValueNetwork, "__call__", call)


def transition(next_mask: Any, bootstrap: float = 0.5, mask: Any = MASK) -> Any:
    """One sample: action 1, reward 1."""
    first, second = (
        {"action_mask": tf.constant([legal], tf.uint8), "seen": tf.zeros((1, 2))} for legal in (mask, next_mask)
    )
    one = tf.ones(1)
    before = ts.TimeStep(tf.ones(1, tf.int32), 0 * one, one, first)
    after = ts.TimeStep(tf.ones(1, tf.int32), one, bootstrap * one, second)
    return trajectory.Transition(before, policy_step.PolicyStep(tf.constant([1])), after)


@pytest.mark.parametrize("double_q", [True, False])
@pytest.mark.parametrize("algorithm", ["dqn", "iqn"])
def test_a_target_is_of_the_best_legal_action(algorithm: str, double_q: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = build(algorithm, double_q=double_q, iqn={"num_quantiles": 2})
    choosing = [[9.0, 1.0, 2.0, 8.0]] if double_q else []
    # Legal are 1 and 2, and 2 is the best: y = 1 + 0.5 * 4 = 3 by either network.
    here, after = [[0.0, 2.5, 0.0, 0.0]], [[7.0, 3.0, 4.0, 6.0], *choosing]
    answers(monkeypatch, *(here + after if algorithm == "dqn" else after + here))
    # Fractions of two symmetric quantiles add up to 1: each pair's loss is that of dqn.
    assert float(losses_of(agent, transition(MASK))["critic_loss"]) == pytest.approx(0.5 * 0.5**2)


def test_discrete_sacs_sums_and_target_entropy_are_of_the_legal_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, own = build("sac_discrete", sac_log_alpha=0.0), build("sac_discrete", target_entropy=0.1)
    logits, q = [50.0, 0.0, np.log(3.0), 60.0], [0.0, 2.0, 1.0, 0.0]  # pi = 1/4 and 3/4.
    log_pi = np.log([0.25, 0.75])
    entropy = -np.dot([0.25, 0.75], log_pi)
    # pi(s'), two targets, two critics; then pi(s), two critics.
    answers(monkeypatch, logits, [99.0, 3.0, 4.0, 99.0], [99.0, 9.0, 5.0, 99.0], q, q, logits, q, q)
    losses = losses_of(agent, transition(MASK))
    y = 1.0 + 0.5 * (0.25 * 6.0 + 0.75 * 4.5 + entropy)
    assert float(losses["critic_loss"]) == pytest.approx(2 * 0.5 * (y - 2.0) ** 2, rel=1e-5)
    assert float(losses["actor_loss"]) == pytest.approx(-entropy - 0.25 * 2.0 - 0.75 * 1.0, rel=1e-5)

    def missing_entropy(agent: Any, mask: Any, log_pi: list[float]) -> float:
        sample = agent._sample_of(Minibatch(transition(MASK, mask=mask)))
        return float(agent.alpha_loss(sample, tf.constant([log_pi]))[1])

    two = [-1e9, *log_pi, -1e9]
    assert missing_entropy(agent, MASK, two) == pytest.approx(entropy - 0.3 * np.log(2), rel=1e-5), "not log(4)"
    assert missing_entropy(agent, [0, 1, 0, 0], [-1e9, 0.0, -1e9, -1e9]) == 0.0, "nothing to choose"
    assert missing_entropy(own, MASK, two) == pytest.approx(entropy - 0.1, rel=1e-5), "a number is every state's"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_network_sees_the_mask_and_a_state_without_legal_actions_spoils_nothing(algorithm: str) -> None:
    agent = build(algorithm, normalize_observations=True)
    assert [layer.leaf for layer in agent.acting.network.body.normalization.leaves] == [1]
    shapes = [tuple(variable.shape) for variable in agent.acting.network.body.hidden_layers[0].variables]
    assert shapes[0] == (2, 8)
    measured = update_once(agent, transition([0] * N, bootstrap=0.0))  # The game is over.
    assert all(np.isfinite(value.numpy()).all() for value, _ in measured.values())
    assert all(np.isfinite(variable.numpy()).all() for variable in agent.trainable_variables)


def test_of_continuous_actions_it_is_a_part_like_any_other() -> None:
    numbers = tensor_spec.BoundedTensorSpec((2,), tf.float32, -1.0, 1.0, "action")
    agent = agent_of(FakeParams, SPEC, numbers, algorithm="sac", actor_fc_layer_params=(8,))
    assert agent.acting.network.body.hidden_layers[0].variables[0].shape == (N + 2, 8)


def test_scores_are_the_same_tensor_without_a_mask_and_all_stay_where_none_is_legal() -> None:
    scores = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    assert of_legal(scores, {"seen": scores}) is scores and of_legal(scores, scores) is scores
    masked = of_legal(scores, {"action_mask": tf.constant([[0, 1], [0, 0]])})
    assert masked.numpy().tolist() == [[ILLEGAL, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("make", [make_worker_policy, TensorFlowWorkerPolicy])
def test_of_ten_thousand_draws_none_is_illegal_and_all_legal_ones_come(algorithm: str, make: Any) -> None:
    agent, lanes = build(algorithm, exploration_epsilon=0.6, boltzmann_epsilon=0.5), 500
    policy, rng = make(agent, 0, lanes), np.random.default_rng(0)
    drawn = np.zeros(N)
    for _ in range(20):
        mask = rng.integers(0, 2, (lanes, N)).astype(np.uint8)
        mask[np.arange(lanes), rng.integers(N, size=lanes)] = 1
        steps = steps_of([mask, rng.standard_normal((lanes, 2)).astype(np.float32)], SPEC)
        (greedy,), values = policy.act(steps, True), policy.q_values
        expected = agent.policy.distribution(
            ts.restart({"action_mask": tf.constant(mask), "seen": tf.constant(steps.observation[1])}, lanes)
        ).action.logits_parameter()
        for chosen in (greedy, policy.act(steps, False)[0], RandomActor(CHOICE, rng).act(steps)[0]):
            assert mask[np.arange(lanes), chosen].all()
            drawn += np.bincount(chosen, minlength=N)
        np.testing.assert_array_equal(greedy, expected.numpy().argmax(1))
        assert values is None or (np.isnan(values) == (mask == 0)).all()
    assert drawn.sum() == 30_000 and (drawn > 3_000).all()
