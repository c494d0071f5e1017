"""TD errors and importance weights of samples: by hand, in blocks, and what is learned with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step, trajectory
from tf_agents.trajectories import time_step as ts

from tests.support import tiny_agents
from tests.support.agent_for_tests import Params, build, reference_agent
from tests.support.fakes import FakeParams, agent_of
from tests.support.tiny_agents import Minibatch, NumpyAgent, with_sgd
from tests.support.updates import noise_of, update_once
from tfagents_system.agents.block_update import BlockUpdate, check_agent
from tfagents_system.agents.dqn import FRACTIONS, TARGET_FRACTIONS
from tfagents_system.agents.minibatch import TD_ERRORS
from tfagents_system.agents.networks import best
from tfagents_system.errors import UserError
from tfagents_system.replay import sampling
from tfagents_system.replay.priorities import NO_ROW, Priorities
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.sampling import DrawSettings, TransitionForm
from tfagents_system.transport.segments import Column, Layout, Segment

B, OBS, N = 16, 3, 4
OBSERVATION = tf.TensorSpec((OBS,), tf.float32, "observation")
CHOICE = tensor_spec.BoundedTensorSpec((), tf.int32, 0, N - 1, "action")
FORM = TransitionForm(is_prioritized=True)
WEIGHTS = np.array([1.0, 0.1, 0.7, 0.2, 0.5, 0.9], np.float32)


@pytest.mark.parametrize(
    ("algorithm", "attributes"),
    [("redq", {"num_critics": 3, "num_target_critics": 3}), ("tqc", {"num_critics": 2}), ("crossq", {})],
)
def test_of_sac_and_its_variants(algorithm: str, attributes: dict[str, Any]) -> None:
    """|y - Q|, the mean over the critics; of quantiles their means; and each squared error counts by its weight."""
    agent = tiny_agents.build(algorithm=algorithm, **attributes)
    batch, before = Minibatch(), NumpyAgent(agent)
    measured = update_once(with_sgd(agent), batch.transition(), batch.noise(), WEIGHTS)
    action, log_pi = before.sample(batch.next_observation, batch.next_noise)
    networks = before.targets or before.critics
    following = np.stack([before.values(each, batch.next_observation, action) for each in networks])
    if algorithm == "tqc":
        pooled = np.sort(np.concatenate(list(following), axis=-1), axis=-1)
        following = pooled[:, : -len(networks)].mean(-1)
    else:
        following = following.min(0)[:, 0]
    y = batch.reward + 0.9 * batch.discount * (following - before.alpha * log_pi)
    values = np.stack([before.values(each, batch.observation, batch.action) for each in before.critics])
    errors = np.abs(y - values.mean(-1))
    np.testing.assert_allclose(measured[TD_ERRORS][0], errors.mean(0), rtol=1e-4, atol=1e-5)
    q = (values.mean((0, 2)) * WEIGHTS).sum() / WEIGHTS.sum()
    assert float(measured["q_mean"][0]) == pytest.approx(q, rel=1e-4)
    if algorithm != "tqc":
        expected = 0.5 * (errors**2 * WEIGHTS).mean(1).sum()
        assert float(measured["critic_loss"][0]) == pytest.approx(expected, rel=1e-4)
    assert TD_ERRORS not in update_once(agent, batch.transition(), batch.noise())


@pytest.mark.parametrize("algorithm", ["dqn", "iqn", "sac_discrete"])
def test_of_learners_of_values(algorithm: str) -> None:
    tf.keras.utils.set_random_seed(3)
    sizes = {"critic_joint_fc_layer_params": (8,), "actor_fc_layer_params": (8,), "value_head_units": 8}
    agent: Any = agent_of(FakeParams, OBSERVATION, CHOICE, algorithm=algorithm, sac_log_alpha=-1.0, **sizes)
    rng = np.random.default_rng(0)
    seen, following = (tf.constant(rng.standard_normal((6, OBS)), tf.float32) for _ in range(2))
    taken, g = rng.integers(0, N, 6), rng.choice([0.0, 0.81], 6).astype(np.float32)
    reward, mid, zeros = rng.standard_normal(6).astype(np.float32), tf.ones(6, tf.int32), tf.zeros(6)

    def values(network: Any, observation: Any, **fractions: Any) -> Any:
        return network(observation, **fractions)[0].numpy()

    critics, targets = agent.critics, agent.targets
    if algorithm == "iqn":
        tau, next_tau = (agent.fractions(noise_of(agent), purpose, 6) for purpose in (FRACTIONS, TARGET_FRACTIONS))
        q = [values(critics[0], seen, tau=tau).mean(1)]
        next_q = values(targets[0], following, tau=next_tau).mean(1)
        next_value = next_q.max(1)
    elif algorithm == "dqn":
        q, next_q = [values(critics[0], seen)], values(targets[0], following)
        next_value = next_q[range(6), best(tf.constant(values(critics[0], following)))]
    else:
        q = [values(each, seen) for each in critics]
        log_pi = tf.nn.log_softmax(values(agent.acting.network, following)).numpy()
        lowest = np.minimum(*(values(each, following) for each in targets))
        next_value = (np.exp(log_pi) * (lowest - np.exp(-1.0) * log_pi)).sum(1)
    errors = np.mean([np.abs(reward + g * next_value - each[range(6), taken]) for each in q], axis=0)
    steps = trajectory.Transition(
        ts.TimeStep(mid, zeros, zeros + 1, seen),
        policy_step.PolicyStep(tf.constant(taken, tf.int32)),
        ts.TimeStep(mid, tf.constant(reward), tf.constant(g), following),
    )
    measured = update_once(agent, steps, weight=WEIGHTS)
    np.testing.assert_allclose(measured[TD_ERRORS][0], errors, rtol=1e-4, atol=1e-5)
    mean_q = np.mean([each[range(6), taken] for each in q], axis=0)
    assert float(measured["q_mean"][0]) == pytest.approx((mean_q * WEIGHTS).sum() / WEIGHTS.sum(), rel=1e-4)
    if algorithm == "dqn":
        size = np.where(errors < 1, errors**2 / 2, errors - 0.5)
        assert float(measured["critic_loss"][0]) == pytest.approx((size * WEIGHTS).mean(), rel=1e-4)
    assert TD_ERRORS not in update_once(agent, steps)


def choosing(**attributes: Any) -> Any:
    tf.keras.utils.set_random_seed(1)
    return agent_of(FakeParams, OBSERVATION, CHOICE, algorithm="dqn", critic_joint_fc_layer_params=(8,), **attributes)


def test_a_block_tells_the_errors_of_its_rows_and_weights_of_one_change_nothing() -> None:
    rng, outer = np.random.default_rng(0), (3, B)
    seen, following = rng.standard_normal((2, *outer, OBS)).astype(np.float32)
    reward, g = rng.standard_normal((2, *outer)).astype(np.float32)
    sample = [seen, rng.integers(0, N, outer).astype(np.int32), reward, g, following]
    plain, ours = choosing(), choosing()
    expected = BlockUpdate(plain, B, TransitionForm(), seed=1)(sample)
    update = BlockUpdate(ours, B, FORM, seed=1, prior_samples=5)
    told: list[tuple[np.ndarray, np.ndarray]] = []
    update.tell_errors = lambda rows, errors: told.append((rows, errors))
    rows = np.arange(3 * B).reshape(outer)
    rows[:, -5:] = NO_ROW
    whole = [*sample, np.ones(outer, np.float32), rows]
    arrays = [array[:, :-5] for array in whole] + [array[:, -5:] for array in whole]
    found = update(arrays)
    assert found == pytest.approx(expected, rel=1e-5)
    ((told_rows, errors),) = told
    np.testing.assert_array_equal(told_rows, rows)
    assert errors.shape == outer and errors.dtype == np.float32 and (errors > 0).all()
    for one, other in zip(plain.trainable_variables, ours.trainable_variables, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_an_agent_that_measures_no_errors_is_refused_with_the_remedy() -> None:
    with pytest.raises(UserError, match="possible, SacAgent is trained by its own train: set it to None, or choose"):
        BlockUpdate(reference_agent(), B, FORM)
    params: Any = Params({"horizon": 10})
    params.priority_exponent, params.sample_form_ctor = 0.5, TransitionForm
    with pytest.raises(UserError, match="priority_exponent=0.5, and the form of sample_form_ctor does not draw by"):
        check_agent(params, build())


@pytest.mark.parametrize(("beta", "value"), [(1.0, 0.1), (0.0, 0.25)])
def test_the_learned_value_is_the_mean_with_beta_1(tmp_path: Path, beta: float, value: float) -> None:
    """A reward of 1 in a tenth of all steps. With alpha = 1 and beta = 0: 0.1 (1 - q)^2 = 0.9 q^2."""
    columns = (Column("observation", (OBS,), "float32"),), (Column("action", (), "int32", count=N),)
    ring = Ring.open(tmp_path, Layout(*columns), 2000)
    for number in range(100):
        rewards = np.zeros(10, np.float32)
        rewards[number % 10] = 1
        seen = np.ones((11, OBS), np.float32)
        given: dict[str, Any] = {"starts_episode": True, "ends_episode": True, "end_of_iteration": False}
        ring.append(
            Segment(
                0,
                1,
                number,
                0,
                observation=[seen],
                action=[np.zeros(10, np.int32)],
                reward=rewards,
                discount=np.zeros(10, np.float32),
                **given,
            )
        )
    priorities = Priorities(ring, 1.0)
    settings = DrawSettings(32, FORM, 50, 0, priorities=priorities, beta=beta, whole_bootstrap=True)
    agent = choosing(learning_rate={"points": [[0, 1e-2]]})
    update = BlockUpdate(agent, 32, FORM)
    update.tell_errors = lambda rows, errors: priorities.measure(rows.ravel(), errors.ravel())
    rng = np.random.default_rng(0)
    for k in range(100):
        agent.critic_optimizer.scheduled_rate.assign(1e-2 * (1.0 - k / 100))
        update(sampling.draw(ring, rng, settings, 10))
    found = float(agent.critics[0].acting_values(tf.ones((1, OBS)))[0, 0])
    assert found == pytest.approx(value, abs=0.02)
