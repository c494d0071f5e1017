"""Exported policies act as their checkpoint does, in every format; what acts otherwise is not written."""

import functools
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks import q_network
from tf_agents.policies import greedy_policy, py_tf_eager_policy, q_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tests.support import numpy_actors
from tests.support.fakes import FakeParams, agent_of
from tests.support.numpy_actors import VECTOR, as_after_training
from tfagents_system.agents.normalization import RunningNormalization
from tfagents_system.envs.actions import actions_of
from tfagents_system.envs.history import policy_time_step_spec, stacked_spec
from tfagents_system.errors import UserError
from tfagents_system.playing import export_files
from tfagents_system.playing.export_files import random_observations, regret
from tfagents_system.policies import numpy_policy
from tfagents_system.policies.description import describe
from tfagents_system.policies.files import load_policy
from tfagents_system.policies.tensorflow_policy import EnvironmentUnitsPolicy, of_single_frames
from tfagents_system.policies.weights import assign_weights, named_variables

BOUNDS = tensor_spec.BoundedTensorSpec((2,), tf.float64, [-3.0, 0.0], [5.0, 1.0], "action")
TABLE = actions_of(BOUNDS, [[-3.0, 0.0], [5.0, 1.0], [1.0, 0.25], [0.1, 0.1]])
NEST = {
    "pixels": tf.TensorSpec((2, 3), tf.uint8),
    "parts": (tf.TensorSpec((), tf.float32), VECTOR),
    "x.y": tf.TensorSpec((1, 2), tf.float32),
}


def source_of(policy, observation_spec=VECTOR, actions=None):
    """As `read_source` makes it, without the detour over a SavedModel."""
    actions = actions or actions_of(BOUNDS)
    in_units = EnvironmentUnitsPolicy(greedy_policy.GreedyPolicy(policy), actions)
    reference = py_tf_eager_policy.PyTFEagerPolicy(in_units, use_tf_function=True)
    description = describe(observation_spec, actions, policy.policy_state_spec, "policy_checkpoint_7", 7, 3)
    return export_files.Source(policy, reference, actions, description)


def trained(spec, **attributes):
    """An agent with weights as after training, whose observations are far from 0 where it normalises them."""
    agent = numpy_actors.build(spec, **attributes)
    values = as_after_training(agent, seed=1)
    calm = {name: value if "variance" in name or "steps" in name else 0.5 * value for name, value in values.items()}
    assign_weights(named_variables(agent.collect_policy), calm)  # Where tanh is saturated, weights do not matter.
    for module in agent.policy.submodules:
        if isinstance(module, RunningNormalization):
            module.mean.assign_add(tf.fill(module.mean.shape, 100.0))
    return agent


def choosing(spec, frame_stack=1, **attributes):
    """An agent that chooses a row of TABLE by scores, of which no action has the best one everywhere."""
    small = {"critic_joint_fc_layer_params": (16,), "actor_fc_layer_params": (16,), "value_head_units": 8}
    stacked = spec if frame_stack == 1 else stacked_spec(spec, frame_stack)
    attributes = {**small, **attributes, "frame_stack": frame_stack}
    agent = agent_of(FakeParams, stacked, tensor_spec.from_spec(TABLE.spec), **attributes)
    assign_weights(named_variables(agent.collect_policy), as_after_training(agent, seed=2))
    network, seen = agent.acting.network, random_observations(agent.policy, 100, np.random.default_rng(5))
    if spec is MASKED:
        seen["action_mask"][:] = 1
    scores = network.acting_values(tf.nest.map_structure(tf.constant, seen))
    network.last_layers[-1].bias.assign_sub(tf.reduce_mean(scores, axis=0))
    return of_single_frames(agent.policy, frame_stack)


MASKED = {"action_mask": tf.TensorSpec((4,), tf.uint8), "x": VECTOR}
PIXELS = {"pixels": tf.TensorSpec((2, 3), tf.uint8), "x": VECTOR}
KINDS = {
    "recurrent": lambda: source_of(trained(NEST, recurrent=True, normalize_observations=True).policy, NEST),
    "iqn": lambda: source_of(choosing(PIXELS, algorithm="iqn", normalize_observations=True), PIXELS, TABLE),
    "dqn, masked": lambda: source_of(choosing(MASKED, algorithm="dqn", normalize_observations=True), MASKED, TABLE),
    "iqn, stacked": lambda: source_of(choosing(VECTOR, {"observation": 3}, algorithm="iqn"), VECTOR, TABLE),
}

INTERPRETED = ("recurrent", "iqn", "dqn, masked")


@functools.cache
def source_named(kind):
    return KINDS[kind]()


