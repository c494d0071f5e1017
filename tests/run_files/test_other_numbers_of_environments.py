"""A deterministic run that goes on with other workers says that its weights will be others."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.starts_of_a_project import train, write
from tfagents_system.run_files.repeated_weights import not_repeated
from tfagents_system.run_files.run_paths import RunPaths

BEGAN = {"num_collect_workers": 2, "envs_per_worker": 3, "train_cpus": 2, "deterministic": True}


def notes(folder: Path, began: dict[str, Any], train_step: int = 5, **now: Any) -> list[str]:
    paths = RunPaths(folder)
    paths.run_json.write_text(json.dumps({"settings": began}))
    paths.status_json.write_text(json.dumps({"roles": {"trainer": {"train_step": train_step}}}))
    return not_repeated(paths, {**BEGAN, **now})


@pytest.mark.parametrize(
    ("now", "told"),
    [
        ({"envs_per_worker": 1}, ["SAC_ENVS_PER_WORKER=1 (was 3)"]),
        ({"train_cpus": 1}, ["SAC_TRAIN_CPUS=1 (was 2)"]),
        ({}, []),
    ],
    ids=["fewer", "fewer CPUs", "same"],
)
def test_another_number_is_told(tmp_path: Path, now: dict[str, Any], told: list[str]) -> None:
    assert [note.partition(" changes")[0] for note in notes(tmp_path, BEGAN, **now)] == told


def test_only_of_a_deterministic_run_that_has_begun(tmp_path: Path) -> None:
    assert notes(tmp_path, BEGAN, train_step=0, envs_per_worker=1) == []
    assert notes(tmp_path, BEGAN, deterministic=False, envs_per_worker=1) == []
    assert notes(tmp_path, BEGAN | {"deterministic": False}, envs_per_worker=1) == []
    assert len(notes(tmp_path, BEGAN, envs_per_worker=4, num_collect_workers=1)) == 2
    assert not_repeated(None, {**BEGAN, "envs_per_worker": 1}) == []


def test_the_trainers_cpus_are_recorded(environ: dict[str, str], project: Path) -> None:
    paths = write(environ, folder=project)
    train(paths)
    assert not_repeated(paths, {"deterministic": True, "train_cpus": 3}) == [], "it was not deterministic"
    paths.status_json.unlink()
    paths = write({**environ, "SAC_DETERMINISTIC": "1"}, folder=project)
    train(paths)
    (note,) = not_repeated(paths, {"deterministic": True, "train_cpus": 3})
    assert note.startswith("SAC_TRAIN_CPUS=3 (was 1) changes the order in which updates are summed up in a run with")
