"""Policies on disk that explore draw other noise wherever they are loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import config as tf_config
from tf_agents.specs import tensor_spec

from tests.support.fakes import agent_of
from tfagents_system.envs.actions import actions_of
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.trainer.policy_export import PolicyExport

VECTOR = tf.TensorSpec((3,), tf.float32, "observation")
BOX = tensor_spec.BoundedTensorSpec((2,), tf.float32, -1.0, 1.0, "action")
_ACT = """
import sys, numpy as np, tensorflow as tf
tf.random.set_seed(0)  # As a process may have one of its own.
policy = tf.saved_model.load(sys.argv[1])
step = {"step_type": tf.ones(1, tf.int32), "reward": tf.zeros(1), "discount": tf.ones(1)}
step["observation"] = tf.ones((1, 3))
named = {f"0/{name}": leaf for name, leaf in step.items()}
actions = [policy.signatures["action"](**named)["action"] for _ in range(40)]
np.save(sys.argv[2], np.concatenate(actions))
"""


class Params(TrainParamsBase):
    actor_fc_layer_params = (8,)
    critic_joint_fc_layer_params = (8,)

    def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> Any:
        raise AssertionError("not needed")


def test_each_process_that_loads_a_policy_draws_its_own_noise(tmp_path: Path) -> None:
    tf.keras.utils.set_random_seed(7)  # As the trainer does, and with SAC_DETERMINISTIC=1 the next as well.
    tf.config.experimental.enable_op_determinism()
    try:
        agent = agent_of(Params, VECTOR, BOX)
        PolicyExport(RunPaths(tmp_path), agent, actions_of(BOX), agent.train_step_counter).save_models()
        assert tf_config.is_op_determinism_enabled()
    finally:
        tf_config.disable_op_determinism()
    model, files = tmp_path / "policies/collect_policy", [tmp_path / f"{number}.npy" for number in range(2)]
    loads = [subprocess.Popen([sys.executable, "-c", _ACT, str(model), str(file)]) for file in files]
    assert [load.wait(timeout=120) for load in loads] == [0, 0]
    first, second = map(np.load, files)
    assert len(np.unique(first, axis=0)) > 5 and len(np.unique(second, axis=0)) > 5
    assert np.mean(first != second) > 0.5
