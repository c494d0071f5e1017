"""Vector environments of every kind, step by step: observations, ends, seeds, parameters, and what is refused."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
import tree
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv
from tf_agents.environments import batched_py_environment, suite_gym

from tests.support.fakes import CounterEnv, NumberedEnv
from tests.support.lanes_for_tests import NumberedLane, vector_of
from tfagents_system.envs.faults import EnvironmentFault
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError
from tfagents_system.worker.rollout import EpisodeLogs

MODES = list(AutoresetMode)
NEXT_STEP = AutoresetMode.NEXT_STEP


def mode_id(mode: Any) -> str:
    return str(mode.value)


class Driven:
    """A batched environment with the columns of one step."""

    def __init__(self, env: Any, horizon: int = 12, **kwargs: Any) -> None:
        self.env = TrainingEnvironment(env, horizon, **kwargs)
        self.columns = self.env.new_columns()
        self.out = [leaf[1] for leaf in self.columns.observation]
        self.reward, self.discount = self.columns.reward[0], self.columns.discount[0]

    def reset(self) -> list[Any]:
        self.env.reset_lanes(self.columns)
        for leaf in self.columns.observation:
            leaf[1] = leaf[0]
        return self.out[0].tolist()

    def step(self, value: float = 0.0) -> Any:
        count = self.env.num_lanes
        actions = [np.full((count, *spec.shape), value, np.float32) for spec in tree.flatten(self.env.action_spec())]
        return self.env.step_lanes(actions, self.columns)


@pytest.mark.parametrize("mode", MODES, ids=mode_id)
def test_a_lane_that_ends_keeps_its_true_last_observation_in_each_mode(mode: AutoresetMode) -> None:
    make = [functools.partial(NumberedLane, lane, (2 + lane,)) for lane in range(2)]
    is_async = mode is AutoresetMode.SAME_STEP
    env = AsyncVectorEnv(make, autoreset_mode=mode) if is_async else vector_of([one() for one in make], mode)
    driven = Driven(env)
    try:
        assert driven.reset() == [[0, 0, 0], [1, 0, 0]]
        driven.step()
        step = driven.step()
        assert driven.out[0].tolist() == [[0, 0, 2], [1, 0, 2]], "the last observation, not the next first one"
        assert step.ended == [0]
        assert driven.discount.tolist() == [0.0, 1.0] and driven.reward.tolist() == [1.0, 1.0]
        if mode is not NEXT_STEP:
            assert step.began is not None and step.began.tolist() == [True, False]
            assert step.first[0][0].tolist() == [0, 1, 0]
            return
        assert step.began is None
        step = driven.step()
        assert step.began.tolist() == [True, False], "no step of lane 0"
        assert step.first[0][0].tolist() == [0, 1, 0]
        assert step.ended == [1] and driven.out[0][1].tolist() == [1, 0, 3]
        step = driven.step()
        assert driven.out[0][0].tolist() == [0, 1, 1]
    finally:
        driven.env.close()


class Odd(gymnasium.Env):
    """A nest of every kind of space, with numbers that depend on the step."""

    observation_space = spaces.Dict(
        camera=spaces.Box(0, 255, (4, 4, 3), np.uint8),
        gear=spaces.Discrete(3, start=1),
        pair=spaces.Tuple((spaces.Box(-1.0, 1.0, (2,), np.float64), spaces.MultiDiscrete([2, 3]))),
        switches=spaces.MultiBinary(2),
    )
    action_space = spaces.Dict(arm=spaces.Box(-2.0, 4.0, (2, 2)), leg=spaces.Box(0.0, 1.0, (1,), np.float64))

    def __init__(self, lane: int) -> None:
        self.lane, self.steps = lane, 0
        self.actions: list[Any] = []

    def _observation(self) -> Any:
        k = self.steps + self.lane
        return {
            "camera": np.full((4, 4, 3), k, np.uint8),
            "gear": 1 + k % 3,
            "pair": (np.array([k / 100, -k / 100]), np.array([k % 2, k % 3])),
            "switches": np.array([k % 2, 1], np.int8),
        }

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.actions.append(action)
        self.steps += 1
        return self._observation(), 1.0, False, self.steps == 3, {}


@pytest.mark.parametrize("mode", MODES, ids=mode_id)
def test_nests_are_converted_as_those_of_a_single_environment(mode: AutoresetMode) -> None:
    own, alone = [Odd(0), Odd(5)], TrainingEnvironment(Odd(5), 12, action_history=2)
    driven = Driven(vector_of(own, mode), action_history=2)
    assert tree.map_structure(repr, driven.env.observation_spec()) == tree.map_structure(repr, alone.observation_spec())
    driven.reset()
    expected = alone.reset().observation
    for value in (0.5, -0.25, 1.0):
        for found, wanted in zip(driven.out, tree.flatten(expected), strict=True):
            np.testing.assert_array_equal(found[1], wanted)
            assert found.dtype == wanted.dtype
        step = driven.step(value)
        action = tree.map_structure(lambda spec, v=value: np.full(spec.shape, v, np.float32), alone.action_spec())
        expected = alone.step(action).observation
    for found, wanted in zip(driven.out, tree.flatten(expected), strict=True):
        np.testing.assert_array_equal(found[1], wanted, "the last one, in its lane")
    np.testing.assert_equal(own[1].actions, alone.user_env.actions)
    if mode is not NEXT_STEP:
        for found, wanted in zip(step.first, tree.flatten(alone.reset().observation), strict=True):
            np.testing.assert_array_equal(found[1], wanted, "the next episode's first one")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda o: o.__setitem__((1, 2), np.nan), "lane 1: observation is not finite"),
        (lambda o: o.__setitem__((2, 0), -500.0), r"lane 2: observation\[0\] is -500, below its low of -10"),
    ],
    ids=["nan", "bounds"],
)
def test_what_a_lane_must_not_observe_is_a_fault_that_names_the_lane(spoil: Any, words: str) -> None:
    env = vector_of([NumberedLane(lane, (9,)) for lane in range(3)])
    right = env.step

    def wrong(actions: Any) -> Any:
        result: Any = right(actions)
        spoil(result[0])
        return result

    env.step = wrong  # type: ignore[method-assign]
    driven = Driven(env, name="environment 0", worker_id=3, strict_observation_bounds=True)
    driven.reset()
    with pytest.raises(EnvironmentFault, match=f"worker 3: environment 0 failed in step 1 of its 3 lanes.*{words}"):
        driven.step()


def test_rewards_of_a_wrong_shape_or_value_are_faults() -> None:
    for reward, words in ((np.zeros((3, 1)), "shape"), (np.array([0.0, np.inf, 0.0]), "lane 1: the reward is inf")):
        env = vector_of([NumberedLane(lane, (9,)) for lane in range(3)])
        right = env.step

        def wrong(actions: Any, right: Any = right, reward: Any = reward) -> Any:
            observation, _, *ends = right(actions)
            return observation, reward, *ends

        env.step = wrong  # type: ignore[method-assign]
        driven = Driven(env)
        driven.reset()
        with pytest.raises(EnvironmentFault, match=words):
            driven.step()


def test_a_diverged_policy_is_no_fault_of_the_environment() -> None:
    driven = Driven(vector_of([NumberedLane(0, (9,))]))
    driven.reset()
    with pytest.raises(FloatingPointError, match="training has diverged"):
        driven.step(np.nan)


def test_seeds_differ_from_lane_to_lane_and_reseeding_repeats_them() -> None:
    own = [NumberedLane(lane, (2,)) for lane in range(3)]
    driven = Driven(vector_of(own), seed=40)
    driven.reset()
    driven.reset()
    driven.env.reseed(7)
    driven.reset()
    assert [lane.seeds for lane in own] == [[40, None, 7], [41, None, 8], [42, None, 9]]


def test_parameters_are_set_in_all_lanes() -> None:
    class Own(NumberedLane):
        def set_state(self, state: Any) -> None:
            self.state = state

    for kind in (NumberedLane, Own):
        own = [kind(lane, (2,)) for lane in range(3)]
        env = TrainingEnvironment(vector_of(own), 5)
        env.set_state({"mass": 2.5})
        values = [lane.state["mass"] if isinstance(lane, Own) else lane.mass for lane in own]
        assert values == [2.5] * 3
    with pytest.raises(UserError, match="no parameter 'masss'.*lane, mass"):
        TrainingEnvironment(vector_of([NumberedLane(0, (2,))]), 5).set_state({"masss": 1.0})


def test_parameters_are_set_in_lanes_of_their_own_processes() -> None:
    env = AsyncVectorEnv([CounterEnv, CounterEnv])
    try:
        driven = Driven(env)
        driven.env.set_state({"mass": 3.0})
        assert driven.reset() == [[0.0, 3.0]] * 2
        with pytest.raises(UserError, match="no parameter 'weight'"):
            driven.env.set_state({"weight": 3.0})
        assert driven.reset() == [[0.0, 3.0]] * 2, "asking did not end their processes"
    finally:
        env.close()


class Bare(VectorEnv):
    """Three lanes that end in every second step, and tell what the test asks for."""

    single_observation_space = spaces.Box(-9.0, 9.0, (1,), np.float32)
    single_action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    num_envs = 3

    def __init__(self, mode: Any, wrap: Any = lambda array: array, info: Any = None, ends: bool = True) -> None:
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, 3)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, 3)
        self.metadata = {"autoreset_mode": mode}
        self._wrap, self._info, self._ends = wrap, info or {}, ends
        self.steps, self.actions = 0, None

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.steps = 0
        return self._wrap(np.zeros((3, 1), np.float32)), {}

    def step(self, actions: Any) -> Any:
        self.steps, self.actions = self.steps + 1, actions
        ends = np.full(3, self._ends and self.steps % 2 == 0)
        values = np.full((3, 1), self.steps, np.float32), np.ones(3, np.float32), ends, np.zeros(3, bool)
        return (*map(self._wrap, values), self._info)


def test_what_can_not_be_told_apart_is_refused_with_its_remedy() -> None:
    with pytest.raises(UserError, match=r"autoreset mode can't be told .* is None\): set it to a gymnasium.vector"):
        TrainingEnvironment(Bare(None), 5)
    parallel = batched_py_environment.BatchedPyEnvironment([NumberedEnv(0, 2)], multithreading=False)
    parallel._envs = [object()]  # As ParallelPyEnvironment's, which stand for processes.
    with pytest.raises(UserError, match="no lanes of this process in its `envs`: return a BatchedPyEnvironment"):
        TrainingEnvironment(parallel, 5)
    lost = Driven(Bare("SameStep"))
    lost.reset()
    lost.step()
    with pytest.raises(EnvironmentFault, match="info has no final_obs: its last observation is lost"):
        lost.step()
    endless = Driven(Bare("NextStep", ends=False), horizon=3)
    endless.reset()
    with pytest.raises(EnvironmentFault, match="lane 0 has reached the horizon of 3 steps.*a time limit of its own"):
        [endless.step() for _ in range(3)]


class JaxArray:
    """As JAX's: converted by `np.asarray`."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        return self._array


