"""A run keeps the user's files as it began with them; starts compare them, and delete nothing that may be another's."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.starts_of_a_project import PARAMS, ROOT, Starter, loaded_mass, train, write
from tfagents_system.launch import prepare
from tfagents_system.run_files import params_folder, run_directory
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.settings.load_params import check_input_files, load_env_config, load_params, with_paths
from tfagents_system.settings.resolved import Overrides, read_run


def test_what_is_kept_of_a_folder(project: Path, tmp_path: Path) -> None:
    for name in (".git/config", "__pycache__/a.pyc", "logs/try/run.json", "env/pyvenv.cfg", "old/run.json", "own/x.py"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("")
    (project / "linked").symlink_to(project / "models")
    (project / "round").symlink_to(project)  # No link leads back up, nor do two of them.
    for one, other in (("mutual/a", "b"), ("mutual/b", "a")):
        (project / one).mkdir(parents=True)
        (project / one / "link").symlink_to(project / "mutual" / other)
    (outside := project.parent / "outside").mkdir()
    (outside / "shared.py").write_text("")
    (outside / "project").symlink_to(project)
    (project / "up").symlink_to(project.parent)  # Above the folder, it leads to others.
    (project / "password").write_text("secret")
    kept = params_folder.files_of(project, [project / "own", project / "password"])
    assert kept == [
        "config.json",
        "linked/robot.xml",
        "mass_of_robot.py",
        "models/robot.xml",
        "params.py",
        "up/outside/shared.py",
    ]
    params_folder.copy_files(project, kept, tmp_path / "copy")
    assert params_folder.digests_of(tmp_path / "copy", kept) == params_folder.digests_of(project, kept)
    ours = params_folder.files_of(ROOT)
    assert "training_variables.sh" in ours
    assert not [name for name in ours if name.startswith(("tests/", "tfagents_system/", "docs/"))]
    assert params_folder.is_kept_otherwise(ROOT / "tfagents_system/examples/pendulum/params.py")


@pytest.mark.parametrize(
    ("name", "stays"), [("progress.txt", True), ("models/robot.xml", True), ("mass_of_robot.py", False)]
)
def test_before_the_first_update_experience_stays_where_no_imported_module_has_changed(
    name: str, stays: bool, environ: dict[str, str], project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A killed run may have collected for long before its first update, and have written beside its params."""
    (project / "progress.txt").write_text("0 %")
    paths = write(environ, folder=project)
    paths.replay.mkdir()
    (project / name).write_text("other")
    (project / "new.txt").write_text("")
    write(environ, folder=project)
    assert paths.replay.exists() == stays
    assert ("it starts over" in capsys.readouterr().out) != stays
    assert (paths.params_folder / name).read_text() == "other" and (paths.params_folder / "new.txt").exists()


def test_what_lies_outside_of_the_folder_is_told_with_the_remedy(project: Path, start: Starter) -> None:
    (project.parent / "outside_of_project.py").write_text("")
    outside = "import sys\nfrom pathlib import Path\nsys.path.insert(0, str(Path(__file__).parents[1]))\n"
    (project / "params.py").write_text(f"{outside}import outside_of_project\n{PARAMS}")
    refused = start("--check")
    assert refused.code == 2
    lines = refused.told.splitlines()
    assert any(line.startswith("ERROR params") and str(project / "params.py") in line for line in lines), lines
    assert any("need an absolute path" in line and str(project) in line for line in lines), lines


