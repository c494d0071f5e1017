"""An agent begins with what fits of another one's checkpoint; what does not fit is named."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.agents_to_begin_with import CAMERA, CHOICE, fresh, saved, step, trained
from tests.support.checkpoints_for_tests import checkpoints_of
from tfagents_system.agents.taken_weights import TakenWeights
from tfagents_system.run_files.taken import find


def numbers(agent):
    """Values by attribute: networks with their statistics, alpha, and what rewards are divided by."""
    found = {
        f"{part} {k}": [variable.numpy() for variable in network.variables]
        for part, networks in agent.networks().items()
        for k, network in enumerate(networks)
    }
    found["alpha"] = [] if agent.log_alpha is None else [agent.log_alpha.numpy()]
    scale = getattr(agent, "reward_scale", None)
    return found | {"rewards": [] if scale is None else [variable.numpy() for variable in scale.variables]}


def taken(agent, run, **options):
    return TakenWeights(agent, find(run, "agent").agent, **({"networks_alone": False} | options))


@pytest.mark.parametrize(
    "options",
    [
        {"algorithm": "crossq"},
        {"observation": CAMERA},
        {"algorithm": "dqn", "action": CHOICE},
    ],
    ids=["crossq", "pictures", "dqn"],
)
def test_the_whole_agent_is_taken_and_its_next_step_is_the_other_ones(options, tmp_path):
    source = trained(**options)
    run = saved(source, tmp_path)
    agent = fresh(**options)
    weights = taken(agent, run)
    assert weights.misfits == []
    weights.assign()
    np.testing.assert_equal(numbers(agent), numbers(source))
    assert int(agent.train_step_counter) == 0, "a new run begins to count"
    folder = tmp_path / "saved before the first update"
    folder.mkdir()
    checkpoints_of(folder, agent)[0].save(5.0, wait=True)
    again = fresh(**options)
    assert checkpoints_of(folder, again)[0].restore() is not None
    for one in (source, agent, again):
        step(one)
    np.testing.assert_equal(numbers(agent), numbers(source), "moments and counts of the optimizers, too")
    np.testing.assert_equal(numbers(again), numbers(source))


def test_networks_alone_leave_alpha_and_optimizers(tmp_path):
    source = trained()
    run = saved(source, tmp_path)
    agent, before = fresh(), numbers(fresh())
    weights = taken(agent, run, networks_alone=True)
    weights.assign()
    wanted = {**numbers(source), "alpha": before["alpha"]}
    np.testing.assert_equal(numbers(agent), wanted)
    step(agent)
    step(source)
    own, theirs = (each.networks()["actor"][0].trainable_variables[0].numpy() for each in (agent, source))
    assert not np.array_equal(own, theirs), "without its moments"


def test_what_does_not_fit_is_named_and_stays_as_it_was_drawn(tmp_path):
    source = trained()
    run = saved(source, tmp_path)
    agent = fresh(critic_joint_fc_layer_params=(7,))
    before = numbers(agent)
    weights = taken(agent, run)
    told, _ = weights.misfits  # Critics and targets.
    assert told.startswith("critics: 0/") and "is 5 there, 7 here" in told
    assert not any("optimizer" in name and "critic" in name for name in weights.parts)
    weights.assign()
    after, wanted = numbers(agent), numbers(source)
    for name, values in after.items():
        np.testing.assert_equal(values, (before if "critic" in name or "target" in name else wanted)[name])


def test_depth_kind_of_optimizer_and_a_fixed_alpha_decide_too(tmp_path):
    source = trained()
    run = saved(source, tmp_path)
    deeper = taken(fresh(actor_fc_layer_params=(4, 4)), run)
    assert "actor" not in deeper.parts and any(line.startswith("actor: ") for line in deeper.misfits)
    agent = fresh(algorithm="redq", num_critics=3)
    weights = taken(agent, run)
    assert "actor" in weights.parts and any(line.startswith("critics: ") for line in weights.misfits)
    weights.assign()
    np.testing.assert_equal(numbers(agent)["actor 0"], numbers(source)["actor 0"])
    sgd = taken(fresh(actor_optimizer={"name": "sgd", "momentum": 0.9}), run)
    assert sgd.misfits == ["actor optimizer: it keeps m, v there, momentum here"]
    fixed = taken(fresh(learn_entropy_coef=False, sac_log_alpha=-1.5), run)
    assert fixed.misfits == [] and not any("alpha" in name for name in fixed.parts)


def test_a_checkpoint_that_can_not_be_read_is_told(tmp_path):
    with pytest.raises(ValueError, match="can't be read"):
        TakenWeights(fresh(), tmp_path / "agent", networks_alone=False)
