"""SAC_EXEC_PREFIX: in a container a run finds the image's Python, and all of its job that it needs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.login_node import User

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


@pytest.mark.parametrize(
    ("script", "options", "module", "clean"),
    [
        ("run_script.sh", ["--set", "discount=0.9"], "launch.start", True),
        ("run_script.sh", ["--set", "discount=0.9"], "launch.start", False),
        ("join_script.sh", ["--to", "a run"], "cluster.join", True),
    ],
)
def test_a_job_is_itself_inside(
    user: User, container: Container, script: str, options: list[str], module: str, clean: bool
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


def test_what_the_image_has_activated_stays(user: User, container: Container) -> None:
    """The vars file of a submission names the login node's environment."""
    prefix = container.prefix(clean=False, VIRTUAL_ENV=str(IMAGE), CONDA_PREFIX="/opt/conda")
    host = user.tools.parent / "env"
    user.write_vars(f"SAC_EXEC_PREFIX='{prefix}'\nVIRTUAL_ENV={host}\nCONDA_PREFIX={host}\n")
    python, _, environ = told(user.run("run_script.sh", "vars.sh", SLURM_JOB_ID="7"))
    assert (environ["VIRTUAL_ENV"], environ["CONDA_PREFIX"]) == (str(IMAGE), "/opt/conda")
    assert python == f"{IMAGE}/bin/python"


def test_a_prefix_that_is_no_container_changes_nothing(user: User) -> None:
    user.add_tool("../env/bin/python", PYTHON)
    user.write_vars("SAC_EXEC_PREFIX='nice -n 1'\n")
    python, _, environ = told(user.run("run_script.sh", "vars.sh", SLURM_JOB_ID="7", CONDA_PREFIX="/opt/conda"))
    env = str(user.tools.parent / "env")
    assert (python, environ["VIRTUAL_ENV"], environ["CONDA_PREFIX"]) == (f"{env}/bin/python", env, "/opt/conda")
    assert "TFAGENTS_CONTAINER" not in environ