def test_a_folder_beyond_the_limits_is_a_note(
    environ: dict[str, str], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(params_folder, "MOST_FILES", 3)
    preparation = prepare.Preparation(environ, None)
    preparation._look_at_files()
    (note,) = preparation.findings.notes
    assert preparation.files().folder is None and "only params.py is kept" in note and "folder of their own" in note


@pytest.fixture
def paths(environ: dict[str, str]) -> RunPaths:
    return RunPaths(Path(environ["SAC_EXP_DIR"]))


@pytest.fixture
def run(paths: RunPaths, start: Starter) -> RunPaths:
    """One that has begun with its copies."""
    assert start().code == 0
    train(paths)
    return paths


def names(run: RunPaths, project: Path, params: str = "params.py") -> list[str]:
    found = run_directory.edits(run, project / params, project / "config.json")
    return [str(edit).replace(f"{project}/", "") for edit in found]


def test_params_json_and_imported_modules_are_compared_and_nothing_else(run: RunPaths, project: Path) -> None:
    assert set(run_directory.read_run_json(run)["began_with"]) == {"params", "config", "params/mass_of_robot.py"}
    (project / "models/robot.xml").write_text("<other/>")
    (project / "plot.py").write_text("import mass_of_robot\n")
    run.params.write_text(PARAMS + "X = 1\n")  # An edit of the run's own copy is none of the user's.
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
    (project / "models/robot.xml").unlink()  # No start compares data.
    refused = start("--set", "nosuch=1", SAC_TRAIN_CPUS="none")
    assert refused.code == 2 and "Traceback" not in refused.told and "robot.xml" not in refused.told
    from_line = f"--from {run.exp_dir} --name run_2"
    edited = [f"{project}/mass_of_robot.py. --keep continues", "  | -MASS = 1\n  | +MASS = 2\n", from_line]
    for words in (*edited, "--fresh moves the old run aside", "nosuch", "SAC_TRAIN_CPUS=none"):
        assert words in refused.told
    kept = start("--keep", tries=True)
    assert kept.code == 0 and "edited since" not in kept.told  # The copy has the robot's model.
    assert loaded_mass(run) == ("1", run.params_folder / "mass_of_robot.py")
    (project / "mass_of_robot.py").write_text("MASS = 1\n")
    assert start("--set", "num_iter=4").code == 0, "what is undone is no edit"
    moved = run.exp_dir.rename(run.exp_dir.with_name("moved"))
    assert loaded_mass(RunPaths(moved)) == ("1", moved / "params/mass_of_robot.py")


def test_jobs_that_are_requeued_and_tasks_never_compare(run: RunPaths, project: Path, start: Starter) -> None:
    (project / "mass_of_robot.py").write_text("MASS = 2\n")
    done = start(SLURM_RESTART_COUNT="1")
    assert done.code == 0 and loaded_mass(run)[0] == "1", done.told
    submitted = start("--check", SLURM_JOB_ID="0", TFAGENTS_JOB_MB="4000")
    assert submitted.code == 2 and "mass_of_robot.py. " in submitted.told and "--fresh" not in submitted.told


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
    done = start("--fresh", **job)
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


def test_long_differences_are_cut(tmp_path: Path) -> None:
    def differences(before: list[str], now: list[str]) -> list[str]:
        for name, lines in (("before", before), ("a.py", now)):
            (tmp_path / name).write_text("\n".join(lines))
        return run_directory._differences(tmp_path / "before", tmp_path / "a.py", "a.py")

    assert run_directory.shown({"a.py": ["+\x1b[2J"]}) == ["+?[2J"]
    whole = differences([f"x{k}" for k in range(100)], [f"y{k}" if k % 10 == 3 else f"x{k}" for k in range(100)])
    shown = run_directory.shown({"a.py": whole})
    assert shown[:24] == whole[:24] and shown[24:] == [f"... and {len(whole) - 24} lines more"]
    assert whole[:7] == [f"--- {tmp_path}/a.py of the run", "+++ a.py", "@@ -3,3 +3,3 @@", " x2", "-x3", "+y3", " x4"]
    assert differences(["1"] * 60_000, ["2"]) == []


def text_of(paths: RunPaths) -> str:
    """Of the file that the run's programs read."""
    overrides = Overrides.of_run(read_run(paths.run_json))
    merged = overrides.merged(load_env_config(paths.config))
    loaded = load_params(paths.params, merged, origin=run_directory.origin_of_run(paths))
    return Path(loaded.env_config["input_files"]["laps"]).read_text()


def test_it_is_looked_for_in_the_run_then_beside_the_params_then_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "params/input_files").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    params, section = tmp_path / "params/params.py", {"input_files": {"laps": "mine.csv"}}

    def found() -> Path:
        return Path(with_paths(section, params)["input_files"]["laps"])

    assert with_paths(section, params) == section and with_paths({"horizon": 3}, params) == {"horizon": 3}
    (tmp_path / "params/input_files/laps.csv").touch()
    for name in ("here/mine.csv", "params/mine.csv"):
        (tmp_path / name).touch()
        assert found() == tmp_path / name, "no run's copy"
    (tmp_path / "params/run.json").write_text("{}")
    assert found() == tmp_path / "params/input_files/laps.csv"
    wrongs = ("laps.csv", {"laps": 3}, {"a/b": "laps.csv"}, {"laps": ""}, {"laps": "~nosuch/x"}, {"laps": 256 * "x"})
    for wrong in wrongs:
        (finding,) = check_input_files({"input_files": wrong})
        assert "correct it" in finding and with_paths({"input_files": wrong}, tmp_path) == {"input_files": wrong}


