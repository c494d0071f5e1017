"""A run keeps the folder of its params file, and runs it: an edit of a module beside them changes nothing unasked."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.support.starts_of_a_project import PARAMS, ROOT, Starter, loaded_mass, train, write
from tfagents_system.launch import prepare
from tfagents_system.run_files import params_folder
from tfagents_system.run_files.run_paths import RunPaths


def test_what_is_kept_of_a_folder(project: Path, tmp_path: Path) -> None:
    for name in (".git/config", "__pycache__/a.pyc", "logs/try/run.json", "env/pyvenv.cfg", "old/run.json", "own/x.py"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("")
    (project / "linked").symlink_to(project / "models")
    (project / "round").symlink_to(project)  # Followed once.
    (project / "password").write_text("secret")
    kept = params_folder.files_of(project, [project / "own", project / "password"])
    assert kept == ["config.json", "linked/robot.xml", "mass_of_robot.py", "models/robot.xml", "params.py"]
    params_folder.copy(project, kept, tmp_path / "copy")
    before = params_folder.digests(tmp_path / "copy", kept)
    assert params_folder.differences(before, params_folder.digests(project, kept)) == []
    (project / "models/robot.xml").write_text("<ROBOT/>")  # As long as before.
    (project / "own.py").write_text("")
    told = params_folder.differences({**before, "gone.py": ""}, params_folder.digests(project, [*kept, "own.py"]))
    assert told == ["gone gone.py", "changed linked/robot.xml", "changed models/robot.xml", "new own.py"]


def test_files_that_are_gone_by_now_are_none(tmp_path: Path) -> None:
    for name in ("params.py", "run.tmp"):
        (tmp_path / name).write_text(name)
    files = params_folder.files_of(tmp_path)
    (tmp_path / "run.tmp").unlink()
    assert files == ["params.py", "run.tmp"] and list(params_folder.digests(tmp_path, files)) == ["params.py"]


@pytest.mark.parametrize("limit", ["files", "bytes", "time"])
def test_a_folder_that_is_too_large_is_told(limit: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if limit == "files":
        monkeypatch.setattr(params_folder, "MOST_FILES", 3)
    elif limit == "time":
        monkeypatch.setattr(params_folder, "LOOK_SECS", -1.0)
    else:
        monkeypatch.setattr(params_folder, "MOST_MB", 1)
        (project / "weights.bin").write_bytes(bytes((1 << 20) + 1))
    with pytest.raises(params_folder.TooLargeError, match=f"{project} has .* files with . MiB or more"):
        params_folder.files_of(project)


def test_the_checkouts_own_files_are_none_of_the_users() -> None:
    kept = params_folder.files_of(ROOT)
    assert "training_variables.sh" in kept
    assert not [name for name in kept if name.startswith(("tests/", "tfagents_system/", "docs/"))]
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


def test_a_run_goes_on_with_the_modules_that_it_began_with(
    environ: dict[str, str], project: Path, start: Starter
) -> None:
    done = start()
    assert done.code == 0, done.told
    paths = RunPaths(Path(environ["SAC_EXP_DIR"]))
    train(paths)
    (project / "mass_of_robot.py").write_text("MASS = 2\n")
    (project / "models/robot.xml").unlink()  # No start compares data.
    assert loaded_mass(paths) == ("1", paths.params_folder / "mass_of_robot.py")
    refused = start()
    assert refused.code == 2 and "Traceback" not in refused.told
    assert f"{project}/mass_of_robot.py. --keep goes on" in refused.told and "robot.xml" not in refused.told
    assert "  | -MASS = 1\n  | +MASS = 2\n" in refused.told
    kept = start("--keep")
    assert kept.code == 0 and "edited since" not in kept.told  # The copy has the robot's model.
    moved = paths.exp_dir.rename(paths.exp_dir.with_name("moved"))
    assert loaded_mass(RunPaths(moved)) == ("1", moved / "params/mass_of_robot.py")


def test_a_file_that_cannot_be_read_is_named(
    environ: dict[str, str], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: Path, files: list[str]) -> dict[str, str]:
        raise PermissionError(13, "Permission denied", str(project / "secret.key"))

    monkeypatch.setattr(params_folder, "digests", refuse)
    preparation = prepare.Preparation(environ, None)
    preparation._look_at_files()
    (error,) = preparation.checks["params folder"].errors
    assert f"{project}/secret.key in the folder of SAC_PARAMS can't be read" in error


@pytest.mark.parametrize("is_full", [True, False])
def test_a_temporary_folder_that_is_full_is_told_as_such(
    environ: dict[str, str], project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    def fill(target: int, source: int, offset: int, count: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def find_none(*_: object, **__: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp', '/var/tmp']")

    preparation = prepare.Preparation(environ, None)
    if is_full:
        monkeypatch.setattr("os.sendfile", fill)  # Of shutil, which names the source then.
        words = f"can't be copied in {tempfile.gettempdir()} (No space left on device)"
    else:
        monkeypatch.setattr(tempfile, "TemporaryDirectory", find_none)
        words = "can't be copied (No usable temporary directory found in ['/tmp', '/var/tmp'])"
    preparation._look_at_files()
    (error,) = preparation.checks["params folder"].errors
    assert error == f"the folder of SAC_PARAMS {words}: free space there, or set TMPDIR to another folder"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_copy_behind(
    environ: dict[str, str], tmp_path: Path, project: Path, number: signal.Signals
) -> None:
    (project / "params.py").write_text(f"import time\nopen({str(tmp_path / 'begun')!r}, 'w')\ntime.sleep(60)\n{PARAMS}")
    (tmp_path / "tmp").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "tfagents_system.launch.prepare"],
        env={**environ, "TMPDIR": str(tmp_path / "tmp")},
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # Tests may be run under nohup.
    )
    try:
        deadline = time.monotonic() + 60.0
        while not (tmp_path / "begun").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        made = {path.name[:10] for path in (tmp_path / "tmp").glob("sac_*")}
        assert made >= {"sac_params", "sac_prior_"}
        process.send_signal(number)
        assert process.wait(10) == -number
    finally:
        process.kill()
        process.wait()
    assert not list((tmp_path / "tmp").glob("sac_p*"))


def test_what_lies_outside_of_the_folder_is_told_with_the_remedy(project: Path, start: Starter) -> None:
    (project.parent / "outside_of_project.py").write_text("")
    outside = "import sys\nfrom pathlib import Path\nsys.path.insert(0, str(Path(__file__).parents[1]))\n"
    (project / "params.py").write_text(f"{outside}import outside_of_project\n{PARAMS}")
    refused = start("--check")
    assert refused.code == 2
    lines = refused.told.splitlines()
    assert any(line.startswith("ERROR params") and str(project / "params.py") in line for line in lines), lines
    assert any("Give an absolute one" in line and str(project) in line for line in lines), lines


def test_runs_beside_the_params_are_not_kept(environ: dict[str, str], project: Path) -> None:
    (project / "runs/sweep").mkdir(parents=True)
    (project / "runs/sweep/task_0.log").touch()
    del environ["SAC_EXP_DIR"]
    preparation = prepare.Preparation(environ | {"SAC_LOGS_DIR": str(project / "runs")}, None)
    preparation._look_at_files()
    folder = preparation.files().folder
    assert folder is not None
    kept = params_folder.files_of(folder)
    preparation.close()
    assert kept == ["config.json", "mass_of_robot.py", "models/robot.xml", "params.py"]


def test_a_folder_beyond_the_limits_is_a_note(
    environ: dict[str, str], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(params_folder, "MOST_FILES", 3)
    preparation = prepare.Preparation(environ, None)
    preparation._look_at_files()
    (note,) = preparation.checks["params folder"].notes
    assert preparation.files().folder is None and "only params.py is kept" in note and "folder of their own" in note


def test_a_run_without_an_update_takes_the_folder_as_it_is_now(environ: dict[str, str], project: Path) -> None:
    paths = write(environ, folder=project)
    paths.replay.mkdir()
    write(environ, folder=project)
    assert paths.replay.exists()
    (project / "mass_of_robot.py").write_text("MASS = 3\n")
    write(environ, folder=project)
    assert not paths.replay.exists() and (paths.params_folder / "mass_of_robot.py").read_text() == "MASS = 3\n"
    assert json.loads(paths.run_json.read_text())["params_kept"] == str(paths.params_folder / "params.py")
