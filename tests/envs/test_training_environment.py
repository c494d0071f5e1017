"""What workers see of any environment: dtypes, copies, scaled actions, horizons, discounts, parameters."""

from __future__ import annotations

from typing import Any

import gym
import gymnasium
import numpy as np
import pytest
from tf_agents.environments import suite_gym, utils, wrappers
from tf_agents.specs import array_spec
from tf_agents.trajectories import time_step as ts

from tests.support.fakes import CounterEnv, DictEnv, NumberedEnv, OldGymEnv
from tfagents_system.envs.faults import EnvironmentFault
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError


def run_episode(env: TrainingEnvironment) -> list[ts.TimeStep]:
    """All time steps of one episode with the action 0."""
    steps = [env.reset()]
    while not steps[-1].is_last():
        steps.append(env.step(np.zeros(env.action_spec().shape, np.float32)))
    return steps


def discounts(env: Any, horizon: int = 100) -> list[float]:
    return [float(step.discount) for step in run_episode(TrainingEnvironment(env, horizon))[1:]]


def test_float64_observations_become_float32_copies() -> None:
    env = TrainingEnvironment(CounterEnv(truncate_at=3), horizon=10)
    steps = run_episode(env)
    assert [step.observation.dtype for step in steps] == [np.float32] * 4
    # The environment writes every observation into one buffer; ours must not change afterwards.
    assert [step.observation.tolist() for step in steps] == [[0, 1], [1, 1], [2, 1], [3, 1]]
    assert [float(step.reward) for step in steps] == [0.0, 0.5, 1.0, 1.5]
    assert steps[1].reward.dtype == steps[1].discount.dtype == np.float32
    assert [int(step.step_type) for step in steps] == [0, 1, 1, 2]
    assert env.step(np.zeros(2, np.float32)).is_first(), "another episode"
    utils.validate_py_environment(env, episodes=2)


def test_actions_are_scaled_from_minus_one_one_to_the_environments_bounds() -> None:
    inner = CounterEnv()
    env = TrainingEnvironment(inner, horizon=10)
    env.reset()
    for action in ([-1.0, -1.0], [1.0, 1.0], [0.0, 0.5], [-3.0, 3.0]):
        env.step(np.array(action, np.float32))
    assert np.array(inner.actions).tolist() == [[-2.0, 0.0], [2.0, 1.0], [0.0, 0.75], [-2.0, 1.0]]
    assert inner.actions[0].dtype == np.float64
    assert (env.action_spec().minimum, env.action_spec().maximum) == (-1.0, 1.0)
    assert env.action_spec().dtype == np.float32


def test_nested_observations_stay_nests_and_actions_without_dimensions_work() -> None:
    inner = DictEnv()
    env = TrainingEnvironment(inner, horizon=10)
    env.reset()
    observation = env.step(np.array([0.0], np.float32)).observation
    assert observation["joints"].tolist() == [0.25] * 3 and observation["joints"].dtype == np.float32
    assert observation["camera"].dtype == np.uint8 and observation["camera"].max() == 1
    assert observation["parts"][0].tolist() == [0.0, 1.0, 0.0]  # one-hot of 2 in {1, 2, 3}
    assert observation["parts"][1].tolist() == [0.0, 1.0] and observation["parts"][1].dtype == np.float32
    assert inner.actions[0].shape == () and float(inner.actions[0]) == -1.0  # the middle of [-3, 1]
    array_spec.check_arrays_nest(observation, env.observation_spec())


def test_horizon_truncates_and_keeps_the_discount() -> None:
    assert discounts(CounterEnv(), horizon=4) == [1.0, 1.0, 1.0, 1.0]
    assert discounts(OldGymEnv(), horizon=3) == [1.0, 1.0, 1.0]
    assert discounts(NumberedEnv(), horizon=2) == [1.0, 1.0]


