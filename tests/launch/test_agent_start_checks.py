"""SAC_AGENT_FROM: what the actions of the two agents are."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf
from tf_agents.specs import array_spec, tensor_spec

from tests.support.agents_to_begin_with import BOUNDS, CHOICE, OBSERVATION, fresh, policy_of, saved, trained
from tfagents_system.checks.checklist import Check
from tfagents_system.envs.actions import actions_of
from tfagents_system.envs.specs import save_specs
from tfagents_system.launch.agent_start_checks import check_start
from tfagents_system.run_files.run_paths import RunPaths

TABLE = [[-3.0, 0.0], [5.0, 0.0], [-3.0, 1.0], [5.0, 1.0]]


def started(source, agent, actions, parts=()):
    """What a start of this agent finds."""
    check = Check("agent")
    return check_start(source, parts, Path("new"), agent, True, check, actions), check


@pytest.mark.parametrize("table", [TABLE[::-1], [*TABLE[:3], [4.0, 1.0]]], ids=["other order", "other row"])
def test_an_agent_that_chose_from_other_actions_is_no_start(table, tmp_path):
    """Its layers fit; each of its numbers is another action."""
    run = saved(trained(algorithm="dqn", action=CHOICE), tmp_path)
    save_specs(RunPaths(Path(run)).specs, OBSERVATION, BOUNDS, TABLE)
    agent = fresh(algorithm="dqn", action=CHOICE)
    for source in (run, f"{run}@checkpoint_0000000700", f"{run}/checkpoints/checkpoint_0000000700"):
        start, check = started(source, agent, actions_of(BOUNDS, table))
        assert start is None and len(check.errors) == 1
        assert "chooses from other actions than this run's agent" in check.errors[0]
        assert "Give TrainParams.action_table the same rows in the same order" in check.errors[0]
    for parts, here in (((), TABLE), (("normalizer",), table)):
        start, check = started(run, agent, actions_of(BOUNDS, here), parts)
        assert start is not None and check.errors == check.notes == []


def test_an_agent_of_other_bounds_is_a_start_that_is_told(tmp_path):
    run = saved(trained(), tmp_path)
    policy_of(trained(), Path(run), actions_of(BOUNDS))
    save_specs(RunPaths(Path(run)).specs, OBSERVATION, BOUNDS)
    wider = array_spec.BoundedArraySpec((2,), "float32", [-3.0, 0.0], [6.0, 1.0], "action")
    for source in (run, f"{run}@latest"):
        start, check = started(source, fresh(), actions_of(wider))
        assert start is not None and check.errors == [] and len(check.notes) == 1
        assert "its actions are (2,) in [-3, 5], this run's (2,) in [-3, 6]" in check.notes[0]
        assert started(source, fresh(), actions_of(BOUNDS))[1].notes == []


def test_critics_of_as_many_numbers_in_other_parts_are_a_start_that_is_told(tmp_path):
    """Critics join the parts of an action: two of one number each have the layers of one of two."""
    bounds = {name: array_spec.BoundedArraySpec((1,), "float32", -1.0, 1.0, f"action/{name}") for name in "ab"}
    action = tf.nest.map_structure(tensor_spec.from_spec, bounds)
    run = saved(trained(action=action), tmp_path)
    save_specs(RunPaths(Path(run)).specs, OBSERVATION, bounds)
    start, check = started(run, fresh(), actions_of(BOUNDS), ("critics",))
    assert start is not None and check.errors == [] and len(check.notes) == 1
    told = "its actions are (1,) in [-1, 1], (1,) in [-1, 1], this run's (2,) in [-3, 5]"
    assert told in check.notes[0]
    assert started(run, fresh(action=action), actions_of(bounds), ("critics",))[1].notes == []