@pytest.mark.parametrize(
    ("kind", "name"),
    [*((kind, "numpy") for kind in KINDS), *((kind, name) for kind in INTERPRETED for name in ("tflite", "onnx"))],
)
def test_each_format_acts_as_the_checkpoint_and_says_what_it_holds(kind, name, tmp_path):
    if name == "onnx":
        pytest.importorskip("tf2onnx")
    source = source_named(kind)
    path, difference = export_files.write(source, name, tmp_path / "new")
    assert difference < 1e-5
    policy = load_policy(path, "--policy")
    assert policy.inference == f"policy file ({name})"
    assert policy.get_train_step() == 7 and policy.description["checkpoint"] == "policy_checkpoint_7"
    assert policy.description["iteration"] == 3
    assert policy.action_spec.minimum.tolist() == [-3.0, 0.0] and policy.action_spec.maximum.tolist() == [5.0, 1.0]
    expected = tf.nest.flatten(source.policy.time_step_spec.observation)
    found = tf.nest.flatten(policy.time_step_spec.observation)
    assert [(leaf.shape, leaf.dtype) for leaf in found] == [(leaf.shape, leaf.dtype) for leaf in expected]


def test_observations_of_the_check_are_like_those_that_were_seen():
    """Else all of them would be clipped, or one action the best of all, and most weights would not matter."""
    source = source_named("iqn")
    batch = random_observations(source.policy, 8, np.random.default_rng(3))
    actions = [source.reference.action(ts.transition(one(batch, k), np.float32(0.0))).action for k in range(8)]
    assert np.ptp(actions, axis=0).min() > 0.002


def test_bounds_that_float32_can_not_part_are_no_difference(tmp_path):
    policy = trained(VECTOR).policy
    for low, high in (([-1.0, 0.0], [1.0, 0.0]), ([1e4, -1.0], [1e4 + 1.0, 1.0])):
        spec = tensor_spec.BoundedTensorSpec((2,), tf.float32, low, high, "action")
        source = source_of(policy, actions=actions_of(spec))
        assert export_files.write(source, "numpy", tmp_path)[1] < 1e-4


def one(batch, k):
    return tf.nest.map_structure(lambda leaf: leaf[k], batch)


def test_a_changed_weight_is_seen_and_leaves_no_file(tmp_path, monkeypatch):
    source, write = source_named("recurrent"), export_files._WRITERS["numpy"]
    weight = next(variable for variable in source.policy.variables() if "kernel" in variable.name)
    before = weight.numpy()

    def write_another(*args):
        path = write(*args)
        weight.assign_add(0.01 * np.random.default_rng(0).standard_normal(weight.shape))
        return path

    monkeypatch.setitem(export_files._WRITERS, "numpy", write_another)
    try:
        with pytest.raises(export_files.ExportError, match="acts otherwise than policy_checkpoint_7"):
            export_files.write(source, "numpy", tmp_path)
    finally:
        weight.assign(before)
    assert list(tmp_path.iterdir()) == []
    scores = np.array([[1.0, 5.0, 4.0], [2.0, 0.0, 2.0]])
    assert [regret(np.array(chosen), scores) for chosen in ([1, 2], [2, 0])] == [0.0, 0.2]


ALONE = """
import sys
from pathlib import Path

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tensorflow", "tf_agents", "tfagents_system", "tree"):
            raise ImportError(name)

sys.meta_path.insert(0, Blocker())
sys.path.insert(0, sys.argv[1])
import numpy as np
import numpy_policy

policy = numpy_policy.load(sys.argv[1] + "/policy.npz")
inputs = np.load(sys.argv[2])
actions = []
for k in range(len(inputs["observation_x"])):
    observation = {"x.y": inputs["observation_x"][k], "pixels": inputs["pixels"][k]}
    observation["parts"] = [inputs["a"][k], inputs["b"][k]]
    actions.append(policy.action(observation))
np.save(sys.argv[3], actions)
assert not any(name.startswith("tensorflow") for name in sys.modules)
"""


