"""Keys of observations may hold spaces, slashes and letters beyond ASCII: from the space to every file of a policy."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import pytest
import tensorflow as tf

from tests.support.fakes import FakeParams
from tfagents_system.envs import specs
from tfagents_system.envs.actions import actions_of
from tfagents_system.envs.history import policy_time_step_spec
from tfagents_system.playing import export_files
from tfagents_system.policies.files import load_policy
from tfagents_system.policies.names import fit_names
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.trainer.policy_export import PolicyExport
from tfagents_system.transport.segments import Layout

BOX = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
KEYS = ("a b", "a_b", "a/b", "a.b", "A_b", "größe", "", "%", "/", "1", "observation_1", "state_0", "action")
SPACES = {  # With keys as FrankaKitchen-v1 has them, and worse ones.
    "goal": {"bottom burner": BOX, "hinge cabinet": BOX},
    "a": {"b": BOX},
    **dict.fromkeys(KEYS, BOX),
}


def test_each_leaf_has_a_name_of_its_own_in_rings_saved_models_and_files(tmp_path: Path) -> None:
    params, paths, train_step = FakeParams({"horizon": 10}), RunPaths(tmp_path), tf.Variable(7, dtype=tf.int64)
    seen, acted = specs.observation_spec_of(SPACES), specs.action_spec_of(BOX)
    layout = Layout.from_specs(seen, actions_of(acted).spec)
    assert len({column.name.replace("/", ".").lower() for column in layout.observation}) == len(KEYS) + 3
    specs.save_specs(paths.specs, seen, acted)
    observation_spec, action_spec = specs.load_specs(paths.specs)
    assert sorted(observation_spec) == sorted([*KEYS, "a", "goal"])
    agent = params.agent_ctor(policy_time_step_spec(params, observation_spec), action_spec, train_step)
    export = PolicyExport(paths, agent, specs.load_actions(paths.specs), train_step)
    export.save_model()
    checkpoint = paths.policy_checkpoints / export.save_checkpoint(3)
    signature = tf.saved_model.load(str(paths.policies / "greedy_policy")).signatures["action"]
    in_model = [name for name in signature.structured_input_signature[1] if "observation" in name]
    assert len(in_model) == len(KEYS) + 3
    assert {"arg_0_observation_goal_bottom_burner", "arg_0_observation_A_b", "arg_0_observation_1"} <= set(in_model)

    path, difference = export_files.write(export_files.read_source(params, paths, checkpoint), "tflite", tmp_path)
    assert difference < 1e-5
    policy = load_policy(path, "--policy")
    names = {tuple(leaf["path"]): leaf["name"] for leaf in policy.description["observation"]}
    assert names[("goal", "bottom burner")] == "goal_bottom_burner"
    assert names[("A_b",)] == "A_b" and names[("state_0",)] == "state_0_"
    assert len({name.lower() for name in names.values()}) == len(KEYS) + 3
    assert all(name.isascii() and name.isidentifier() for name in names.values())


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["joints", "Camera_0", "_x"], ["joints", "Camera_0", "_x"]),
        (["bottom burner", "größe", ""], ["bottom_burner", "gr__e", ""]),
        (["a b", "a_b"], ["a_b_", "a_b"]),
        (["a b", "a_b", "a_b_", "a%b"], ["a_b__", "a_b", "a_b_", "a_b___"]),
        (["A", "a"], ["A", "a_"]),
    ],
)
def test_names_that_are_fit_stay_and_others_differ_from_them(names: list[str], expected: list[str]) -> None:
    assert fit_names(names) == expected


def test_paths_keep_their_separators_but_differ_without_them() -> None:
    names = ["x/a/b", "x/a.b", "x/a_b", "x/"]
    assert fit_names(names, also_allowed="/.-") == ["x/a/b", "x/a.b_", "x/a_b__", "x/_"]


def test_names_that_are_taken_are_not_given() -> None:
    assert fit_names(["action", "action_", "a"], is_taken=lambda name: name == "action") == ["action_", "action__", "a"]