def test_termination_sets_the_discount_to_zero() -> None:
    assert discounts(CounterEnv(terminate_at=3)) == [1.0, 1.0, 0.0]
    assert discounts(OldGymEnv(terminate_at=2)) == [1.0, 0.0]
    assert discounts(NumberedEnv(terminate_at=2)) == [1.0, 0.0]
    # In the very step in which the time is up, too.
    assert discounts(CounterEnv(terminate_at=3, truncate_at=3)) == [1.0, 1.0, 0.0]
    assert discounts(CounterEnv(terminate_at=3), horizon=3) == [1.0, 1.0, 0.0]


def test_time_limits_of_every_library_keep_the_discount() -> None:
    assert discounts(CounterEnv(truncate_at=3)) == [1.0, 1.0, 1.0]
    assert discounts(gymnasium.wrappers.TimeLimit(CounterEnv(), 3)) == [1.0, 1.0, 1.0]
    assert discounts(gym.wrappers.TimeLimit(OldGymEnv(), 3)) == [1.0, 1.0, 1.0]
    assert discounts(suite_gym.wrap_env(gym.wrappers.TimeLimit(OldGymEnv(), 3))) == [1.0, 1.0, 1.0]
    assert discounts(suite_gym.wrap_env(OldGymEnv(), max_episode_steps=3)) == [1.0, 1.0, 1.0]
    assert discounts(wrappers.TimeLimit(NumberedEnv(), 3)) == [1.0, 1.0, 1.0]
    # Around TF-Agents' GymWrapper, which says 0 at any end, a discount of its own is kept as well.
    assert discounts(suite_gym.wrap_env(gym.wrappers.TimeLimit(OldGymEnv(), 2), discount=0.5)) == [0.5, 0.5]
    assert discounts(suite_gym.wrap_env(gym.wrappers.TimeLimit(OldGymEnv(terminate_at=2), 2))) == [1.0, 0.0]


def test_duck_typed_environment_with_pairs_as_observations() -> None:
    class Duck:
        observation_space = gym.spaces.Tuple(
            (gym.spaces.Box(-1, 1, (1,)), gym.spaces.Dict({"a": gym.spaces.Box(-1, 1, (2,))}))
        )
        action_space = gym.spaces.Box(-1, 1, (1,))

        def reset(self) -> Any:
            return np.zeros(1), {"a": np.ones(2)}

        def step(self, action: Any) -> Any:
            return self.reset(), 0, True, None

    env = TrainingEnvironment(Duck(), 5, seed=3)
    first = env.reset()
    assert first.observation[0].tolist() == [0.0] and first.observation[1]["a"].tolist() == [1.0, 1.0]
    last = env.step(np.zeros(1, np.float32))
    assert last.is_last() and float(last.discount) == 0.0 and env.info == {}


def test_info_is_that_of_the_last_step() -> None:
    env = TrainingEnvironment(CounterEnv(), horizon=5)
    env.reset()
    assert env.info == {}
    env.step(np.zeros(2, np.float32))
    env.step(np.zeros(2, np.float32))
    assert env.info["log/step"] == 2
    wrapped = TrainingEnvironment(suite_gym.wrap_env(OldGymEnv()), horizon=5)
    wrapped.reset()
    wrapped.step(np.zeros(1, np.float32))
    assert wrapped.info["log/height"] == 2.0
    wrapped.reset()
    assert wrapped.info == {}


# Seeds.


def test_seed_reaches_every_kind_once() -> None:
    modern, wrapped, old = CounterEnv(), CounterEnv(), OldGymEnv()
    for inner in (modern, gymnasium.wrappers.TimeLimit(wrapped, 9), old):
        env = TrainingEnvironment(inner, 5, seed=42)
        env.reset()
        env.reset()
    assert modern.seeds == wrapped.seeds == [42, None]
    assert old.seeds == [42]
    inside = OldGymEnv()
    TrainingEnvironment(suite_gym.wrap_env(inside), 5, seed=43).reset()
    assert inside.seeds == [43]


# Parameters.


class WithState(CounterEnv):
    def set_state(self, state: dict[str, Any]) -> None:
        self.state = state


