"""TF-Agents' own environments, as the seed's words for `env_ctor` return them, where the network is behind a proxy."""

import socket
import threading
from pathlib import Path

import pytest

from tests.support.launching import UserRun
from tfagents_system.run_files.metrics import read_rows

pytestmark = pytest.mark.slow

PARAMS = """
from tf_agents.environments import suite_pybullet

from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    num_iter = 2
    num_train_episodes_per_iter = 1
    updates_per_iter = 5
    num_initial_episodes = 1
    num_eval_episodes = 1
    batch_size = 16
    actor_fc_layer_params = (8,)
    critic_joint_fc_layer_params = (8,)

    def env_ctor(self, *args, seed=None):
        return suite_pybullet.load("InvertedPendulumBulletEnv-v0")
"""


def test_a_run_trains_in_an_environment_of_tf_agents_and_uses_no_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client:
                connections.append(client.recv(1000))
                client.sendall(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")

    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{listener.getsockname()[1]}")
    monkeypatch.setenv("no_proxy", "localhost,.example.org")  # As most sites set it.
    try:
        run = UserRun(tmp_path, PARAMS, {"horizon": 10}, num_collect_workers=1)
        code, output = run.finish(120.0)
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
    assert code == 0, f"{output}\n{run.logs()}"
    assert connections == []
    lengths = [row["eval/episode_length"] for row in read_rows(run.exp_dir / "metrics.csv")]
    assert lengths and all(length is None or 0 < length <= 10 for length in lengths), "the pole may fall before"
