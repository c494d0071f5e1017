"""A new agent begins with what is taken of another one, and with nothing else of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support.agents_to_begin_with import (
    BOUNDS,
    CAMERA,
    CHOICE,
    CHOICES,
    OBSERVATION,
    fresh,
    policy_of,
    saved,
    step,
    trained,
)
from tests.support.checkpoints_for_tests import checkpoints_of
from tfagents_system.agents.starting_values import networks_of, normalizations_of, statistics_of
from tfagents_system.checks.checklist import Check
from tfagents_system.envs.actions import actions_of
from tfagents_system.errors import UserError
from tfagents_system.launch.agent_start_checks import check_start
from tfagents_system.run_files.agent_start import find_start
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.trainer.starting_agent import values_for


def numbers(agent):
    """All of an agent's variables, by part: copies."""
    found = {}
    for part, networks in networks_of(agent).items():
        statistics = {v.ref() for network in networks for v in statistics_of(network)}
        all_of_part = [v for network in networks for v in network.variables]
        found[part] = [v.numpy() for v in all_of_part if v.ref() not in statistics]
        found.setdefault("normalizer", []).extend(v.numpy() for v in all_of_part if v.ref() in statistics)
    found["normalizer"] += [v.numpy() for v in agent.reward_scale.variables]
    if agent.log_alpha is not None:
        found["alpha"] = [agent.log_alpha.numpy()]
    return found


AGENTS = {
    "sac": {},
    "sac of images": {"observation": CAMERA},
    "redq": {"algorithm": "redq", "num_critics": 3},
    "crossq": {"algorithm": "crossq"},
    "simba": {"network": "simba"},
    "sac_discrete": {"algorithm": "sac_discrete", "action": CHOICE},
    "dqn": {"algorithm": "dqn", "action": CHOICE},
}


@pytest.mark.parametrize("kind", AGENTS)
def test_what_is_taken_is_equal_and_the_rest_is_untouched(kind, tmp_path):
    source, agent = trained(**AGENTS[kind]), fresh(**AGENTS[kind])
    run, there = saved(source, tmp_path), numbers(source)
    here = {part for part, values in numbers(agent).items() if values}
    for parts in (("actor",), ("critics", "alpha"), ("encoder", "normalizer"), ()):  # The last takes all there is.
        before = numbers(agent)
        if set(parts) - here:
            with pytest.raises(UserError, match="absent here"):
                values_for(agent, find_start(run, parts))
            continue
        values_for(agent, find_start(run, parts)).assign()
        taken = set(parts) or here
        taken |= {"targets"} if "critics" in taken else set()
        for part, values in numbers(agent).items():
            wanted = there if part in taken else before
            for value, expected in zip(values, wanted[part], strict=True):
                np.testing.assert_array_equal(value, expected, part)
        _scramble(agent)
    assert int(agent.train_step_counter) == 0, "a new run begins to count"


def _scramble(agent):
    for variable in agent.variables:
        if variable.dtype.is_floating:
            variable.assign(variable + 1.0)


def test_with_optimizers_the_next_step_is_that_of_the_other_agent(tmp_path):
    """Also after a checkpoint that was written before the first update."""
    source = trained()
    run = saved(source, tmp_path)
    everything = ("actor", "critics", "normalizer", "alpha", "optimizers")
    for parts in (everything, everything[:-1]):
        agent, again = fresh(), fresh()
        values_for(agent, find_start(run, parts)).assign()
        folder = tmp_path / f"of {len(parts)}"
        checkpoints_of(folder, agent)[0].save(5.0, {}, wait=True)
        assert checkpoints_of(folder, again)[0].restore() is not None
        step(agent)
        step(again)
        before = numbers(source)
        other = trained()
        assert all(np.array_equal(a, b) for a, b in zip(before["actor"], numbers(other)["actor"], strict=True))
        step(other)
        is_same = "optimizers" in parts
        for part in ("actor", "critics", "alpha"):
            for one, two, theirs in zip(numbers(agent)[part], numbers(again)[part], numbers(other)[part], strict=True):
                np.testing.assert_array_equal(one, two, part)
                assert np.array_equal(one, theirs) == is_same, part


