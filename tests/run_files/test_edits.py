"""A run is what it began with: later starts compare the user's files with its copies, and refuse edits with a diff."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.starts_of_a_project import PARAMS, ROOT, Starter, loaded_mass, train, write
from tfagents_system.run_files import run_directory, run_inputs
from tfagents_system.run_files.run_inputs import Edit
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.variables import read_variables


@pytest.fixture
def run(environ: dict[str, str], start: Starter) -> RunPaths:
    """One that has begun with its copies."""
    assert start().code == 0
    paths = RunPaths(Path(environ["SAC_EXP_DIR"]))
    train(paths)
    return paths


def names(run: RunPaths, project: Path, params: str = "params.py") -> list[str]:
    found = run_inputs.edits(run, project / params, project / "config.json")
    return [str(edit).replace(f"{project}/", "") for edit in found]


def test_params_json_and_imported_modules_are_compared_and_nothing_else(run: RunPaths, project: Path) -> None:
    assert set(run_directory.read_run_json(run)["began_with"]) == {"params", "config", "params/mass_of_robot.py"}
    (project / "models/robot.xml").write_text("<other/>")
    (project / "plot.py").write_text("import mass_of_robot\n")
    assert names(run, project) == []
    (project / "config.json").write_text('{"horizon": 30}')
    (project / "mass_of_robot.py").unlink()
    (project / "params.py").rename(project / "my_params.py")
    assert names(run, project, "my_params.py") == ["config.json", "mass_of_robot.py (gone)"]
    (project / "my_params.py").write_text(PARAMS + "# A comment.\n")
    assert names(run, project, "my_params.py")[0] == "my_params.py"


def test_a_start_with_edited_files_is_refused_and_keep_goes_on_with_the_copies(
    run: RunPaths, project: Path, start: Starter
) -> None:
    (project / "mass_of_robot.py").write_text("MASS = 2\n")
    refused = start("--set", "nosuch=1", SAC_TRAIN_CPUS="none")
    assert refused.code == 2 and "nosuch" in refused.told and "SAC_TRAIN_CPUS=none" in refused.told, "with all else"
    assert "  | -MASS = 1\n  | +MASS = 2\n" in refused.told
    from_line = f"--from {run.exp_dir} --set SAC_EXP_NAME=run_2"
    for words in ("--keep goes on", "--fresh moves the old run aside", from_line):
        assert words in refused.told
    assert start("--keep").code == 0 and loaded_mass(run)[0] == "1"
    unreadable = start()
    (project / "mass_of_robot.py").write_text("MASS = 1\n")
    assert unreadable.code == 2 and start().code == 0, "what is undone is no edit"


def test_an_edit_of_the_runs_own_copies_is_none_of_the_users(run: RunPaths, project: Path) -> None:
    run.params.write_text(PARAMS + "X = 1\n")
    assert names(run, project) == []


def test_jobs_that_are_requeued_and_tasks_never_compare(run: RunPaths, project: Path, start: Starter) -> None:
    (project / "mass_of_robot.py").write_text("MASS = 2\n")
    for again in ({"SLURM_RESTART_COUNT": "1"}, {"TFAGENTS_SUBMITTED_AGAIN": "1"}):
        done = start(**again)
        assert done.code == 0 and loaded_mass(run)[0] == "1", done.told
    submitted = start("--check", SLURM_JOB_ID="0", TFAGENTS_JOB_MB="4000")
    assert submitted.code == 2 and "mass_of_robot.py. " in submitted.told and "--fresh" not in submitted.told


def test_tasks_of_an_array_go_on_with_their_copies(environ: dict[str, str], project: Path, start: Starter) -> None:
    task = {"SLURM_ARRAY_TASK_ID": "3"}
    assert start(**task).code == 0
    paths = RunPaths(Path(environ["SAC_EXP_DIR"] + "_task_3"))
    train(paths)
    (project / "mass_of_robot.py").write_text("MASS = 2\n")
    assert start(**task).code == 0 and loaded_mass(paths)[0] == "1"


def test_a_fresh_run_moves_the_one_before_aside(run: RunPaths, project: Path, start: Starter) -> None:
    (project / "params.py").write_text("import no_such_module\n")
    failed = start("--fresh")
    assert failed.code == 2 and "no_such_module" in failed.told
    assert run.status_json.exists() and run.params.read_text() == PARAMS, "it stays where it is"
    (project / "params.py").write_text(PARAMS.replace("num_iter = 3", "num_iter = 4"))
    for number in (1, 2):
        done = start("--fresh", "--set", "gradient_clipping=0.5")
        assert done.code == 0, done.told
        assert not run.status_json.exists() and "num_iter = 4" in run.params.read_text()
        aside = RunPaths(run.exp_dir.with_name(f"run_before_{number}"))
        assert f"is in {aside.exp_dir} now" in done.told and aside.status_json.exists()
        train(run)
    assert RunPaths(run.exp_dir.with_name("run_before_1")).params.read_text() == PARAMS
    checked = start("--fresh", "--check")
    assert checked.code == 0 and "a new run, what is there is moved aside" in checked.told
    assert run.status_json.exists(), "a check moves nothing"


def test_a_requeued_job_starts_over_once(run: RunPaths, start: Starter) -> None:
    job = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}  # Its first start was killed before it came to that.
    done = start("--fresh", **job)
    assert done.code == 0 and "run_before_1" in done.told, done.told
    train(run)
    for again in (job, {"SLURM_JOB_ID": "9", "TFAGENTS_SUBMITTED_AGAIN": "7"}):
        done = start("--fresh", **again)
        assert done.code == 0 and "was done by an earlier start" in done.told
    assert start(SLURM_JOB_ID="8").code == 0
    assert json.loads(run.run_json.read_text())["jobs"] == ["7", "8"]
    assert len(list(run.exp_dir.parent.glob("run_before_*"))) == 1


@pytest.mark.parametrize("killed_at", range(8))
def test_a_start_that_is_killed_while_it_copies_is_repeated_by_the_next_one(
    killed_at: int, environ: dict[str, str], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(environ, folder=project)
    (project / "mass_of_robot.py").write_text("MASS = 2\n")
    calls = itertools.count()

    def dying(call: Callable[..., object]) -> Callable[..., object]:
        def run(*args: object, **kwargs: object) -> object:
            if next(calls) == killed_at:
                raise KeyboardInterrupt
            return call(*args, **kwargs)

        return run

    with monkeypatch.context() as patched:
        for name in ("rename", "replace", "rmdir"):
            patched.setattr(os, name, dying(getattr(os, name)))
        try:
            write(environ, folder=project)
        except KeyboardInterrupt:
            pass
    paths = write(environ, folder=project)
    assert (paths.params_folder / "mass_of_robot.py").read_text() == "MASS = 2\n"
    assert run_directory.read_run_json(paths)["params_files"]["mass_of_robot.py"]


def test_a_fresh_run_has_a_ring_of_its_own_on_scratch(environ: dict[str, str], project: Path, tmp_path: Path) -> None:
    environ["SAC_REPLAY_DIR"] = str(tmp_path / "scratch")
    ring = read_variables(environ, vars_file=None, root=ROOT)[0]["replay_dir"]
    ring.mkdir(parents=True)
    write(environ, folder=project)
    assert not ring.exists(), "it was of a run that is elsewhere now"


def test_long_differences_are_cut() -> None:
    edit = Edit("a.py", [f"x{k}" for k in range(100)], [f"y{k}" if k % 10 == 3 else f"x{k}" for k in range(100)])
    whole = list(edit.diff())
    shown = run_inputs.shown([edit])
    assert shown[:24] == whole[:24] and shown[24:] == [f"... and {len(whole) - 24} lines more"]
    assert whole[:7] == ["--- a.py of the run", "+++ a.py", "@@ -3,3 +3,3 @@", " x2", "-x3", "+y3", " x4"]
    assert list(Edit("a.csv", ["1"] * 60_000, ["2"]).diff()) == []


def test_differences_can_be_read_in_a_terminal() -> None:
    lines = run_inputs.shown([Edit("a.csv", ["1"], [f"\x1b[2J{300 * '5'}"])])
    assert f"+\\x1b[2J{152 * '5'}..." in lines and "\x1b" not in "".join(lines)
