"""The player of `policy.npz`: its layers, its units, and what it refuses."""

import ast
import itertools
import json
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tfagents_system.agents import networks
from tfagents_system.envs.actions import actions_of
from tfagents_system.policies import files, numpy_policy
from tfagents_system.policies.tensorflow_policy import in_environment_units

LINEAR = [{"kind": "dense", "activation": "linear", "arrays": {"kernel": "k", "bias": "b"}}]


def linear(kernel):
    kernel = np.asarray(kernel, np.float32)
    return {"k": kernel, "b": np.zeros(kernel.shape[1], np.float32)}


def player(folder, layers, arrays, low=(-2.0,), high=(6.0,)):
    description = {
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


def test_it_is_python_3_8_and_has_the_networks_in_it():
    source = files.PLAYER.read_text()
    ast.parse(source, feature_version=(3, 8))
    assert "from __future__ import annotations" in source and "class Network:" in source
    assert "tfagents_system" not in source


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
        *LINEAR,
    ]
    arrays = {"m": [0, 2], "s": [2, 3], "t": [1, 0], "two": [2, 2], "one": [1, 1], "unit": np.eye(2), "zero": [0, 0]}
    arrays |= linear([[0.1, 9.0], [0.1, 9.0]])
    policy = player(tmp_path, layers, {name: np.array(value, np.float32) for name, value in arrays.items()})
    action = policy.action([1.0, 4.0])
    assert action.shape == (1,) and action.dtype == np.float64
    np.testing.assert_allclose(action, 2.0 + 4.0 * np.tanh(0.3), atol=1e-6)
    np.testing.assert_allclose(policy.action(np.array([[1.0, 4.0]] * 3)), [action] * 3, atol=1e-6)
    np.testing.assert_array_equal(policy([1.0, 4.0]), action)


@pytest.mark.parametrize(
    ("log_std", "smallest", "largest"), [("clip_20", 0.0, 2.0), ("clip_10", -10.0, 2.0), ("tanh", -10.0, 2.0)]
)
def test_deviations_are_those_of_the_actor(log_std, smallest, largest):
    """The mean is 0 and the noise 1: actions are tanh(deviation)."""
    raw = np.array([-50.0, -15.0, -9.0, -1.0, 0.0, 0.5, 1.0, 2.5, 50.0], np.float32)
    layers = [LINEAR[0] | {"log_std": log_std}]
    observation = [{"shape": [2], "dtype": "float32"}]
    network = numpy_policy.Network(observation, layers, linear(np.eye(2)), len(raw))
    network.load([np.stack([np.zeros_like(raw), raw], axis=1)])
    network.noise = itertools.repeat(np.ones((1, len(raw)), np.float32))
    deviations = networks._STD[log_std](tf.constant(raw)).numpy()
    np.testing.assert_allclose(network.act(False)[0], np.tanh(deviations), rtol=1e-5, atol=1e-8)
    if smallest:
        np.testing.assert_allclose(np.log(deviations[[0, -1]]), [smallest, largest], rtol=1e-6)


@pytest.mark.parametrize("bound", [0.1, 0.3, 0.4, 0.05, 1.0])
def test_no_action_leaves_bounds_of_64_bits(tmp_path, bound):
    """0.1 of 32 bits is larger than that of 64."""
    spec = tensor_spec.BoundedTensorSpec((1,), tf.float64, -bound, bound, "action")
    scaled = in_environment_units(tf.constant([[-1.0], [1.0]]), actions_of(spec)).numpy()
    policy = player(tmp_path, LINEAR, linear([[99.0, 0.0], [99.0, 0.0]]), [-bound], [bound])
    for found in (scaled, policy.action(np.array([[-9.0, -9.0], [9.0, 9.0]]))):
        assert found.dtype == np.float64
        assert np.abs(found).max() <= bound
        np.testing.assert_allclose(found[:, 0], [-bound, bound], rtol=1e-7)


@pytest.mark.parametrize(
    ("observation", "told"),
    [
        ([1.0, 2.0, 3.0], r"observation: expected shape \(2,\), or n of them, but found \(3,\)"),
        ([1.0, np.nan], "observation is not finite"),
    ],
)
def test_bad_observations_are_refused(tmp_path, observation, told):
    with pytest.raises(ValueError, match=told):
        player(tmp_path, LINEAR, linear(np.eye(2))).action(observation)


class Pair(NamedTuple):
    right: np.ndarray
    left: np.ndarray


def test_named_tuples_are_taken_by_their_fields():
    wanted = [{"name": name, "path": [name], "shape": [], "dtype": "float32"} for name in ("left", "right")]
    leaves, _ = numpy_policy.observation_leaves(Pair(right=np.float32(1.0), left=np.float32(2.0)), wanted)
    assert [leaf.item() for leaf in leaves] == [2.0, 1.0]
    with pytest.raises(
        ValueError, match=r"no left: it must be a nest with left \(\), right \(\), found ndarray \(2,\)$"
    ):
        numpy_policy.observation_leaves(np.ones(2), wanted)
    with pytest.raises(ValueError, match="the observation has no up"):
        numpy_policy.observation_leaves(Pair(np.float32(1.0), np.float32(2.0)), [{**wanted[0], "path": ["up"]}])