def test_the_numpy_policy_needs_nothing_but_numpy(tmp_path):
    source = source_named("recurrent")
    path, _ = export_files.write(source, "numpy", tmp_path / "out")
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"policy.npz", "numpy_policy.py"}
    batch = random_observations(source.policy, 8, np.random.default_rng(2))  # Eight, taken one after another.
    parts = dict(zip(("a", "b"), batch["parts"], strict=True))
    np.savez(tmp_path / "inputs.npz", observation_x=batch["x.y"], pixels=batch["pixels"], **parts)
    folders = [str(tmp_path / name) for name in ("out", "inputs.npz", "actions.npy")]
    done = subprocess.run([sys.executable, "-c", ALONE, *folders], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    state, expected = source.reference.get_initial_state(1), []
    for k in range(8):
        kind = ts.StepType.MID if k else ts.StepType.FIRST
        step = source.reference.action(ts.TimeStep(kind, np.float32(0), np.float32(1), one(batch, k)), state)
        state = step.state
        expected.append(step.action)
    np.testing.assert_allclose(np.load(tmp_path / "actions.npy"), expected, atol=4e-5)
    policy = numpy_policy.load(path)
    policy.action(batch)
    with pytest.raises(ValueError, match=r"1 observations after 8: call reset\(\)"):
        policy.action(one(batch, 0))
    with pytest.raises(ValueError, match="the observation has no parts/1"):
        policy.action(batch | {"parts": (batch["parts"][0],)})


def users_network():
    values = q_network.QNetwork(VECTOR, TABLE.spec)
    return source_of(
        q_policy.QPolicy(ts.time_step_spec(VECTOR), tensor_spec.from_spec(TABLE.spec), values), VECTOR, TABLE
    )


def convolutions():
    """Over stacked frames: those before are part of the state, so that each step takes a single one."""
    single, stacked = (tf.TensorSpec((17, 17, channels), tf.uint8) for channels in (1, 2))
    return source_of(of_single_frames(trained(stacked, frame_stack=2).policy, frame_stack=2), single)


@pytest.mark.parametrize(("made", "state"), [(users_network, []), (convolutions, [[17, 17, 1], []])])
def test_other_networks_are_refused_by_numpy_and_taken_by_tflite(tmp_path, made, state):
    source = made()
    with pytest.raises(UserError, match="numpy can't hold this policy: .*; --format tflite and onnx take any network"):
        export_files.write(source, "numpy", tmp_path)
    assert list(tmp_path.iterdir()) == []
    path, difference = export_files.write(source, "tflite", tmp_path)
    policy = load_policy(path, "--policy")
    assert difference < 1e-5 and [spec["shape"] for spec in policy.description["state"]] == state
    if made is users_network:
        action = policy.action(ts.transition(np.ones(3, np.float32), np.float32(0.0))).action
        assert action.dtype == np.float64 and action.tolist() in TABLE.rows.tolist()


def test_files_stack_vectors_and_flattened_images(tmp_path):
    """Each takes single frames, and its actions over several steps are those of the SavedModel's policy."""
    single = {
        "camera": tf.TensorSpec((3, 3, 1), tf.uint8, "camera"),
        "lidar": tf.TensorSpec((5,), tf.float32, "lidar"),
        "speed": tf.TensorSpec((2,), tf.float32, "speed"),
    }
    frame_stack = {"lidar": 4, "camera": 2}
    stacked = stacked_spec(single, frame_stack)
    attributes = {"image_encoder_layers": (), "normalize_observations": True, "recurrent": True}
    policy = trained(stacked, frame_stack=frame_stack, **attributes).policy
    source = source_of(of_single_frames(policy, frame_stack), single)
    for name in ("numpy", "tflite"):
        path, difference = export_files.write(source, name, tmp_path)
        assert difference < 1e-4
        description = load_policy(path, "--policy").description
        assert [spec["shape"] for spec in description["observation"]] == [[3, 3, 1], [5], [2]]


def test_policies_of_mini_races_take_what_the_environment_gives(tmp_path):
    """They act at a mini-race's beginning."""
    spec, frame_stack = {"a": VECTOR, "lidar": tf.TensorSpec((5,), tf.float32)}, {"lidar": 3}
    attributes = {"mini_race": {"steps": 50}, "normalize_observations": True, "frame_stack": frame_stack}
    params = type("Params", (numpy_actors.Params,), attributes)({"horizon": 100})
    seen = policy_time_step_spec(params, spec).observation
    source = source_of(of_single_frames(trained(seen, **attributes).policy, frame_stack), spec)
    path, difference = export_files.write(source, "numpy", tmp_path)
    assert difference < 1e-4
    found = load_policy(path, "--policy").description["observation"]
    assert [leaf["shape"] for leaf in found] == [leaf.shape.as_list() for leaf in tf.nest.flatten(spec)]


def test_files_that_are_no_policies_are_named_and_pickles_are_not_read(tmp_path):
    for suffix, content in ((".npz", b"nothing"), (".tflite", b"\x1c\0\0\0TFL3" + bytes(4))):
        (tmp_path / f"other{suffix}").write_bytes(content)
        with pytest.raises(UserError, match=rf"--policy=.*other{suffix} can't be loaded"):
            load_policy(tmp_path / f"other{suffix}", "--policy")
    np.savez(tmp_path / "policy.npz", description=np.array([{"format": 1}], object))
    with pytest.raises(UserError, match="allow_pickle=False"):
        load_policy(tmp_path, "--policy")
    export_files.write(source_named("iqn"), "numpy", tmp_path)
    (tmp_path / "policy.tflite").write_bytes(b"not read")
    assert load_policy(tmp_path, "--policy").inference == "policy file (numpy)", (
        "a folder means the plainest file in it"
    )
    with pytest.raises(UserError, match="has one array of actions, this environment's is a nest"):
        describe(VECTOR, {"a": actions_of(BOUNDS)}, (), "c", 1, None)
