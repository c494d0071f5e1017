"""Grid files: task ids to settings, on any Python that a login node has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tfagents_system.errors import UserError
from tfagents_system.settings.grid import Grid, faults_in_job, parse_seeds, read_grid
from tfagents_system.settings.resolved import parse_assignments
from tfagents_system.settings.values import assignment, parse_value

ROOT = Path(__file__).resolve().parents[2]


def written(folder: Path, content: Any) -> str:
    path = folder / "grid.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def findings_of(folder: Path, content: Any) -> list[str]:
    with pytest.raises(UserError) as raised:
        read_grid(written(folder, content))
    return list(raised.value.findings)


def test_a_product_goes_through_all_combinations_the_last_key_fastest(tmp_path: Path) -> None:
    made = read_grid(written(tmp_path, {"batch_size": [128, 256], "config.horizon": [9], "SAC_SEED": [0, 1, 2]}))
    assert len(made) == 6
    pairs = [(made.settings(task)["batch_size"], made.settings(task)["SAC_SEED"]) for task in range(6)]
    assert pairs == [(128, 0), (128, 1), (128, 2), (256, 0), (256, 1), (256, 2)]
    assert list(made.settings(4)) == ["batch_size", "config.horizon", "SAC_SEED"]
    assert made.settings(4) == {"batch_size": 256, "config.horizon": 9, "SAC_SEED": 1}


def test_a_list_has_one_task_an_entry(tmp_path: Path) -> None:
    made = read_grid(written(tmp_path, [{"discount": 0.9}, {"discount": 0.99, "actor_fc_layer_params": [64, 64]}]))
    assert len(made) == 2
    assert made.settings(1) == {"discount": 0.99, "actor_fc_layer_params": [64, 64]}
    assert made.values() == {"discount": [0.9, 0.99], "actor_fc_layer_params": [[64, 64]]}


def test_seeds_are_one_more_axis() -> None:
    made = Grid([{"discount": 0.9}, {"discount": 0.99}]).with_axis("SAC_SEED", [5, 6])
    assert [made.settings(task) for task in range(4)] == [
        {"discount": discount, "SAC_SEED": seed} for discount in (0.9, 0.99) for seed in (5, 6)
    ]
    assert len(Grid().with_axis("SAC_SEED", [0, 1, 2])) == 3
    with pytest.raises(UserError, match="SAC_SEED is in the grid already"):
        made.with_axis("SAC_SEED", [1])


@pytest.mark.parametrize(
    ("text", "seeds"), [("0-2", [0, 1, 2]), ("7", [7]), ("3,0-1", [3, 0, 1]), (" 1 , 5-6", [1, 5, 6])]
)
def test_seeds_are_numbers_and_ranges(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "2-1", "-1", "1,,2", "0-99999999", "4294967296", "1-3,2"])
def test_other_seeds_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="--seeds"):
        parse_seeds(text)


def test_all_findings_come_together(tmp_path: Path) -> None:
    text = '{"a": [], "b": 3, "SAC_EXP_NAME": ["x"], "9x": [1]}'
    findings = "\n".join(findings_of(tmp_path, text))
    for part in (
        "SAC_EXP_NAME can't be in a grid", '"9x" is no key', 
        "a must be a list of at least one value, found []", "b must be a list of at least one value, found 3",
    ):  # fmt: skip
        assert part in findings
    assert len(findings.splitlines()) == 4


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("", "not valid JSON"),
        ('{"c": [1], "c": [2]}', 'the key "c" twice'),
        ("{", "not valid JSON"),
        ("3", "must hold an object of lists"),
        ("{}", "it is empty"),
        ("[]", "it is an empty list"),
        ("[3]", "task 0 must be an object"),
        ('{"discount": [1e999]}', "1e999 is no finite number"),
        ('{"discount": [NaN]}', "NaN is no finite number"),
        ('{"SAC_SEED": [0, 1, 0]}', "SAC_SEED must have each value once, found 0 twice: remove one"),
        (json.dumps({name: list(range(1000)) for name in "abc"}), "it has 1000000000 tasks"),
    ],
)
def test_what_is_no_grid_is_refused(tmp_path: Path, content: Any, part: str) -> None:
    assert part in findings_of(tmp_path, content)[0]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("True", "true, false, null"), ("None", "null"), ("(1, 2)", r"\[256, 256\]"), ("[1,", "not valid JSON"),
        ("{'a': 1}", "not valid JSON"), (".5", "0.5"), ("1_000", "1e-3"), ("nan", "not valid"),
        ("NaN", "no finite number"),
        ("1e999", "1e999 is no finite number"), ("[-1e999]", "-1e999 is no finite number"),
        ("007", 'give the text as "007"'), ("[" * 100_000, "JSON"), ('{"a": 1, "a": 2}', 'the key "a" twice'),
    ],
)  # fmt: skip
def test_what_python_writes_otherwise_is_refused(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        parse_value(text)


VALUES = [
    True, False, None, 3, 0.5, 1e300, "walker", "", " x", "a=b", "None", "True", "(a)", ".5", "007", "[x", "{", '"',
    "5", "null", "1e999", "NaN", [1, None], {"a": {"b": "7"}}, {},
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_set_reads_what_a_grid_means(value: Any) -> None:
    """The line with the best settings of a search has them as text."""
    (setting,), findings = parse_assignments([assignment("x", value)])
    assert findings == [] and setting.value == value and type(setting.value) is type(value)


def test_a_job_array_has_one_request_one_copy_of_files_and_whole_paths() -> None:
    values: dict[str, list[Any]] = {
        "SAC_CONFIG": ["/c.json"], "SAC_NUM_COLLECT_WORKERS": [2, 3], "discount": [0.9], "SAC_SEED": [1, 2],
        "SAC_FROM": ["logs/a@best", "/b@best", "~/c", ""],
    }  # fmt: skip
    rules = [re.sub(r" (can't be|must be) .*", "", fault) for fault in faults_in_job(values)]
    assert rules == ["SAC_CONFIG", "SAC_NUM_COLLECT_WORKERS", "SAC_FROM=logs/a@best"]
