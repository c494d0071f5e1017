"""Grid files: task ids to settings, on any Python that a login node has."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tfagents_system import grid
from tfagents_system.grid import Grid, GridError, read_grid

ROOT = Path(__file__).resolve().parents[1]


def written(folder: Path, content: Any) -> str:
    path = folder / "grid.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def findings_of(folder: Path, content: Any) -> list[str]:
    with pytest.raises(GridError) as raised:
        read_grid(written(folder, content))
    return list(raised.value.findings)


def test_a_product_goes_through_all_combinations_the_last_key_fastest(tmp_path: Path) -> None:
    made = read_grid(written(tmp_path, {"train_batch_size": [128, 256], "config.horizon": [9], "SAC_SEED": [0, 1, 2]}))
    assert len(made) == 6
    pairs = [(made.settings(task)["train_batch_size"], made.settings(task)["SAC_SEED"]) for task in range(6)]
    assert pairs == [(128, 0), (128, 1), (128, 2), (256, 0), (256, 1), (256, 2)]
    assert list(made.settings(4)) == ["train_batch_size", "config.horizon", "SAC_SEED"]
    assert made.settings(4) == {"train_batch_size": 256, "config.horizon": 9, "SAC_SEED": 1}


def test_a_list_has_one_task_an_entry(tmp_path: Path) -> None:
    made = read_grid(written(tmp_path, [{"discount": 0.9}, {"discount": 0.99, "actor_fc_layer_params": [64, 64]}]))
    assert len(made) == 2
    assert made.settings(1) == {"discount": 0.99, "actor_fc_layer_params": [64, 64]}
    assert made.names() == ["discount", "actor_fc_layer_params"]


def test_seeds_are_one_more_axis() -> None:
    made = Grid(entries=[{"discount": 0.9}, {"discount": 0.99}]).with_axis("SAC_SEED", [5, 6])
    assert [made.settings(task) for task in range(4)] == [
        {"discount": discount, "SAC_SEED": seed} for discount in (0.9, 0.99) for seed in (5, 6)
    ]
    assert len(Grid().with_axis("SAC_SEED", [0, 1, 2])) == 3
    with pytest.raises(GridError, match="SAC_SEED is in the grid already"):
        made.with_axis("SAC_SEED", [1])


@pytest.mark.parametrize("task", [-1, 2, 10**30])
def test_ids_out_of_range_are_refused(task: int) -> None:
    with pytest.raises(GridError, match="ids go from 0 to 1"):
        Grid([("discount", [0.9, 0.99])]).settings(task)


def test_all_findings_come_together(tmp_path: Path) -> None:
    text = '{"a": [], "b": 3, "SAC_EXP_NAME": ["x"], "9x": [1], "d": [1, 1], "c": [1], "c": [2]}'
    findings = "\n".join(findings_of(tmp_path, text))
    for part in (
        'the key "c" twice', "SAC_EXP_NAME can't be in a grid", '"9x" is no key', "a is an empty list",
        "b must be a list of values, found 3", "d has 1 twice",
    ):  # fmt: skip
        assert part in findings
    assert len(findings.splitlines()) == 6
    assert "tasks 0 and 2 are the same" in findings_of(tmp_path, [{"a": 1}, {"a": 2}, {"a": 1}])[0]


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("3", "must hold an object of lists"),
        ("{}", "it is empty"),
        ("[]", "it is an empty list"),
        ("[3]", "task 0 must be an object"),
        (json.dumps({name: list(range(1000)) for name in "abc"}), "it has 1000000000 tasks"),
    ],
)
def test_what_is_no_grid_is_refused(tmp_path: Path, content: str, part: str) -> None:
    assert part in findings_of(tmp_path, content)[0]


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert grid.main([str(tmp_path / "none.json"), "--count"]) == 2
    assert f"{tmp_path}/none.json cannot be read (No such file" in capsys.readouterr().err


def test_the_table_shows_what_set_takes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = written(tmp_path, [{"name": "7", "SAC_SEED": "7", "x": True}, {"name": "a"}])
    assert grid.main([path]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "task  settings",
        '   0  name="7" SAC_SEED=7 x=true',
        "   1  name=a",
    ]


@pytest.mark.parametrize("python", ["python3.6", "/usr/bin/python3", sys.executable])
def test_it_needs_nothing_but_python(python: str, tmp_path: Path) -> None:
    if shutil.which(python) is None:
        pytest.skip(f"{python} is not installed")
    path = written(tmp_path, {"train_batch_size": [128, 256], "SAC_SEED": [0, 1, 2]})
    command = [python, "-S", "-E", str(ROOT / "tfagents_system" / "grid.py"), path, "--count"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if "command not found" in done.stderr:
        pytest.skip(f"{python} is not installed")
    assert (done.returncode, done.stdout) == (0, "6\n"), done.stderr
