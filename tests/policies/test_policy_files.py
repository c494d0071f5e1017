"""A saved policy gets the parts of an observation that it asks for, or it is told what does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tf_agents.policies import py_policy
from tf_agents.specs import array_spec
from tf_agents.trajectories import policy_step
from tf_agents.trajectories import time_step as ts

from tfagents_system.policies.files import Policy, misfits

SPEC = {"mode": array_spec.ArraySpec((3,), np.float32), "body": {"joints": array_spec.ArraySpec((2,), np.float32)}}
OBSERVATION = {"mode": [0, 1, 0], "body": {"joints": np.zeros(2)}, "unseen": "anything"}
ACTION = array_spec.BoundedArraySpec((2,), np.float32, [-1.0, 0.0], [1.0, 3.0])


class Echo(py_policy.PyPolicy):
    """Its action is the observation, with the number of the step in the episode."""

    def __init__(self) -> None:
        super().__init__(ts.time_step_spec(SPEC), ACTION)

    def _get_initial_state(self, batch_size: int | None) -> Any:
        return 0

    def _action(self, time_step: Any, policy_state: Any = (), seed: Any = None) -> policy_step.PolicyStep:
        return policy_step.PolicyStep((time_step.observation, policy_state), policy_state + 1)


def test_a_policy_gets_its_parts_and_remembers_the_episode() -> None:
    policy = Policy(Echo())
    arrays, _ = policy(OBSERVATION)
    assert arrays.keys() == {"mode", "body"} and arrays["mode"].tolist() == [0.0, 1.0, 0.0]
    assert arrays["mode"].dtype == arrays["body"]["joints"].dtype == np.float32
    assert policy(OBSERVATION)[1] == 1
    policy.reset()
    assert policy(OBSERVATION)[1] == 0


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"mode": 1}, r"mode: expected shape \(3,\), or n of them, but found \(\): .*one-hot"),
        ({"body": {}}, "the observation has no body/joints: .*action_history"),
        ({"body": 7}, "the observation has no body/joints"),
        ({"mode": {"fast": 1}}, r"mode: expected shape \(3,\), but found a dict: .*action_history"),
    ],
)
def test_what_does_not_fit_is_told_with_its_part(wrong: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Policy(Echo())(OBSERVATION | wrong)


def test_numbers_that_are_not_finite_have_nothing_to_do_with_parts() -> None:
    with pytest.raises(ValueError, match=r"mode is not finite: \[.*\]$"):
        Policy(Echo())(OBSERVATION | {"mode": [0, np.nan, 0]})


def test_parts_shapes_and_bounds_must_be_those_of_the_environment() -> None:
    more = {**SPEC, "further": array_spec.ArraySpec((), np.float32)}
    rounded = array_spec.BoundedArraySpec((2,), np.float64, [-1.0, 0.0], [1.0, 3.0000000000000004])
    assert misfits(Echo(), more, ACTION) == misfits(Echo(), more, rounded) == []
    wide = array_spec.BoundedArraySpec((2,), np.float32, -1.0, 3.0)
    parts, bounds = misfits(Echo(), {"mode": SPEC["mode"]}, wide)
    assert parts.startswith("the policy was trained on observations body/joints (2,) float32, mode (3,) float32, but")
    assert "actions from [-1.  0.] to [1. 3.], but this environment takes them from [-1. -1.] to [3. 3.]" in bounds
    (shapes,) = misfits(Echo(), more, array_spec.BoundedArraySpec((1,), np.float32, -1.0, 1.0))
    assert shapes == "the policy gives actions of shapes [(2,)], but this environment takes [(1,)]"
