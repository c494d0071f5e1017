"""SAC_EXEC_PREFIX: in a container a run finds the image's Python, and all of its job that it needs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.login_node import User, refused

# The image's Python: tells what it was started with, and its environment.
PYTHON = r"""#!/usr/bin/env bash
case "$*" in *required_packages*) [[ -z ${LACKS:-} ]] && exit; echo "$LACKS"; exit 1 ;; -c*) echo 3.11; exit ;; esac
echo "python $0"
echo "arguments $*"
env -0 | tr '\n\0' ' \n' | sed 's/^/env /'
"""
# A prefix that wraps itself forever must not take the machine along.
ONCE = r"""#!/usr/bin/env bash
echo "entered" >>"$0.log"
(($(wc -l <"$0.log") < 3)) || { echo "wrapped again" >&2; exit 99; }
printf 'prefix %s\n' "$@"
exec "$@"
"""
IMAGE = Path("/mnt")  # Where the image's programs are, inside alone.


def works(*command: str) -> bool:
    return shutil.which(command[0]) is not None and subprocess.run(command, capture_output=True).returncode == 0


class Container:
    """Words for SAC_EXEC_PREFIX: bubblewrap, else a mount namespace. The user's own environment is not there inside."""

    def __init__(self, user: User, folder: Path) -> None:
        self.image, self.once = folder / "image", user.tools / "once"
        (self.image / "bin").mkdir(parents=True)
        self.add_python("python")
        user.add_tool("once", ONCE)
        self._hidden = user.tools.parent / "env"
        self._inside = user.tools / "enter"
        user.add_tool(
            "enter", f'#!/bin/sh\nmount --bind {self.image} {IMAGE}\nmount -t tmpfs none {self._hidden}\nexec "$@"\n'
        )

    def add_python(self, name: str) -> None:
        (self.image / "bin" / name).write_text(PYTHON)
        (self.image / "bin" / name).chmod(0o755)

    def prefix(self, *, clean: bool, **environ: str) -> str:
        environ = {"PATH": f"{IMAGE}/bin:/usr/bin:/bin", **environ}
        if works("bwrap", "--dev-bind", "/", "/", "true"):
            cleared = ["--clearenv"] if clean else []
            sets = [word for name, value in environ.items() for word in ("--setenv", name, value)]
            mounts = ["--dev-bind", "/", "/", "--bind", str(self.image), str(IMAGE), "--tmpfs", str(self._hidden)]
            return " ".join([str(self.once), "bwrap", *cleared, *sets, *mounts])
        sets = [f"{name}={value}" for name, value in environ.items()]
        return " ".join(
            [str(self.once), "unshare", "--mount", str(self._inside), "env", *(["-i"] if clean else []), *sets]
        )

    @property
    def times_entered(self) -> int:
        log = Path(f"{self.once}.log")
        return len(log.read_text().splitlines()) if log.exists() else 0


@pytest.fixture
def container(user: User, tmp_path: Path) -> Container:
    return Container(user, tmp_path)


def told(done: subprocess.CompletedProcess[str]) -> tuple[str, str, dict[str, str]]:
    """(the Python that was started at the end, its arguments, its environment)."""
    assert done.returncode == 0, done
    lines = [line.partition(" ") for line in done.stdout.splitlines()]
    (python,) = (rest for word, _, rest in lines if word == "python")
    (arguments,) = (rest for word, _, rest in lines if word == "arguments")
    return python, arguments, dict(rest.split("=", 1) for word, _, rest in lines if word == "env" and "=" in rest)


JOB = {
    "SLURM_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3", "SLURM_CPUS_ON_NODE": "2", "SLURM_RESTART_COUNT": "1",
    "CUDA_VISIBLE_DEVICES": "1", "SAC_SAVE_DEADLINE_SECS": "9", "SAC_EXPERT_POLICY": "two words", "TOKEN": "secret",
}  # fmt: skip


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    ("script", "options", "module"),
    [
        ("run_script.sh", ["--set", "discount=0.9"], "launch.start"),
        ("join_script.sh", ["--to", "a run"], "cluster.join"),
    ],
)
def test_a_job_is_itself_inside(
    user: User, container: Container, clean: bool, script: str, options: list[str], module: str
) -> None:
    prelude = "SAC_JOB_PRELUDE='echo prelude $SLURM_JOB_ID; export LOADED=secret'\n"
    user.write_vars(f"SAC_EXEC_PREFIX='{container.prefix(clean=clean)}'\n{prelude}")
    done = user.run(script, "vars.sh", *options, **JOB)
    python, arguments, environ = told(done)
    assert container.times_entered == 1 and done.stdout.count("prelude 7") == 1
    assert python == f"{IMAGE}/bin/python" and module in arguments and options[-1] in arguments
    assert {name: environ[name] for name in JOB if name.startswith(("SLURM_", "SAC_"))} == {
        name: value for name, value in JOB.items() if name.startswith(("SLURM_", "SAC_"))
    }
    assert environ["CUDA_VISIBLE_DEVICES"] == "-1" and "VIRTUAL_ENV" not in environ and "CONDA_PREFIX" not in environ
    if script == "run_script.sh":
        assert environ["TFAGENTS_CUDA_VISIBLE_DEVICES"] == "1", "the job's GPU, for the trainer"
    assert ("TOKEN" in environ, "LOADED" in environ) == (not clean, not clean)
    assert "TFAGENTS_SURROUNDED" not in environ
    # What everybody on the machine can read.
    assert "secret" not in "".join(line for line in done.stdout.splitlines() if line.startswith("prefix "))


