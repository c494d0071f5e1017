"""--set, grid files and what a run began with, brought together before a start."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tfagents_system.launch.run_settings import EDITS, FRESH, RunSettings, resolve
from tfagents_system.run_files import run_directory
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.resolved import Overrides, Settings
from tfagents_system.settings.variables import RunVariables, read_variables


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


def begin(environ: dict[str, str], *assignments: str, attributes: dict[str, Any] | None = None) -> RunPaths:
    """A run directory as the first start with these settings leaves it, after an update."""
    settings = settle(environ, *assignments)
    assert settings.findings == ()
    values, findings = read_variables(settings.environ, vars_file=None, root=Path("/nowhere"))
    assert findings == []
    paths = RunPaths(values["exp_dir"])
    run_directory.write_inputs(
        paths, Settings(RunVariables(**values), settings.overrides, attributes or {}, {"horizon": 5})
    )
    train(paths)
    return paths


def train(paths: RunPaths) -> None:
    """As if updates had been done."""
    paths.status_json.write_text('{"run": {}, "roles": {"trainer": {"train_step": 5}}}')


def with_grid(environ: dict[str, str], folder: Path, grid: Any, task: str | None) -> dict[str, str]:
    (folder / "grid.json").write_text(json.dumps(grid))
    more = {"SAC_GRID": str(folder / "grid.json")}
    return {**environ, **more, **({"SLURM_ARRAY_TASK_ID": task} if task is not None else {})}


def test_settings_and_the_grids_task_win_over_the_environment(environ: dict[str, str], tmp_path: Path) -> None:
    settings = settle(environ, "SAC_SEED=5", "batch_size=512", "config.horizon=9")
    assert settings.findings == () and settings.environ["SAC_SEED"] == "5"
    assert settings.overrides.params == {"batch_size": 512} and settings.overrides.config == {"horizon": 9}
    grid = {"batch_size": [128, 256], "SAC_SEED": [7, 8]}
    settings = settle(with_grid(environ, tmp_path, grid, "2"), "config.horizon=9")
    assert settings.findings == () and settings.environ["SAC_SEED"] == "7"
    assert settings.overrides.settings() == {"batch_size": 256, "config.horizon": 9, "SAC_SEED": "7"}


def test_a_grid_needs_a_task_of_its_own_and_nothing_twice(environ: dict[str, str], tmp_path: Path) -> None:
    grid = {"batch_size": [128, 256], "SAC_SED": [1]}
    assert (
        "needs the task's number in SLURM_ARRAY_TASK_ID" in settle(with_grid(environ, tmp_path, grid, None)).findings[0]
    )
    assert "there is no task 2, ids go from 0 to 1" in settle(with_grid(environ, tmp_path, grid, "2")).findings[0]
    findings = settle(with_grid(environ, tmp_path, grid, "1"), "batch_size=3", "nonsense").findings
    assert len(findings) == 3
    assert "nonsense" in findings[0] and "batch_size is given twice, by --set and task 1" in "".join(findings)
    assert "SAC_SED is not a known variable: SAC_SEED" in "".join(findings)
    removed = settle(with_grid(environ, tmp_path, grid, None), "SAC_GRID=")
    assert removed.findings == () and removed.overrides.variables == {}
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


def test_a_run_goes_on_with_what_it_began_with(environ: dict[str, str]) -> None:
    paths = begin(environ, "batch_size=512", "config.horizon=9", "SAC_STRAGGLER_SECS=3", "SAC_EXP_NAME=try")
    assert Overrides.of_run(run_directory.read_run_json(paths)) == Overrides(
        {"batch_size": 512}, {"horizon": 9}, {"SAC_STRAGGLER_SECS": "3"}
    )
    again = settle(environ)
    assert again.overrides.settings() == {"batch_size": 512, "config.horizon": 9, "SAC_STRAGGLER_SECS": "3"}
    assert again.environ["SAC_STRAGGLER_SECS"] == "3"
    same = settle(environ, "config.horizon=9", "SAC_STRAGGLER_SECS=4")  # A variable may change between two starts.
    assert same.findings == () and same.environ["SAC_STRAGGLER_SECS"] == "4"
    assert same.overrides.params == {"batch_size": 512}


@pytest.mark.parametrize(
    "given", [["target_entropy=-3", "critic_optimizer.name=sgd"], ["config.horizon=9", "n_step=256"]]
)
def test_other_settings_for_a_run_that_has_begun_are_refused(environ: dict[str, str], given: list[str]) -> None:
    paths = begin(environ, "n_step=512", "critic_optimizer.momentum=0.5")
    (finding,) = settle(environ, *given).findings
    assert "is not what this run began with (n_step=512 critic_optimizer.momentum=0.5)" in finding
    assert all(text in finding for text in given)
    assert f"--from {paths.exp_dir} --name {paths.exp_dir.name}_2" in finding
    assert "(--set may change num_iter and others, which " in finding and len(finding) < 600, "not all of their names"
    assert settle(environ, 'critic_optimizer={"momentum": 0.5}').findings == ()


@pytest.mark.parametrize(
    ("began", "wanted", "told"),
    [
        ({"SAC_SEED": [0]}, {"SAC_SEED": [5]}, "SAC_SEED=5 is not what the run in"),
        ({"SAC_SEED": ["05"]}, {"SAC_SEED": [5]}, None),
        ({"batch_size": [128]}, {"batch_size": [256]}, r"batch_size=256 .* \(batch_size=128\)"),
        ({"discount": [0.9]}, {"batch_size": [256]}, r"batch_size=256 .* \(nothing was given for it\)"),
        ({"SAC_STRAGGLER_SECS": [3]}, {"SAC_STRAGGLER_SECS": [4]}, r"SAC_STRAGGLER_SECS=4 .* \(SAC_STRAGGLER_SECS=3\)"),
        ({"num_iter": [3], "stop_when.eval_return": [1]}, {"num_iter": [4], "stop_when.eval_return": [2]}, None),
        ({"batch_size": [128], "SAC_SEED": [1]}, {"batch_size": [128], "SAC_SEED": [1]}, None),
    ],
)
def test_a_task_goes_on_only_with_the_run_of_its_own_settings(
    environ: dict[str, str], tmp_path: Path, began: Any, wanted: Any, told: str | None
) -> None:
    begin(with_grid(environ, tmp_path, began, "0"))
    environ = with_grid(environ, tmp_path, wanted, "0")
    findings = settle(environ).findings
    assert len(findings) == (told is not None)
    assert told is None or re.match(told, findings[0])
    assert settle({**environ, "TFAGENTS_EDITS": "fresh"}).findings == ()


def test_a_misspelt_name_is_told_with_the_one_that_is_meant(environ: dict[str, str]) -> None:
    begin(environ, "n_step=512", attributes={"n_step": 512, "mine": 1})
    settings = settle(environ, "batchsize=3", "config.horizn=3", "mine=2")
    *unknown, finding = settings.findings
    assert unknown == [
        "--set: batchsize is not known: batch_size is meant", "config.horizn is not known, config.horizon is meant",
    ]  # fmt: skip
    assert finding.startswith("mine=2 is not what this run began with (n_step=512), and a run stays")
    assert settings.overrides.settings() == {"n_step": 512}, "so that nobody tells them again"


def test_what_is_fixed_for_a_run_stays_and_is_told(environ: dict[str, str]) -> None:
    paths = begin(environ, "SAC_SEED=6")
    other = {**environ, "SAC_DETERMINISTIC": "1", "SAC_ENVS_PER_WORKER": ""}
    assert not settle(other | {"SAC_SEED": "7"}).findings, "a vars file may say so"
    settings = settle(other, "SAC_SEED=7")
    (finding,) = settings.findings
    assert finding.startswith("--set SAC_SEED=7: this run began with SAC_SEED=6, which stays: leave it out, ")
    assert settings.notes == ("this run began with SAC_DETERMINISTIC=0, which stays; SAC_DETERMINISTIC=1 is ignored",)
    assert settings.overrides.variables == {"SAC_SEED": "6"}
    fixed = ("SAC_SEED", "SAC_DETERMINISTIC", "SAC_ENVS_PER_WORKER")
    assert [settings.environ[name] for name in fixed] == ["6", "0", "1"]
    assert begin({**environ, "SAC_SEED": "8"}) == paths
    assert Settings.read(paths.run_json).variables.seed == 6
    assert settle({**environ, "SAC_SEED": "8", "TFAGENTS_EDITS": "fresh"}).environ["SAC_SEED"] == "8"


def test_all_settings_of_a_run_are_read_back_without_keys(environ: dict[str, str]) -> None:
    environ |= {"SAC_JOB_PRELUDE": "export HF_TOKEN=s3cret", "SAC_SAVE_DEADLINE_SECS": "20"}
    attributes = {"limit": float("inf"), "limits": [1.0, {"low": float("-inf")}], "none": float("nan")}
    paths = begin(environ, "batch_size=512", attributes=attributes)
    settings = Settings.read(paths.run_json)
    assert settings.attributes == {"limit": "inf", "limits": [1.0, {"low": "-inf"}], "none": "nan"}
    assert settings.config == {"horizon": 5} and settings.overrides.params == {"batch_size": 512}
    values, _ = read_variables(environ, vars_file=None, root=Path("/nowhere"))
    assert settings.variables == dataclasses.replace(RunVariables(**values), job_prelude=None)
    assert "s3cret" not in paths.run_json.read_text()
    run_directory.write_start(paths, dataclasses.replace(settings.variables, reverb_port=8123))
    assert Settings.read(paths.run_json).variables.reverb_port == 8123
    assert Settings.read(paths.run_json).overrides == settings.overrides


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_damaged_run_json_is_told(environ: dict[str, str], content: str) -> None:
    paths = begin(environ, "batch_size=512")
    paths.run_json.write_text(content)
    assert "run.json" in settle(environ).findings[0]


def test_a_run_goes_on_with_as_many_workers_as_it_began_with(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    automatic = {**environ, "SAC_NUM_COLLECT_WORKERS": "auto"}
    names = ("SAC_TRAIN_CPUS", "SAC_NUM_COLLECT_WORKERS", "SAC_SHARE_CPUS")
    monkeypatch.setattr("tfagents_system.settings.variables.usable_cpus", lambda environ: 8)
    begin(automatic)
    monkeypatch.setattr("tfagents_system.settings.variables.usable_cpus", lambda environ: 4)
    settings = settle(automatic)
    assert tuple(map(settings.environ.get, names)) == ("1", "6", "1") and settings.findings == ()
    fresh = settle({**automatic, EDITS: FRESH})
    assert tuple(map(fresh.environ.get, names)) == ("1", "2", "0")
