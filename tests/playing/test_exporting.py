"""Exported policies act as their checkpoint does, in every format; what acts otherwise is not written."""

import ast
import functools
import json
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks import q_network
from tf_agents.policies import greedy_policy, py_tf_eager_policy, q_policy
from tf_agents.specs import array_spec, tensor_spec
from tf_agents.trajectories import policy_step
from tf_agents.trajectories import time_step as ts

from tests.support import numpy_actors
from tests.support.acting import actions
from tests.support.numpy_actors import VECTOR
from tfagents_system.agents.normalization import RunningNormalization
from tfagents_system.envs import specs
from tfagents_system.envs.action_history import ActionHistory
from tfagents_system.envs.actions import actions_of
from tfagents_system.envs.history import policy_time_step_spec, stacked_spec
from tfagents_system.errors import UserError
from tfagents_system.playing import export_files
from tfagents_system.policies import files, numpy_policy
from tfagents_system.policies.description import describe
from tfagents_system.policies.environment_policies import EnvironmentUnitsPolicy, in_environment_units, of_single_frames
from tfagents_system.policies.files import load_policy
from tfagents_system.policies.network_check import random_observations
from tfagents_system.policies.weights import assign_weights, named_variables
from tfagents_system.policies.worker_policy import FixedPolicy
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.trainer.policy_export import PolicyExport

BOUNDS = tensor_spec.BoundedTensorSpec((2,), tf.float64, [-3.0, 0.0], [5.0, 1.0], "action")
NEST = {
    "pixels": tf.TensorSpec((2, 3), tf.uint8),
    "parts": (tf.TensorSpec((), tf.float32), VECTOR),
    "x.y": tf.TensorSpec((1, 2), tf.float32),
}


def source_of(policy, observation_spec=VECTOR):
    """As `read_source` makes it, without the detour over a SavedModel."""
    in_units = EnvironmentUnitsPolicy(greedy_policy.GreedyPolicy(policy), actions_of(BOUNDS))
    reference = py_tf_eager_policy.PyTFEagerPolicy(in_units, use_tf_function=True)
    description = describe(observation_spec, actions_of(BOUNDS), policy.policy_state_spec, "policy_checkpoint_7", 7, 3)
    return export_files.Source(policy, reference, actions_of(BOUNDS), description)


KINDS = {
    "recurrent": (NEST, {"recurrent": True}),
    "normalised": (NEST, {"normalize_observations": True, "batch_renormalization": True}),
    "simba": (VECTOR, {"network": "simba"}),
}


def trained(spec, **attributes):
    """An agent with weights as after training, whose observations are far from 0 where it normalises them."""
    agent = numpy_actors.build(spec, **attributes)
    values = numpy_actors.as_after_training(agent, seed=1)
    calm = {name: value if "variance" in name or "steps" in name else 0.5 * value for name, value in values.items()}
    assign_weights(named_variables(agent.collect_policy), calm)  # Where tanh is saturated, weights do not matter.
    for module in agent.policy.submodules:
        if isinstance(module, RunningNormalization):
            module.mean.assign_add(tf.fill(module.mean.shape, 100.0))
    return agent


@functools.cache
def source_named(kind):
    spec, attributes = KINDS[kind]
    return source_of(trained(spec, **attributes).policy, spec)


@pytest.fixture(scope="module")
def source():
    return source_named("recurrent")


WRITTEN = [*(("recurrent", name) for name in ("numpy", "tflite", "onnx")), ("normalised", "numpy"), ("simba", "numpy")]


@pytest.fixture(scope="module", params=WRITTEN, ids="-".join)
def written(request, tmp_path_factory):
    """Source, path and difference of a file."""
    kind, name = request.param
    if name == "onnx":
        pytest.importorskip("tf2onnx")
    source = source_named(kind)
    return source, *export_files.write(source, name, tmp_path_factory.mktemp("out") / "new")


def test_each_format_acts_as_the_checkpoint(written):
    source, path, difference = written
    assert difference < 1e-5
    assert export_files.largest_difference(source, load_policy(path, "--policy"), seed=5) < 1e-5


