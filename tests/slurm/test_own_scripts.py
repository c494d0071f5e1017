"""A user's own job scripts, and the login node, with a real SLURM. The runs end at their first check: that is quick."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.cluster import SlurmCluster

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "vars.sh").write_text("SAC_TRAIN_CPUS=none SAC_JOB_PRELUDE='echo prelude on $SLURMD_NODENAME'\n")
    return {"VIRTUAL_ENV": sys.prefix}


@pytest.mark.parametrize("line", ["{run} vars.sh", "srun --cpus-per-task=$SLURM_CPUS_PER_TASK {run} vars.sh", ""])
def test_a_job_script_that_calls_run_script_or_is_it(
    cluster: SlurmCluster, tmp_path: Path, environ: dict[str, str], line: str
) -> None:
    (tmp_path / "my.sbatch").write_text(f"#!/bin/bash\ncd {tmp_path}\n{line.format(run=ROOT / 'run_script.sh')}\n")
    # SLURM runs a copy of a script, which lies elsewhere.
    script = (f"{tmp_path}/my.sbatch",) if line else ("run_script.sh", f"{tmp_path}/vars.sh")
    options = ("--wait", "--cpus-per-task=2", "--nodelist=n1", f"--output={tmp_path}/out")
    done = cluster.run("sbatch", *options, *script, cwd=ROOT, environ=environ)
    output = (tmp_path / "out").read_text()
    assert done.returncode == 2, output
    assert "prelude on n1" in output and "SAC_TRAIN_CPUS=none must be" in output


def test_the_login_node_does_not_train(cluster: SlurmCluster, tmp_path: Path, environ: dict[str, str]) -> None:
    run = str(ROOT / "run_script.sh")
    done = cluster.run(run, "vars.sh", cwd=tmp_path, environ=environ)
    assert done.returncode == 2 and "this machine submits to a SLURM cluster" in done.stderr
    done = cluster.run(run, "vars.sh", cwd=tmp_path, environ={**environ, "SAC_ALLOW_LOGIN": "1"})
    assert done.returncode == 2 and "SAC_TRAIN_CPUS=none must be" in done.stderr
