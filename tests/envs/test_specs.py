"""Specs survive the way to disk and back; the agent's actions are in [-1, 1], the environment's in its own bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import array_spec, tensor_spec

from tests.support.fakes import CounterEnv, DictEnv
from tfagents_system.envs import specs
from tfagents_system.envs.gym_driver import space_nest
from tfagents_system.envs.observations import ObservationWriter
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError

BOX = tensor_spec.BoundedTensorSpec((2,), tf.float32, -1.0, 1.0, "action")


def round_trip(env: Any, folder: Path) -> tuple[Any, Any, Any]:
    training = TrainingEnvironment(env, 10)
    path = folder / "specs.pbtxt"
    specs.save_specs(path, training.observation_spec(), training.environment_action_spec)
    return *specs.load_specs(path), specs.load_actions(path)


def test_box(tmp_path: Path) -> None:
    observation, action, own = round_trip(CounterEnv(), tmp_path)
    assert observation == tf.TensorSpec((2,), tf.float32, "observation")
    assert (action.shape, action.dtype, action.name) == ((2,), tf.float32, "action")
    assert (action.minimum, action.maximum) == (-1.0, 1.0)
    bounds = own.environment_spec
    assert bounds.dtype == np.float64
    assert bounds.minimum.tolist() == [-2.0, 0.0] and bounds.maximum.tolist() == [2.0, 1.0]


def test_nest_keeps_its_structure_and_names(tmp_path: Path) -> None:
    observation, action, own = round_trip(DictEnv(), tmp_path)
    assert observation == {
        "camera": tf.TensorSpec((4, 4, 1), tf.uint8, "observation/camera"),
        "joints": tf.TensorSpec((3,), tf.float32, "observation/joints"),
        "parts": (
            tf.TensorSpec((3,), tf.float32, "observation/parts/0"),
            tf.TensorSpec((2,), tf.float32, "observation/parts/1"),
        ),
    }
    assert action.shape == own.environment_spec.shape == (1,)  # Without dimensions in the environment itself.
    tf.nest.assert_same_structure(observation, TrainingEnvironment(DictEnv(), 10).observation_spec())


def test_multi_discrete_becomes_one_hot() -> None:
    class Switches(CounterEnv):
        observation_space = gymnasium.spaces.MultiDiscrete([2, 3])  # type: ignore[assignment]

        def reset(self, **kwargs: Any) -> Any:
            return np.array([1, 0]), {}

    env = TrainingEnvironment(Switches(), 10)
    assert env.observation_spec().shape == (5,)
    assert env.reset().observation.tolist() == [0.0, 1.0, 1.0, 0.0, 0.0]


def test_nests_of_py_environments() -> None:
    class Pair(NamedTuple):
        left: Any
        right: Any

    spec = {"hands": Pair(array_spec.ArraySpec((2,), np.float64), array_spec.ArraySpec((), np.int32))}
    converted = specs.observation_spec_of(specs.spaces_of_array_specs(spec))
    assert type(converted["hands"]) is Pair
    assert converted["hands"].left.dtype == np.float32 and converted["hands"].right.dtype == np.int32
    assert converted["hands"].left.name == "observation/hands/left"


@pytest.mark.parametrize(
    ("declared", "stored", "least", "most"),
    [
        ("uint8", "uint8", 0, 255),
        ("int8", "int32", -128, 127),
        ("int16", "int32", -(2**15), 2**15 - 1),
        ("uint16", "int32", 0, 2**16 - 1),
        ("int32", "int32", -(2**31), 2**31 - 1),
        ("uint32", "int64", 0, 2**32 - 1),
        ("int64", "int64", -(2**63), 2**63 - 1),
        ("uint64", "int64", 0, 2**63 - 1),
    ],
)
def test_all_integers_become_some_that_networks_take(declared: str, stored: str, least: int, most: int) -> None:
    space = gymnasium.spaces.Box(np.iinfo(declared).min, np.iinfo(declared).max, (2,), np.dtype(declared).type)
    spec = specs.observation_spec_of(space)
    assert spec.dtype == np.dtype(stored)
    writer, stored_as = ObservationWriter(spec, space), np.zeros(2, stored)
    writer.write(np.array([least, most], declared), [stored_as])
    assert stored_as.tolist() == [least, most]
    if stored == "int32" and declared != "int32":  # The bounds are the declared ones still.
        with pytest.raises(ValueError, match="above its high"):
            writer.write(np.array([least, most + 1]), [stored_as])
    if declared == "uint64":
        with pytest.raises(ValueError, match="has 9223372036854775808, which int64 can't hold: correct it"):
            writer.write(np.array([0, 2**63], np.uint64), [stored_as])


@pytest.mark.parametrize(
    ("shape", "high", "stored"),
    [((4, 4, 1), 255, "uint8"), ((4, 4, 1), 8, "int32"), ((16,), 8, "uint8")],
    ids=["a picture", "a grid", "a vector"],
)
def test_uint8_of_an_images_shape_whose_bounds_are_no_pixels_are_other_integers(
    shape: tuple[int, ...], high: int, stored: str
) -> None:
    space = gymnasium.spaces.Box(0, high, shape, np.uint8)
    spec = specs.observation_spec_of(space)
    assert spec.dtype == np.dtype(stored)
    observation = np.zeros(shape, stored)
    ObservationWriter(spec, space).write(np.ones(shape, np.uint8), [observation])
    assert observation.all()
    declared = array_spec.BoundedArraySpec(shape, np.uint8, 0, high)
    assert specs.observation_spec_of(specs.spaces_of_array_specs(declared)).dtype == np.dtype(stored)


def test_observations_that_are_no_numbers() -> None:
    with pytest.raises(UserError, match="must be numbers"):
        specs.observation_spec_of(specs.spaces_of_array_specs(array_spec.ArraySpec((), "U5")))


@pytest.mark.parametrize(
    ("space", "text"),
    [
        (gymnasium.spaces.Dict({}), "observation space has no part"),
        (
            gymnasium.spaces.Dict({"a": gymnasium.spaces.Box(-1, 1, (3, 0))}),
            r"observation/a has shape \(3, 0\): give it at least one number",
        ),
        (gymnasium.spaces.Box(-1, 1, (1,) * 31), "at most 28 axes"),
        (gymnasium.spaces.Discrete(2**40), "a vector of 1,099,511,627,776 numbers"),
    ],
)
def test_leaves_that_no_run_can_store_are_refused(space: Any, text: str) -> None:
    with pytest.raises(UserError, match=text):
        specs.observation_spec_of(space_nest(space))


def test_an_action_has_a_part() -> None:
    with pytest.raises(UserError, match="action space has no part"):
        specs.action_spec_of(space_nest(gymnasium.spaces.Tuple(())))
