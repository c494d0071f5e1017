"""Blocks of updates of variants of SAC: compiled, counted, repeatable."""

import numpy as np
import pytest

from tests.support.agent_for_tests import B, block, build
from tfagents_system.agents.block_update import BlockUpdate
from tfagents_system.agents.layers import BatchRenormalization
from tfagents_system.replay.sampling import TransitionForm


@pytest.fixture(scope="module")
def compiled():
    """REDQ's sets and DroQ's dropout, whose actor steps in every third update."""
    sets = {"algorithm": "redq", "num_critics": 3, "num_target_critics": 2, "actor_update_period": 3}
    agent = build(**sets, critic_dropout=0.1)
    return agent, BlockUpdate(agent, B, TransitionForm(), seed=3)


def values(network_s):
    networks = network_s if isinstance(network_s, list) else [network_s]
    return [variable.numpy() for network in networks for variable in network.trainable_variables]


def moved(before, after):
    return [not np.array_equal(a, b) for a, b in zip(before, after, strict=True)]


def test_the_actor_steps_in_every_kth_update_and_the_critics_in_each(compiled):
    agent, update = compiled
    period = 3
    for _ in range(2 * period):
        actor, critics, alpha = values(agent.actor), values(agent.critics), agent.log_alpha.numpy()
        losses = update(block(1, seed=int(agent.train_step_counter)))
        is_due = int(agent.train_step_counter) % period == 0
        assert all(moved(critics, values(agent.critics)))
        assert any(moved(actor, values(agent.actor))) == is_due
        assert (alpha != agent.log_alpha.numpy()) == is_due
        assert set(losses) == {"critic_loss", "q_mean"} | ({"actor_loss", "alpha_loss"} if is_due else set())
    assert update.kind == "fused"
    assert int(agent.actor_optimizer.iterations) == int(agent.train_step_counter) // period


def test_a_block_means_over_the_updates_that_measure_and_repeats_its_numbers(compiled):
    """Seed and train step decide all of them: actions, REDQ's sets, dropped units."""
    agent, update = compiled
    optimizers = (agent.actor_optimizer, agent.critic_optimizer, agent.alpha_optimizer)
    variables = [*agent.variables, *(variable for optimizer in optimizers for variable in optimizer.variables())]
    saved = [variable.numpy() for variable in variables]

    def again(*blocks, skip=0):
        for variable, value in zip(variables, saved, strict=True):
            variable.assign(value)
        agent.train_step_counter.assign_add(skip)
        return [update(arrays) for arrays in blocks]

    singles = again(*(block(1, seed=k) for k in range(6)))
    (together,) = again([np.concatenate(arrays) for arrays in zip(*(block(1, k) for k in range(6)), strict=True)])
    assert together.keys() == {"critic_loss", "q_mean", "actor_loss", "alpha_loss"}
    for name, value in together.items():
        measured = [losses[name] for losses in singles if name in losses]
        assert len(measured) == (6 if name in ("critic_loss", "q_mean") else 2)
        np.testing.assert_allclose(value, np.mean(measured), rtol=1e-5, err_msg=name)
    assert again(block(1, seed=0)) == singles[:1]
    assert again(block(1, seed=0), skip=6)[0]["critic_loss"] != singles[0]["critic_loss"]


@pytest.mark.usefixtures("uncompiled")
def test_crossqs_statistics_move_once_in_each_step_of_their_network_alone():
    """Of critics in each update, of the actor in every third: next actions and the actor's judges do not move any."""
    agent = build(algorithm="crossq")
    BlockUpdate(agent, B, TransitionForm())(block(3))

    def steps(network):
        return {int(layer.steps) for layer in network.submodules if isinstance(layer, BatchRenormalization)}

    assert [steps(network) for network in (*agent.critics, agent.actor)] == [{3}, {3}, {1}]
