"""What an agent's actions are in environments of every kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gym
import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.environments import batched_py_environment, gym_wrapper
from tf_agents.specs import array_spec

from tests.support.fakes import CounterEnv, DictEnv, FakeParams
from tfagents_system.envs import loading, specs
from tfagents_system.envs.actions import actions_of, random_actions
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError

TABLE = [[1.0, 0.0, -0.5], [0.0, 1.0, 0.0], [0.1, 0.1, 0.1]]
BOX = array_spec.BoundedArraySpec((3,), np.float32, [-1.0, 0.0, -0.5], [1.0, 1.0, 0.5], "action")


class GymTold(gym.Env):
    observation_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, space: Any) -> None:
        self.action_space = space
        self.got: list[Any] = []

    def reset(self) -> Any:
        return np.zeros(1, np.float32)

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.got.append(action)
        return np.zeros(1, np.float32), 0.0, False, {}


class GymnasiumTold(gymnasium.Env):
    """Remembers the actions that it gets."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, space: Any) -> None:
        self.action_space = space
        self.got: list[Any] = []

    def reset(self, **_: Any) -> Any:
        return (np.zeros(1, np.float32), {})

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.got.append(action)
        return np.zeros(1, np.float32), 0.0, False, False, {}


SPACES = gymnasium.spaces
KINDS = {
    "discrete": (SPACES.Discrete(3), [0, 1, 2]),
    "start": (SPACES.Discrete(3, start=-7), [-7, -6, -5]),
    "product": (SPACES.MultiDiscrete([2, 3]), [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]),
    "product with start": (SPACES.MultiDiscrete([2, 1], start=[5, 9]), [[5, 9], [6, 9]]),
    "square": (SPACES.MultiDiscrete(np.array([[1, 2], [1, 1]])), [[[0, 0], [0, 0]], [[0, 1], [0, 0]]]),
    "matrix": (SPACES.MultiDiscrete(np.array([[2], [2]])), [[[0], [0]], [[0], [1]], [[1], [0]], [[1], [1]]]),
    "binary": (SPACES.MultiBinary(2), [[0, 0], [0, 1], [1, 0], [1, 1]]),
    "box of integers": (SPACES.Box(-1, 1, (1,), np.int64), [[-1], [0], [1]]),
}


@pytest.mark.parametrize(("space", "rows"), KINDS.values(), ids=KINDS)
def test_each_number_plays_its_action_exactly(space: Any, rows: list[Any]) -> None:
    inner = GymnasiumTold(space)
    env = TrainingEnvironment(inner, 100, seed=0)
    spec = env.action_spec()
    assert (spec.shape, spec.dtype, spec.minimum, spec.maximum) == ((), np.int32, 0, len(rows) - 1)
    env.reset()
    for index in range(len(rows)):
        env.step(np.asarray(index, np.int32))
    assert [np.asarray(action).tolist() for action in inner.got] == rows
    inner.got.clear()
    for row in rows:  # As policies on disk return them.
        env.step_in_environment_units(np.ravel(row)[0] if space.shape == () else np.ravel(row))
    assert [np.asarray(action).tolist() for action in inner.got] == rows
    assert [int(env.actions.to_agent(np.ravel(row))) for row in rows] == list(range(len(rows)))
    assert [int(env.actions.to_agent(np.asarray(row))) for row in rows] == list(range(len(rows)))
    lanes = [GymnasiumTold(space) for _ in rows]
    waiting = iter(lanes)
    vector = TrainingEnvironment(gymnasium.vector.SyncVectorEnv([lambda: next(waiting)] * len(lanes)), 100)
    columns = vector.new_columns()
    vector.reset_lanes(columns)
    vector.step_lanes([np.arange(len(rows), dtype=np.int32)], columns)
    assert [np.asarray(lane.got[0]).tolist() for lane in lanes] == rows


def test_of_gym_and_of_tf_agents() -> None:
    with_start = gym.spaces.Discrete(3, start=4)
    for wrap in (None, gym_wrapper.GymWrapper):
        inner = GymTold(with_start)
        env = TrainingEnvironment(wrap(inner) if wrap else inner, 100, seed=0)
        env.reset()
        for index in (2, 0, 1):
            env.step(np.asarray(index, np.int32))
        assert inner.got == [6, 4, 5], "GymWrapper's own spec begins with 0"
    lanes = [GymTold(gym.spaces.MultiBinary(2)) for _ in range(2)]
    batched = batched_py_environment.BatchedPyEnvironment([gym_wrapper.GymWrapper(lane) for lane in lanes])
    batch = TrainingEnvironment(batched, 100)
    columns = batch.new_columns()
    batch.reset_lanes(columns)
    batch.step_lanes([np.array([2, 1], np.int32)], columns)
    assert [lane.got[0].tolist() for lane in lanes] == [[1, 0], [0, 1]]


