"""A real run with a gateway: others join it, its death does not matter, and its end is told."""

import json
import os
import re
import signal
import socket
import stat
import time

import numpy as np
import pytest

from tests.support.launching import UserRun, finish
from tfagents_system.policies import weights
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.transport import tables
from tfagents_system.transport.connection import StoppedError
from tfagents_system.transport.remote import credentials
from tfagents_system.transport.remote.check import check_path
from tfagents_system.transport.remote.client import Hello, RemoteConnection, identity_of

pytestmark = pytest.mark.slow

ITERATIONS = 100

PARAMS = """
import time
from pathlib import Path
import gymnasium, numpy as np
from tfagents_system.train_params_base import TrainParamsBase

class Slow(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}
    def step(self, action):
        if not (Path(__file__).parent / "fast").exists():
            time.sleep(0.01)
        return np.ones(2, np.float32), 1.0, False, False, {}

class TrainParams(TrainParamsBase):
    actor_fc_layer_params = critic_joint_fc_layer_params = (8,)
    num_iter, num_steps_per_iter, train_batch_size = ITERATIONS, 5, 8
    n_eval_episodes = n_buffer_init_episodes = n_train_episodes_per_iter = 1
    eval_period_itrs = checkpoint_period_itrs = 1000
    n_episodes_in_buffer = 50
    def env_ctor(self, *args, seed=None, **kwargs):
        return Slow()
""".replace("ITERATIONS", str(ITERATIONS))


def test_a_run_with_a_gateway(tmp_path):
    password = tmp_path / "password"
    password.write_text("a password of this test\n")
    password.chmod(0o600)
    run = UserRun(
        tmp_path, PARAMS, {"horizon": 50}, num_collect_workers=1, gateway_port=0, password_file=password, max_workers=3
    )
    paths = RunPaths(run.exp_dir)
    process = run.start()
    try:
        run.wait_until(process, paths.gateway_json.exists)
        gateway = json.loads(paths.gateway_json.read_text())
        assert stat.S_IMODE(paths.credentials.stat().st_mode) == 0o700
        assert {stat.S_IMODE(file.stat().st_mode) for file in paths.credentials.rglob("*") if file.is_file()} == {0o600}
        address, identity = f"localhost:{gateway['port']}", identity_of(paths)
        checks = check_path(address, paths.credentials, password, identity)
        assert checks.errors == [], checks.report()
        (refusal,) = check_path(address, paths.credentials, None, identity).errors
        assert "the run asks for a password, none was given" in refusal
        hello = Hello("test", identity)
        player = RemoteConnection(address, lambda: False, hello, credentials=paths.credentials, password_file=password)
        player.wait_until_up(30)
        assert player.slot in (1, 2) and json.loads(player.welcome.run)["seed"] == player.welcome.seed == 0
        player.tell({"state": "playing", "steps": 3, "time": 2.0, "since": 1.0})
        news, policy = player.news(tables.news(player.slot)), player.newest(tables.WEIGHTS)

        # Its weights are those of the trainer, and the news of them come.
        run.wait_until(process, lambda: policy.get() is not None)
        first = policy.get()
        assert news.get(30) is not None
        assert all(np.isfinite(value).all() for value in weights.from_arrays(first[1:]).values())

        # A killed gateway comes back on its port, and whoever was there goes on.
        restarts = run.status()["roles"]["gateway"]["restarts"]
        os.kill(gateway["pid"], signal.SIGKILL)
        run.wait_until(process, lambda: run.status()["roles"]["gateway"]["restarts"] > restarts)
        run.wait_until(process, lambda: player.describe() == "", 60)
        assert json.loads(paths.gateway_json.read_text())["port"] == gateway["port"]
        player.tell({"state": "playing", "steps": 4, "time": 2.0, "since": 1.0})
        name = f"worker_{player.slot}"
        run.wait_until(process, lambda: run.status()["roles"].get(name, {}).get("steps") == 4)
        assert run.status()["roles"][name]["remote"] is True
        (tmp_path / "fast").touch()
        code, output = finish(process)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            finish(process)
    assert code == 0, output + run.logs()
    assert run.trainer()["train_step"] == 5 * ITERATIONS
    deadline = time.monotonic() + 10
    while player.end_of_run is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert player.end_of_run == "done"
    with pytest.raises(StoppedError):
        player.wait_until_up(5)
    secret = password.read_text().strip()
    for path in run.exp_dir.rglob("*"):
        assert path.is_dir() or secret.encode() not in path.read_bytes()


def test_all_bad_input_is_refused_before_anything_starts(tmp_path):
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        password = tmp_path / "password"
        password.write_text("short")
        password.chmod(0o600)
        folder = tmp_path / "credentials"
        credentials.make_credentials(folder, "test")
        (folder / "server.key").chmod(0o644)
        run = UserRun(
            tmp_path,
            PARAMS,
            {"horizon": 50},
            gateway_port=port,
            password_file=password,
            credentials_dir=folder,
        )
        code, output = run.finish(100)
    assert code == 2, output
    for words in (
        rf"{folder}/server.key can be read by others \(mode 644\): chmod 600",
        r"must hold 12 to 1000 characters, 5 found: openssl rand",
        rf"SAC_GATEWAY_PORT={port} is in use: choose another port, or 0",
    ):
        assert re.search(f"error: .*{words}", output), output
    assert not (run.exp_dir / "logs").exists()
