"""Each setting of an optimizer acts, in the agents as they are trained: steps computed by hand."""

import math

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.trajectories import policy_step, trajectory
from tf_agents.trajectories import time_step as ts

from tests.support.agent_for_tests import ACT, OBS, B, Params, block, build
from tests.support.checkpoints_for_tests import checkpoints_of
from tests.support.updates import update_once
from tfagents_system.agents.agent import build_optimizer
from tfagents_system.agents.block_update import BlockUpdate
from tfagents_system.replay.sampling import TransitionForm

RATE, LOG_ALPHA = 0.1, 0.5


def transition(seed=0):
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return tf.constant(rng.standard_normal((B, *shape)), tf.float32)

    mid, ones = tf.ones(B, tf.int32), tf.ones(B)
    return trajectory.Transition(
        ts.TimeStep(mid, tf.zeros(B), ones, normal(OBS)),
        policy_step.PolicyStep(tf.tanh(normal(ACT))),
        ts.TimeStep(mid, normal(), ones, normal(OBS)),
    )


def adam(gradients, rates, beta_1=0.9, beta_2=0.999, epsilon=1e-7, decoupled=0.0, l2=0.0):
    theta, m, v = LOG_ALPHA, 0.0, 0.0
    for t, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        g = gradient + l2 * theta
        m, v = beta_1 * m + (1 - beta_1) * g, beta_2 * v + (1 - beta_2) * g * g
        direction = math.sqrt(1 - beta_2**t) / (1 - beta_1**t) * m / (math.sqrt(v) + epsilon)
        theta -= rate * (direction + decoupled * theta)
    return theta


def sgd(gradients, rates, momentum=0.0, l2=0.0):
    theta, velocity = LOG_ALPHA, 0.0
    for gradient, rate in zip(gradients, rates, strict=True):
        velocity = momentum * velocity - rate * (gradient + l2 * theta)
        theta += velocity
    return theta


GRADIENTS = [1.5, -0.4, 0.02, 0.7]
CONSTANT = [RATE] * len(GRADIENTS)


@pytest.mark.parametrize(
    ("settings", "by_hand"),
    [
        ({}, lambda g: adam(g, CONSTANT)),
        ({"beta_1": 0.5}, lambda g: adam(g, CONSTANT, beta_1=0.5)),
        ({"beta_2": 0.6}, lambda g: adam(g, CONSTANT, beta_2=0.6)),
        ({"epsilon": 0.5}, lambda g: adam(g, CONSTANT, epsilon=0.5)),
        ({"weight_decay": 3.0}, lambda g: adam(g, CONSTANT, l2=3.0)),
        ({"name": "adamw"}, lambda g: adam(g, CONSTANT, decoupled=0.01)),
        ({"name": "adamw", "weight_decay": 2.0}, lambda g: adam(g, CONSTANT, decoupled=2.0)),
        ({"name": "sgd"}, lambda g: sgd(g, CONSTANT)),
        ({"name": "sgd", "momentum": 0.8}, lambda g: sgd(g, CONSTANT, momentum=0.8)),
        ({"name": "sgd", "weight_decay": 1.5}, lambda g: sgd(g, CONSTANT, l2=1.5)),
        ({"global_clipnorm": 0.05}, lambda g: adam(np.clip(g, -0.05, 0.05), CONSTANT)),
        (
            {"name": "sgd", "global_clipnorm": 0.05, "weight_decay": 1.5},
            lambda g: sgd(np.clip(g, -0.05, 0.05), CONSTANT, l2=1.5),
        ),
    ],
    ids=lambda value: ",".join(value) or "adam" if isinstance(value, dict) else "",
)
def test_the_steps_are_those_computed_by_hand(settings, by_hand):
    params = Params({"horizon": 10})
    params.alpha_optimizer, params.alpha_learning_rate = settings, RATE
    optimizer, log_alpha = build_optimizer(params, "alpha"), tf.Variable(LOG_ALPHA)
    for gradient in GRADIENTS:
        optimizer.apply_gradients([(tf.constant(gradient), log_alpha)])
    assert float(log_alpha) == pytest.approx(by_hand(GRADIENTS), rel=2e-4, abs=1e-5)


