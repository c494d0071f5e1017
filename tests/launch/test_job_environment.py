"""What surrounds a run in its job: a prelude, a prefix, a packed environment."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

from tests.support.login_node import ROOT, User, refused
from tests.support.waiting import until
from tfagents_system.launch import clean


def surrounded(user: User, *, more: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """`run_script.sh` with more variables, up to Python."""
    user.write_vars(more)
    return user.run("run_script.sh", "vars.sh", **{"SAC_ALLOW_LOGIN": "1", **environ})


def test_the_prelude_runs_first_and_only_in_a_job(user: User) -> None:
    more = f"SAC_JOB_PRELUDE='echo loaded $NOTHING; export PATH={user.tools}/module:$PATH'\n"
    done = surrounded(user, more=more, SLURM_JOB_ID="7")
    assert done.stdout.startswith("loaded\n") and done.stdout.count("loaded") == 1
    assert "loaded" not in surrounded(user, more=more).stdout
    done = surrounded(user, more="SAC_JOB_PRELUDE='no_such_module load x'\n", SLURM_JOB_ID="7")
    assert "SAC_JOB_PRELUDE ends with exit code 127" in refused(done)[0]


def test_the_prefix_wraps_the_whole_run_once(user: User) -> None:
    (user.tools / "container").write_text('#!/usr/bin/env bash\necho "inside $1"\nshift\nINSIDE=1 exec "$@"\n')
    (user.tools / "container").chmod(0o755)
    more = "SAC_EXEC_PREFIX='container image.sif'\nSAC_JOB_PRELUDE='echo prelude $INSIDE'\n"
    done = surrounded(user, more=more, SLURM_JOB_ID="7")
    assert done.stdout.startswith("prelude\ninside image.sif\n") and done.stdout.count("inside") == 1
    assert "trains with" in done.stdout
    done = surrounded(user, more="SAC_EXEC_PREFIX='no_such_program x'\n")
    assert "there is no program no_such_program" in refused(done)[0]


def pack_environment(user: User, folder: Path) -> tuple[str, Path]:
    """More variables, and an empty scratch folder."""
    packed, scratch = folder / "packed", folder / "scratch"
    (packed / "bin").mkdir(parents=True)
    scratch.mkdir()
    shutil.copy2(user.tools / "../env/bin/python", packed / "bin/python")
    subprocess.run(["tar", "-czf", str(folder / "env.tar.gz"), "-C", str(packed), "."], check=True)
    return f"SAC_PACKED_ENV={folder}/env.tar.gz\n", scratch


def test_a_packed_environment_is_unpacked_once(user: User, tmp_path: Path) -> None:
    more, scratch = pack_environment(user, tmp_path)
    environ = {"VIRTUAL_ENV": "", "TMPDIR": str(scratch), "SLURM_JOB_ID": "7"}
    for words in (1, 0):
        for lock in scratch.glob("*/.lock"):
            os.utime(lock, (1, 1))
        done = surrounded(user, more=more, **environ)
        assert done.stderr.count("unpacking") == words and f"trains with {scratch}/sac_env_" in done.stdout, done
    (folder,) = scratch.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / ".lock").stat().st_mtime > 1  # By it `clean` sees when it was last used.
    (folder / ".complete").unlink()
    folder.chmod(0o755)
    assert "unpacking" in surrounded(user, more=more, **environ).stderr
    assert folder.stat().st_mode & 0o777 == 0o700
    # What anybody may have put there: a link, also to a folder of ours, and another user's folder.
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    assert "is a link, or is another user's: set TMPDIR" in surrounded(user, more=more, **environ).stderr
    folder.unlink()
    (tmp_path / "moved").rename(folder)
    if os.geteuid() == 0:
        os.chown(folder, 65534, 65534)
        done = surrounded(user, more=more, **environ)
        assert "is a link, or is another user's: set TMPDIR" in done.stderr and "trains with" not in done.stdout


def test_an_environment_that_a_clean_up_takes_away_is_unpacked_anew(user: User, tmp_path: Path) -> None:
    more, scratch = pack_environment(user, tmp_path)
    environ = {"VIRTUAL_ENV": "", "TMPDIR": str(scratch), "SLURM_JOB_ID": "7"}
    assert surrounded(user, more=more, **environ).returncode == 0
    (folder,) = scratch.iterdir()
    lock = folder / ".lock"
    for path in (folder, lock):
        os.utime(path, (1, 1))
    assert [found.path for found in clean.unused_environments(str(scratch))] == [str(folder)]
    told: list[subprocess.CompletedProcess[str]] = []
    start = threading.Thread(target=lambda: told.append(surrounded(user, more=more, **environ)))
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # As a clean-up does.
        start.start()
        until(lambda: lock.stat().st_mtime > 1, 30.0, "the start opens it")
        folder.rename(tmp_path / "aside")
    start.join()
    shutil.rmtree(tmp_path / "aside")
    assert "unpacking" in told[0].stderr and f"trains with {folder}/env/bin/python" in told[0].stdout
    assert (folder / "env/bin/python").exists() and (folder / ".complete").exists()
    assert lock.exists() and folder.stat().st_mode & 0o777 == 0o700  # With a lock of its own.


def test_a_package_that_cannot_be_written_runs_all_the_same(user: User, tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    for name in ("run_script.sh", "train_script.sh", "setup.sh", "pyproject.toml", "requirements.lock"):
        shutil.copy2(ROOT / name, package)
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "tfagents_system", package / "tfagents_system", ignore=ignore)
    before = sorted(package.rglob("*"))
    user.write_vars("SAC_TRAIN_CPUS=none SAC_PARAMS=no.py\n")
    subprocess.run(["chmod", "-R", "a-w", str(package)], check=True)
    try:
        # Root writes wherever it likes, unless it gives that up.
        drop = ["setpriv", "--bounding-set=-dac_override,-dac_read_search,-fowner"] if os.geteuid() == 0 else []
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("SAC_", "SLURM_"))}
        done = subprocess.run(
            [*drop, str(package / "run_script.sh"), "--check", "vars.sh"],
            cwd=user.folder, env={**environ, "VIRTUAL_ENV": sys.prefix}, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert "SAC_TRAIN_CPUS=none must be" in done.stdout and "Traceback" not in done.stderr, done
        assert sorted(package.rglob("*")) == before
    finally:
        subprocess.run(["chmod", "-R", "u+w", str(package)], check=True)