def test_an_action_that_is_none_of_them_is_refused() -> None:
    env = TrainingEnvironment(GymnasiumTold(SPACES.Discrete(3)), 100)
    env.reset()
    for wrong in (-1, 3):
        with pytest.raises(ValueError, match=f"is {wrong}: it must be from 0 to 2"):
            env.step(np.asarray(wrong, np.int32))
    for no_action in (7, 0.5, np.nan):
        with pytest.raises(ValueError, match="integers from 0 to 2|expected an action"):
            env.actions.to_agent(no_action)


# Tables.


def test_a_table_makes_actions_of_a_box() -> None:
    inner = GymnasiumTold(
        SPACES.Box(np.array([-1, 0, -0.5], np.float32), np.array([1, 1, 0.5], np.float32), dtype=np.float32)
    )
    env = TrainingEnvironment(inner, 100, action_table=TABLE, action_history=2)
    assert env.action_spec().maximum == 2 and env.observation_spec()["action_history"].shape == (6,)
    env.reset()
    env.step(np.asarray(2, np.int32))
    step = env.step(np.asarray(0, np.int32))
    np.testing.assert_array_equal(inner.got, np.array([TABLE[2], TABLE[0]], np.float32))
    assert step.observation["action_history"].tolist() == [0, 0, 1, 1, 0, 0]
    inner.got[0][:] = 9.0  # The environment's own array: the table stays.
    step = env.step_in_environment_units(np.array([0.1, 0.9, 0.0], np.float32))
    assert inner.got[-1].tolist() == TABLE[1], "the nearest row"
    assert step.observation["action_history"].tolist() == [1, 0, 0, 0, 1, 0]


def test_the_nearest_row_counts_shares_of_the_range() -> None:
    spec = array_spec.BoundedArraySpec((2,), np.float64, [0.0, 0.0], [100.0, 1.0], "action")
    actions = actions_of(spec, [[0.0, 0.0], [30.0, 1.0]])
    # From (20, 0.2): 0.2^2 + 0.2^2 = 0.08 to row 0, 0.1^2 + 0.8^2 = 0.65 to row 1; by plain numbers row 1 is nearer.
    assert int(actions.to_agent([20.0, 0.2])) == 0
    assert int(actions.to_agent([15.0, 0.5])) == 0, "of equals the lowest"
    assert int(actions_of(BOX, TABLE).to_agent(TABLE[2])) == 2, "0.1 of 64 bits is that of 32"


def test_faults_of_a_table_are_told_together() -> None:
    wrong: list[list[float]] = [[0, 0], [0, 2, 0], [0, float("nan"), 0], [0, 0, 0], [0.0, -0.0, 0.0]]
    with pytest.raises(UserError) as error:
        actions_of(BOX, wrong)
    assert [finding.removeprefix("TrainParams.action_table: ") for finding in error.value.findings] == [
        "row 0 is [0, 0]: the environment's action has 3 numbers",
        "row 1 is [0, 2, 0]: the environment's bounds are [-1.   0.  -0.5] and [1.  1.  0.5]",
        "row 2 is [0, nan, 0]: its numbers must be finite",
        "row 4 is row 3 again: remove one",
    ]
    with pytest.raises(UserError, match="it has 4,097 rows: it must have 2 to 4,096"):
        actions_of(BOX, np.random.default_rng(0).uniform(0.0, 0.5, (4097, 3)).tolist())
    with pytest.raises(UserError, match="discrete actions of its own: remove it"):
        TrainingEnvironment(GymnasiumTold(SPACES.Discrete(3)), 100, action_table=[[0], [1]])


def test_at_most_4096_actions() -> None:
    space = SPACES.MultiDiscrete([64, 64])
    assert TrainingEnvironment(GymnasiumTold(space), 5).action_spec().maximum == 4095
    for larger in (SPACES.MultiDiscrete([64, 65]), SPACES.Box(0, 255, (3,), np.uint8), SPACES.Discrete(2**40)):
        with pytest.raises(UserError, match="actions, at most 4,096 are taken"):
            TrainingEnvironment(GymnasiumTold(larger), 5)


