"""The roles, started by a command each without a supervisor; the trainer comes through the gateway."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.support.launching import ROOT, UserRun
from tests.support.ports import free_port
from tfagents_system.experience import columns
from tfagents_system.experience.conversion import NamedEpisode
from tfagents_system.experience.transfer import import_into
from tfagents_system.replay.stored_ring import StoredRing
from tfagents_system.run_files.heartbeat import read_heartbeat, read_json
from tfagents_system.run_files.metrics import read_metrics

pytestmark = pytest.mark.slow

PARAMS = """
import gymnasium
from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    num_iter = 12
    num_steps_per_iter = 4
    n_buffer_init_episodes = 2
    buffer_size = 2000
    n_eval_episodes = 2
    eval_period_itrs = 6
    train_batch_size = 8
    actor_fc_layer_params = (8,)
    critic_joint_fc_layer_params = (8,)

    def env_ctor(self):
        return gymnasium.make("Pendulum-v1")
"""


SEEN = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)


def test_every_role_is_a_command(tmp_path):
    """It begins with imported experience (SAC_REPLAY_FROM)."""
    port = free_port()
    run = UserRun(tmp_path, PARAMS, {"horizon": 20}, num_collect_workers=1, local_workers=0)
    variables = dict(line.split("=", 1) for line in run.vars_file.read_text().splitlines())
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SAC_", "SLURM_"))}
    environ = clean | variables | {"PYTHONPATH": str(ROOT)}
    server = ["--to", str(run.exp_dir), "--server", f"localhost:{port}"]
    logs = {}

    def start(module, *arguments):
        logs[module] = tmp_path / f"{module}.txt"
        with logs[module].open("w") as log:
            command = [sys.executable, "-P", "-m", f"tfagents_system.{module}", *arguments]
            return subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=log, stderr=subprocess.STDOUT)

    def wait(process, secs=300.0):
        try:
            return process.wait(secs)
        except subprocess.TimeoutExpired:
            pytest.fail("\n".join(f"== {name}\n{path.read_text()[-2000:]}" for name, path in logs.items()))

    started = []
    try:
        assert wait(start("sac_train", *server)) == 2
        assert "is no run directory that was prepared" in logs["sac_train"].read_text()
        environ["SAC_REPLAY_FROM"] = str(tmp_path / "imported")
        columns.write(
            tmp_path / "some.npz", [NamedEpisode({"": SEEN}, {"": np.zeros((9, 1))}, np.full(9, 77.0), False)]
        )
        inputs = str(tmp_path / "my_params.py"), str(tmp_path / "my_config.json")
        import_into(str(tmp_path / "some.npz"), tmp_path / "imported", None, *inputs, print)
        assert wait(start("launch.prepare", "--vars_file", str(run.vars_file))) == 0
        replay, gateway = start("sac_replay_buffer", *server), start("sac_gateway", *server)
        started += [replay, gateway]
        deadline = time.monotonic() + 300.0
        while (port := (read_json(run.exp_dir / "gateway.json") or {}).get("port")) is None:
            assert time.monotonic() < deadline, logs["sac_gateway"].read_text()
            time.sleep(0.1)
        way = ["--server", f"localhost:{port}", "--credentials", str(run.exp_dir / "credentials")]
        trainer = start("sac_train", "--to", str(run.exp_dir), *way)
        started.append(trainer)
        worker = start("sac_collect", *server)
        started.append(worker)
        assert wait(trainer) == 0
        assert "trainer of" in logs["sac_gateway"].read_text()
        for process in (gateway, replay):
            process.terminate()
            assert wait(process) == 75
        assert wait(worker) == 0, "it sees that all is trained and the server is gone"
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.wait()
    rows = read_metrics(run.exp_dir / "metrics.csv")
    assert rows[-1]["env_steps"] == 2 * 20 + 12 * 20, "steps of others are not its own"
    first = next(StoredRing(run.exp_dir).segments())
    np.testing.assert_array_equal(first.observation[0], SEEN)
    assert first.reward.tolist() == [77.0] * 9
    assert [row["iteration"] for row in rows if row["eval_return"] is not None] == [0, 6, 12]
    assert read_heartbeat(run.exp_dir / "heartbeats/worker_0.json")["host"], "its slot is the planned one"