def test_another_algorithm_s_actor_fits_and_what_does_not_is_told_layer_by_layer(tmp_path):
    run = saved(trained(), tmp_path)
    agent = fresh(algorithm="redq", num_critics=3, actor_fc_layer_params=(4,))
    before = numbers(agent)
    values_for(agent, find_start(run, ("actor", "normalizer"))).assign()
    np.testing.assert_array_equal(numbers(agent)["actor"][0], numbers(trained())["actor"][0])
    np.testing.assert_array_equal(numbers(agent)["critics"][0], before["critics"][0])
    with pytest.raises(UserError) as told:
        values_for(agent, find_start(run))
    assert "\n  critics: 2 there, 3 here\n" in str(told.value) and "SAC_AGENT_PARTS" in str(told.value)
    wider = fresh(actor_fc_layer_params=(4, 6), critic_joint_fc_layer_params=(7,), normalize_rewards=False)
    before = [variable.numpy() for variable in wider.variables]
    with pytest.raises(UserError) as told:
        values_for(wider, find_start(run))
    lines = str(told.value).split("\n  ")[1:]
    name = "NormalizedActor/ActorDistributionNetwork"
    assert f"actor: {name}/EncodingNetwork/dense/kernel is absent there, 4x6 here" in lines
    assert f"actor: {name}/TanhNormalProjectionNetwork/projection_layer/kernel is 4x4 there, 6x4 here" in lines
    assert sum(line.startswith("critic 2: ") for line in lines) == 3, "its bias and the next layer, too"
    assert sum(line.startswith("target critic 1: ") for line in lines) == 3
    assert any(line.startswith("critics: rewards are normalised there alone") for line in lines)
    assert all(np.array_equal(a, b) for a, b in zip(before, wider.variables, strict=True))
    with pytest.raises(UserError, match="actor: observations are normalised there alone"):
        values_for(fresh(normalize_observations=False), find_start(run, ("actor",)))
    with pytest.raises(UserError, match="actor's is Adam there, SGD with momentum here"):
        values_for(fresh(actor_optimizer={"name": "sgd", "momentum": 0.9}), find_start(run, ("actor", "optimizers")))


def test_policies_that_were_saved_are_the_start_of_the_actor(tmp_path):
    source = trained()
    folder = tmp_path / "run"
    folder.mkdir()
    rng = np.random.default_rng(0)
    seen = {name: tf.constant(rng.standard_normal((6, *spec.shape)), tf.float32) for name, spec in OBSERVATION.items()}
    wanted = networks_of(source)["actor"][0](seen)[0].mode()
    for text in policy_of(source, folder, actions_of(BOUNDS)):
        agent = fresh()
        before = numbers(agent)
        values_for(agent, find_start(text)).assign()
        np.testing.assert_allclose(networks_of(agent)["actor"][0](seen)[0].mode(), wanted, rtol=1e-5, err_msg=text)
        after = numbers(agent)
        for part in ("critics", "targets", "alpha"):
            np.testing.assert_equal(after[part], before[part])
        statistics = [
            [v.numpy() for v in statistics_of(network)] for part in networks_of(agent).values() for network in part
        ]
        assert all(np.array_equal(a, b) for each in statistics for a, b in zip(each, statistics[0], strict=True))
        with pytest.raises(UserError, match="critics: a policy has none"):
            values_for(agent, find_start(text, ("critics",)))
        with pytest.raises(UserError, match=r"4x4 there, (4x)?8(x4)? here|kernel is 5x4 there, 5x8 here"):
            values_for(fresh(actor_fc_layer_params=(8,)), find_start(text, ("actor",)))


@pytest.mark.parametrize("algorithm", ["dqn", "iqn"])
def test_a_policy_is_no_start_for_an_agent_without_an_actor_and_a_checkpoint_is(algorithm, tmp_path):
    source, agent = (make(algorithm=algorithm, action=CHOICE) for make in (trained, fresh))
    run = saved(source, tmp_path)
    (tmp_path / "another").mkdir()
    for text in policy_of(source, tmp_path / "another", actions_of(CHOICES)):
        with pytest.raises(UserError, match="its critics are what acts: give another run itself, or one of its check"):
            values_for(agent, find_start(text))
    values_for(agent, find_start(run)).assign()
    np.testing.assert_equal(numbers(agent)["critics"], numbers(source)["critics"])


def test_policies_of_discrete_actions_are_the_start_of_an_actor(tmp_path):
    source = trained(algorithm="sac_discrete", action=CHOICE)
    (tmp_path / "run").mkdir()
    for text in policy_of(source, tmp_path / "run", actions_of(CHOICES)):
        agent = fresh(algorithm="sac_discrete", action=CHOICE)
        values_for(agent, find_start(text)).assign()
        np.testing.assert_equal(numbers(agent)["actor"], numbers(source)["actor"])


