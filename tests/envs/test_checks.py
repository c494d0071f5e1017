"""What is wrong with an environment is told before anything starts, without a traceback."""

from __future__ import annotations

import re
import time
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.support.environment_report import check, report
from tests.support.fakes import CounterEnv, DictEnv, NumberedEnv, OldGymEnv
from tests.support.lanes_for_tests import NumberedLane, vector_of
from tfagents_system.launch import environment_checks as checks_module
from tfagents_system.launch import spec_checks

MASS = {"iters": [0, 5], "range": [1.0, 2.0]}


@pytest.mark.parametrize("kind", [CounterEnv, NumberedEnv, DictEnv])
def test_good_environments_have_no_finding(kind: Any) -> None:
    findings, specs = check(kind)
    assert findings == []
    assert specs is not None and specs[1].name == "action"


def test_environments_are_closed() -> None:
    closed = []

    class Closing(CounterEnv):
        def close(self) -> None:
            closed.append(self)

    assert check(Closing)[0] == []
    assert len(closed) == 2


def test_constructor_that_raises() -> None:
    def broken() -> Any:
        raise OSError("no robot is connected")

    findings, specs = check(broken)
    assert specs is None
    assert len(findings) == 1
    assert "OSError: no robot is connected (test_checks.py, line " in findings[0]


def test_step_that_raises() -> None:
    findings, _ = check(lambda: CounterEnv(raise_at=3))
    assert "failed in step 3: ZeroDivisionError: the motor is off (fakes.py, line " in findings[0]


def test_actions_of_the_kind_that_the_algorithm_does_not_learn() -> None:
    class Discrete(CounterEnv):
        action_space = gymnasium.spaces.Discrete(3)  # type: ignore[assignment]

    findings, specs = check(Discrete)
    assert specs is not None and len(findings) == 1 and "algorithm=sac learns continuous" in findings[0]


def test_a_fault_names_the_step_of_its_episode() -> None:
    class Later(CounterEnv):
        def step(self, action: Any) -> Any:
            observation, reward, *rest = super().step(action)
            return observation, reward if int(observation[0]) < 2 else np.nan, *rest

    findings, _ = check(Later)
    assert findings == ["the reward of step 2 must be a finite number, found nan: correct what computes it"]


def test_wrong_shape_and_nan() -> None:
    class Wrong(CounterEnv):
        def step(self, action: Any) -> Any:
            return np.full(2, np.nan), 0.0, False, False, {}

    findings, _ = check(Wrong)
    assert "the observation of step 1 is not finite, nan at [" in findings[0]


def test_two_environments_that_differ() -> None:
    def either(kind: str = "collect") -> Any:
        return CounterEnv() if kind == "collect" else NumberedEnv()

    findings, _ = check(either, eval_env_args_kwargs=lambda self: (("eval",), {}))
    assert any("observations of the collect and the evaluation environment differ" in finding for finding in findings)


# Curriculum.


def test_parameters_of_the_curriculum_are_tried() -> None:
    assert check(CounterEnv, {"mass": MASS})[0] == []
    assert check(NumberedEnv, {"mass": MASS, "friction": MASS})[0] == []


def test_unknown_parameter_names_those_there_are() -> None:
    findings, _ = check(CounterEnv, {"mas": MASS, "apply_to_eval": True})
    assert len(findings) == 1
    assert "curriculum.mas: CounterEnv has no parameter 'mas'" in findings[0] and "it knows mass" in findings[0]


def test_set_state_that_raises() -> None:
    findings, _ = check(NumberedEnv, {"gravity": MASS})
    assert len(findings) == 1
    assert "set_state({'gravity': 1.0}) of the environment raised KeyError: 'no parameter gravity'" in findings[0]


def test_value_that_breaks_the_environment() -> None:
    class Fragile(CounterEnv):
        def reset(self, **kwargs: Any) -> Any:
            if self.mass > 2:
                raise ValueError("too heavy")
            return super().reset(**kwargs)

    findings, _ = check(Fragile, {"mass": {"iters": [0], "range": [3.0, 4.0]}})
    assert len(findings) == 1 and "mass = 3.0" in findings[0] and "too heavy" in findings[0]


@pytest.mark.parametrize("bad", [2.0, 4.0], ids=["last", "first"])
def test_the_first_and_the_last_value_of_a_range_are_tried(bad: float) -> None:
    class Fragile(CounterEnv):
        def set_state(self, state: Any) -> None:
            if state["mass"] == bad:
                raise ValueError(f"{bad} kg")

    findings, _ = check(Fragile, {"mass": {"iters": [0, 1, 2], "range": [4.0, 2.0]}})
    assert len(findings) == 1 and f"set_state({{'mass': {bad}}})" in findings[0]


# What is seen of a good environment.


def facts(name: str, *args: Any, **kwargs: Any) -> list[str]:
    checks, _ = report(*args, **kwargs)
    assert checks.errors == []
    return checks[name].facts


@pytest.mark.parametrize(
    ("env", "horizon", "text"),
    [
        (lambda: CounterEnv(terminate_at=4), 10, "terminates, with random actions after 4 steps"),
        (lambda: CounterEnv(truncate_at=7), 10, "ends by a time limit of its own after 7 steps"),
        (CounterEnv, 10, "ends by a time limit (horizon=10) after 10 steps"),
        (lambda: NumberedEnv(terminate_at=3), 10, "terminates, with random actions after 3 steps"),
    ],
)
def test_the_end_of_an_episode_is_told(env: Any, horizon: int, text: str) -> None:
    episode = facts("episode", env, horizon=horizon)
    assert episode[0] == text and episode[1].endswith(" steps/s")


