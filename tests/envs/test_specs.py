"""Specs survive the way to disk and back; the agent's actions are in [-1, 1], the environment's in its own bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import array_spec

from tests.support.fakes import CounterEnv, DictEnv
from tfagents_system.envs import specs
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError


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
    converted = specs.observation_spec_of_array_specs(spec)
    assert type(converted["hands"]) is Pair
    assert converted["hands"].left.dtype == np.float32 and converted["hands"].right.dtype == np.int32
    assert converted["hands"].left.name == "observation/hands/left"


def test_observations_that_are_no_numbers() -> None:
    with pytest.raises(UserError, match="must be numbers"):
        specs.observation_dtype(np.dtype("U5"))