def test_the_jobs_scratch_is_the_same_inside(user: User, container: Container, tmp_path: Path) -> None:
    """The vars file is read once more there."""
    user.write_vars(f"SAC_EXEC_PREFIX='{container.prefix(clean=True)}'\nSAC_REPLAY_DIR=$TMPDIR/ring\n")
    environ = told(user.run("run_script.sh", "vars.sh", SLURM_JOB_ID="7", TMPDIR=str(tmp_path)))[2]
    assert (environ["SAC_REPLAY_DIR"], environ["TMPDIR"]) == (f"{tmp_path}/ring", str(tmp_path))


def test_what_the_image_has_activated_stays(user: User, container: Container) -> None:
    """The vars file of a submission names the login node's environment."""
    prefix = container.prefix(clean=False, VIRTUAL_ENV=str(IMAGE), CONDA_PREFIX="/opt/conda")
    host = user.tools.parent / "env"
    user.write_vars(f"SAC_EXEC_PREFIX='{prefix}'\nVIRTUAL_ENV={host}\nCONDA_PREFIX={host}\n")
    python, _, environ = told(user.run("run_script.sh", "vars.sh", SLURM_JOB_ID="7"))
    assert (environ["VIRTUAL_ENV"], environ["CONDA_PREFIX"]) == (str(IMAGE), "/opt/conda")
    assert python == f"{IMAGE}/bin/python"


def test_an_environment_of_the_host_that_is_seen_inside_comes_last(user: User, container: Container) -> None:
    home = user.tools.parent / "home_env/bin"
    home.mkdir(parents=True)
    shutil.copy2(container.image / "bin/python", home / "python")
    user.write_vars(f"SAC_EXEC_PREFIX='{container.prefix(clean=True)}'\n")
    environ = {"SLURM_JOB_ID": "7", "VIRTUAL_ENV": str(home.parent)}
    assert told(user.run("run_script.sh", "vars.sh", **environ))[0] == f"{IMAGE}/bin/python"
    (container.image / "bin/python").unlink()
    Path(f"{container.once}.log").unlink()
    python, _, inside = told(user.run("run_script.sh", "vars.sh", **environ))
    assert python == f"{home}/python" and "VIRTUAL_ENV" not in inside


def test_a_prefix_that_is_no_container_changes_nothing(user: User) -> None:
    user.add_tool("../env/bin/python", PYTHON)
    user.write_vars("SAC_EXEC_PREFIX='nice -n 1'\n")
    python, _, environ = told(user.run("run_script.sh", "vars.sh", SLURM_JOB_ID="7", CONDA_PREFIX="/opt/conda"))
    env = str(user.tools.parent / "env")
    assert (python, environ["VIRTUAL_ENV"], environ["CONDA_PREFIX"]) == (f"{env}/bin/python", env, "/opt/conda")
    assert "TFAGENTS_CONTAINER" not in environ


def test_the_python_that_is_named_is_one_of_the_image(user: User, container: Container) -> None:
    container.add_python("special")
    user.write_vars(f"SAC_EXEC_PREFIX='{container.prefix(clean=True)}'\nSAC_PYTHON={IMAGE}/bin/special\n")
    assert told(user.run("run_script.sh", "vars.sh", SLURM_JOB_ID="7"))[0] == f"{IMAGE}/bin/special"
    lacking = container.prefix(clean=True, LACKS="numpy==1.26.4")
    user.write_vars(f"SAC_EXEC_PREFIX='{lacking}'\nSAC_PYTHON=special\n")
    Path(f"{container.once}.log").unlink()
    (finding,) = refused(user.run("run_script.sh", "vars.sh", SLURM_JOB_ID="7"))
    assert "SAC_PYTHON=special does not hold the required packages: numpy==1.26.4" in finding


def test_a_sweep_and_its_gpu_reach_the_inside(user: User, container: Container) -> None:
    user.write_vars(f"SAC_EXEC_PREFIX='{container.prefix(clean=True)}'\nCUDA_VISIBLE_DEVICES=0,1\n")
    done = user.run("run_script.sh", "vars.sh", SAC_ALLOW_LOGIN="1", TFAGENTS_CUDA_VISIBLE_DEVICES="1")
    assert told(done)[2]["TFAGENTS_CUDA_VISIBLE_DEVICES"] == "1"


def test_a_python_elsewhere_is_that_of_submissions(user: User, tmp_path: Path) -> None:
    env = tmp_path / "else where" / "env"
    (env / "bin").mkdir(parents=True)
    (env / "bin/python").write_text(PYTHON)
    (env / "bin/python").chmod(0o755)
    user.write_vars(f"SAC_PYTHON='{env}/bin/python'\n")
    environ = {"VIRTUAL_ENV": "", "PATH": f"{user.tools}:/usr/bin:/bin"}
    done = user.submit(**environ)
    assert done.returncode == 0, done.stderr
    assert user.resolved()["SAC_PYTHON"] == f"{env}/bin/python"
    # The job has what the submission has frozen.
    job = subprocess.run(
        [str(user.snapshot / "package/tfagents_system/launch/run_script.sh"), str(user.snapshot / "variables.sh")],
        cwd=user.folder, env={**environ, "SLURM_JOB_ID": "7", "HOME": os.environ.get("HOME", "/")},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert told(job)[0] == f"{env}/bin/python"
