"""Workers join a run on a machine where the user has a login: each end of its tunnel may die."""

import contextlib
import signal

import psutil
import pytest

from tests.faults.campaign import HORIZON, UPDATES, NumberedRun
from tests.support import ssh_for_tests
from tests.support.launching import finish
from tests.support.waiting import gone
from tfagents_system.cluster.join import gateway_address
from tfagents_system.run_files.heartbeat import read_heartbeat
from tfagents_system.run_files.run_paths import RunPaths

pytestmark = pytest.mark.slow


def test_a_worker_survives_its_tunnels_and_the_gateway(tmp_path, monkeypatch):
    """With a real sshd; tests/cluster/test_ssh.py has what is asked of the tunnel, with a fake one."""
    with ssh_for_tests.real_host(tmp_path, monkeypatch) as host:
        joins_and_survives(host, tmp_path)


def joins_and_survives(host, folder):
    run = NumberedRun(folder, 200, num_collect_workers=2, local_workers=1, gateway_port=0, straggler_secs=60)
    run.set_pace(1.0)
    process = run.start()
    elsewhere = RunPaths(folder / "laptop" / "logs" / "my_run")
    run.vars_file = folder / "laptop.sh"
    lines = {"EXP_NAME": "my_run", "EXP_DIR": elsewhere.exp_dir, "COLLECT_WORKER_CPUS": 1, "SHARE_CPUS": 1}
    lines |= {"REVERB_CPUS": 1, "TRAIN_CPUS": 1}
    run.vars_file.write_text("".join(f"SAC_{name}={value}\n" for name, value in lines.items()))
    join = None
    try:
        run.wait_until(process, lambda: run.status().get("run", {}).get("state") == "running")
        run.wait_until(process, lambda: gateway_address(RunPaths(run.exp_dir)) is not None)
        with (folder / "join.txt").open("w") as output:
            arguments = ["--ssh", host, "--to", str(run.exp_dir), "--workers", "1"]
            join = run._launch("join_script.sh", arguments, {"stdout": output})

        def beat():
            (own,) = elsewhere.joined.glob("*") if elsewhere.joined.is_dir() else [elsewhere.joined]
            return read_heartbeat(RunPaths(own).heartbeat("worker_0")) or {}

        def collects(least):
            assert join.poll() is None, (folder / "join.txt").read_text()
            return beat().get("episodes", 0) > least

        run.wait_until(process, lambda: collects(1))
        pid = beat()["pid"]

        def child(parent, word):
            tunnels = []

            def is_there():  # One that has died is started again after a while.
                with contextlib.suppress(psutil.NoSuchProcess):
                    tunnels.extend(one for one in psutil.Process(parent).children() if word in one.cmdline())
                return tunnels

            run.wait_until(process, is_there)
            return tunnels[0]

        def by_ssh():
            return child(join.pid, "-N")

        def its_own():
            return child(pid, "tfagents_system.transport.tunnel")

        for end in (by_ssh, its_own, lambda: psutil.Process(run.beat("gateway")["pid"])):
            episodes = beat()["episodes"]
            end().send_signal(signal.SIGKILL)
            run.wait_until(process, lambda least=episodes + 2: collects(least))
            assert beat()["pid"] == pid, "it has stayed"
        tunnels = by_ssh(), its_own()
        run.set_pace(0.0)
        assert finish(process)[0] == 0, run.output.read_text()
        assert finish(join, 60.0)[0] == 0, (folder / "join.txt").read_text()
    finally:
        for one in (join, process):
            if one is not None and one.poll() is None:
                one.terminate()
                finish(one, 60.0)
    balance = run.balance()
    assert balance.violations == []
    assert balance.stored == balance.collected - sum(balance.lost.values())
    assert max(balance.tails, default=0) <= 2 * HORIZON
    assert run.trainer()["train_step"] == run.iterations * UPDATES
    assert all(gone(tunnel.pid, 10.0) for tunnel in tunnels)
    (own,) = elsewhere.joined.glob("*")
    assert not (own / "of_run").exists() and list(own.rglob("key.pem")) == []
    assert (own / "logs" / "worker_0.log").exists()
    output = (folder / "join.txt").read_text()
    assert f"the tunnel by ssh {host} is broken" in output and "the run is done" in output