def test_the_last_step_counts_without_final_info() -> None:
    """`info` then has what it says of all lanes, ended ones too."""
    told = {"log/height": JaxArray(np.array([2.0, 4.0, 6.0])), "is_success": JaxArray(np.array([True, False, True]))}
    made = functools.partial(Bare, "SameStep", JaxArray, {"final_obs": JaxArray(np.zeros((3, 1), np.float32)), **told})
    driven, logs = Driven(made()), EpisodeLogs(3)
    driven.reset()
    for _ in range(2):
        logs.add_infos(driven.step().infos)
    assert [logs.episode(lane).success for lane in range(3)] == [True, False, True]
    assert [logs.episode(lane).logs["height"] for lane in range(3)] == [2.0, 4.0, 6.0]
    env = TrainingEnvironment(made(), 12)
    env.reset()
    env.step(np.zeros(1, np.float32))
    assert env.step(np.zeros(1, np.float32)).is_last()
    assert env.info["is_success"] and env.info["log/height"] == 2.0


def test_a_lane_has_its_own_records_beside_arrays_of_no_lane() -> None:
    told = {"record/zone": ["a", "b", "c"], "record/at": JaxArray(np.array([0.0, 0.1, 0.2]))}
    driven = Driven(Bare("SameStep", info={**told, "map": np.zeros(2), "record/all": 3}))
    driven.reset()
    news = driven.step()
    assert [news.records_of(lane) for lane in (0, 2)] == [
        {"record/zone": "a", "record/at": 0.0},
        {"record/zone": "c", "record/at": 0.2},
    ]


