"""Training that diverges goes back to its last checkpoint once, and ends in words the second time."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.launching import UserRun
from tfagents_system.run_files import kept_checkpoints

pytestmark = pytest.mark.slow

ITERATIONS, UPDATES = 12, 25

PARAMS = f"""
from pathlib import Path

import gymnasium
import numpy as np
import tensorflow as tf

from tfagents_system.train_params_base import TrainParamsBase

POISONS = Path("FOLDER")


def poison(step):
    '''NaN once for each file, as soon as its train step has come.'''
    for path in sorted(POISONS.iterdir()):
        if step >= int(path.name):
            path.unlink()
            return np.float32(np.nan)
    return np.float32(0.0)


class TrainParams(TrainParamsBase):
    num_iter = {ITERATIONS}
    updates_per_iter = {UPDATES}
    num_initial_episodes = 2
    buffer_size = 2500
    num_eval_episodes = 0
    eval_period_iters = 100
    checkpoint_period_iters = 4
    batch_size = 16
    actor_fc_layer_params = (8,)
    critic_joint_fc_layer_params = (8,)

    def env_ctor(self, *args, seed=None, **kwargs):
        return gymnasium.make("Pendulum-v1")

    def agent_ctor(self, time_step_spec, action_spec, train_step):
        agent = super().agent_ctor(time_step_spec, action_spec, train_step)
        loss = agent.td_loss
        agent.td_loss = lambda target, value: loss(target, value) + tf.ensure_shape(
            tf.numpy_function(poison, [train_step], tf.float32), ()
        )
        return agent
"""


def test_it_goes_back_once_and_ends_in_words_the_second_time_with_its_last_checkpoint_intact(tmp_path):
    (tmp_path / "poisons").mkdir()
    for step in (6 * UPDATES + 3, 10 * UPDATES + 3):
        (tmp_path / "poisons" / str(step)).touch()
    params = PARAMS.replace("FOLDER", str(tmp_path / "poisons"))
    run = UserRun(tmp_path, params, {"horizon": 50}, num_collect_workers=1, max_restarts=1)
    code, output = run.finish()
    assert code == 1, f"{output}\n{run.logs()}"
    assert f"Going back to train step {4 * UPDATES}, once" in run.log("trainer")
    assert run.status()["roles"]["trainer"]["restarts"] == 0
    assert "diverged at train step" in output
    assert "the second time in this run: lower the learning rates" in output
    assert "Traceback" not in output
    checkpoint = kept_checkpoints.newest_complete(run.exp_dir / "checkpoints")
    assert checkpoint.train_step == 8 * UPDATES
    reader = tf.train.load_checkpoint(str(checkpoint.agent))
    for name, dtype in reader.get_variable_to_dtype_map().items():
        if dtype.is_floating:
            assert np.isfinite(reader.get_tensor(name)).all(), name