class Cheetah(CounterEnv):
    def set_state(self, qpos: Any, qvel: Any) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ("env", "state", "get"),
    [
        (wrappers.TimeLimit(own := NumberedEnv(), 5), {"mass": 2.0}, lambda: own.states == [{"mass": 2.0}]),
        (pendulum := gymnasium.make("Pendulum-v1"), {"m": 2.5}, lambda: vars(pendulum.unwrapped)["m"] == 2.5),
        (old := suite_gym.load("Pendulum-v1"), {"l": 1.5}, lambda: old.gym.unwrapped.l == 1.5),
        (cheetah := Cheetah(), {"mass": 3}, lambda: cheetah.mass == 3),
        (gymnasium.wrappers.TimeLimit(below := WithState(), 9), {"any": 3}, lambda: below.state == {"any": 3}),
    ],
    ids=["its own", "attribute", "attribute in TF-Agents", "MuJoCo's is another thing", "below a wrapper"],
)
def test_state_is_set_by_the_environments_own_method_else_as_attributes(env: Any, state: Any, get: Any) -> None:
    TrainingEnvironment(env, 10).set_state(state)
    assert get()


def test_unknown_parameter_names_those_it_knows() -> None:
    env = TrainingEnvironment(CounterEnv(), 10)
    for name in ("mss", "label", "_buffer", "step"):
        with pytest.raises(UserError, match="it knows mass, raise_at, terminate_at, truncate_at"):
            env.set_state({name: 1.0})


def test_after_a_change_the_next_step_starts_an_episode() -> None:
    env = TrainingEnvironment(CounterEnv(), 10)
    env.reset()
    env.step(np.zeros(2, np.float32))
    env.set_state({"mass": 4.0})
    first = env.step(np.zeros(2, np.float32))
    assert first.is_first() and first.observation.tolist() == [0.0, 4.0]


# What can't be used.


class _Spaces:
    def __init__(self, action_space: Any, observation_space: Any = None) -> None:
        self.action_space = action_space
        self.observation_space = observation_space or gym.spaces.Box(-1, 1, (1,))

    def reset(self) -> Any:
        return np.zeros(1)

    def step(self, action: Any) -> Any:
        return np.zeros(1), 0.0, False, {}


@pytest.mark.parametrize(
    ("space", "text"),
    [
        (gymnasium.spaces.Text(3), "use a Box with finite bounds, Discrete"),
        (gymnasium.spaces.Box(0, 1, (2,), np.bool_), "dtype bool"),  # type: ignore[arg-type]
        (gymnasium.spaces.Box(np.array([-1.0, -np.inf]), np.array([1.0, 1.0])), "unbounded"),
        (gymnasium.spaces.Box(-3e38, 3e38, (2,)), "unbounded"),
    ],
)
def test_action_spaces_that_can_not_be_used(space: Any, text: str) -> None:
    with pytest.raises(UserError, match=text):
        TrainingEnvironment(_Spaces(space), 10)


def test_a_thing_that_is_no_environment() -> None:
    with pytest.raises(UserError, match="env_ctor returned None, which has no action_space"):
        TrainingEnvironment(None, 10)


# Faults.


def test_exception_names_worker_episode_step_and_line() -> None:
    env = TrainingEnvironment(CounterEnv(raise_at=3), 10, worker_id=5)
    env.reset()
    with pytest.raises(EnvironmentFault) as caught:
        for _ in range(3):
            env.step(np.zeros(2, np.float32))
    assert (caught.value.worker_id, caught.value.step, caught.value.episode) == (5, 3, 1)
    assert "ZeroDivisionError: the motor is off (fakes.py, line " in str(caught.value)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert env.step(np.zeros(2, np.float32)).is_first()


@pytest.mark.parametrize(
    ("observation", "reward", "text"),
    [
        (np.array([np.nan, 0.0]), 0.0, "not finite"),
        (np.zeros(3), 0.0, r"must have shape \(2,\) as its space has, found \(3,\)"),
        (np.array(["a", "b"]), 0.0, "must be numbers, found .*: return a NumPy array"),
        (np.zeros(2), np.inf, "reward is inf"),
        (np.zeros(2), np.float64(1e300), "the reward is 1e\\+300, not finite as float32: correct"),
        (np.zeros(2), None, "the reward is None: it must be a number"),
        (np.zeros(2), [1.0], "it must be a number"),
    ],
)
def test_what_the_spaces_do_not_allow_is_a_fault(observation: Any, reward: Any, text: str) -> None:
    class Wrong(CounterEnv):
        def step(self, action: Any) -> Any:
            return observation, reward, False, False, {}

    env = TrainingEnvironment(Wrong(), 10)
    env.reset()
    with pytest.raises(EnvironmentFault, match=text):
        env.step(np.zeros(2, np.float32))


