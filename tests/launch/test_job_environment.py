"""What surrounds a run in its job: a prelude and a prefix."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.login_node import ROOT, User, refused


def surrounded(user: User, *, more: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """`run_script.sh` with more variables, up to Python."""
    user.write_vars(more)
    return user.run("run_script.sh", "vars.sh", **{"SAC_ALLOW_LOGIN": "1", **environ})


def test_the_prelude_runs_first_and_only_in_a_job(user: User) -> None:
    more = f"SAC_JOB_PRELUDE='echo loaded $NOTHING; export PATH={user.tools}/module:$PATH'\n"
    done = surrounded(user, more=more, SLURM_JOB_ID="7")
    assert done.stdout.startswith("loaded\n") and done.stdout.count("loaded") == 1
    assert "loaded" not in surrounded(user, more=more).stdout
    done = surrounded(user, more="SAC_JOB_PRELUDE='TOKEN=s3cret no_such_module load x'\n", SLURM_JOB_ID="7")
    assert "SAC_JOB_PRELUDE ends with exit code 127" in refused(done)[0] and "s3cret" not in done.stderr


def test_the_prefix_wraps_the_whole_run_once(user: User) -> None:
    (user.tools / "container").write_text(
        '#!/usr/bin/env bash\necho "inside $1"\necho "$*" >arguments\nshift\nINSIDE=1 exec "$@"\n'
    )
    (user.tools / "container").chmod(0o755)
    more = "SAC_EXEC_PREFIX='container image.sif'\nSAC_JOB_PRELUDE='echo prelude $INSIDE'\n"
    done = surrounded(user, more=more, SLURM_JOB_ID="7", SLURM_JWT="s3cret")
    assert done.stdout.startswith("prelude\ninside image.sif\n") and done.stdout.count("inside") == 1
    assert "trains with" in done.stdout
    arguments = (user.folder / "arguments").read_text()
    assert "SLURM_JOB_ID=7" in arguments and "s3cret" not in arguments, "everybody can read them"
    done = surrounded(user, more="SAC_EXEC_PREFIX='no_such_program x'\n")
    assert "there is no program no_such_program" in refused(done)[0]


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
