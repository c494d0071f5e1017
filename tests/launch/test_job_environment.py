"""What surrounds a run in its job: a prelude and a prefix."""

from __future__ import annotations

import subprocess

from tests.support.login_node import User, refused


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