def test_what_the_variable_names_is_found_and_told(tmp_path):
    run = saved(trained(), tmp_path)
    check = Check("agent")
    start = check_start(run, (), tmp_path / "new", fresh(), True, check, actions_of(BOUNDS))
    assert (
        start is not None and start.files.name == "checkpoint_0000000700" and "actor 44, critics 184" in check.facts[0]
    )
    assert find_start(f"{run}@checkpoint_0000000700").files == start.files
    for source, parts, exp_dir, begins, error in (
        (run, (), Path(run), True, "this run's own directory"),
        (None, ("actor",), tmp_path / "new", True, "SAC_AGENT_PARTS=actor says"),
        (f"{run}@checkpoint_5", (), tmp_path / "new", True, "there are checkpoint_0000000700"),
        (str(tmp_path), (), tmp_path / "new", True, "has no checkpoint"),
        (run, (), tmp_path / "new", False, None),
    ):
        check = Check("agent")
        assert check_start(source, parts, exp_dir, fresh(), begins, check, actions_of(BOUNDS)) is None
        assert error is None or error in check.errors[0]
        assert bool(check.notes) == (error is None)
    (start.files / "agent.index").write_bytes(b"damaged")
    with pytest.raises(UserError, match="is damaged"):
        find_start(f"{run}@checkpoint_0000000700")


def test_best_and_latest_are_offered_where_they_are_and_guessed_where_they_are_misspelt(tmp_path):
    paths = RunPaths(tmp_path)
    paths.policy_checkpoints.mkdir(parents=True)
    with pytest.raises(UserError, match="has no checkpoint bset: it has none yet"):
        find_start(f"{tmp_path}@bset")
    (paths.policy_checkpoints / "policy_checkpoint_0000000005").mkdir()
    with pytest.raises(UserError, match="no checkpoint latst, latest is meant: there are latest, policy_checkpoint_0"):
        find_start(f"{tmp_path}@latst")
    paths.best_json.write_text('{"checkpoint": "policy_checkpoint_0000000005"}')
    with pytest.raises(UserError, match="no checkpoint bset, best is meant: there are best, latest, policy_checkp"):
        find_start(f"{tmp_path}@bset")


def test_the_run_keeps_a_copy(tmp_path):
    run = saved(trained(), tmp_path)
    start = find_start(run, ("actor",))
    start.copy(tmp_path / "agent_from")
    kept = dataclasses.replace(start, files=tmp_path / "agent_from")
    one, two = fresh(), fresh()
    values_for(one, start).assign()
    values_for(two, kept).assign()
    np.testing.assert_equal(numbers(one)["actor"], numbers(two)["actor"])
    assert start.digest() == kept.digest() != dataclasses.replace(start, parts=()).digest()
    again = find_start(str(tmp_path / "agent_from"), ("critics",))
    assert again == dataclasses.replace(kept, source=str(tmp_path / "agent_from"), parts=("critics",))


SEEN = {"actor_observations": ("where",)}


def test_an_actor_of_a_part_gets_the_statistics_of_what_it_sees(tmp_path):
    """`where` is the second leaf of the critics, and the only one of the actor."""
    source = trained(**SEEN)
    touch, where = normalizations_of(networks_of(source)["critics"][0])
    run = saved(source, tmp_path)
    agent = fresh(**SEEN)
    values_for(agent, find_start(run)).assign()
    for networks in networks_of(agent).values():
        for network in networks:
            *others, last = normalizations_of(network)
            np.testing.assert_array_equal(last.mean, where.mean)
            for other in others:
                np.testing.assert_array_equal(other.mean, touch.mean)
    with pytest.raises(UserError, match="layer 1 has 3 numbers there, 5 here|kernel is 3x4 there, 5x4 here"):
        values_for(fresh(), find_start(run))


def test_an_actor_of_other_parts_is_refused_though_its_layers_fit(tmp_path):
    run = saved(trained(**SEEN), tmp_path)
    RunPaths(Path(run)).resolved.write_text('{"params": {"actor_observations": ["where"]}}')
    new = fresh(observation={"there": tf.TensorSpec((3,), tf.float32), **OBSERVATION}, actor_observations=("there",))
    for source, parts in ((run, ()), (f"{run}@checkpoint_0000000700", ("actor",))):
        check = Check("agent")
        assert check_start(source, parts, tmp_path / "new", new, True, check, actions_of(BOUNDS), ("there",)) is None
        assert "its actor sees where, this run's there: set TrainParams.actor_observations as there" in check.errors[0]
    check = Check("agent")
    actions = actions_of(BOUNDS)
    assert check_start(run, ("actor",), tmp_path / "new", fresh(**SEEN), True, check, actions, ["where"]) is not None
