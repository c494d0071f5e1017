"""Checkpoints of the version that had a class for each kind of critic are restored, optimizers included.

`earlier_checkpoints.zip` is what `write` made there.
"""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tfagents_system.agents.block_update import BlockUpdate
from tfagents_system.replay.sample_forms import SequenceForm, TransitionForm
from tfagents_system.train_params_base import TrainParamsBase

ARCHIVE = Path(__file__).parent / "earlier_checkpoints.zip"
B, LENGTH = 4, 3
VECTOR = tf.TensorSpec((3,), tf.float32, "observation")
IMAGES = {"camera": tensor_spec.BoundedTensorSpec((12, 12, 1), tf.uint8, 0, 255, "camera"), "speed": VECTOR}
SMALL = {"camera": tensor_spec.BoundedTensorSpec((2, 2, 1), tf.uint8, 0, 255, "camera"), "speed": VECTOR}
ACTION = tensor_spec.BoundedTensorSpec((2,), tf.float32, -1.0, 1.0, "action")
RECURRENT = {"recurrent": {"lstm_units": 3, "sequence_length": LENGTH}}
AGENTS = {
    "sac": (VECTOR, {}),
    "sac recurrent": (VECTOR, RECURRENT),
    "sac normalised, nested, recurrent": (SMALL, {"normalize_observations": True, **RECURRENT}),
    "sac images": (IMAGES, {}),
    "sac images recurrent": (IMAGES, RECURRENT),
    "simba": (VECTOR, {"network": "simba"}),
    "droq": (VECTOR, {"algorithm": "droq"}),
    "droq recurrent": (VECTOR, {"algorithm": "droq", **RECURRENT}),
    "redq": (SMALL, {"algorithm": "redq", "num_critics": 3}),
    "tqc": (VECTOR, {"algorithm": "tqc", "num_critics": 2}),
    "crossq": (VECTOR, {"algorithm": "crossq"}),
}


class Params(TrainParamsBase):
    actor_fc_layer_params = (4, 4)
    critic_joint_fc_layer_params = (4, 4)
    image_encoder_layers = (2, 2)
    image_encoder_features = 3
    tqc = {"num_quantiles": 3, "num_dropped_quantiles": 1}

    def env_ctor(self, *args, seed=None, **kwargs):
        raise AssertionError("not needed")


def built(name, seed):
    spec, attributes = AGENTS[name]
    params = Params({"horizon": 10})
    vars(params).update(attributes)
    tf.keras.utils.set_random_seed(seed)
    return params.agent_ctor(ts.time_step_spec(spec), ACTION, tf.Variable(0, dtype=tf.int64))


def trained(name, agent, seed):
    """After two updates on numbers of this seed."""
    is_recurrent = "recurrent" in AGENTS[name][1]
    update, rng = (
        BlockUpdate(agent, B, SequenceForm(LENGTH) if is_recurrent else TransitionForm(), seed=2),
        np.random.default_rng(seed),
    )

    def numbers(spec):
        values = rng.random((2, *spec.shape[1:]))
        return (values * (255 if spec.dtype == tf.uint8 else 1)).astype(spec.dtype.as_numpy_dtype)

    update([numbers(spec) for spec in update.block_spec])
    return agent


def numbers_of(agent):
    """Sums of all weights with weights of their own, by shape: equal sums are equal weights in equal places."""
    sums = {}
    for variable in agent.variables:
        values = np.float64(variable.numpy())
        total = np.sum(values * np.cos(np.arange(values.size)).reshape(values.shape))
        sums.setdefault(str(variable.shape), []).append(float(total))
    return {shape: sorted(totals) for shape, totals in sums.items()}


def checkpoint_of(agent):
    return tf.train.Checkpoint(agent=agent, train_step=agent.train_step_counter)


def write(folder):
    expected = {}
    for name in AGENTS:
        agent = trained(name, built(name, seed=1), seed=3)
        checkpoint_of(agent).write(str(folder / name))
        expected[name] = [numbers_of(agent), numbers_of(trained(name, agent, seed=4))]
    (folder / "expected.json").write_text(json.dumps(expected))


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("name", AGENTS)
def test_a_checkpoint_of_before_is_restored_and_training_goes_on_as_it_would_have(tmp_path, name):
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(tmp_path)
    restored, gone_on = json.loads((tmp_path / "expected.json").read_text())[name]
    agent = built(name, seed=5)
    checkpoint_of(agent).read(str(tmp_path / name)).assert_existing_objects_matched()
    assert_close(numbers_of(agent), restored, atol=1e-6)
    assert_close(numbers_of(trained(name, agent, seed=4)), gone_on, atol=1e-4)


def assert_close(found, expected, atol):
    assert set(found) == set(expected)
    for shape, sums in expected.items():
        np.testing.assert_allclose(found[shape], sums, rtol=1e-5, atol=atol, err_msg=shape)
