"""Policies that choose one of n actions by scores: `policy.npz` and one file of NumPy play those of every algorithm."""

from __future__ import annotations

import ast
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.policies import greedy_policy, py_tf_eager_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tests.support.fakes import FakeParams, agent_of
from tests.support.numpy_actors import as_after_training
from tfagents_system.envs.actions import actions_of
from tfagents_system.envs.history import stacked_spec
from tfagents_system.playing import export_files
from tfagents_system.policies import files
from tfagents_system.policies.description import describe
from tfagents_system.policies.environment_policies import EnvironmentUnitsPolicy, of_single_frames
from tfagents_system.policies.files import load_policy
from tfagents_system.policies.network_check import random_observations
from tfagents_system.policies.weights import assign_weights, named_variables
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.trainer.policy_export import PolicyExport

BOUNDS = tensor_spec.BoundedTensorSpec((2,), tf.float64, [-3.0, 0.0], [5.0, 1.0], "action")
TABLE = actions_of(BOUNDS, [[-3.0, 0.0], [5.0, 1.0], [1.0, 0.25], [0.1, 0.1]])
VECTOR = tf.TensorSpec((3,), tf.float32, "observation")
NEST = {"pixels": tf.TensorSpec((2, 3), tf.uint8), "x": VECTOR}
SIMBA = {"network": "simba", "critic_joint_fc_layer_params": (16, 16)}
KINDS: dict[str, tuple[dict[str, Any], Any]] = {
    "dqn": ({"algorithm": "dqn"}, VECTOR),
    "dueling": ({"algorithm": "dqn", "dueling": True}, NEST),
    "iqn": ({"algorithm": "iqn", "normalize_observations": True}, NEST),
    "iqn without heads": ({"algorithm": "iqn", "dueling": False, "critic_layer_norm": True}, VECTOR),
    "simba": ({"algorithm": "dqn", **SIMBA}, VECTOR),
    "iqn, simba": ({"algorithm": "iqn", **SIMBA}, VECTOR),
    "sac_discrete": ({"algorithm": "sac_discrete"}, NEST),
}
ALONE = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tensorflow", "tf_agents", "tfagents_system", "tree"):
            raise ImportError(name)

sys.meta_path.insert(0, Blocker())
sys.path.insert(0, sys.argv[1])
import numpy as np
import numpy_policy

observations = np.load(sys.argv[1] + "/observations.npy")
policy = numpy_policy.load(sys.argv[1] + "/policy.npz")
together = policy.action(observations)
policy.reset()
for one, expected in zip(observations, together):
    np.testing.assert_array_equal(policy.action(one), expected)
    policy.reset()
np.save(sys.argv[1] + "/actions.npy", together)
"""


def source_of(attributes: dict[str, Any], spec: Any, frame_stack: Any = 1) -> export_files.Source:
    """A policy with weights as after training, without the detour over a SavedModel."""
    small = {"critic_joint_fc_layer_params": (16,), "actor_fc_layer_params": (16,), "value_head_units": 8}
    action_spec = tensor_spec.from_spec(TABLE.spec)
    stacked = spec if frame_stack == 1 else stacked_spec(spec, frame_stack)
    agent = agent_of(FakeParams, stacked, action_spec, **{**small, **attributes, "frame_stack": frame_stack})
    assign_weights(named_variables(agent.collect_policy), as_after_training(agent, seed=2))
    # Else one action might be the best of all observations.
    network, seen = agent.acting.network, random_observations(agent.policy, 100, np.random.default_rng(5))
    scores = network.acting_values(tf.nest.map_structure(tf.constant, seen))
    network.last_layers[-1].bias.assign_sub(tf.reduce_mean(scores, axis=0))
    policy = of_single_frames(agent.policy, frame_stack)
    model = EnvironmentUnitsPolicy(greedy_policy.GreedyPolicy(policy), TABLE)
    reference = py_tf_eager_policy.PyTFEagerPolicy(model, use_tf_function=True)
    described = describe(spec, TABLE, policy.policy_state_spec, "policy_checkpoint_7", 7, 3)
    return export_files.Source(policy, reference, TABLE, described)


def written_as(kind: str, source: export_files.Source, folder: Path) -> Path:
    """The policy's file, or its SavedModel."""
    if kind == "saved model":
        agent: Any = types.SimpleNamespace(policy=source.policy, collect_policy=source.policy)
        PolicyExport(RunPaths(folder), agent, TABLE, tf.Variable(7, dtype=tf.int64)).save_model()
        return RunPaths(folder).policies / "greedy_policy"
    if kind == "onnx":
        pytest.importorskip("tf2onnx")
    written, difference = export_files.write(source, kind, folder)
    assert difference < 1e-5
    return written


@pytest.mark.parametrize(
    ("kind", "as_file"),
    [*((kind, "numpy") for kind in KINDS), *(("iqn", as_file) for as_file in ("saved model", "tflite", "onnx"))],
)
def test_each_file_chooses_as_the_checkpoint(kind: str, as_file: str, tmp_path: Path) -> None:
    attributes, spec = KINDS[kind]
    source = source_of(attributes, spec)
    found = load_policy(written_as(as_file, source, tmp_path), "--policy")
    rng, chosen = np.random.default_rng(1), set()
    for _ in range(3):
        for seen in (export_files._one(random_observations(source.policy, 8, rng), k) for k in range(8)):
            step = ts.transition(seen, np.float32(0.0))
            action = np.asarray(found.action(step).action)
            np.testing.assert_array_equal(action, source.reference.action(step).action)
            assert action.dtype == np.float64 and TABLE.is_exact(action)
            chosen.add(int(TABLE.to_agent(action)))
    assert len(chosen) > 1


def test_one_file_plays_it_without_tensorflow(tmp_path: Path) -> None:
    source = source_of({"algorithm": "iqn"}, VECTOR)
    export_files.write(source, "numpy", tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"policy.npz", "numpy_policy.py"}
    observations = random_observations(source.policy, 40, np.random.default_rng(1))
    np.save(tmp_path / "observations.npy", observations)
    subprocess.run([sys.executable, "-c", ALONE, str(tmp_path)], check=True, timeout=100, env={})
    expected = [source.reference.action(ts.transition(each, np.float32(0.0))).action for each in observations]
    np.testing.assert_array_equal(np.load(tmp_path / "actions.npy"), expected)
    assert len(np.unique(expected, axis=0)) > 1


def test_the_player_is_python_3_8_and_has_the_networks_in_it() -> None:
    ast.parse(files.PLAYER.read_text(), feature_version=(3, 8))
    assert "tfagents_system" not in files.PLAYER.read_text() and "class Network:" in files.PLAYER.read_text()


def test_stacked_vectors_are_in_the_files_memory(tmp_path: Path) -> None:
    source = source_of({"algorithm": "iqn"}, VECTOR, {"observation": 3})
    written, difference = export_files.write(source, "numpy", tmp_path)
    assert difference < 1e-5
    (observation,) = load_policy(written, "--policy").description["observation"]
    assert observation["shape"] == [3]
