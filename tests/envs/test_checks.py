"""What is wrong with an environment is told before anything starts, without a traceback."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.fakes import CounterEnv, DictEnv, FakeParams, NumberedEnv
from tfagents_system.envs.checks import check_environment

MASS = {"iters": [0, 5], "range": [1.0, 2.0]}


def check(env_ctor: Any, curriculum: Any = None, **hooks: Any) -> tuple[list[str], Any]:
    config = {"horizon": 10} | ({"curriculum": curriculum} if curriculum else {})
    attributes = {"env_ctor": lambda self, *args, seed=None, **kwargs: env_ctor(*args, **kwargs), **hooks}
    return check_environment(type("TrainParams", (FakeParams,), attributes)(config), seed=0)


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


def test_unusable_action_space() -> None:
    class Discrete(CounterEnv):
        action_space = gymnasium.spaces.Discrete(3)  # type: ignore[assignment]

    findings, specs = check(Discrete)
    assert specs is None and len(findings) == 1 and "continuous" in findings[0]


def test_wrong_shape_and_nan() -> None:
    class Wrong(CounterEnv):
        def step(self, action: Any) -> Any:
            return np.full(2, np.nan), 0.0, False, False, {}

    findings, _ = check(Wrong)
    assert "observation is not finite" in findings[0]


def test_two_environments_that_differ() -> None:
    def either(kind: str = "collect") -> Any:
        return CounterEnv() if kind == "collect" else NumberedEnv()

    findings, _ = check(either, eval_env_args_kwargs=lambda self: (("eval",), {}))
    assert any("observations of the collect and the evaluation environment differ" in finding for finding in findings)


def test_several_actions_need_networks_of_the_users_own() -> None:
    class Arms(CounterEnv):
        action_space = gymnasium.spaces.Dict(  # type: ignore[assignment]
            {"left": gymnasium.spaces.Box(-1, 1, (1,)), "right": gymnasium.spaces.Box(-1, 1, (2,))}
        )

    findings, _ = check(Arms)
    assert len(findings) == 1 and "2 parts (action/left, action/right)" in findings[0]
    assert check(Arms, agent_ctor=lambda self, *args: None)[0] == []


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
