"""What a run can't do with an environment's goals, lanes, pace or curriculum is told before a start."""

from __future__ import annotations

import re
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.support.devices_for_tests import DummyDevice
from tests.support.environment_report import check, report
from tests.support.fakes import CounterEnv, NumberedEnv
from tests.support.goals import Line
from tests.support.lanes_for_tests import NumberedLane, vector_of
from tfagents_system.checks.findings import Findings
from tfagents_system.envs.real_time import RealTimeEnvironment, VirtualClock

Box = gymnasium.spaces.Box
MASS = {"iters": [0, 5], "range": [1.0, 2.0]}
GAIN = {"gain": MASS | {"apply_to_eval": True}}

# Goals.


def goals(env: type[Any], **attributes: Any) -> Findings:
    return report(lambda **_: env(), horizon=12, **{"hindsight_share": 0.8, **attributes})[0]


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
        (part(Line, desired_goal=None), {}, r"hindsight needs observations .* with the keys .*: build such"),
        (lambda: gymnasium.make("Pendulum-v1"), {}, r"found observation \(3,\) float32: build such"),
        (
            part(Line, desired_goal=Box(-50.0, 50.0, (2,))),
            {},
            r"arrays of one shape and dtype, found .*observation/achieved_goal \(1,\) float32",
        ),
        (Line, {"frame_stack": {"observation": 3, "achieved_goal": 2}}, "stacks achieved_goal, and a stack of goals"),
        (Functions.WithoutReward, {}, r"the environment has no compute_reward\(achieved_goal, desired_goal, info\)"),
        (Functions.ForOneGoal, {}, r"compute_reward .* finite number for each of 12 goals, found shape \(\)"),
        (Functions.OverAllGoals, {}, "compute_reward of 24 goals at once gives other values"),
        (Functions.TerminatesTogether, {}, "compute_terminated of 24 goals at once gives other values"),
        (Functions.Raises, {}, r"compute_reward .* failed for 12 goals, info {}: KeyError: 'distance' \(test_spec_ch"),
        (
            Functions.Raises,
            {},
            r"put what it needs beside goals, as an effort, into achieved_goal, with 0 in desired_g",
        ),
        (Functions.SaysNothing, {}, "compute_terminated .* must return a truth value .* found None, or"),
        (Functions.TwoDoubled, {}, "step 1 gave the reward -2, and compute_reward of its goals, with info {}, -1: let"),
        (device, {"num_eval_episodes": 0}, "does not work with an environment that acts in real time"),
    ],
)
def test_it_is_refused(env: type[Any], attributes: dict[str, Any], told: str) -> None:
    (finding,) = goals(env, **attributes).errors
    assert re.search(told, finding), finding


@pytest.mark.parametrize("env", [Line, Functions.NeverEnds])
def test_it_is_right(env: type[Any]) -> None:
    findings = goals(env, frame_stack={"observation": 3}, action_history=2)
    assert findings.errors == []
    facts = findings.texts("ok", "environment")
    assert "rewards of other goals by compute_reward, compute_terminated says where they end" in facts
    assert goals(Functions.Raises, hindsight_share=None).errors == [], "nothing is asked of them without hindsight"


# Vector environments.


def three_lanes(**kwargs: Any) -> Any:
    return vector_of([NumberedLane(lane, (4, 2), **kwargs) for lane in range(3)])


def test_what_needs_single_environments_is_refused_for_lanes_all_at_once() -> None:
    asked: dict[str, Any] = {"greedy_episode_share": 0.25, "keep_best_episodes": 3}
    checks, _ = report(three_lanes, env_steps_per_iter=50, num_train_episodes_per_iter=None, **asked)
    assert len(checks.errors) == 2
    for error, (name, value) in zip(checks.errors, asked.items(), strict=True):
        assert f"TrainParams.{name}={value} does not work with a vector environment" in error
        assert "SAC_ENVS_PER_WORKER=3" in error


def test_vector_environments_that_can_not_be_used_are_refused() -> None:
    (error,) = check(lambda: three_lanes(fails=(0, 3)), horizon=9)[0]
    assert "ZeroDivisionError: the motor is off" in error
    lanes = [NumberedLane(0, (9,)), NumberedLane(1, (9,), fails=(0, 2))]
    assert any("the motor is off" in error for error in check(lambda: vector_of(lanes))[0]), "in another lane"
    (error,) = check(three_lanes, envs_per_worker=4)[0]
    assert "SAC_ENVS_PER_WORKER=4, but env_ctor returns a vector environment of 3 lanes" in error


