"""TF-Agents' own environments, as the seed's words for `env_ctor` return them."""

from pathlib import Path

import pytest

from tests.support.launching import UserRun
from tfagents_system.run_files.metrics import read_rows

pytestmark = pytest.mark.slow

PARAMS = """
from tf_agents.environments import suite_gym, suite_pybullet

from tfagents_system.train_params_base import TrainParamsBase


ENVIRONMENTS = {
    "suite_gym": lambda: suite_gym.load("Pendulum-v1"),
    "suite_pybullet": lambda: suite_pybullet.load("InvertedPendulumBulletEnv-v0"),
}


class TrainParams(TrainParamsBase):
    num_iter = 3
    num_train_episodes_per_iter = 1
    updates_per_iter = 5
    num_initial_episodes = 1
    num_eval_episodes = 1
    batch_size = 16
    actor_fc_layer_params = (8,)
    critic_joint_fc_layer_params = (8,)

    def env_ctor(self, *args, seed=None):
        return ENVIRONMENTS[self.env_config["environment"]]()
"""


@pytest.mark.parametrize("environment", ["suite_gym", "suite_pybullet"])
def test_a_run_trains_in_an_environment_of_tf_agents(tmp_path: Path, environment: str) -> None:
    run = UserRun(tmp_path, PARAMS, {"horizon": 10, "environment": environment}, num_collect_workers=1)
    code, output = run.finish()
    assert code == 0, f"{output}\n{run.logs()}"
    lengths = [row["eval/episode_length"] for row in read_rows(run.exp_dir / "metrics.csv")]
    assert lengths and all(length is None or 0 < length <= 10 for length in lengths), "the pole may fall before"
