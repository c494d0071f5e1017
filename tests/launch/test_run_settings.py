"""--set, grid files and what a run began with, brought together before a start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tfagents_system.launch import run_directory
from tfagents_system.launch.run_paths import RunPaths
from tfagents_system.launch.run_settings import RunSettings, carried, resolve
from tfagents_system.launch.variables import RunVariables, read_variables
from tfagents_system.overrides import Overrides


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "p.py").write_text("")
    (tmp_path / "c.json").write_text('{"horizon": 20}')
    counts = dict.fromkeys(
        ("SAC_REVERB_CPUS", "SAC_TRAIN_CPUS", "SAC_NUM_COLLECT_WORKERS", "SAC_COLLECT_WORKER_CPUS"), "1"
    )
    files = {"SAC_PARAMS": str(tmp_path / "p.py"), "SAC_CONFIG": str(tmp_path / "c.json")}
    return {**counts, **files, "SAC_EXP_NAME": "try", "SAC_EXP_DIR": str(tmp_path / "run"), "SAC_SEED": "0"}


def settle(environ: dict[str, str], *assignments: str) -> RunSettings:
    return resolve(environ, assignments, vars_file=None, root=Path("/nowhere"))


def begin(environ: dict[str, str], *assignments: str) -> RunPaths:
    """A run directory as the first start with these settings leaves it."""
    settings = settle(environ, *assignments)
    assert settings.findings == ()
    values, findings = read_variables(settings.environ, vars_file=None, root=Path("/nowhere"))
    assert findings == []
    paths = RunPaths(values["exp_dir"])
    run_directory.write_inputs(paths, RunVariables(**values), 3, settings.overrides)
    return paths


def with_grid(environ: dict[str, str], folder: Path, grid: Any, task: str | None) -> dict[str, str]:
    (folder / "grid.json").write_text(json.dumps(grid))
    more = {"SAC_GRID": str(folder / "grid.json")}
    return {**environ, **more, **({"SLURM_ARRAY_TASK_ID": task} if task is not None else {})}


def test_variables_win_over_the_environment_and_the_rest_is_carried(environ: dict[str, str]) -> None:
    settings = settle(environ, "SAC_SEED=5", "train_batch_size=512", "config.horizon=9")
    assert settings.findings == () and settings.environ["SAC_SEED"] == "5"
    assert carried(settings.environ) == settings.overrides
    assert settings.overrides.params == {"train_batch_size": 512} and settings.overrides.config == {"horizon": 9}
    assert carried({}) == Overrides()


def test_a_grid_file_gives_the_settings_of_the_task(environ: dict[str, str], tmp_path: Path) -> None:
    grid = {"train_batch_size": [128, 256], "SAC_SEED": [7, 8]}
    settings = settle(with_grid(environ, tmp_path, grid, "2"), "config.horizon=9")
    assert settings.findings == () and settings.environ["SAC_SEED"] == "7"
    assert settings.overrides.settings() == {"train_batch_size": 256, "config.horizon": 9, "SAC_SEED": "7"}


def test_a_grid_needs_a_task_of_its_own_and_nothing_twice(environ: dict[str, str], tmp_path: Path) -> None:
    grid = {"train_batch_size": [128, 256], "SAC_SED": [1]}
    assert (
        "needs the task's number in SLURM_ARRAY_TASK_ID" in settle(with_grid(environ, tmp_path, grid, None)).findings[0]
    )
    assert "there is no task 2, ids go from 0 to 1" in settle(with_grid(environ, tmp_path, grid, "2")).findings[0]
    findings = settle(with_grid(environ, tmp_path, grid, "1"), "train_batch_size=3", "nonsense").findings
    assert len(findings) == 3
    assert "nonsense" in findings[0] and "train_batch_size is given twice, by --set and task 1" in "".join(findings)
    assert "SAC_SED is not a known variable: SAC_SEED" in "".join(findings)
    assert settle(with_grid(environ, tmp_path, grid, None), "SAC_GRID=").findings == ()
    missing = settle({**environ, "SAC_GRID": "none.json", "SLURM_ARRAY_TASK_ID": "1"}).findings
    assert len(missing) == 1 and "SAC_GRID=none.json must be an existing file" in missing[0]


@pytest.mark.parametrize(
    ("seed", "task", "assignments", "expected"),
    [
        ("0", "3", (), "3"),
        ("", "3", (), "3"),
        ("7", "3", (), "10"),
        ("no", "3", (), "no"),
        ("0", "3", ("SAC_SEED=0",), "0"),
        ("0", "", (), "0"),
    ],
)
def test_the_task_of_an_array_without_a_grid_is_added_to_its_seed(
    environ: dict[str, str], seed: str, task: str, assignments: tuple[str, ...], expected: str
) -> None:
    settings = settle({**environ, "SAC_SEED": seed, "SLURM_ARRAY_TASK_ID": task}, *assignments)
    assert settings.environ["SAC_SEED"] == expected


def test_a_grids_tasks_have_the_seed_that_is_given(environ: dict[str, str], tmp_path: Path) -> None:
    assert settle(with_grid(environ, tmp_path, {"discount": [0.9, 0.99]}, "1")).environ["SAC_SEED"] == "0"


def test_a_run_goes_on_with_what_it_began_with(environ: dict[str, str]) -> None:
    paths = begin(environ, "train_batch_size=512", "config.horizon=9", "SAC_LOG_SECS=3", "SAC_EXP_NAME=try")
    assert json.loads(paths.overrides.read_text()) == {
        "params": {"train_batch_size": 512}, "config": {"horizon": 9}, "variables": {"SAC_LOG_SECS": "3"},
    }  # fmt: skip
    again = settle(environ)
    assert again.overrides.settings() == {"train_batch_size": 512, "config.horizon": 9, "SAC_LOG_SECS": "3"}
    assert again.environ["SAC_LOG_SECS"] == "3"
    same = settle(environ, "config.horizon=9", "SAC_LOG_SECS=4")  # A variable may change between two starts.
    assert same.findings == () and same.environ["SAC_LOG_SECS"] == "4"
    assert same.overrides.params == {"train_batch_size": 512}


def test_other_settings_for_a_run_that_has_begun_are_refused(environ: dict[str, str]) -> None:
    paths = begin(environ, "train_batch_size=512")
    findings = settle(environ, "train_batch_size=256", "discount=0.9").findings
    assert len(findings) == 1
    assert findings[0].startswith(
        "train_batch_size=256 discount=0.9 is not what this run began with (train_batch_size=512)"
    )
    assert str(paths.overrides) in findings[0] and "another SAC_EXP_NAME" in findings[0]


def test_a_run_without_settings_keeps_none(environ: dict[str, str]) -> None:
    paths = begin(environ)
    assert not paths.overrides.exists()
    assert "began with (no settings)" in settle(environ, "discount=0.9").findings[0]


def test_what_an_aborted_first_start_left_does_not_count(environ: dict[str, str]) -> None:
    paths = begin(environ, "train_batch_size=512")
    paths.run_json.unlink()
    assert begin(environ, "discount=0.9") == paths
    assert json.loads(paths.overrides.read_text())["params"] == {"discount": 0.9}
    paths.run_json.unlink()
    begin(environ)
    assert not paths.overrides.exists()


def test_a_damaged_overrides_file_is_told(environ: dict[str, str]) -> None:
    paths = begin(environ, "train_batch_size=512")
    paths.overrides.write_text("{")
    assert "overrides.json cannot be read" in settle(environ).findings[0]
