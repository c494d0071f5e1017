"""TMRL's file and commands, each role started by itself, as TMRL's users start them."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.abilities.support import begin, call, rows, status

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

CONFIG: dict[str, Any] = {
    "RUN_NAME": "car",
    "MAX_EPOCHS": 2,
    "ROUNDS_PER_EPOCH": 2,
    "TRAINING_STEPS_PER_ROUND": 20,
    "ENVIRONMENT_STEPS_BEFORE_TRAINING": 60,
    "MAX_TRAINING_STEPS_PER_ENVIRONMENT_STEP": 0.5,
    "MEMORY_SIZE": 2000,
    "BATCH_SIZE": 8,
    "ENV": {
        "RTGYM_INTERFACE": "TM20LIDAR",
        "RTGYM_CONFIG": {"ep_max_length": 60, "interface_kwargs": {"real_time": False}},
    },
}


def tmrl(home: Path, *arguments: str, code: int = 0) -> str:
    words = [sys.executable, "-m", "tfagents_system.tmrl", *arguments]
    return call("env", f"HOME={home}", *words, cwd=home, code=code)


def start(home: Path, role: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "tfagents_system.tmrl", f"--{role}", f"--config={CONFIG!r}"]
    with (home / f"{role}.txt").open("w") as log:
        return begin(words, home / "TmrlData" / role / "car", home, {}, log, {"HOME": str(home), "SAC_REPORT": "0"})


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    tmrl(home, "--install")
    return home


def test_install_writes_the_guides_file_and_wrong_keys_are_refused(home: Path) -> None:
    data = home / "TmrlData"
    config = json.loads((data / "config" / "config.json").read_text())
    assert {"RUN_NAME", "MEMORY_SIZE", "BATCH_SIZE", "ALG", "ENV", "RESET_TRAINING"} <= config.keys()
    assert stat.S_IMODE((data / "config" / "password").stat().st_mode) == 0o600
    assert (data / "reward" / "reward.npz").exists()
    wrong = "--config={'MEMORY_SIZ': 3, 'BATCH_SIZE': 'many'}"
    refused = tmrl(home, "--server", wrong, code=2)
    assert "MEMORY_SIZE" in refused and "BATCH_SIZE" in refused


def test_server_trainer_and_worker_find_each_other_in_any_order(home: Path) -> None:
    started = {role: start(home, role) for role in ("worker", "trainer", "server")}
    try:
        codes = {role: process.wait(900) for role, process in started.items()}
    finally:
        for process in started.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(90)
    assert codes == {"worker": 0, "trainer": 0, "server": 0}, "".join(path.read_text() for path in home.glob("*.txt"))
    data = home / "TmrlData"
    assert rows(data / "trainer" / "car")[-1]["train_step"] == 2 * 2 * 20
    assert rows(data / "trainer" / "car")[-1]["env_steps"] >= 60 + 2 * 2 * 20 / 0.5 - 60
    assert status(data / "server" / "car")["run"]["state"] == "done"
    assert not (data / "trainer" / "car" / "replay").exists() and (data / "server" / "car" / "replay").exists()
    assert list((data / "trainer" / "car" / "policies" / "checkpoints").glob("policy_checkpoint_*"))