def test_observations_of_the_check_are_like_those_that_were_seen():
    """Else all of them would be clipped, and no weight behind the normalisation would matter."""
    source = source_named("normalised")
    batch = random_observations(source.policy, 8, np.random.default_rng(3))
    actions = [export_files._acts(source.reference, [export_files._one(batch, k)])[0] for k in range(8)]
    assert np.ptp(actions, axis=0).min() > 0.002


def test_files_say_what_they_hold(written):
    source, path, _ = written
    policy = load_policy(path, "--policy")
    assert policy.get_train_step() == 7 and policy.description["checkpoint"] == "policy_checkpoint_7"
    assert policy.description["iteration"] == 3
    assert policy.action_spec.minimum.tolist() == [-3.0, 0.0] and policy.action_spec.maximum.tolist() == [5.0, 1.0]
    expected = tf.nest.flatten(source.policy.time_step_spec.observation)
    found = tf.nest.flatten(policy.time_step_spec.observation)
    assert [(leaf.shape, leaf.dtype) for leaf in found] == [(leaf.shape, leaf.dtype) for leaf in expected]


def test_a_changed_weight_is_seen_and_leaves_no_file(source, tmp_path, monkeypatch):
    weight = next(variable for variable in source.policy.variables() if "kernel" in variable.name)
    before = weight.numpy()
    write = export_files._WRITERS["numpy"]

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


def test_workers_can_act_with_an_exported_file(written):
    source, path, _ = written
    policy = FixedPolicy(load_policy(path, "SAC_EXPERT_POLICY"), actions_of(BOUNDS), num_lanes=2)
    assert policy.inference.startswith("policy file")
    rng = np.random.default_rng(0)
    batch = random_observations(source.policy, 8, rng)
    step = ts.transition(export_files._one(batch, 0), np.float32(0.0), np.float32(1.0))
    twice = [actions(policy, {0: step}, True)[0] for _ in range(2)]
    expected = export_files._acts(source.reference, [step.observation] * 2)
    np.testing.assert_allclose(twice, (expected - [1.0, 0.5]) / [4.0, 0.5], atol=2e-5)
    np.testing.assert_array_equal(actions(policy, {1: step}, True)[1], twice[0], err_msg="a memory of its own")


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
paths = {spec["name"]: spec["path"] for spec in policy.observation}
policy.reset()
actions = []
for k in range(len(inputs["observation_x"])):
    observation = {"x.y": inputs["observation_x"][k], "pixels": inputs["pixels"][k]}
    observation["parts"] = [inputs["a"][k], inputs["b"][k]]
    actions.append(policy.action(observation))
