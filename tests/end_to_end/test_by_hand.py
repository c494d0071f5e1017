"""The roles, each started as a program without a supervisor, by what a prepared run says."""

import os
import subprocess
import sys

import numpy as np
import pytest

from tests.support.launching import ROOT, UserRun
from tests.support.ports import free_port
from tfagents_system.experience import columns
from tfagents_system.experience.conversion import NamedEpisode
from tfagents_system.experience.transfer import import_into
from tfagents_system.replay.stored_ring import StoredRing
from tfagents_system.run_files.heartbeat import read_heartbeat
from tfagents_system.run_files.metrics import read_metrics
from tfagents_system.run_files.run_directory import environ_of_run, read_run_json
from tfagents_system.run_files.run_paths import RunPaths

pytestmark = pytest.mark.slow

PARAMS = """
import gymnasium
from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    num_iter = 12
    num_steps_per_iter = 4
    n_buffer_init_episodes = 2
    n_episodes_in_buffer = 100
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
    run = UserRun(tmp_path, PARAMS, {"horizon": 20}, num_collect_workers=1)
    variables = dict(line.split("=", 1) for line in run.vars_file.read_text().splitlines())
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SAC_", "SLURM_"))}
    environ = clean | variables | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1"}
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
        environ["SAC_REPLAY_FROM"] = str(tmp_path / "imported")
        columns.write(
            tmp_path / "some.npz", [NamedEpisode({"": SEEN}, {"": np.zeros((9, 1))}, np.full(9, 77.0), False)]
        )
        inputs = str(tmp_path / "my_params.py"), str(tmp_path / "my_config.json")
        import_into(str(tmp_path / "some.npz"), tmp_path / "imported", None, *inputs, print)
        assert wait(start("launch.prepare", "--vars_file", str(run.vars_file))) == 0
        environ |= environ_of_run(read_run_json(RunPaths(run.exp_dir)))
        environ |= {"SAC_EXP_DIR": str(run.exp_dir), "SAC_REVERB_PORT": str(port), "SLURM_PROCID": "0"}
        started += [start(module) for module in ("sac_replay_buffer", "sac_train", "sac_collect")]
        replay, trainer, worker = started
        assert wait(trainer) == 0
        replay.terminate()
        assert wait(replay) == 75
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
