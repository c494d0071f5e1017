"""What can't be trained in is refused by its kind, with the way; running statistics of wrappers are told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gym
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces, wrappers
from gymnasium.vector import SyncVectorEnv
from tf_agents.environments import suite_gym

from tests.support.environment_report import check, report
from tests.support.fakes import CounterEnv, NumberedEnv
from tfagents_system.envs.gym_driver import layers_within
from tfagents_system.envs.kinds import check_kind, running_statistics

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)


def kind(name: str, *bases: type, module: str = "", **attributes: Any) -> Any:
    """An object of a class of this name, of a package that is not installed."""
    methods = {"reset": lambda self: None, "step": lambda self, action: None}
    return type(name, bases, {"__module__": module or __name__, **methods, **attributes})()


ENVS: dict[str, tuple[Any, str]] = {
    "class": (CounterEnv, "the class CounterEnv, not an object of it: return CounterEnv(...)"),
    "nothing": (None, "None: end it with `return env`"),
    "name": ("Pendulum-v1", "return gymnasium.make('Pendulum-v1')"),
    "function": (lambda: CounterEnv(), "a function (<lambda>): call it"),
    "generator": ((env for env in list[Any]()), "write env_ctor with `return`, without async and yield"),
    "pair": ((CounterEnv(), {}), "a tuple: return one environment alone"),
    "DummyVecEnv": (
        kind("DummyVecEnv", type("VecEnv", (), {}), module="stable_baselines3.common.vec_env", action_space=BOX),
        "a vector environment of Stable-Baselines3: return the environment inside it, set SAC_ENVS_PER_WORKER",
    ),
    "like ParallelEnv": (kind("Mine", possible_agents=["a"], action_space=dict), "an environment of several agents"),
    "like VecEnv": (kind("Mine", step_wait=dict, action_space=BOX), "a vector environment of Stable-Baselines3"),
    "ParallelEnv": (
        kind("Mine", type("ParallelEnv", (), {}), action_space=dict),
        "several agents, and one policy is trained",
    ),
    "MultiAgentEnv": (
        kind("Mine", type("MultiAgentEnv", (gymnasium.Env,), {}), action_space=BOX),
        "write a gymnasium.Env of one",
    ),
    "dm_env": (kind("Mine", type("Base", (), {"__module__": "dm_env._environment"})), "return tf_agents.environments."),
    "dm_env by its methods": (kind("Mine", action_spec=None), "an environment of dm_env"),
    "method": (kind("Mine", action_space=lambda self: BOX, observation_space=BOX), "which has no action_space: return"),
    "statistics": (wrappers.NormalizeObservation(CounterEnv()), "TrainParams.normalize_observations = True, or"),
    "of rewards, within": (
        wrappers.TimeLimit(wrappers.NormalizeReward(CounterEnv()), 5),
        "the wrapper NormalizeReward, with statistics of its own in each worker and evaluation",
    ),
    "in lanes": (SyncVectorEnv([lambda: wrappers.NormalizeObservation(CounterEnv())]), "normalize_observations"),
    "in TF-Agents": (
        suite_gym.load("Pendulum-v1", gym_env_wrappers=[gym.wrappers.NormalizeReward]),
        "the wrapper NormalizeReward",
    ),
}


@pytest.mark.parametrize("name", ENVS)
def test_what_is_no_environment_is_refused_by_its_kind_with_the_way(name: str) -> None:
    env, told = ENVS[name]
    findings, specs = check(lambda: env)
    assert specs is None and len(findings) == 1, findings
    assert told in findings[0] and findings[0].endswith("(docs/reference/environments.md)")


def frozen() -> Any:
    env: Any = wrappers.NormalizeObservation(CounterEnv())
    env.update_running_mean = False
    return env


@pytest.mark.parametrize(
    "env",
    [
        CounterEnv,
        NumberedEnv,
        frozen,
        lambda: SyncVectorEnv([CounterEnv]),
        lambda: wrappers.RescaleAction(CounterEnv(), np.float32(-1.0), np.float32(1.0)),
        lambda: kind("SelfPlay", gymnasium.Env, possible_agents=["a", "b"], transition=1, action_space=BOX),
        lambda: kind("Recurrent", step=lambda self, action, state=None: None),
        lambda: kind("Monitor", gymnasium.Env, module="stable_baselines3.common.monitor", action_space=BOX),
    ],
)
def test_environments_and_wrappers_that_can_be_trained_in_pass(env: Any) -> None:
    check_kind(env())


def own_normalize() -> Any:
    env: Any = wrappers.TimeLimit(CounterEnv(), 5)
    env.rms = SimpleNamespace(running_mean=0.0, running_var=1.0, n=0)
    return env


@pytest.mark.parametrize("env", [own_normalize, lambda: SyncVectorEnv([own_normalize]), frozen, CounterEnv])
def test_running_statistics_of_a_users_own_are_told_by_name(env: Any) -> None:
    notes = [note for note in report(env)[0].texts("note") if "running mean" in note]
    assert len(notes) == (env not in (frozen, CounterEnv)) and all(note.startswith("TimeLimit.rms") for note in notes)


class Odd(CounterEnv):
    """Names that wrappers use, for other things."""

    def __init__(self) -> None:
        super().__init__()
        self.env, self.envs, self._env, self.np = np.zeros((9, 9)), {"a": 1}, self, np


def test_names_that_wrappers_use_may_hold_anything() -> None:
    check_kind(Odd())
    assert running_statistics(Odd()) == [] and list(layers_within(Odd()))[1:] == []


def test_wrappers_that_cost_much_are_told() -> None:
    (note,) = report(lambda: wrappers.FrameStackObservation(CounterEnv(), 4))[0].texts("note")
    assert note.startswith("the wrapper FrameStackObservation stores frames several times: set TrainParams.frame_stack")


@pytest.mark.parametrize("shape", [(84, 84), (4, 84, 84, 3), (20, 30, 3), (8, 84)])
def test_images_without_one_axis_of_channels_are_told(shape: tuple[int, ...]) -> None:
    class Pixels(CounterEnv):
        observation_space = spaces.Box(0, 255, shape, np.uint8)

        def reset(self, **kwargs: Any) -> Any:
            return np.zeros(shape, np.uint8), super().reset(**kwargs)[1]

        def step(self, action: Any) -> Any:
            return np.zeros(shape, np.uint8), *super().step(action)[1:]

    notes = report(Pixels)[0].texts("note")
    is_told = shape in ((84, 84), (4, 84, 84, 3))
    assert len(notes) == is_told
    assert not is_told or f"observation {shape} is flattened, images are [height, width, channels]" in notes[0]
