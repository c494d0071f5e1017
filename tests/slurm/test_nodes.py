"""A run over two nodes that is joined by a third job's worker and loses a node."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.cluster import SlurmCluster
from tests.support.slurm_runs import ROOT, make_run, outputs, submit
from tfagents_system.run_files.heartbeat import read_heartbeat
from tfagents_system.run_files.run_paths import RunPaths

pytestmark = pytest.mark.slow

STRAGGLER_SECS = 3


def test_workers_of_other_nodes_come_and_go(cluster: SlurmCluster, tmp_path: Path) -> None:
    iterations = 4000
    run = make_run(tmp_path, iterations, step_secs=0.01, straggler_secs=STRAGGLER_SECS)
    job = submit(cluster, run, "--nodes=2")

    def steps_of(worker: str) -> int:
        return int((read_heartbeat(RunPaths(run.exp_dir).heartbeat(worker)) or {}).get("steps") or 0)

    def iteration() -> int:
        return int(run.trainer().get("iteration") or 0)

    def everything() -> str:
        logs = [f"== {path}\n{path.read_text()[-1500:]}" for path in sorted(tmp_path.rglob("joined/*/logs/*.log"))]
        return "\n".join([outputs(tmp_path), run.logs(), *logs])

    is_lost = False
    try:
        cluster.wait_until(
            lambda: steps_of("worker_0") > 100 and steps_of("worker_1") > 100, 400.0, "two nodes collect"
        )
        way = f"--to {run.exp_dir} --workers 1"
        options = ("--parsable", "--nodelist=n1", "--cpus-per-task=2", "--mem=2G", "--output=/dev/null")
        joins = f"--wrap={sys.executable} -m tfagents_system join {run.vars_file} {way}"
        added = cluster.run("sbatch", *options, joins, cwd=ROOT, environ={"VIRTUAL_ENV": sys.prefix}).stdout.strip()
        cluster.wait_until(lambda: steps_of("worker_2") > 100, 400.0, "the added worker collects")
        assert "worker_2 of" in run.log("gateway")

        is_lost = True
        cluster.kill_node("n2")
        before = iteration()
        cluster.wait_until(lambda: iteration() > before + 20, 60.0 + STRAGGLER_SECS, "it continues without that node")
        assert cluster.state(job) == "RUNNING"
        assert iteration() < iterations

        # The run is stopped; whoever has joined it leaves with it.
        assert cluster.run("scancel", "--batch", "--signal=TERM", job).returncode == 0
        cluster.wait_until(lambda: "saved, and requeued" in outputs(tmp_path), 60.0, "it is saved and requeued")
        cluster.wait_until(
            lambda: cluster.state(added) not in ("RUNNING", "PENDING"), 60.0, "the added worker has left"
        )
    except AssertionError as error:
        raise AssertionError(f"{error}\n{everything()}") from None
    finally:
        cluster.run("scancel", "--user=root")
        if is_lost:
            cluster.start_node("n2")
