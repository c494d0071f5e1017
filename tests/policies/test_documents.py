"""The user guide's code that plays a SavedModel runs as it is printed, and prints nothing else."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tests.support.fakes import agent_of
from tfagents_system.envs.actions import actions_of
from tfagents_system.examples.pendulum.params import TrainParams
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.trainer.policy_export import PolicyExport

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the policies of the Pendulum example."""
    observation_spec = tf.TensorSpec((3,), tf.float32, "observation")
    agent = agent_of(TrainParams, observation_spec, tensor_spec.BoundedTensorSpec((1,), tf.float32, -1.0, 1.0))
    torque_spec = tensor_spec.BoundedTensorSpec((1,), tf.float32, -2.0, 2.0)
    run = RunPaths(tmp_path / "logs/pendulum")
    run.exp_dir.mkdir(parents=True)
    export = PolicyExport(run, agent, actions_of(torque_spec), tf.Variable(4800, dtype=tf.int64))
    export.save_model()
    export.save_checkpoint()
    return tmp_path


def test_the_code_of_the_user_guide_plays_an_episode_and_is_silent(folder: Path) -> None:
    guide = (ROOT / "docs/how_to/play.md").read_text()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "policy_loader" in block]
    environ = {name: text for name, text in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    (action,) = map(float, re.findall(r"-?\d+\.\d*(?:e-?\d+)?", done.stdout))
    assert -2.0 <= action <= 2.0