np.save(sys.argv[3], actions)
assert not any(name.startswith("tensorflow") for name in sys.modules)
"""


def test_the_numpy_policy_is_python_3_8():
    source = files.PLAYER.read_text()
    ast.parse(source, feature_version=(3, 8))
    assert "from __future__ import annotations" in source


def test_the_numpy_policy_needs_nothing_but_numpy(source, tmp_path):
    export_files.write(source, "numpy", tmp_path / "out")
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"policy.npz", "numpy_policy.py"}
    observations = random_observations(source.policy, 8, np.random.default_rng(2))  # Eight, taken one after another.
    np.savez(
        tmp_path / "inputs.npz",
        observation_x=observations["x.y"],
        pixels=observations["pixels"],
        a=observations["parts"][0],
        b=observations["parts"][1],
    )
    folders = [str(tmp_path / name) for name in ("out", "inputs.npz", "actions.npy")]
    done = subprocess.run([sys.executable, "-c", ALONE, *folders], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    expected = export_files._acts(source.reference, [export_files._one(observations, k) for k in range(8)])
    np.testing.assert_allclose(np.load(tmp_path / "actions.npy"), expected, atol=4e-5)
    assert np.ptp(expected, axis=0).min() > 0.002, "observations matter"


def numpy_file_of(folder, layers, arrays, low=(-2.0,), high=(6.0,)):
    description = {
        "format": numpy_policy.FORMAT,
        "checkpoint": "c",
        "train_step": 1,
        "observation": [{"name": "observation", "path": [], "shape": [2], "dtype": "float32"}],
        "action": {"shape": [1], "dtype": "float64", "low": np.array(low).tolist(), "high": np.array(high).tolist()},
        "state": [],
        "layers": layers,
    }
    description["inputs"] = description["observation"]
    bounds = {"low": np.array(low), "high": np.array(high)}
    np.savez(folder / "policy.npz", description=np.array(json.dumps(description)), **bounds, **arrays)
    return numpy_policy.load(folder / "policy.npz")


def test_layers_by_hand(tmp_path):
    """x = [1, 4] -> standardised [-1, 1] * 2 + 1 = [-1, 3] -> (x - [0, 2]) * [2, 3] + [1, 0] = [-1, 3], within 2:
    [-1, 2] -> x + relu(x) = [-1, 4] -> 0.1 * (-1 + 4) = 0.3 -> tanh -> [-2, 6].
    """
    layers = [
        {"kind": "layer_norm", "epsilon": 0.0, "arrays": {"scale": "two", "shift": "one"}},
        {"kind": "normalization", "limit": 2.0, "arrays": {"mean": "m", "scale": "s", "shift": "t"}},
        {
            "kind": "residual",
            "layers": [{"kind": "dense", "activation": "relu", "arrays": {"kernel": "unit", "bias": "zero"}}],
        },
        {"kind": "dense", "activation": "linear", "arrays": {"kernel": "k", "bias": "b"}},
    ]
    arrays = {"m": [0, 2], "s": [2, 3], "t": [1, 0], "two": [2, 2], "one": [1, 1], "unit": np.eye(2), "zero": [0, 0]}
    arrays |= {"k": [[0.1, 9.0], [0.1, 9.0]], "b": [0.0, 0.0]}
    policy = numpy_file_of(tmp_path, layers, {name: np.array(value, np.float32) for name, value in arrays.items()})
    action = policy.action([1.0, 4.0])
    assert action.shape == (1,) and action.dtype == np.float64
    np.testing.assert_allclose(action, 2.0 + 4.0 * np.tanh(0.3), atol=1e-6)
    np.testing.assert_allclose(policy.action(np.array([[1.0, 4.0]] * 3)), [action] * 3, atol=1e-6)


@pytest.mark.parametrize("bound", [0.1, 0.3, 0.4, 0.05, 1.0])
def test_no_action_leaves_bounds_of_64_bits(tmp_path, bound):
    """0.1 of 32 bits is larger than that of 64."""
    spec = tensor_spec.BoundedTensorSpec((1,), tf.float64, -bound, bound, "action")
    scaled = in_environment_units(tf.constant([[-1.0], [1.0]]), actions_of(spec)).numpy()
    layers = [{"kind": "dense", "activation": "linear", "arrays": {"kernel": "k", "bias": "b"}}]
    arrays = {"k": np.array([[99.0, 0.0], [99.0, 0.0]], np.float32), "b": np.zeros(2, np.float32)}
    policy = numpy_file_of(tmp_path, layers, arrays, [-bound], [bound])
    for found in (scaled, policy.action(np.array([[-9.0, -9.0], [9.0, 9.0]]))):
        assert found.dtype == np.float64
        assert np.abs(found).max() <= bound
        np.testing.assert_allclose(found[:, 0], [-bound, bound], rtol=1e-7)


def test_scaled_actions_are_as_the_environment_remembers_them(tmp_path):
    low, high = [-2.0, 0.5, 0.0], [2.0, 0.5, 1e6]
    layers = [{"kind": "dense", "activation": "linear", "arrays": {"kernel": "k", "bias": "b"}}]
    arrays = {"k": np.zeros((2, 6), np.float32), "b": np.zeros(6, np.float32)}
    policy = numpy_file_of(tmp_path, layers, arrays, low, high)
    actions = np.array([[-3.0, 0.5, 1.0], [0.123, 0.5, 999_999.0], [1.999, 0.5, 2e6]])
    spec = array_spec.BoundedArraySpec((3,), np.float64, low, high)
    expected = [actions_of(spec).to_agent(action) for action in actions]
    np.testing.assert_array_equal(policy.scaled(actions), expected)
    assert policy.scaled(actions[0]).dtype == np.float32


@pytest.mark.parametrize(
    ("spec", "table", "given"),
    [
        (array_spec.BoundedArraySpec((), np.int64, 2, 5), None, [2, 5, 4]),
        (array_spec.BoundedArraySpec((2,), np.int32, 0, [1, 2]), None, [[1, 2], [0, 1]]),
        (
            array_spec.BoundedArraySpec((2,), np.float32, [-1.0, 0.0], [1.0, 9.0]),
            [[1.0, 0.0], [0.0, 9.0], [-1.0, 3.0]],
            [[1.0, 0.0], [-0.9, 3.5], [-1.0, 3.0]],
        ),
    ],
)
def test_chosen_actions_are_as_the_environment_remembers_them(tmp_path, spec, table, given):
    leaf = actions_of(spec, table)
    layers = [{"kind": "dense", "activation": "linear", "arrays": {"kernel": "k", "bias": "b"}}]
    arrays = {"k": np.zeros((2, len(leaf.rows)), np.float32), "b": np.zeros(len(leaf.rows), np.float32)}
    policy = numpy_file_of(tmp_path, layers, arrays | {"rows": leaf.rows}, spec.minimum, spec.maximum)
    history = ActionHistory(2, leaf)
    for action in given:
        history.add([leaf.to_agent(np.asarray(action, spec.dtype))])
    scaled = policy.scaled(np.array(given))
    assert scaled.dtype == np.float32 and scaled.shape == (len(given), len(leaf.rows))
    np.testing.assert_array_equal(scaled[-2:].ravel(), history.values[0])
    np.testing.assert_array_equal(policy.scaled(given[0]), scaled[0])


@pytest.mark.parametrize(
    ("observation", "told"),
    [
        ([1.0, 2.0, 3.0], r"observation: expected shape \(2,\), or n of them, but found \(3,\)"),
        ([1.0, np.nan], "observation is not finite"),
    ],
)
def test_bad_observations_are_refused(tmp_path, observation, told):
    layers = [{"kind": "dense", "activation": "linear", "arrays": {"kernel": "k", "bias": "b"}}]
    policy = numpy_file_of(tmp_path, layers, {"k": np.eye(2, dtype=np.float32), "b": np.zeros(2, np.float32)})
    with pytest.raises(ValueError, match=told):
        policy.action(observation)


def leaf(shape, dtype):
    return [{"name": "pixels", "path": [], "shape": shape, "dtype": dtype}]


class Pair(NamedTuple):
    right: np.ndarray
    left: np.ndarray


def test_named_tuples_are_taken_by_their_fields():
    wanted = [{"name": name, "path": [name], "shape": [], "dtype": "float32"} for name in ("left", "right")]
    leaves, _ = numpy_policy.observation_leaves(Pair(right=np.float32(1.0), left=np.float32(2.0)), wanted)
    assert [each.item() for each in leaves] == [2.0, 1.0]
    with pytest.raises(ValueError, match="the observation has no up"):
        numpy_policy.observation_leaves(Pair(np.float32(1.0), np.float32(2.0)), [{**wanted[0], "path": ["up"]}])


@pytest.mark.parametrize("name", ["numpy", "tflite"])
def test_a_choice_of_actions(tmp_path, name):
    """A network of values: files choose the same rows, in the environment's units, or none that is worth less."""
    table = actions_of(BOUNDS, [[-3.0, 0.0], [5.0, 1.0], [1.0, 0.25], [0.1, 0.1]])
    time_steps = ts.time_step_spec(VECTOR)
    policy = q_policy.QPolicy(time_steps, tensor_spec.from_spec(table.spec), q_network.QNetwork(VECTOR, table.spec))
    rng = np.random.default_rng(0)  # Of those that the network draws, one in 40 prefers the same action everywhere.
    assign_weights(
        named_variables(policy),
        {name: 0.3 * rng.standard_normal(each.shape) for name, each in named_variables(policy).items()},
    )
    model = EnvironmentUnitsPolicy(greedy_policy.GreedyPolicy(policy), table)
    reference = py_tf_eager_policy.PyTFEagerPolicy(model, use_tf_function=True, batch_time_steps=True)
    source = export_files.Source(policy, reference, table, describe(VECTOR, table, (), "policy_checkpoint_7", 7, 3))
    if name == "numpy":
        with pytest.raises(UserError, match="numpy can't hold this policy"):
            export_files.write(source, name, tmp_path)
        return
    written, difference = export_files.write(source, name, tmp_path)
    assert difference < 1e-5
    found = load_policy(written, "--policy")
    observations = np.random.default_rng(1).standard_normal((50, 3)).astype(np.float32)
    actions = [found.action(ts.transition(each, np.float32(0.0))).action for each in observations]
    chosen = [table.to_agent(action) for action in actions]
    assert actions[0].dtype == np.float64 and all(table.is_exact(action) for action in actions)
    scores = (
        policy.distribution(ts.transition(tf.constant(observations), tf.zeros(50))).action.logits_parameter().numpy()
    )
    best = np.sort(scores, axis=1)[:, -2:]
    assert np.diff(best).min() > 1e-3, "no rounding exchanges two of them"
    np.testing.assert_array_equal(chosen, scores.argmax(axis=1))
    assert len(set(map(int, chosen))) > 1

    class Worst:
        def get_initial_state(self, n):
            return ()

        def action(self, time_step, state):
            batch = tf.reshape(time_step.observation, (-1, 3))
            values = policy.distribution(ts.transition(batch, tf.zeros(len(batch)))).action.logits_parameter()
            worst = table.rows[values.numpy().argmin(axis=1)]
            return policy_step.PolicyStep(worst if time_step.observation.ndim > 1 else worst[0], ())

    assert export_files.largest_difference(source, Worst()) > 0.01