def test_specs_on_disk_know_the_table(tmp_path: Path) -> None:
    path = tmp_path / "specs.pbtxt"
    specs.save_specs(path, array_spec.ArraySpec((1,), np.float32, "observation"), BOX, TABLE)
    _, action = specs.load_specs(path)
    assert (action.shape, action.dtype, action.minimum, action.maximum) == ((), tf.int32, 0, 2)
    np.testing.assert_array_equal(specs.load_actions(path).rows, np.array(TABLE, np.float32))


# Bounds of TrainParams.


UNBOUNDED = SPACES.Box(-np.inf, np.inf, (2,), np.float32)


def test_actions_without_bounds_are_scaled_to_those_of_the_params(tmp_path: Path) -> None:
    inner = GymnasiumTold(UNBOUNDED)
    env = TrainingEnvironment(inner, 100, action_bounds=([-1, 0], [1, 4]))
    env.reset()
    env.step(np.array([0.5, -0.5], np.float32))
    env.step_in_environment_units(np.array([9.0, 3.0], np.float32))
    assert np.array(inner.got).tolist() == [[0.5, 1.0], [1.0, 3.0]]
    specs.save_specs(tmp_path / "specs.pbtxt", env.observation_spec(), env.environment_action_spec)
    loaded = specs.load_actions(tmp_path / "specs.pbtxt")
    assert loaded.describe() == {"shape": [2], "dtype": "float32", "low": [-1.0, 0.0], "high": [1.0, 4.0]}
    lanes = iter([lane := GymnasiumTold(SPACES.Box(-np.inf, np.inf, (1, 2))), inner])
    vector = TrainingEnvironment(gymnasium.vector.SyncVectorEnv([lambda: next(lanes)] * 1), 9, action_bounds=(0, 2))
    columns = vector.new_columns()
    vector.reset_lanes(columns)
    vector.step_lanes([np.array([[-1.0, 0.5]], np.float32)], columns)
    assert lane.got[0].tolist() == [[0.0, 1.5]]


def test_bounds_narrow_those_of_all_boxes_of_floats() -> None:
    parts = SPACES.Dict(a=SPACES.Box(-0.7, 0.7, (2,)), b=SPACES.Discrete(3), c=SPACES.Box(-1, np.inf, (1,)))
    spec = TrainingEnvironment(GymnasiumTold(parts), 100, action_bounds=(-0.7, 0.5)).environment_action_spec
    np.testing.assert_array_equal(spec["a"].minimum, np.full(2, -0.7, np.float32))  # Which is above -0.7.
    np.testing.assert_array_equal(spec["a"].maximum, [0.5, 0.5])
    assert (spec["c"].minimum, spec["c"].maximum, spec["b"].maximum) == ([np.float32(-0.7)], [0.5], 2)


@pytest.mark.parametrize(
    ("space", "bounds", "text"),
    [
        (UNBOUNDED, None, r"set TrainParams.action_bounds = \(low, high\)"),
        (UNBOUNDED, (-1, 1e30), "is unbounded"),
        (UNBOUNDED, ([-1] * 3, 1), "action_bounds has 3 numbers, the action has 2: give one for all"),
        (
            SPACES.Box(-1, 1, (2,)),
            (-1, [1, 1.5]),
            r"high \[1.  1.5\] exceed .*, high \[1. 1.\]\): choose",
        ),
        (SPACES.Box(0, 5, (1,), np.int32), (0, 2), "the actions are discrete: remove them"),
        (SPACES.Discrete(3), (0, 2), "the actions are discrete: remove them"),
    ],
)
def test_bounds_that_do_not_fit_are_refused(space: Any, bounds: Any, text: str) -> None:
    with pytest.raises(UserError, match=text):
        TrainingEnvironment(GymnasiumTold(space), 100, action_bounds=bounds)


# What is drawn, remembered and stored.


def test_all_actions_are_drawn_equally_often() -> None:
    spec = actions_of(BOX, TABLE).spec
    drawn = random_actions(spec, np.random.default_rng(0), 30_000)
    assert drawn.dtype == np.int32 and drawn.shape == (30_000,)
    np.testing.assert_allclose(np.bincount(drawn) / 30_000, 1 / 3, atol=0.01)  # Standard deviation 0.0027.


