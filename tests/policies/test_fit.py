"""A policy's parts of an observation, as arrays of its spec, or what is wrong with them."""

from __future__ import annotations

import numpy as np
import pytest
from tf_agents.specs import array_spec

from tfagents_system.policies.fit import arrays_for

SPEC = {"mode": array_spec.ArraySpec((3,), np.float32), "body": {"joints": array_spec.ArraySpec((2,), np.float32)}}
OBSERVATION = {"mode": [0, 1, 0], "body": {"joints": np.zeros(2)}, "unseen": "anything"}


def test_parts_that_a_policy_asks_for_have_its_dtypes() -> None:
    arrays = arrays_for(OBSERVATION, SPEC)
    assert arrays.keys() == {"mode", "body"} and arrays["mode"].tolist() == [0.0, 1.0, 0.0]
    assert arrays["mode"].dtype == arrays["body"]["joints"].dtype == np.float32
    assert arrays_for([1, 2], array_spec.ArraySpec((2,), np.uint8)).dtype == np.uint8


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"mode": 1}, r"mode must have the shape \(3,\), found \(\): .*one-hot"),
        ({"body": {}}, "the observation has no part body/joints: .*action_history"),
        ({"body": 7}, "the observation has no part body/joints"),
    ],
)
def test_what_does_not_fit_is_told_with_its_part(wrong: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        arrays_for(OBSERVATION | wrong, SPEC)