def test_missing_parts_of_a_nest_and_another_number_of_episodes_are_refused(source, tmp_path):
    policy = numpy_policy.load(export_files.write(source, "numpy", tmp_path)[0])
    batch = random_observations(source.policy, 8, np.random.default_rng(0))
    policy.action(batch)
    with pytest.raises(ValueError, match=r"1 observations after 8: call reset\(\)"):
        policy.action(export_files._one(batch, 0))
    with pytest.raises(ValueError, match="the observation has no parts/1"):
        policy.action(batch | {"parts": (batch["parts"][0],)})


def test_convolutions_over_stacked_frames_are_refused_by_numpy_and_taken_by_the_others(tmp_path):
    """The frames before are part of the state, so that each step takes a single one."""
    single, stacked = (tf.TensorSpec((17, 17, channels), tf.uint8) for channels in (1, 2))
    policy = of_single_frames(trained(stacked, frame_stack=2).policy, frame_stack=2)
    source = source_of(policy, single)
    with pytest.raises(UserError, match="numpy can't hold this policy: .*; --format tflite and onnx take any network"):
        export_files.write(source, "numpy", tmp_path)
    assert list(tmp_path.iterdir()) == []
    for name in ("tflite", "onnx"):
        if name == "onnx":
            pytest.importorskip("tf2onnx")
        path, difference = export_files.write(source, name, tmp_path)
        assert difference < 1e-5
        assert [spec["shape"] for spec in load_policy(path, "--policy").description["state"]] == [[17, 17, 1], []]


