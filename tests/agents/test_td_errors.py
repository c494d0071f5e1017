"""TD errors and importance weights of samples: by hand, in blocks, and what is learned with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tests.support import tiny_agents
from tests.support.agent_for_tests import Params, build, reference_agent
from tests.support.fakes import FakeParams, agent_of
from tests.support.tiny_agents import Minibatch, NumpyAgent, with_sgd
from tests.support.updates import update_once
from tfagents_system.agents.block_update import BlockUpdate, check_agent
from tfagents_system.agents.minibatch import TD_ERRORS
from tfagents_system.errors import UserError
from tfagents_system.replay.priorities import NO_ROW
from tfagents_system.replay.sampling import TransitionForm

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
    with pytest.raises(UserError, match="possible, SacAgent is trained by its own train: leave it out, or choose"):
        BlockUpdate(reference_agent(), B, FORM)
    params: Any = Params({"horizon": 10})
    params.priority_exponent, params.sample_form_ctor = 0.5, TransitionForm
    with pytest.raises(UserError, match="priority_exponent=0.5, and the form of sample_form_ctor does not draw by"):
        check_agent(params, build())
