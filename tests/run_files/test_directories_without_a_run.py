"""What a start makes of a directory with folders as a run has them, but without run.json: they may be anyone's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.starts_of_a_project import Starter, write
from tfagents_system.run_files import experience_folders
from tfagents_system.run_files.run_paths import RunPaths

FOLDERS = ("replay", "checkpoints", "policies", "episodes", "journals")


@pytest.fixture
def paths(environ: dict[str, str]) -> RunPaths:
    return RunPaths(Path(environ["SAC_EXP_DIR"]))


def fill(paths: RunPaths, *names: str) -> list[Path]:
    files = [paths.exp_dir / name / "kept.txt" for name in names]
    for file in files:
        file.parent.mkdir(parents=True)
        file.write_text("years of work")
    return files


def test_a_start_is_refused_and_deletes_nothing_where_run_json_is_missing(paths: RunPaths, start: Starter) -> None:
    files = fill(paths, *FOLDERS)
    for options in ([], ["--check"]):
        refused = start(*options)
        assert refused.code == 2 and all(file.exists() for file in files), refused.told
        assert (
            f"the run directory {paths.exp_dir} has {' and '.join(FOLDERS)} and no run.json, without which nothing "
            "says whose they are: copy run.json as well if it is a run that was copied in part, choose another "
            "SAC_EXP_NAME for a new run, or give --fresh, which moves the whole folder aside"
        ) in refused.told
    assert not paths.run_json.exists()


def test_fresh_moves_such_a_directory_aside(paths: RunPaths, start: Starter) -> None:
    (file,) = fill(paths, "policies")
    checked = start("--check", "--fresh")
    assert checked.code == 0 and "a new run, what is there is moved aside" in checked.told and file.exists()
    done = start("--fresh")
    assert done.code == 0, done.told
    aside = paths.exp_dir.with_name("run_before_1")
    assert f"what was in {paths.exp_dir} is in {aside} now" in done.told
    assert (aside / "policies/kept.txt").read_text() == "years of work"
    assert paths.run_json.exists() and not paths.policies.exists()


def test_other_and_empty_folders_are_in_nobodys_way(paths: RunPaths, start: Starter) -> None:
    (other,) = fill(paths, "data")
    paths.replay.mkdir()
    assert start().code == 0 and other.exists()


def test_even_what_comes_after_the_check_is_not_deleted(
    environ: dict[str, str], project: Path, paths: RunPaths
) -> None:
    files = fill(paths, *FOLDERS)
    write(environ, folder=project)
    assert all(file.exists() for file in files)


@pytest.mark.parametrize("name", ["replay", "checkpoints"])
def test_nothing_is_deleted_behind_a_link(
    project: Path, paths: RunPaths, tmp_path: Path, name: str, start: Starter
) -> None:
    """Somebody may have put it there to have the files on another disk, beside others."""
    assert start().code == 0
    elsewhere = tmp_path / "large_disk"
    (elsewhere / "thesis").mkdir(parents=True)
    (paths.exp_dir / name).symlink_to(elsewhere)
    assert start().code == 0, "it goes on with what is there"
    before = sorted(tmp_path.rglob("*"))
    (project / "mass_of_robot.py").write_text("MASS = 2\n")
    refused = start()
    assert refused.code == 2 and "starts over" not in refused.told and sorted(tmp_path.rglob("*")) == before
    assert f"{paths.exp_dir / name} is a link to {elsewhere}, and a start over would empty that folder" in refused.told


def test_fresh_is_refused_where_it_would_move_the_project_away(
    environ: dict[str, str], project: Path, start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "policies").mkdir()
    (project / "policies/mine").touch()
    paths = RunPaths(project)
    inside = f"{environ['SAC_PARAMS']} and {environ['SAC_CONFIG']}"
    for options in (["--fresh"], ["--fresh", "--check"]):
        refused = start(*options, SAC_EXP_DIR=str(project))
        assert refused.code == 2 and (project / "params.py").exists()
        assert (
            f"the run directory {project} has {inside} in it, so --fresh can't move it aside: choose another "
            "SAC_EXP_NAME for a new run"
        ) in refused.told
    advice = start(SAC_EXP_DIR=str(project)).told
    assert "copied in part or choose another SAC_EXP_NAME for a new run\n" in advice and "--fresh" not in advice
    assert experience_folders.why_not_moved(paths, [project.parent]) is None
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == project)
    assert "is a mount point, so --fresh" in str(experience_folders.why_not_moved(paths, []))


def test_folders_out_of_reach_are_no_fault_of_theirs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert experience_folders.fault_of(RunPaths(tmp_path / "file")) is None