def step_by_sgd(part, attributes):
    """(variables before, their step with a learning rate of 1) of one part in one update."""
    sgd = {"name": "sgd", **attributes.pop("settings", {})}
    agent = build(
        **{f"{part}_optimizer": sgd, f"{part}_learning_rate": 1.0},
        **attributes,
    )
    networks = agent.critics if part == "critic" else [agent.actor]
    variables = [variable for network in networks for variable in network.trainable_variables]
    before = [variable.numpy() for variable in variables]
    update_once(agent, transition())
    return [variable.numpy() - value for variable, value in zip(variables, before, strict=True)]


@pytest.mark.parametrize("part", ["critic", "actor"])
def test_gradients_are_clipped_each_by_itself_or_all_of_a_part_together(part):
    whole = step_by_sgd(part, {})
    norms = [np.linalg.norm(step) for step in whole]
    limit = float(np.median(norms))
    each = step_by_sgd(part, {"gradient_clipping": limit})
    for step, own, norm in zip(whole, each, norms, strict=True):
        np.testing.assert_allclose(own, step * min(1.0, limit / norm), rtol=1e-3, atol=1e-6)
    together = step_by_sgd(part, {"settings": {"global_clipnorm": limit}})
    share = limit / np.linalg.norm(norms)
    assert share < 0.9
    for step, own in zip(whole, together, strict=True):
        np.testing.assert_allclose(own, step * share, rtol=1e-3, atol=1e-6)


def test_plain_adam_stays_one_fused_operation_a_variable_and_decay_adds_one():
    def operations(settings):
        agent = build(critic_optimizer=settings)
        variables = agent.critics[0].trainable_variables

        def apply():
            agent.critic_optimizer.apply_gradients([(tf.ones_like(variable), variable) for variable in variables])

        graph = tf.function(apply, autograph=False).get_concrete_function().graph
        kinds = [op.type for op in graph.get_operations()]
        return len(variables), kinds.count("ResourceApplyAdam"), kinds.count("ResourceApplyGradientDescent")

    count, fused, decays = operations({})
    assert (fused, decays) == (count, 0)
    assert operations({"name": "adamw"}) == (count, count, count)


@pytest.mark.usefixtures("uncompiled")
def test_going_on_from_a_checkpoint_is_going_on_without_a_stop_bit_by_bit(tmp_path):
    """Moments, velocities, and CrossQ's batch statistics, which are not trained and have no targets."""
    settings = {
        "algorithm": "crossq",
        "critic_optimizer": {"name": "adamw"},
        "actor_optimizer": {"name": "sgd", "momentum": 0.9},
    }
    agent, other = build(**settings), build(**settings)
    update = BlockUpdate(agent, B, TransitionForm(), seed=5)
    update(block(2))
    checkpoints_of(tmp_path, agent)[0].save(5.0, wait=True)
    update(block(1, seed=1))
    checkpoints_of(tmp_path, other)[0].restore()
    BlockUpdate(other, B, TransitionForm(), seed=5)(block(1, seed=1))
    assert np.abs(agent.actor_optimizer.get_slot(agent.actor.trainable_variables[0], "momentum")).max() > 0
    assert len(agent.variables) == len(other.variables) > 10
    for ours, theirs in zip(agent.variables, other.variables, strict=True):
        np.testing.assert_array_equal(ours, theirs, err_msg=ours.name)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_a_run_goes_on_with_the_rate_and_the_betas_that_it_is_given_now(name, tmp_path):
    def built(rate, beta):
        settings = {"name": name, **({} if name == "sgd" else {"beta_1": beta, "beta_2": beta + 0.05})}
        rates = {"critic_learning_rate": rate, "actor_learning_rate": rate}
        return build(critic_optimizer=settings, actor_optimizer=settings, **rates)

    began, goes_on = built(RATE, 0.9), built(0.0, 0.5)
    update_once(began, transition())
    checkpoints_of(tmp_path, began)[0].save(5.0, wait=True)
    checkpoints_of(tmp_path, goes_on)[0].restore()
    if name == "adamw":
        found = [float(goes_on.critic_optimizer._get_hyper(hyper)) for hyper in ("beta_1", "beta_2")]
        np.testing.assert_allclose(found, [0.5, 0.55], rtol=1e-6)
    restored = [variable.numpy() for variable in goes_on.actor_variables]
    np.testing.assert_equal(restored, [variable.numpy() for variable in began.actor_variables])
    update_once(goes_on, transition(1))
    np.testing.assert_equal([variable.numpy() for variable in goes_on.actor_variables], restored, "a rate of 0")
