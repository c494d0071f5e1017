"""New agents, and trained ones that these begin with (SAC_FROM)."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tests.support.checkpoints_for_tests import checkpoints_of
from tests.support.fakes import FakeParams
from tfagents_system.agents.agent import make_agent
from tfagents_system.agents.normalization import ObservationNormalization
from tfagents_system.run_files.run_paths import RunPaths

OBSERVATION = {"touch": tf.TensorSpec((2,), tf.float32), "where": tf.TensorSpec((3,), tf.float32)}
CAMERA = {**OBSERVATION, "camera": tensor_spec.BoundedTensorSpec((12, 12, 1), tf.uint8, 0, 255)}
ACTION = tensor_spec.BoundedTensorSpec((2,), tf.float32, -1.0, 1.0, "action")
CHOICE = tensor_spec.BoundedTensorSpec((), tf.int32, 0, 3, "action")
OPTIMIZERS = ("actor_optimizer", "critic_optimizer", "alpha_optimizer")


class Params(FakeParams):
    actor_fc_layer_params = (4,)
    critic_joint_fc_layer_params = (5,)
    image_encoder_layers = (2, 2)
    image_encoder_features = 3
    normalize_observations = True
    normalize_rewards = True


def fresh(observation=OBSERVATION, action=ACTION, **attributes):
    params = Params({"horizon": 5})
    vars(params).update(attributes)
    return make_agent(params, observation, action, tf.Variable(0, dtype=tf.int64))


def trained(seed=3, **options):
    """With other weights, statistics and moments than a new one, each number of its own."""
    agent = fresh(**options)
    rng = np.random.default_rng(seed)
    for variable in agent.variables:
        if variable.dtype.is_floating:
            variable.assign(rng.uniform(0.1, 1.0, variable.shape))
    alike = {}
    networks = [network for part in ("actor", "critics", "targets") for network in agent.networks()[part]]
    for layer in (layer for network in networks for layer in normalizations_of(network)):  # Alike in all networks.
        for name in ("count", "mean", "variance"):
            variable = getattr(layer, name)
            variable.assign(alike.setdefault((layer.source, name), variable.numpy()))
    for _ in range(3):
        step(agent, rng.uniform(0.1, 1.0))
    agent.train_step_counter.assign(700)
    return agent


def normalizations_of(network):
    """What normalises the leaves of the network's observation."""
    return [
        leaf for layer in network.submodules if isinstance(layer, ObservationNormalization) for leaf in layer.leaves
    ]


def trained_variables(agent):
    networks = agent.networks()
    critics = networks["critics"] + networks["encoder"]
    found = [networks["actor"], critics]
    lists = [[v for network in each for v in network.trainable_variables] for each in found]
    return [*lists, [] if agent.log_alpha is None else [agent.log_alpha]]


def step(agent, gradient=0.5):
    """One step of each optimizer."""
    for name, variables in zip(OPTIMIZERS, trained_variables(agent), strict=True):
        if getattr(agent, name) is not None and variables:
            getattr(agent, name).apply_gradients([(tf.fill(v.shape, np.float32(gradient)), v) for v in variables])


def saved(agent, tmp_path):
    """A run with a checkpoint of it."""
    folder = RunPaths(tmp_path / "run").trainer_checkpoints
    folder.mkdir(parents=True)
    checkpoints, _ = checkpoints_of(folder, agent)
    checkpoints.save(5.0, wait=True)
    return str(folder.parent)
