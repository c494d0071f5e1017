"""What submit.sh freezes for its job, and of an array; sbatch itself is a fake one."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from pathlib import Path
from unittest import mock

import pytest

from tests.support.login_node import ROOT, User, refused
from tfagents_system.launch.vars_file import read_vars_file
from tfagents_system.run_files import params_folder
from tfagents_system.settings.variables import read_variables

TELLING_PYTHON = """#!/usr/bin/env bash
case "$*" in *required_packages*) exit 0 ;; esac
echo "PATH=$PATH KEPT=$KEPT LOST=$LOST"
"""


def test_the_snapshot_holds_what_the_run_needs_and_nothing_else(user: User) -> None:
    (user.folder / "parts/deep").mkdir(parents=True)
    (user.folder / "parts/deep/robot.xml").write_text("<robot/>")
    (user.folder / "link.py").symlink_to(ROOT / "setup.sh")
    for unwanted in ("logs/old/x", ".git/x", "__pycache__/x", "env/pyvenv.cfg", "other/run.json"):
        (user.folder / unwanted).parent.mkdir(parents=True)
        (user.folder / unwanted).touch()
    assert user.submit().returncode == 0
    copied = {
        str(path.relative_to(user.snapshot / "params")) for path in user.snapshot.glob("params/**/*") if path.is_file()
    }
    assert copied == {"my_params.py", "my.json", "vars.sh", "link.py", "parts/deep/robot.xml"}
    assert not (user.snapshot / "params/link.py").is_symlink()
    package = user.snapshot / "package"
    assert (package / "tfagents_system/launch/run_script.sh").stat().st_mode & 0o111
    assert (package / "tfagents_system/sac_train.py").read_bytes() == (
        ROOT / "tfagents_system/sac_train.py"
    ).read_bytes()
    assert not list(package.rglob("__pycache__"))
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    assert (user.snapshot / "package.commit").read_text() in (head, "no git repository\n")


def test_the_snapshot_has_what_a_run_keeps(user: User) -> None:
    (user.folder / "parts").mkdir()
    (user.folder / "parts/loop").symlink_to(user.folder)
    (user.folder / "parts/größe.xml").write_text("<robot/>")
    assert user.submit().returncode == 0
    files = params_folder.files_of(user.folder, [user.exp_dir])
    assert "parts/größe.xml" in files
    assert params_folder.digests(user.snapshot / "params", files) == params_folder.digests(user.folder, files)


def test_variables_are_resolved_when_submitted_but_for_what_only_the_job_knows(user: User) -> None:
    user.write_vars('SAC_REPLAY_DIR="$SLURM_TMPDIR/ring"\nSAC_ROBOT="it\'s $(date +%s) \\$HOME"\n')
    assert user.submit(SAC_ENV_PYTHON="my_params.py").returncode == 0
    values = user.resolved(SLURM_TMPDIR="/node/scratch 7", HOME="/elsewhere")
    assert values["SAC_PARAMS"] == f"{user.snapshot}/params/my_params.py"
    assert values["SAC_CONFIG"] == f"{user.snapshot}/config.json"
    assert values["SAC_EXP_DIR"] == str(user.exp_dir) and values["SAC_SEED"] == "3"
    assert values["SAC_REPLAY_DIR"] == "/node/scratch 7/ring"
    assert user.resolved()["SAC_REPLAY_DIR"] == "/tmp/ring"
    assert re.fullmatch(r"it's \d+ \$HOME", values["SAC_ROBOT"])
    assert values["SAC_ENV_PYTHON"] == str(user.folder / "my_params.py")
    assert values["VIRTUAL_ENV"] == f"{user.tools.parent}/env"
    assert (user.snapshot / "variables.sh").stat().st_mode & 0o777 == 0o600, "people put tokens into preludes"


def test_what_only_the_job_knows_is_expanded_there_in_the_users_own_variables_too(user: User) -> None:
    user.write_vars('XDG_CACHE_HOME="$TMPDIR/it\'s" TRACK=track_$SLURM_ARRAY_TASK_ID OTHER=1\n')
    done = user.submit("--array=0-3", "--no_check", TMPDIR="/login")
    assert done.returncode == 0, done.stderr
    values = user.resolved(SLURM_TMPDIR="/node", SLURM_ARRAY_TASK_ID="2", TMPDIR="/node/tmp")
    assert values["XDG_CACHE_HOME"] == "/node/tmp/it's" and values["TRACK"] == "track_2"
    assert "OTHER" not in values
    told = user.environ_of_sbatch
    assert not {"XDG_CACHE_HOME", "TRACK"} & told.keys() and told["OTHER"] == "1" and told["TMPDIR"] == "/login"


@pytest.mark.parametrize(
    ("lines", "tmpdir", "ring"),
    [
        ("export TMPDIR=/mine\nSAC_REPLAY_DIR=$TMPDIR/ring", "/mine", "/mine/ring"),
        ("TMPDIR=$SLURM_TMPDIR/mine SAC_REPLAY_DIR=$SLURM_TMPDIR/ring", "/node/tmp/mine", "/node/tmp/mine/ring"),
        ("SLURM_TMPDIR=/it\\'s SAC_REPLAY_DIR=$SLURM_TMPDIR/ring", "/node/tmp", "/it's/ring"),
        ("SLURM_TMPDIR=$TMPDIR/x SAC_REPLAY_DIR=$SLURM_TMPDIR/ring", "/node/tmp", "/node/tmp/x/ring"),
        ("SAC_REPLAY_DIR=${SLURM_TMPDIR:-/unused}/ring TMPDIR=/mine", "/mine", "/mine/ring"),
        ("unset TMPDIR", "", None),
    ],
)
def test_scratch_that_the_vars_file_sets_is_the_jobs(user: User, lines: str, tmpdir: str, ring: str | None) -> None:
    user.write_vars(f"{lines}\n")
    done = user.submit("--no_check", TMPDIR="/login")
    assert done.returncode == 0, done.stderr
    values = user.resolved(TMPDIR="/node/tmp")
    assert (values["TMPDIR"], values.get("SAC_REPLAY_DIR")) == (tmpdir, ring)
    told = user.environ_of_sbatch
    assert told["TMPDIR"] == "/login" and "SLURM_TMPDIR" not in told


def test_programs_of_the_login_node_find_their_libraries_and_variables_may_be_readonly(user: User) -> None:
    user.write_vars("LD_LIBRARY_PATH=$TMPDIR/lib:/login/lib\nreadonly CACHE=$TMPDIR/cache\n")
    done = user.submit("--no_check")
    assert done.returncode == 0, done.stderr
    told = user.environ_of_sbatch
    assert told["LD_LIBRARY_PATH"].endswith("/lib:/login/lib") and "CACHE" not in told
    assert user.resolved(TMPDIR="/t")["CACHE"] == "/t/cache"
    assert "LD_LIBRARY_PATH" not in (user.snapshot / "variables.sh").read_text()


def test_inside_the_prefix_what_the_prelude_made_of_a_variable_stays(user: User) -> None:
    user.add_tool("../env/bin/python", TELLING_PYTHON)
    user.write_vars(
        "SAC_EXEC_PREFIX='env -u LOST nice -n 1' \n"
        "KEPT=$SLURM_TMPDIR/kept LOST=$SLURM_TMPDIR/lost\n"
        "SAC_JOB_PRELUDE='export PATH=/module/bin:$PATH KEPT=/of/the/module'\n"
    )
    assert user.submit("--no_check").returncode == 0
    path = str(user.snapshot / "variables.sh")
    done = user.run("run_script.sh", path, SLURM_JOB_ID="7", SLURM_TMPDIR="/node")
    assert done.returncode == 0, done
    assert "PATH=/module/bin:" in done.stdout and "KEPT=/of/the/module" in done.stdout
    assert "LOST=/node/lost" in done.stdout, "what a container drops is given to it again"


def test_an_empty_variable_is_not_set_in_the_job_either(user: User) -> None:
    names = ["SAC_GRID", "SAC_LOGS_DIR", "SAC_EXPERT_POLICY", "SAC_REPLAY_DIR", "SAC_MLFLOW_URI"]
    names += ["SAC_FROM", "SAC_CREDENTIALS_DIR", "SAC_PASSWORD_FILE", "SAC_ENV_PYTHON"]
    user.write_vars("".join(f"{name}=\n" for name in names))
    done = user.submit()
    assert done.returncode == 0, done.stderr
    values = user.resolved(**dict.fromkeys(names, "/of/the/node"))  # As without --export=NONE.
    assert {name: values[name] for name in names} == dict.fromkeys(names, "")


@pytest.mark.parametrize(
    "places",
    ["", "SAC_LOGS_DIR=runs", "SAC_LOGS_DIR=../of_all/./runs", "SAC_LOGS_DIR=~/runs", "SAC_LOGS_DIR=/runs/../x"],
)  # fmt: skip
def test_the_run_directory_is_that_of_a_start(user: User, places: str) -> None:
    (user.folder / "linked").mkdir()
    (user.folder / "linked/vars.sh").symlink_to("../vars.sh")
    user.write_vars(f"unset SAC_EXP_DIR\n{places}\n")
    environ = read_vars_file(user.folder / "vars.sh", {"PATH": os.environ["PATH"], "HOME": "/home/user"})
    for path in ("vars.sh", "linked/vars.sh"):
        done = user.run("submit.sh", path, "--dry_run", HOME="/home/user")
        assert done.returncode == 0, done.stderr
        (told,) = re.findall(r"(?m)^run directory: (.*)$", done.stderr)
        with mock.patch.dict(os.environ, {"HOME": "/home/user"}), contextlib.chdir(user.folder):
            values, findings = read_variables(environ, vars_file=user.folder / path, root=ROOT)
        assert findings == [] and Path(told) == values["exp_dir"]


def test_an_array_is_not_called_as_a_task_is(user: User) -> None:
    user.write_vars("unset SAC_EXP_DIR\nSAC_EXP_NAME=walk_task_3\n")
    (finding,) = refused(user.submit("--array=0-4"))
    assert "must not end in _task_3 with --array" in finding
    assert user.submit("--dry_run").returncode == 0


def test_other_runs_are_not_copied(user: User) -> None:
    user.write_vars("unset SAC_EXP_DIR\nSAC_LOGS_DIR=runs\n")
    snapshots = [user.submit("--array=0-1"), user.submit()]
    assert [done.returncode for done in snapshots] == [0, 0], snapshots
    (params,) = user.folder.glob("runs/test/snapshot/*/params")
    assert {path.name for path in params.iterdir()} == {"my_params.py", "my.json", "vars.sh"}


def test_a_grid_is_frozen_too(user: User) -> None:
    (user.folder / "my_grid.json").write_text('{"discount": [0.9, 0.99]}')
    user.write_vars("SAC_GRID=my_grid.json\n")
    assert user.submit("--array=0-1").returncode == 0
    assert user.resolved()["SAC_GRID"] == f"{user.snapshot}/grid.json"
    assert (user.snapshot / "grid.json").read_bytes() == (user.folder / "my_grid.json").read_bytes()


def test_an_array_has_a_folder_of_its_own_and_a_throttle(user: User) -> None:
    assert user.submit("--array", "0-9").returncode == 0
    assert user.submit("--array=1,3%2").returncode == 0
    scripts = sorted((user.folder / "run_array").glob("snapshot/*/job.sbatch"))
    assert user.calls == [f"--array=0-9%10 {scripts[0]}", f"--array=1,3%2 {scripts[1]}"]
    assert "run_array/slurm-%A_%a.out" in scripts[0].read_text()
    (finding,) = refused(user.submit("--array=0-20,98-101"))
    assert "has task 101, and this cluster takes numbers below 101 (MaxArraySize)" in finding


def test_training_on_a_login_node_is_refused(user: User) -> None:
    assert "this machine submits to a SLURM cluster" in refused(user.run("run_script.sh", "vars.sh"))[0]
    # With it, without a controller that answers, or in a job, it goes on to its checks.
    for environ in ({"SAC_ALLOW_LOGIN": "1"}, {"STATE": "DOWN"}, {"SLURM_JOB_ID": "7"}):
        assert "trains with" in user.run("run_script.sh", "vars.sh", **environ).stdout
    assert "trains with" in user.run("run_script.sh", "--check", "vars.sh").stdout
