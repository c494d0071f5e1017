"""Runs that really train, as jobs of a real SLURM."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cluster import SlurmCluster
from tests.support.slurm_runs import make_run, outputs, submit

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_an_array_trains_what_was_submitted_whatever_is_edited_meanwhile(cluster: SlurmCluster, tmp_path: Path) -> None:
    run = make_run(tmp_path, num_iter=3, seed=5)
    job = submit(cluster, run, "--hold", "--array", "1-1", check=True)
    (checked,) = tmp_path.glob("run_array/snapshot/*/check.txt")
    assert "of the job's memory are available" in checked.read_text() and "ready to start" in checked.read_text()
    names = ("my_params.py", "beside.py", "my_config.json", "my_vars.sh")
    for name in names:
        (tmp_path / name).write_text("this is not what was submitted")
    assert cluster.run("scontrol", "release", job).returncode == 0
    assert cluster.wait_for_state(f"{job}_1", ("COMPLETED", "FAILED"), 250.0) == "COMPLETED", outputs(tmp_path)
    exp_dir = tmp_path / "run_task_1"
    status = json.loads((exp_dir / "status.json").read_text())
    assert status["run"]["state"] == "done" and status["roles"]["trainer"]["train_step"] == 3 * 20
    assert json.loads((exp_dir / "run.json").read_text())["seed"] == 5 + 1
    assert not (tmp_path / "run").exists()
