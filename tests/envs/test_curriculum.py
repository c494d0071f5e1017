"""The curriculum's values by iteration, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfagents_system.envs.curriculum import Curriculum, check_curriculum
from tfagents_system.errors import UserError


def build(**entries: Any) -> Curriculum:
    return Curriculum.from_config({"horizon": 10, "curriculum": entries})


def test_values_by_iteration() -> None:
    curriculum = build(
        mass={"iters": [0, 2, 3, 5], "range": [0.0, 9.0]}, friction={"iters": [3, 4], "range": [0.5, 0.1]}
    )
    assert [curriculum.values_at(iteration, is_eval=False) for iteration in range(7)] == [
        {"mass": 0.0},
        {"mass": 0.0},
        {"mass": 3.0},
        {"mass": 6.0, "friction": 0.5},
        {"mass": 6.0, "friction": 0.1},
        {"mass": 9.0, "friction": 0.1},
        {"mass": 9.0, "friction": 0.1},
    ]
    assert curriculum.names == ["mass", "friction"] and curriculum.values == {}
    assert Curriculum.from_config({"horizon": 10}).values_at(1000, is_eval=False) == {}


def test_the_ends_of_the_ranges_each_once() -> None:
    curriculum = build(mass={"iters": [0], "range": [1, 2]}, friction={"iters": [5, 7, 9], "range": [0.1, 0.3]})
    assert curriculum.end_values() == [("mass", 1), ("friction", 0.1), ("friction", 0.3)]


def values_of(entry: dict[str, Any]) -> list[Any]:
    return [build(level=entry).values_at(k, is_eval=False)["level"] for k in range(len(entry["iters"]))]


def test_integers_stay_integers() -> None:
    whole = values_of({"iters": [0, 1, 2], "range": [2, 6]})
    assert whole == [2, 4, 6] and all(type(value) is int for value in whole)
    halves = values_of({"iters": [0, 1, 2], "range": [0, 5]})
    assert halves == [0.0, 2.5, 5.0] and all(type(value) is float for value in halves)
    floats = values_of({"iters": [0, 1], "range": [1.0, 2.0]})
    assert all(type(value) is float for value in floats)


def test_apply_to_eval() -> None:
    entry = {"iters": [0], "range": [1, 2]}
    assert not build(mass=entry).apply_to_eval("mass")
    assert build(mass={**entry, "apply_to_eval": True}).apply_to_eval("mass")
    default = build(apply_to_eval=True, mass=entry, friction={**entry, "apply_to_eval": False})
    assert default.apply_to_eval("mass") and not default.apply_to_eval("friction")
    assert list(default.names) == ["mass", "friction"]


@given(
    iters=st.lists(st.integers(0, 50), min_size=1, max_size=8).map(sorted),
    bounds=st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)),
    iteration=st.integers(0, 60),
)
def test_agrees_with_the_definition(iters: list[int], bounds: tuple[float, float], iteration: int) -> None:
    values = np.linspace(*bounds, len(iters))
    passed = sum(start <= iteration for start in iters)
    found = build(mass={"iters": iters, "range": list(bounds)}).values_at(iteration, is_eval=False)
    assert found == ({"mass": values[passed - 1]} if passed else {})


GOOD = {"iters": [0, 1], "range": [1, 2]}


@pytest.mark.parametrize(
    ("section", "text"),
    [
        ({}, "is empty"),
        (None, "must be an object"),
        ({"apply_to_eval": True}, "is empty"),
        ({"apply_to_eval": 1, "mass": GOOD}, "True or False"),
        ({"mass": 3}, "must be an object"),
        ({"mass": {"range": [1, 2]}}, "no iters: add"),
        ({"mass": {"iters": [0]}}, "no range: add"),
        ({"mass": {**GOOD, "iters": []}}, "found []"),
        ({"mass": {**GOOD, "iters": 5}}, "found 5"),
        ({"mass": {**GOOD, "iters": [0, 1.5]}}, "integers"),
        ({"mass": {**GOOD, "iters": [-1]}}, "from 0"),
        ({"mass": {**GOOD, "iters": [5, 3]}}, "that increase"),
        ({"mass": {**GOOD, "range": [1, 2, 3]}}, "two numbers"),
        ({"mass": {**GOOD, "range": ["a", 2]}}, "two numbers"),
        ({"mass": {**GOOD, "range": [0, float("inf")]}}, "two numbers"),
        ({"mass": {**GOOD, "range": 3}}, "two numbers"),
        ({"mass": {**GOOD, "apply_to_eval": "yes"}}, "True or False"),
        ({"mass": {"iter": [0, 1], "range": [1, 2]}}, "iters is meant"),
        ({"mass": {"iters": [0, 1], "ranges": [1, 2]}}, "range is meant"),
        ({"mass": {**GOOD, "aply_to_eval": True}}, "apply_to_eval is meant"),
    ],
)
def test_impossible_curricula_are_one_finding_or_more(section: Any, text: str) -> None:
    findings = check_curriculum({"curriculum": section})
    assert any(text in finding for finding in findings), findings
    with pytest.raises(UserError):
        Curriculum.from_config({"curriculum": section})


def test_all_findings_at_once() -> None:
    section = {"mass": {"iters": [], "range": [1]}, "friction": {**GOOD, "iters": [2, 1]}}
    assert len(check_curriculum({"curriculum": section})) == 3


def test_keys_of_the_users_own_pass() -> None:
    assert check_curriculum({"curriculum": {"mass": {**GOOD, "comment": "of the pole, in kg"}}}) == []
    lacks, meant = check_curriculum({"curriculum": {"mass": {"iters": [0, 100], "values": [1.0, 2.0]}}})
    assert "mass has no range: add range, two" in lacks and "mass.values is not known: there are iters, range" in meant
    assert check_curriculum({"curriculum": {"link_mass_1": GOOD, "link_mass_2": GOOD}}) == []
