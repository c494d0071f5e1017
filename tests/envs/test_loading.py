"""The hooks of TrainParams are called with what they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import pytest
from gymnasium.vector import SyncVectorEnv
from tf_agents.environments import suite_gym

from tests.support.fakes import CounterEnv, FakeParams
from tfagents_system.envs import loading
from tfagents_system.envs.gym_driver import name_of, time_limit_of
from tfagents_system.errors import UserError

CONFIG = {"horizon": 4}


class Recording(FakeParams):
    """Remembers how env_ctor was called."""

    def __init__(self, env_config: Any) -> None:
        super().__init__(env_config)
        self.calls: list[tuple[tuple[Any, ...], int | None, dict[str, Any]]] = []

    def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
        self.calls.append((args, seed, kwargs))
        return CounterEnv()


def of_keywords(self: Any, id: int = 0) -> Any:
    return (id,), {"task": "walk"}


def of_self(self: Any) -> Any:
    return [1], {}


def of_another_name(self: Any, worker: int) -> Any:
    return (worker,), {}


def with_a_seed(self: Any, id: int = 0) -> Any:
    return (), {"seed": 77}


@pytest.mark.parametrize(
    ("hook", "call"),
    [
        (of_keywords, ((3,), 11, {"task": "walk"})),
        (of_self, ((1,), 11, {})),
        (of_another_name, ((3,), 11, {})),
        (with_a_seed, ((), 77, {})),
    ],
)
def test_hooks_are_called_with_what_they_take_and_env_ctor_with_what_they_return(hook: Any, call: Any) -> None:
    params = type("Params", (Recording,), {"collect_env_args_kwargs": hook})(CONFIG)
    loading.make_collect_env(params, 3, 11)
    assert params.calls == [call]


def of_both(self: Any, id: int = 0, collect_env: Any = None) -> Any:
    return (), {"id": id, "collect_env": collect_env}


def of_any_name(self: Any, **kwargs: Any) -> Any:
    return (), kwargs


@pytest.mark.parametrize("hook", [of_both, of_any_name])
def test_an_evaluation_environment_gets_the_environment_beside_it(hook: Any) -> None:
    params = type("Params", (Recording,), {"eval_env_args_kwargs": hook})(CONFIG)
    env = loading.make_collect_env(params, 6, 1)
    loading.make_eval_env(params, 6, env, 2**32 - 1)
    seed = 2**31 - 1  # Fits into a signed integer.
    assert params.calls[1] == ((), seed, {"id": 6, "collect_env": env.user_env})


def test_env_ctor_without_a_seed() -> None:
    class NoSeed(FakeParams):
        def env_ctor(self, terminate_at: int = 0) -> Any:  # type: ignore[override]
            return CounterEnv(terminate_at)

        def collect_env_args_kwargs(self) -> Any:  # type: ignore[override]
            return (7,), {}

    env = loading.make_collect_env(NoSeed(CONFIG), 0, 9)
    env.reset()
    assert env.user_env.terminate_at == 7 and env.user_env.seeds == [9]


@pytest.mark.parametrize("result", [None, {}, (), ((), {}, 1), ({}, ()), (3, {})])
def test_hooks_that_return_something_else(result: Any) -> None:
    class Params(FakeParams):
        def collect_env_args_kwargs(self, id: int = 0) -> Any:
            return result

    with pytest.raises(UserError, match="collect_env_args_kwargs must return a tuple"):
        loading.make_collect_env(Params(CONFIG), 0, 1)


def by_name(self: Any, id: int = 0, collect_env: Any = None) -> Any:
    return (), {"mass": collect_env.mass}


def by_any_name(self: Any, **kwargs: Any) -> Any:
    return (), {"mass": kwargs["collect_env"].mass}


def by_position(self: Any, worker: int, other_env: Any) -> Any:
    return (), {"mass": other_env.mass}


def as_an_argument(self: Any, id: int = 0, collect_env: Any = None) -> Any:
    return (collect_env,), {}


@pytest.mark.parametrize("hook", [by_name, by_any_name, by_position, as_an_argument])
def test_play_env_gets_a_collect_env_where_the_hook_asks_for_one(hook: Any) -> None:
    params = type("Params", (Recording,), {"eval_env_args_kwargs": hook})(CONFIG)
    loading.make_play_env(params, 4, render=False)
    collecting, (args, seed, kwargs) = params.calls
    assert collecting == ((), 4, {}) and seed == 4
    assert kwargs == {"mass": 1.0} if not args else isinstance(args[0], CounterEnv)


def without_it(self: Any, id: int = 0) -> Any:
    return (), {}


def without_use(self: Any, id: int = 0, collect_env: Any = None) -> Any:
    return (), {} if collect_env is not None else {"mass": 0.0}


@pytest.mark.parametrize("hook", [without_it, without_use, FakeParams.eval_env_args_kwargs])
def test_no_collect_env_is_built_where_the_hook_does_not_ask_for_one(hook: Any) -> None:
    params = type("Params", (Recording,), {"eval_env_args_kwargs": hook})(CONFIG)
    loading.make_play_env(params, 4, render=False)
    assert params.calls == [((), 4, {})]


@pytest.mark.parametrize(
    ("build", "limit"),
    [
        (lambda: gymnasium.make("Pendulum-v1"), 200),
        (lambda: gymnasium.wrappers.TimeLimit(gymnasium.make("Pendulum-v1"), 12), 12),
        (lambda: gymnasium.make("Pendulum-v1").unwrapped, None),
        (lambda: SyncVectorEnv([lambda: gymnasium.make("Pendulum-v1")] * 2), 200),
        (lambda: suite_gym.load("Pendulum-v1"), 200),
        (lambda: suite_gym.load("Pendulum-v1", max_episode_steps=30), 30),
    ],
    ids=["made", "wrapped", "bare", "vector", "suite", "suite with a limit"],
)
def test_an_environments_own_time_limit_is_known(build: Callable[[], Any], limit: int | None) -> None:
    assert time_limit_of(build()) == limit


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: gymnasium.make("Pendulum-v1"), "Pendulum-v1"),
        (lambda: gymnasium.wrappers.FlattenObservation(gymnasium.make("CartPole-v1")), "CartPole-v1"),
        (lambda: SyncVectorEnv([lambda: gymnasium.make("Pendulum-v1")] * 2), "Pendulum-v1"),
        (lambda: suite_gym.load("MountainCarContinuous-v0"), "MountainCarContinuous-v0"),
        (CounterEnv, "CounterEnv"),
    ],
)
def test_an_environment_is_named_as_it_is_registered_or_by_its_class(build: Callable[[], Any], name: str) -> None:
    assert name_of(build()) == name
