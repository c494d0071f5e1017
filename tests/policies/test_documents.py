"""The user guide's code for SavedModels plays an episode with policies of the Pendulum example."""

import re
from pathlib import Path

import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tests.support.fakes import agent_of
from tfagents_system.envs.actions import actions_of
from tfagents_system.examples.pendulum.params import TrainParams
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.trainer.policy_export import PolicyExport

GUIDE = Path(__file__).resolve().parents[2] / "docs/how_to/play.md"


def test_the_code_of_the_user_guide_plays_an_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    observation_spec = tf.TensorSpec((3,), tf.float32, "observation")
    agent = agent_of(TrainParams, observation_spec, tensor_spec.BoundedTensorSpec((1,), tf.float32, -1.0, 1.0))
    torque_spec = tensor_spec.BoundedTensorSpec((1,), tf.float32, -2.0, 2.0)
    run = RunPaths(tmp_path / "logs/pendulum")
    run.exp_dir.mkdir(parents=True)
    export = PolicyExport(run, agent, actions_of(torque_spec), tf.Variable(4800, dtype=tf.int64))
    export.save_model()
    export.save_checkpoint()
    (code,) = [part for part in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S) if "policy_loader" in part]
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    (action,) = map(float, re.findall(r"-?\d+\.\d*(?:e-?\d+)?", capsys.readouterr().out))
    assert -2.0 <= action <= 2.0