def test_a_slow_simulator_is_not_stepped_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (checks_module, spec_checks):
        monkeypatch.setattr(module, "EPISODE_SECS", 0.1)

    class Slow(CounterEnv):
        def step(self, action: Any) -> Any:
            time.sleep(0.03)
            return super().step(action)

    (end, rate) = facts("episode", Slow, horizon=10**9)
    told = re.fullmatch(r"no end within (\d) steps \(0\.\d s\); horizon=1000000000 ends it at the latest", end)
    assert told and int(told[1]) <= 4, f"{end}: fewer on a busy machine"
    assert 0 < float(rate.removesuffix(" steps/s")) < 34


def test_the_form_of_reset_and_step_is_told() -> None:
    forms = facts("reset and step", CounterEnv)
    assert forms == [
        "reset() gives observation and info, step() 5 values",
        "all observations are one array, written anew: each is copied",
    ]
    assert facts("reset and step", OldGymEnv) == ["reset() gives the observation alone, step() 4 values"]


def test_the_same_seed_gives_the_same_episode_or_a_note() -> None:
    class Seeded(CounterEnv):
        def step(self, action: Any) -> Any:
            result = super().step(action)
            return np.array([self._buffer[0], self.np_random.random()]), *result[1:]

    class Unseeded(CounterEnv):
        def step(self, action: Any) -> Any:
            result = super().step(action)
            return np.array([self._buffer[0], float(np.random.random())]), *result[1:]

    assert facts("seeding", Seeded) == ["the same seed gives the same episode"]
    # Environments that are built otherwise for evaluation are compared with a second one for collecting.
    hooks: Any = {"eval_env_args_kwargs": lambda self: ((), {"terminate_at": 3})}
    assert facts("seeding", Seeded, **hooks) == ["the same seed gives the same episode"]
    for overridden in ({}, hooks):
        checks, _ = report(Unseeded, **overridden)
        assert checks.errors == []
        assert len(checks.notes) == 1 and "the same seed differ in step 1" in checks.notes[0]


def test_a_picture_is_drawn_where_it_is_wanted() -> None:
    assert facts("rendering", CounterEnv, render=True) == ["frames of 41 x 33"]

    class Blind(CounterEnv):
        def render(self) -> Any:
            raise RuntimeError("no screen")

    class ToldWhenBuilt(CounterEnv):
        def __init__(self, mode: str | None) -> None:
            super().__init__()
            self.mode = mode

        def render(self) -> Any:
            assert self.mode == "rgb_array"
            return super().render()

    def with_mode(self: Any, render_mode: str | None = None, **kwargs: Any) -> Any:
        return ToldWhenBuilt(render_mode)

    assert facts("rendering", None, render=True, env_ctor=with_mode) == ["frames of 41 x 33"]

    checks, _ = report(Blind, render=True)
    assert checks.errors == [] and len(checks.notes) == 1
    assert "RuntimeError: no screen" in checks.notes[0] and "training needs no pictures" in checks.notes[0]
    assert "rendering" not in report(Blind)[0]


def three_lanes(**kwargs: Any) -> Any:
    return vector_of([NumberedLane(lane, (4, 2), **kwargs) for lane in range(3)])


def test_a_good_vector_environment_has_no_finding() -> None:
    checks, trial = report(three_lanes, env_steps_per_iter=75, num_train_episodes_per_iter=None)
    assert checks.errors == [] and trial.specs[0].shape == (3,), "the spec of one lane"
    assert "3 lanes, the first episode ends after 2 steps" in checks["reset and step"].facts
    assert checks["reset and step"].notes == []


def test_idle_lanes_are_noted() -> None:
    checks, _ = report(three_lanes, num_train_episodes_per_iter=1)
    (note,) = checks["reset and step"].notes
    assert "2 of its 3 lanes have nothing to do: set env_steps_per_iter" in note


def test_what_needs_single_environments_is_refused_for_lanes_all_at_once() -> None:
    asked: dict[str, Any] = {"greedy_episode_share": 0.25, "keep_best_episodes": 3}
    checks, _ = report(three_lanes, env_steps_per_iter=50, num_train_episodes_per_iter=None, **asked)
    assert len(checks.errors) == 2
    for error, (name, value) in zip(checks.errors, asked.items(), strict=True):
        assert f"TrainParams.{name}={value} does not work with a vector environment" in error
        assert "SAC_ENVS_PER_WORKER=3" in error


def test_vector_environments_that_can_not_be_used_are_refused() -> None:
    def without_mode() -> Any:
        env = three_lanes()
        env.metadata = {}
        return env

    assert "autoreset mode can't be told" in check(without_mode)[0][0]
    (error,) = check(lambda: three_lanes(fails=(0, 3)), horizon=9)[0]
    assert "ZeroDivisionError: the motor is off" in error
    lanes = [NumberedLane(0, (9,)), NumberedLane(1, (9,), fails=(0, 2))]
    assert any("the motor is off" in error for error in check(lambda: vector_of(lanes))[0]), "in another lane"
    (error,) = check(three_lanes, envs_per_worker=4)[0]
    assert "SAC_ENVS_PER_WORKER=4, but env_ctor returns a vector environment of 3 lanes" in error


def test_what_can_not_be_repeated_is_refused_where_runs_are_deterministic() -> None:
    steps: Any = {"env_steps_per_iter": 50, "num_train_episodes_per_iter": None}
    (error,) = report(three_lanes, deterministic=True, **steps)[0].errors
    assert "set num_train_episodes_per_iter instead of env_steps_per_iter, or return single environments" in error
    assert report(three_lanes, deterministic=True, num_train_episodes_per_iter=3)[0].errors == []
    assert report(CounterEnv, deterministic=True, **steps)[0].errors == []