def test_float_observations_of_an_integer_space_are_a_fault() -> None:
    class Camera(_Spaces):
        def reset(self) -> Any:
            return np.array([0.5])

    space = gymnasium.spaces.Box(0, 255, (1,), np.uint8)
    env = TrainingEnvironment(Camera(gymnasium.spaces.Box(-1, 1, (1,)), space), 10)
    with pytest.raises(EnvironmentFault, match="is float64 where its space is uint8"):
        env.reset()


def test_action_that_is_not_finite_blames_training() -> None:
    env = TrainingEnvironment(CounterEnv(), 10)
    env.reset()
    with pytest.raises(FloatingPointError, match="diverged"):
        env.step(np.array([np.nan, 0.0], np.float32))


def test_a_played_action_that_is_not_finite_blames_the_policy_and_is_no_step() -> None:
    env = TrainingEnvironment(CounterEnv(), 10)
    env.reset()
    told = r"the policy's action is not finite \(\[nan .*\]\) at the environment \(about step 0 of episode 1\): its "
    with pytest.raises(UserError, match=told):
        env.step_in_environment_units(np.array([np.nan, 0.0], np.float32))
    assert not env.step_in_environment_units(np.array([0.5, 0.5], np.float32)).is_first()


def test_environment_that_starts_over_by_itself_is_a_fault() -> None:
    class Restarting(NumberedEnv):
        def _step(self, action: Any) -> ts.TimeStep:
            return self._reset()

    env = TrainingEnvironment(Restarting(), 10)
    env.reset()
    with pytest.raises(EnvironmentFault, match="FIRST"):
        env.step(np.zeros(2, np.float32))


def test_actions_of_several_dimensions_are_vectors_for_the_agent() -> None:
    class Matrix(CounterEnv):
        action_space = gymnasium.spaces.Box(0.0, 4.0, (2, 3))

    inner = Matrix()
    env = TrainingEnvironment(inner, 10)
    assert env.action_spec().shape == env.environment_action_spec.shape == (6,)
    env.reset()
    env.step(np.linspace(-1, 1, 6, dtype=np.float32))
    np.testing.assert_allclose(inner.actions[0], np.linspace(0, 4, 6).reshape(2, 3), rtol=1e-6)


def test_a_simulator_that_its_first_reset_builds_can_be_set_before_it() -> None:
    class BuiltByReset(CounterEnv):
        simulator: dict[str, float] | None = None

        def reset(self, **kwargs: Any) -> Any:
            self.simulator = {} if self.simulator is None else self.simulator
            return super().reset(**kwargs)

        def set_state(self, state: dict[str, float]) -> None:
            assert self.simulator is not None, "there is no simulator yet"
            self.simulator.update(state)

    env = TrainingEnvironment(BuiltByReset(), horizon=5)
    env.set_state({"mass": 2.0})
    assert env.user_env.simulator == {"mass": 2.0}


@pytest.mark.parametrize(
    "make",
    [
        lambda: gymnasium.make("Pendulum-v1"),
        lambda: gym.make("Pendulum-v1"),
        lambda: suite_gym.load("Pendulum-v1"),
    ],
    ids=["gymnasium", "gym", "py_environment"],
)
def test_episodes_follow_from_the_seed_that_was_given_last(make: Any) -> None:
    env = TrainingEnvironment(make(), 3, seed=1)

    def first_observations(seed: int) -> np.ndarray:
        env.reseed(seed)
        return np.array([run_episode(env)[0].observation for _ in range(3)])

    before = first_observations(5)
    np.testing.assert_array_equal(first_observations(5), before)
    assert np.abs(first_observations(6) - before).max() > 1e-3