@pytest.mark.parametrize("attributes", [{"normalize_observations": True}, {"recurrent": True}], ids=str)
def test_files_stack_vectors_and_flattened_images(tmp_path, attributes):
    """Each takes single frames, and its actions over several steps are those of the SavedModel's policy."""
    single = {
        "camera": tf.TensorSpec((3, 3, 1), tf.uint8, "camera"),
        "lidar": tf.TensorSpec((5,), tf.float32, "lidar"),
        "speed": tf.TensorSpec((2,), tf.float32, "speed"),
    }
    frame_stack = {"lidar": 4, "camera": 2}
    stacked = stacked_spec(single, frame_stack)
    assert [tuple(stacked[name].shape) for name in single] == [(3, 3, 2), (20,), (2,)]
    agent = trained(stacked, frame_stack=frame_stack, image_encoder_layers=(), **attributes)
    source = source_of(of_single_frames(agent.policy, frame_stack), single)
    for name in ("numpy", "tflite"):
        path, difference = export_files.write(source, name, tmp_path)
        assert difference < 1e-4
        assert [spec["shape"] for spec in load_policy(path, "--policy").description["observation"]] == [
            [3, 3, 1],
            [5],
            [2],
        ]


@pytest.mark.parametrize(
    ("spec", "frame_stack"),
    [(VECTOR, 1), ({"a": VECTOR, "lidar": tf.TensorSpec((5,), tf.float32)}, {"lidar": 3})],
    ids=["vector", "frames"],
)
def test_policies_of_mini_races_take_what_the_environment_gives(tmp_path, spec, frame_stack):
    """They act at a mini-race's beginning."""
    attributes = {"mini_race": {"steps": 50}, "normalize_observations": True, "frame_stack": frame_stack}
    params = type("Params", (numpy_actors.Params,), attributes)({"horizon": 100})
    seen = policy_time_step_spec(params, spec).observation
    source = source_of(of_single_frames(trained(seen, **attributes).policy, frame_stack), spec)
    path, difference = export_files.write(source, "numpy", tmp_path)
    assert difference < 1e-4
    found = load_policy(path, "--policy").description["observation"]
    assert [each["shape"] for each in found] == [leaf.shape.as_list() for leaf in tf.nest.flatten(spec)]


