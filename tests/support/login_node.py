"""A user's folder on a login node, whose sbatch and scontrol note what they are asked."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


VARS = """
SAC_EXP_NAME=test SAC_EXP_DIR={folder}/run SAC_PARAMS=my_params.py SAC_CONFIG=my.json SAC_SEED=3
SAC_REVERB_CPUS=2 SAC_TRAIN_CPUS=4 SAC_NUM_COLLECT_WORKERS=5 SAC_COLLECT_WORKER_CPUS=2
"""


FAKE_SBATCH = """#!/usr/bin/env bash
printf '%s\\n' "$*" >>"$0.calls"
env -0 >"$0.environ"
echo "Submitted batch job 12"
"""


FAKE_PYTHON = """#!/usr/bin/env bash
case "$*" in *required_packages*) exit 0 ;; esac
echo "trains with $0 and seed $SAC_SEED"
"""


FAKE_SCONTROL = """#!/usr/bin/env bash
case "$*" in
  "show config") echo "MaxArraySize            = 101" ;;
  ping) echo "Slurmctld(primary) at head is ${STATE:-UP}" ;;
  *) exit 1 ;;
esac
"""


def be_on_login_node(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process finds SLURM's programs, and is no job."""
    tools.mkdir()
    for name, text in (("sbatch", FAKE_SBATCH), ("scontrol", FAKE_SCONTROL)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


class User:
    """A user's folder on a login node."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tools = folder / "a user's", folder / "tools"
        self.exp_dir = self.folder / "run"
        for path in (self.folder, self.tools):
            path.mkdir()
        (folder / "env/bin").mkdir(parents=True)
        self.add_tool("sbatch", FAKE_SBATCH)
        self.add_tool("scontrol", FAKE_SCONTROL)
        self.add_tool("../env/bin/python", FAKE_PYTHON)
        (self.folder / "my_params.py").write_text("class TrainParams: ...\n")
        (self.folder / "my.json").write_text("{}")
        self.write_vars()

    def add_tool(self, name: str, text: str) -> None:
        (self.tools / name).write_text(text)
        (self.tools / name).chmod(0o755)

    def write_vars(self, more: str = "") -> None:
        folder = str(self.folder).replace("'", "\\'").replace(" ", "\\ ")
        (self.folder / "vars.sh").write_text(VARS.format(folder=folder) + more)

    def submit(self, *options: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return self.run("submit.sh", "vars.sh", *options, **environ)

    def environ(self, **more: str) -> dict[str, str]:
        """Of a shell in which this user has activated an environment."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SAC_", "SLURM_", "CONDA", "TFAGENTS_"))
        }
        path = f"{self.tools}:{os.environ['PATH']}"
        return {**inherited, "PATH": path, "VIRTUAL_ENV": str(self.tools.parent / "env"), **more}

    def run(self, script: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(ROOT / "tfagents_system/launch" / script), *arguments],
            cwd=self.folder, env=self.environ(**environ), capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    @property
    def calls(self) -> list[str]:
        calls = self.tools / "sbatch.calls"
        return calls.read_text().splitlines() if calls.exists() else []

    @property
    def environ_of_sbatch(self) -> dict[str, str]:
        pairs = (self.tools / "sbatch.environ").read_text().split("\0")
        return dict(pair.split("=", 1) for pair in pairs if "=" in pair)

    @property
    def snapshot(self) -> Path:
        (snapshot,) = self.folder.glob("run*/snapshot/*")
        return snapshot

    def resolved(self, **environ: str) -> dict[str, str]:
        """The variables as a job reads them."""
        return sourced(self.snapshot / "variables.sh", **environ)


def sourced(variables: Path, **environ: str) -> dict[str, str]:
    """What a job has after it has read variables.sh."""
    done = subprocess.run(
        ["bash", "-c", 'set -a; source "$0"; env -0', str(variables)],
        env={"PATH": os.environ["PATH"], **environ}, capture_output=True, text=True, check=True, timeout=10,
    )  # fmt: skip
    return dict(line.split("=", 1) for line in done.stdout.split("\0") if "=" in line)


def refused(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The findings of a submission that was refused."""
    assert done.returncode == 2, done
    return [line.removeprefix("error: ") for line in done.stderr.splitlines() if line.startswith("error: ")]