def test_the_first_lane_plays_alone_draws_and_reports_its_own_infos() -> None:
    for mode in MODES:
        own = [NumberedLane(lane, (3 - lane,)) for lane in range(3)]
        env = TrainingEnvironment(vector_of(own, mode), 12)
        for _ in range(2):
            time_step = env.reset()
            rewards = []
            while not time_step.is_last():
                time_step = env.step(np.zeros(2, np.float32))
                rewards.append(float(time_step.reward))
                assert env.info["log/step"] == len(rewards)
            assert rewards == [0.5, 1.0, 1.5] and time_step.observation[2] == 3
            assert "of the reset" not in env.info and env.info["is_success"] in (True, False)
    lanes = [CounterEnv(), CounterEnv()]
    for lane in lanes:
        lane.render_mode = "rgb_array"
    env = TrainingEnvironment(vector_of(lanes), 12)
    env.reset()
    env.step(np.zeros(2, np.float32))
    assert env.render_frame().shape == (33, 41, 3) and env.render_frame()[0, 0, 0] == 1
    assert env.frames_per_second == 25


def test_batched_environments_of_tf_agents() -> None:
    env = batched_py_environment.BatchedPyEnvironment([NumberedEnv(0, 2), NumberedEnv(1, 3)], multithreading=False)
    driven = Driven(env)
    assert driven.reset() == [[0, 0, 0], [1, 0, 0]]
    driven.step()
    step = driven.step()
    assert driven.out[0].tolist() == [[0, 0, 2], [1, 0, 2]]
    assert step.ended == [0] and driven.discount.tolist() == [0.0, 1.0]
    assert step.began.tolist() == [True, False] and step.first[0][0].tolist() == [0, 1, 0]
    step = driven.step()
    assert step.ended == [1] and driven.out[0].tolist() == [[0, 1, 1], [1, 0, 3]]
    driven.env.set_state({"mass": 2.0})
    assert [lane.states for lane in env.envs] == [[{"mass": 2.0}]] * 2


def test_a_time_limit_of_tf_agents_gym_wrapper_keeps_the_discount() -> None:
    lanes = [suite_gym.wrap_env(CounterOld(limit), auto_reset=True) for limit in (2, 9)]
    driven = Driven(batched_py_environment.BatchedPyEnvironment(lanes, multithreading=False))
    driven.reset()
    driven.step()
    step = driven.step()
    assert step.ended == [0] and driven.discount.tolist() == [1.0, 1.0]


def CounterOld(limit: int) -> Any:
    """A gym environment that never terminates, within a time limit."""
    import gym
    from gym.wrappers import TimeLimit

    class Endless(gym.Env):
        observation_space = gym.spaces.Box(-9.0, 9.0, (1,), np.float32)
        action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

        def reset(self) -> Any:
            return np.zeros(1, np.float32)

        def step(self, action: Any) -> Any:
            return np.ones(1, np.float32), 1.0, False, {}

    return TimeLimit(Endless(), limit)