def test_nests_of_actions_are_refused():
    with pytest.raises(UserError, match="has one array of actions, this environment's is a nest"):
        describe(VECTOR, {"a": actions_of(BOUNDS)}, (), "c", 1, None)


@pytest.mark.parametrize(
    ("suffix", "content"),
    [
        (".npz", b"nothing of the kind"),
        (".tflite", b"nothing of the kind"),
        (".tflite", b"\x1c\0\0\0TFL3" + bytes(4)),
    ],
)
def test_files_that_are_no_policies_are_named(tmp_path, suffix, content):
    path = tmp_path / f"other{suffix}"
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"--policy=.*other{suffix} can't be loaded"):
        load_policy(path, "--policy")


def saved_array(file, array):
    with open(file, "wb") as stream:
        np.save(stream, array)


def described(description):
    return lambda file: np.savez(file, description=np.array(description))


def test_pickles_are_not_read(tmp_path):
    np.savez(tmp_path / "policy.npz", description=np.array([{"format": 1}], object))
    with pytest.raises(UserError, match="allow_pickle=False"):
        load_policy(tmp_path / "policy.npz", "--policy")


def test_a_folder_means_the_plainest_file_in_it(source, tmp_path):
    export_files.write(source, "numpy", tmp_path)
    (tmp_path / "policy.tflite").write_bytes(b"not read")
    assert load_policy(tmp_path, "--policy").inference == "policy file (numpy)"


def test_the_policy_of_a_run_with_stacked_frames_is_built_anew_and_must_fit(tmp_path):
    """From its files alone: the stack is part of the network's input, and of the policy's state."""
    frames = {"lidar": tf.TensorSpec((5,), tf.float32, "lidar"), "joints": tf.TensorSpec((3,), tf.float32, "j")}
    params = numpy_actors.Params({"horizon": 10})
    params.frame_stack, params.normalize_observations = {"lidar": 2}, True
    paths, train_step = RunPaths(tmp_path), tf.Variable(7, dtype=tf.int64)
    specs.save_specs(paths.specs, frames, BOUNDS)
    observation_spec, action_spec = specs.load_specs(paths.specs)
    agent = params.agent_ctor(policy_time_step_spec(params, observation_spec), action_spec, train_step)
    export = PolicyExport(paths, agent, actions_of(BOUNDS), train_step, params.frame_stack)
    export.save_model()
    checkpoint = paths.policy_checkpoints / export.save_checkpoint(3)
    source = export_files.read_source(params, paths, checkpoint)
    path, difference = export_files.write(source, "tflite", tmp_path / "out")
    assert difference < 1e-5 and load_policy(path, "--policy").get_train_step() == 7
    params.actor_fc_layer_params = (8,)
    with pytest.raises(UserError, match="does not fit the params"):
        export_files.read_source(params, paths, checkpoint)
