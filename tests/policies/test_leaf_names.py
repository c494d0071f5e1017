"""Names of leaves are fit for every file, each given once, and stay as they are where they are fit."""

from __future__ import annotations

import pytest

from tfagents_system.policies.names import fit_names


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["joints", "Camera_0", "_x"], ["joints", "Camera_0", "_x"]),
        (["bottom burner", "größe", ""], ["bottom_burner", "gr__e", ""]),
        (["a b", "a_b"], ["a_b_", "a_b"]),
        (["a b", "a_b", "a_b_", "a%b"], ["a_b__", "a_b", "a_b_", "a_b___"]),
        (["A", "a"], ["A", "a_"]),
    ],
)
def test_names_that_are_fit_stay_and_others_differ_from_them(names: list[str], expected: list[str]) -> None:
    assert fit_names(names) == expected


def test_paths_keep_their_separators_but_differ_without_them() -> None:
    names = ["x/a/b", "x/a.b", "x/a_b", "x/"]
    assert fit_names(names, also_allowed="/.-") == ["x/a/b", "x/a.b_", "x/a_b__", "x/_"]


def test_names_that_are_taken_are_not_given() -> None:
    assert fit_names(["action", "action_", "a"], is_taken=lambda name: name == "action") == ["action_", "action__", "a"]
