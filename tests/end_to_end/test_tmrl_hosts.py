"""TMRL's config.json on three hosts: server, trainer and workers, each with a home of its own and nothing shared."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.launching import ROOT
from tests.support.namespaces import Host, hosts_at_a_switch, needs_namespaces
from tests.support.waiting import until
from tfagents_system.run_files import kept_checkpoints
from tfagents_system.run_files.metrics import read_rows

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200), needs_namespaces]

CONFIG = {
    "RUN_NAME": "car",
    "PORT": 7001,
    "LOCAL_PORT_SERVER": 7002,
    "LOCALHOST_TRAINER": False,
    "LOCALHOST_WORKER": False,
    "MAX_EPOCHS": 20,
    "ROUNDS_PER_EPOCH": 4,
    "TRAINING_STEPS_PER_ROUND": 50,
    "ENVIRONMENT_STEPS_BEFORE_TRAINING": 200,
    "MAX_TRAINING_STEPS_PER_ENVIRONMENT_STEP": 0.5,
    "MEMORY_SIZE": 50_000,
    "BATCH_SIZE": 32,
    "ENV": {"RTGYM_INTERFACE": "TM20LIDAR", "RTGYM_CONFIG": {"interface_kwargs": {"real_time": False}}},
}


class Home:
    """The home of one host.

    Args:
      folder: Its parent.
      host: Where commands run.
      server: Address of the server's host.
    """

    def __init__(self, folder: Path, host: Host, server: str) -> None:
        self.root = folder / host.namespace
        self.data = self.root / "TmrlData"
        self._host, self._server = host, server
        self.data.mkdir(parents=True)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """A command of `tfagents_system.tmrl` on this host."""
        command = [sys.executable, "-m", "tfagents_system.tmrl", *arguments]
        if arguments != ("--install",):
            command.append(f"--config={ {**CONFIG, 'PUBLIC_IP_SERVER': self._server}!r}")
        clean = {name: text for name, text in os.environ.items() if not name.startswith(("SAC_", "SLURM_"))}
        environ = {**clean, "HOME": str(self.root), "PYTHONPATH": str(ROOT), "SAC_ALLOW_LOGIN": "1"}
        environ["WANDB_API_KEY"] = "0" * 40  # Nobody sees it: these hosts have a network of their own.
        options: dict[str, Any] = {"env": environ, "stderr": subprocess.STDOUT, "text": True, "cwd": self.root}
        with open(self.root / f"{arguments[0].strip('-')}.txt", "a") as log:
            return subprocess.Popen(self._host.command(command), stdout=log, **options)

    def output(self) -> str:
        return "\n".join(f"== {path}\n{path.read_text()[-3000:]}" for path in sorted(self.root.glob("*.txt")))


def test_a_lap_is_trained_by_three_hosts(tmp_path: Path) -> None:
    with hosts_at_a_switch(3) as hosts:
        homes = here, trainer, workers = [Home(tmp_path, host, hosts[0].ipv4) for host in hosts]
        installs = [home.start("--install") for home in homes]
        assert [process.wait(120) for process in installs] == [0, 0, 0]
        started: dict[str, subprocess.Popen[str]] = {"server": here.start("--server")}
        try:
            shared = here.data / "credentials"
            until((shared / "key.pem").exists, 120.0, "the credentials")
            for home in (trainer, workers):
                shutil.copytree(shared, home.data / "credentials", dirs_exist_ok=True)
                shutil.copy(here.data / "config" / "password", home.data / "config" / "password")
            started["worker"] = workers.start("--worker")
            started["expert"] = workers.start("--expert")
            started["trainer"] = trainer.start("--trainer", "--wandb")
            for name in ("trainer", "worker", "expert", "server"):
                assert started[name].wait(900) == 0, name + "".join(home.output() for home in homes)
        finally:
            for process in started.values():
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
                    process.wait(90)
    run = trainer.data / "trainer" / "car"
    rows = read_rows(run / "metrics.csv")
    assert rows[-1]["train_step"] == 20 * 4 * 50
    checkpoint = kept_checkpoints.newest_complete(run / "checkpoints", with_agent=True)
    there = kept_checkpoints.newest_complete(here.data / "server" / "car" / "checkpoints")
    assert checkpoint is not None and there is not None and not there.has_agent
    assert checkpoint.replay.read_bytes() == there.replay.read_bytes(), "the header of its ring"
    assert not (run / "replay").exists() and (run / "policies" / "greedy_policy").exists()
    status = json.loads((here.data / "server" / "car" / "status.json").read_text())
    assert status["run"]["state"] == "done"
    rewards = np.fromfile(here.data / "server" / "car" / "replay" / "reward.bin", np.float32)
    assert (rewards >= 100.0).any(), "END_OF_TRACK of the laps that the expert's driver has finished"
    assert not (trainer.data / "server").exists() and not (workers.data / "trainer").exists()