def test_what_can_not_be_repeated_is_refused_where_runs_are_deterministic() -> None:
    steps: Any = {"env_steps_per_iter": 50, "num_train_episodes_per_iter": None}
    (error,) = report(three_lanes, deterministic=True, **steps)[0].errors
    assert "set num_train_episodes_per_iter instead of env_steps_per_iter" in error
    assert report(three_lanes, deterministic=True, num_train_episodes_per_iter=3)[0].errors == []
    assert report(CounterEnv, deterministic=True, **steps)[0].errors == []
    (error,) = report(CounterEnv, deterministic=True, envs_per_worker=2, **steps)[0].errors
    assert "instead of env_steps_per_iter" in error


# Curriculum.


def test_parameters_of_the_curriculum_are_tried() -> None:
    assert check(CounterEnv, {"mass": MASS})[0] == []
    assert check(NumberedEnv, {"mass": MASS, "friction": MASS})[0] == []


@pytest.mark.parametrize("bad", [2.0, 4.0], ids=["last", "first"])
def test_the_first_and_the_last_value_of_a_range_are_tried(bad: float) -> None:
    class Fragile(CounterEnv):
        def reset(self, **kwargs: Any) -> Any:
            if self.mass == bad:
                raise ValueError(f"{bad} kg")
            return super().reset(**kwargs)

    findings, _ = check(Fragile, {"mass": {"iters": [0, 1, 2], "range": [4.0, 2.0]}})
    assert len(findings) == 1 and f"set_state({{'mass': {bad}}})" in findings[0] and f"{bad} kg" in findings[0]


def test_a_parameter_that_changes_nothing_is_noted() -> None:
    class Deaf(CounterEnv):
        def set_state(self, state: Any) -> None:
            pass

    class Listening(Deaf):
        def set_state(self, state: Any) -> None:
            self.wind_power = state["wind"]

    (note,) = report(Deaf, {"wind": MASS})[0].notes
    assert "curriculum.wind: set_state changes no attribute" in note
    assert report(Listening, {"wind": MASS})[0].notes == []


# Real time.


class Device(DummyDevice):
    """Observes within the bounds of its space; takes states."""

    def set_state(self, state: Any) -> None:
        self._did("set_state", state)


def with_device(clock: Any = None, **options: Any) -> tuple[Findings, list[Device]]:
    devices: list[Device] = []

    def build() -> Any:
        devices.append(Device(clock))
        return RealTimeEnvironment(devices[-1], 0.05, clock=clock)

    return report(build, render=True, **options)[0], devices


def test_it_is_driven_with_its_default_action_alone_and_left_waiting() -> None:
    checks, (device,) = with_device(VirtualClock(), curriculum=GAIN, num_eval_episodes=3, action_history=1)
    assert checks.errors == []
    assert {tuple(sent) for sent in device.sent()} == {tuple(Device.default.tolist())}
    assert len(device.sent()) > 10, "it was stepped"
    names = [name for name, _, _ in device.log]
    assert names[-1] == "wait"
    assert [value for name, _, value in device.log if name == "set_state"] == [{"gain": 1.0}, {"gain": 2.0}]
    told = "acts in real time: tried with its default action; each worker builds it once"
    assert told in checks.texts("ok", "environment")
    assert checks.texts("ok", "episode")[0] == "ends by a time limit (horizon=10) after 10 steps"
    assert "set_state works with gain = 1, gain = 2" in checks.texts("ok", "curriculum")
    assert not any("in real time" in note for note in checks.notes)


def test_without_workers_of_the_start_it_is_built_and_not_driven() -> None:
    """Another machine has the device, or a worker of another start drives it already."""
    checks, (device,) = with_device(curriculum=GAIN, num_eval_episodes=3, action_history=1, workers=0)
    assert checks.errors == []
    assert {name for name, _, _ in device.log} <= {"close"}
    told = "acts in real time: not stepped, as this start has no workers; each worker builds it once"
    assert told in checks.texts("ok", "environment")
    assert not {finding.where for finding in checks} & {"episode", "curriculum", "rendering"}


def test_all_that_a_run_can_not_do_with_it_is_told_at_once() -> None:
    asked: Any = {"envs_per_worker": 2, "deterministic": True, "env_steps_per_iter": 10, "action_history": 0}
    checks, devices = with_device(**asked, num_eval_episodes=1, collect_env_args_kwargs=lambda self: ((), {}))
    assert len(devices) == 1
    several, clock, arguments, steps = checks.errors
    assert several.startswith("SAC_ENVS_PER_WORKER=2, but the environment acts in real time")
    assert "by a real clock: use SAC_DETERMINISTIC=0" in clock
    assert arguments.endswith("eval_env_args_kwargs, which has none: let it return those of collect_env_args_kwargs")
    assert "set num_train_episodes_per_iter instead of env_steps_per_iter" in steps
    assert any(note.startswith("action_history=0 in real time") for note in checks.notes)
    asked = {"deterministic": True, "env_steps_per_iter": None}
    assert with_device(VirtualClock(), **asked)[0].errors == [], "a virtual clock is deterministic"