def test_lanes_remember_as_single_environments_do() -> None:
    alone = TrainingEnvironment(GymnasiumTold(SPACES.Discrete(3)), 100, action_history=2)
    vector = gymnasium.vector.SyncVectorEnv([lambda: GymnasiumTold(SPACES.Discrete(3))] * 2)
    lanes = TrainingEnvironment(vector, 100, action_history=2)
    columns = lanes.new_columns()
    history = columns.observation[0][1]
    alone.reset()
    lanes.reset_lanes(columns)
    for index in (1, 2, 0):
        step = alone.step(np.asarray(index, np.int32))
        lanes.step_lanes([np.array([index, 0], np.int32)], columns)
        np.testing.assert_array_equal(history[0], step.observation["action_history"])
    assert history.tolist() == [[0, 0, 1, 1, 0, 0], [1, 0, 0, 1, 0, 0]]


# The last actions of an episode are part of its observations.


def test_they_come_oldest_first_in_minus_one_one_and_begin_with_zeros():
    env = TrainingEnvironment(CounterEnv(truncate_at=3), horizon=10, action_history=2)
    tf.nest.assert_same_structure(env.observation_spec(), {"observation": 0, "action_history": 0})
    assert env.observation_spec()["action_history"] == array_spec.ArraySpec(
        (4,), np.float32, "observation/action_history"
    )
    for _ in range(2):
        steps = [env.reset()]
        steps += [env.step(np.array(action, np.float32)) for action in ([0.5, -0.25], [0.75, 3.0], [-1.0, 1.0])]
        histories = [step.observation["action_history"].tolist() for step in steps]
        assert histories == [[0, 0, 0, 0], [0, 0, 0.5, -0.25], [0.5, -0.25, 0.75, 1.0], [0.75, 1.0, -1.0, 1.0]]
        assert [step.observation["observation"].tolist() for step in steps] == [[0, 1], [1, 1], [2, 1], [3, 1]]
    array_spec.check_arrays_nest(steps[-1].observation, env.observation_spec())
    assert steps[-1].is_last()
    assert env.step(np.ones(2, np.float32)).observation["action_history"].tolist() == [0, 0, 0, 0], "another episode"


def test_actions_in_environment_units_are_scaled_back():
    inner = CounterEnv()  # [-2, 2] and [0, 1]
    env = TrainingEnvironment(inner, horizon=10, action_history=1)
    env.reset()
    step = env.step_in_environment_units(np.array([-1.5, 0.25], np.float32))
    assert inner.actions[0].tolist() == [-1.5, 0.25]
    assert step.observation["action_history"].tolist() == [-0.75, -0.5]


def test_what_has_one_value_only_is_0_in_training_as_in_playing():
    class Locked(CounterEnv):
        action_space = gymnasium.spaces.Box(np.array([0.5, 0.0]), np.array([0.5, 1.0]), dtype=np.float64)

    env = TrainingEnvironment(Locked(), horizon=10, action_history=1)
    env.reset()
    trained = env.step(np.array([0.75, -0.5], np.float32)).observation["action_history"]
    played = env.step_in_environment_units(np.array([0.5, 0.25])).observation["action_history"]
    assert trained.tolist() == played.tolist() == [0.0, -0.5]


def test_dictionaries_get_one_more_key():
    env = TrainingEnvironment(DictEnv(), horizon=10, action_history=3)
    env.reset()
    observation = env.step(np.array([0.5], np.float32)).observation
    assert sorted(observation) == ["action_history", "camera", "joints", "parts"]
    assert observation["action_history"].tolist() == [0.0, 0.0, 0.5] and observation["camera"].dtype == np.uint8


def test_a_key_of_the_environments_own_is_not_hidden():
    class Own(DictEnv):
        observation_space = DictEnv.observation_space.__class__(
            {**DictEnv.observation_space.spaces, "action_history": DictEnv.observation_space["joints"]}
        )

    with pytest.raises(UserError, match='a part "action_history" of its own: rename it'):
        TrainingEnvironment(Own(), horizon=10, action_history=1)


def test_runs_have_it_and_bounds_by_the_attributes():
    attributes = {"action_history": 5, "action_bounds": (0, [1.5, 0.25])}
    env = loading.make_collect_env(type("TrainParams", (FakeParams,), attributes)({"horizon": 10}), 0, 0)
    assert env.in_environment_units(np.ones(2, np.float32)).tolist() == [1.5, 0.25]
    assert env.observation_spec()["action_history"].shape == (10,)
    assert env.reset().observation["action_history"].tolist() == [0.0] * 10
