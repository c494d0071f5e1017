"""An environment whose goals can't be replaced is refused before a start, with the remedy."""

from __future__ import annotations

import re
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.support.devices_for_tests import DummyDevice
from tests.support.goals import GoalParams, Line
from tfagents_system.checks.checklist import Checklist
from tfagents_system.envs.clocks import VirtualClock
from tfagents_system.envs.real_time import RealTimeEnvironment
from tfagents_system.launch.environment_checks import check_environment

Box = gymnasium.spaces.Box


def report(env: type[Any], **attributes: Any) -> Checklist:
    params = type("TrainParams", (GoalParams,), {"env_ctor": lambda self, *args, **kwargs: env(), **attributes})
    checks = Checklist()
    checks["params"].errors.append("networks are built in other tests")
    check_environment(params({"horizon": 12}), 0, checks)
    checks["params"].errors.clear()
    return checks


def part(env: type[Line], **spaces: Any) -> type[Line]:
    """A line whose observations have such parts."""
    kept = {name: space for name, space in {**Line.observation_space.spaces, **spaces}.items() if space is not None}

    class Changed(env):  # type: ignore[misc, valid-type]
        observation_space = gymnasium.spaces.Dict(kept)

        def _observation(self) -> dict[str, np.ndarray]:
            seen = super()._observation()
            return {name: np.resize(seen[name], space.shape).astype(space.dtype) for name, space in kept.items()}

    return Changed


class Functions:
    """Kinds of environments that differ from the line in their functions."""

    class WithoutReward(Line):
        compute_reward = None  # type: ignore[assignment]

        def step(self, action: Any) -> Any:
            self.place += float(action[0])
            return self._observation(), 0.0, False, False, {}

    class ForOneGoal(Line):
        def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> Any:
            return 0.0 if np.linalg.norm(achieved_goal - desired_goal) < 1.5 else -1.0

    class OverAllGoals(Line):
        """The norm of all goals together, for each."""

        def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> Any:
            near = np.linalg.norm(achieved_goal - desired_goal) < 1.5
            return np.full(achieved_goal.shape[:-1], 0.0 if near else -1.0)

    class TerminatesTogether(Line):
        def compute_terminated(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> Any:
            return bool(np.linalg.norm(achieved_goal - desired_goal) < 1.5)

    class SaysNothing(Line):
        def compute_terminated(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> Any:
            return None

        def step(self, action: Any) -> Any:
            seen, reward, _, *others = super().step(action)
            return seen, reward, False, *others

    class Raises(Line):
        def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> Any:
            if achieved_goal.ndim > 1:
                return info["distance"]
            return -1.0

    class NeverEnds(Line):
        """As Fetch: one truth value for all."""

        def compute_terminated(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> Any:
            return False

    class TwoDoubled(gymnasium.RewardWrapper):
        def __init__(self) -> None:
            super().__init__(Line())

        def reward(self, reward: Any) -> Any:
            return 2 * reward


def device() -> Any:
    return RealTimeEnvironment(DummyDevice(VirtualClock()), 0.05, clock=VirtualClock())


@pytest.mark.parametrize(
    ("env", "attributes", "told"),
    [
        (
            part(Line, desired_goal=None),
            {},
            r"; desired_goal is missing, there are \w+, \w+: build",
        ),
        (
            lambda: gymnasium.make("Pendulum-v1"),
            {},
            r"has them; these are no dictionary, but observation \(3,\) float32: build",
        ),
        (
            part(Line, desired_goal=Box(-50.0, 50.0, (2,))),
            {},
            r"must be arrays of one shape and dtype, .* found observation/achieved_goal \(1,\) float32 and",
        ),
        (Line, {"frame_stack": {"observation": 3, "achieved_goal": 2}}, "stacks achieved_goal, and a stack of goals"),
        (Functions.WithoutReward, {}, r"the environment has no compute_reward\(achieved_goal, desired_goal, info\)"),
        (
            Functions.ForOneGoal,
            {},
            r"compute_reward of the environment must return a finite number for each of 12 goals, found shape \(\)",
        ),
        (Functions.OverAllGoals, {}, "compute_reward of 24 goals at once gives -1.0 where it gives 0.0 for the same"),
        (Functions.TerminatesTogether, {}, "compute_terminated of 24 goals at once gives .* for the same goals alone"),
        (
            Functions.Raises,
            {},
            r"compute_reward of the environment failed for 12 goals, info {}: KeyError: 'distance' \(test_goal_ch",
        ),
        (
            Functions.SaysNothing,
            {},
            "compute_terminated of the environment must return a truth value .* found None, or",
        ),
        (Functions.TwoDoubled, {}, "step 1 gave the reward -2, and compute_reward of its goals, with info {}, -1: let"),
        (device, {"num_eval_episodes": 0}, "does not work with an environment that acts in real time"),
    ],
)
def test_it_is_refused(env: type[Any], attributes: dict[str, Any], told: str) -> None:
    (finding,) = report(env, **attributes).errors
    assert re.search(told, finding), finding
    assert report(env, **attributes, hindsight_share=None).errors == [] or "frame_stack" in attributes


@pytest.mark.parametrize("env", [Line, Functions.NeverEnds])
def test_it_is_right(env: type[Any]) -> None:
    checks = report(env, frame_stack={"observation": 3}, action_history=2)
    assert checks.errors == []
    facts = checks["environment"].facts
    assert "rewards of other goals by compute_reward, compute_terminated says where they end" in facts