@pytest.mark.parametrize("place", ["beside the params", "elsewhere"])
def test_recording_it_again_changes_no_run_that_has_begun(
    place: str, paths: RunPaths, project: Path, start: Starter, tmp_path: Path
) -> None:
    laps = (project if place == "beside the params" else tmp_path) / "laps.csv"
    laps.write_text("1")
    named = laps.name if place == "beside the params" else str(laps)
    (project / "config.json").write_text(json.dumps({"horizon": 20, "input_files": {"laps": named}}))
    assert start().code == 0

    laps.write_text("2")
    assert text_of(paths) == "1"
    assert start().code == 0 and text_of(paths) == "2", "a run without an update takes files as they are"
    train(paths)
    laps.write_text("3")
    refused = start()
    assert refused.code == 2
    assert all(words in refused.told for words in (str(laps), "-2", "edited since the run began"))
    assert start("--keep").code == 0 and text_of(paths) == "2"
    laps.unlink()
    gone = start("--keep")
    assert gone.code == 0 and text_of(paths) == "2", "the run has its own"


FOLDERS = ("replay", "checkpoints", "policies", "episodes", "journals")


def fill(paths: RunPaths, *names: str) -> list[Path]:
    files = [paths.exp_dir / name / "kept.txt" for name in names]
    for file in files:
        file.parent.mkdir(parents=True)
        file.write_text("years of work")
    return files


def test_without_run_json_a_start_deletes_nothing_and_fresh_moves_all_aside(
    environ: dict[str, str], project: Path, paths: RunPaths, start: Starter
) -> None:
    (other,) = fill(paths, "data")
    paths.replay.mkdir()
    assert start().code == 0 and other.exists(), "other and empty folders are in nobody's way"
    shutil.rmtree(paths.exp_dir)
    files = fill(paths, *FOLDERS)
    for options in ([], ["--check"]):
        refused = start(*options)
        assert refused.code == 2 and all(file.exists() for file in files), refused.told
        assert (
            f"the run directory {paths.exp_dir} has {' and '.join(FOLDERS)} and no run.json, without which nothing "
            "says whose they are: copy run.json as well if it is a run that was copied in part, or choose another "
            "SAC_EXP_NAME for a new run; --fresh moves the whole folder aside"
        ) in refused.told
    assert not paths.run_json.exists()
    checked = start("--check", "--fresh")
    assert checked.code == 0 and "a new run, what is there is moved aside" in checked.told and files[0].exists()
    done = start("--fresh")
    aside = paths.exp_dir.with_name("run_before_1")
    assert done.code == 0 and f"what was in {paths.exp_dir} is in {aside} now" in done.told, done.told
    assert (aside / "policies/kept.txt").read_text() == "years of work"
    assert paths.run_json.exists() and not paths.policies.exists()
    shutil.rmtree(paths.exp_dir)
    files = fill(paths, *FOLDERS)  # After the check of a start.
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
    assert start().code == 0, "it continues with what is there"
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
    assert "copied in part, or choose another SAC_EXP_NAME for a new run\n" in advice and "--fresh" not in advice
    assert run_directory.why_not_moved(paths, [project.parent]) is None
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == project)
    assert "is a mount point, so --fresh" in str(run_directory.why_not_moved(paths, []))
