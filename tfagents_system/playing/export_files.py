"""Writes a policy as `policy.npz`, `policy.tflite` or `policy.onnx`, and compares each file before it gets its name.

What a TFLite or ONNX file takes and returns is described in JSON beside it: `policy.onnx.json`, `policy.tflite.json`.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.distributions.utils import SquashToSpecNormal
from tf_agents.policies import py_policy, tf_policy
from tf_agents.trajectories import time_step as ts

from tfagents_system.agents.normalization import RunningNormalization
from tfagents_system.envs import specs
from tfagents_system.envs.actions import LeafActions, mask_leaf
from tfagents_system.envs.history import horizon_time_leaf, policy_time_step_spec, seen_by_actor
from tfagents_system.errors import UserError
from tfagents_system.policies import numpy_policy
from tfagents_system.policies.description import Description, NetworkLayers, UnsupportedNetworkError, describe
from tfagents_system.policies.files import FILE_NAME, PLAYER, load_policy, load_saved_model, without_notes
from tfagents_system.policies.names import iteration_of
from tfagents_system.policies.tensorflow_policy import (
    SingleFramesPolicy,
    in_environment_units,
    innermost,
    of_single_frames,
)
from tfagents_system.policies.weights import assign_weights, named_variables, read_weights
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.train_params_base import TrainParamsBase

# Of actions in [-1, 1]: products are summed in another order. Measured with a CrossQ policy (256, 256) of HalfCheetah
# after 50,000 updates, 40 sets of observations: 2.7e-5 (NumPy), 8.2e-5 (TFLite).
TOLERANCE = 3e-4
_EPISODES, _STEPS = 8, 4
_OPSET = 17  # Of ONNX, from 2022: runtimes on embedded boards support it, too.


class ExportError(Exception):
    """A file acts differently from the checkpoint."""


@dataclasses.dataclass(frozen=True)
class Source:
    """The policy of a checkpoint.

    Attributes:
      policy: The agent's, with the checkpoint's weights.
      reference: The same from the run's SavedModel, greedy, in the environment's units.
    """

    policy: tf_policy.TFPolicy
    reference: py_policy.PyPolicy
    actions: LeafActions
    description: Description


def read_source(params: TrainParamsBase, paths: RunPaths, checkpoint: Path) -> Source:
    """Builds the agent of the params, and loads the checkpoint's weights into its policy.

    Raises:
      UserError: They do not belong together.
    """
    reference = load_saved_model(checkpoint, "--checkpoint")
    observation_spec, action_spec = specs.load_specs(paths.specs)
    train_step = tf.Variable(0, dtype=tf.int64)
    agent = params.agent_ctor(policy_time_step_spec(params, observation_spec), action_spec, train_step)
    policy = of_single_frames(agent.policy, params.frame_stack)
    try:
        assign_weights(named_variables(policy), read_weights(named_variables(reference)))
    except ValueError as error:
        raise UserError(f"{checkpoint.name} does not fit the params: {error}") from None
    actions = specs.load_actions(paths.specs)
    description = describe(
        seen_by_actor(observation_spec, params.actor_observations),
        actions,
        policy.policy_state_spec,
        checkpoint.name,
        int(reference.get_train_step()),
        iteration_of(checkpoint),
    )
    return Source(policy, reference, actions, description)


def write(source: Source, name: str, folder: Path) -> tuple[Path, float]:
    """Writes one file, and the files needed beside it.

    Args:
      name: `numpy`, `tflite` or `onnx`.
      folder: Where it goes; created if missing.

    Returns:
      The file, and the largest difference of its actions from the checkpoint's, as a share of half the action's range.

    Raises:
      UserError: The format can't hold this policy.
      ExportError: The file acts differently from the checkpoint; it is removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".export_") as temporary:
        written = _WRITERS[name](source, Path(temporary))
        difference = largest_difference(source, load_policy(written, "--out"))
        if not difference <= TOLERANCE:
            raise ExportError(
                f"{written.name} acts otherwise than {source.description['checkpoint']} (by {difference:.2g} of half "
                f"the action's range, {TOLERANCE:g} is allowed): nothing was written"
            )
        for file in Path(temporary).iterdir():
            os.replace(file, folder / file.name)
    return folder / written.name, difference


def largest_difference(source: Source, exported: py_policy.PyPolicy) -> float:
    """The largest difference of a file's actions, and of the SavedModel's, from those of the agent's network.

    As a share of half the action's range, or as of `regret`. Compares several steps of several episodes, one by one and
    together; NaN where an action is.
    """
    policies = source.reference, exported
    states = [[policy.get_initial_state(1) for _ in range(_EPISODES)] for policy in policies]
    network_state, state = source.policy.get_initial_state(_EPISODES), exported.get_initial_state(_EPISODES)
    rng, differences = np.random.default_rng(0), []
    for k in range(_STEPS):
        observation = random_observations(source.policy, _EPISODES, rng)
        step_type = np.full(_EPISODES, ts.StepType.MID if k else ts.StepType.FIRST)
        steps = ts.TimeStep(step_type, np.zeros(_EPISODES, np.float32), np.ones(_EPISODES, np.float32), observation)
        own = source.policy.distribution(tf.nest.map_structure(tf.constant, steps), network_state)
        together = exported.action(steps, state)
        network_state, state, chosen = own.state, together.state, [together.action]
        for policy, lanes in zip(policies, states, strict=True):
            taken = [
                policy.action(tf.nest.map_structure(lambda leaf, lane=lane: leaf[lane], steps), lanes[lane])
                for lane in range(_EPISODES)
            ]
            lanes[:] = [step.state for step in taken]
            chosen.append([step.action for step in taken])
        differences += [_difference(np.stack(actions), own.action, source.actions) for actions in chosen]
    return float(np.max(differences))


def _difference(chosen: np.ndarray, distribution: Any, actions: LeafActions) -> float:
    """Of actions in the environment's units, beyond one float32 rounding at their bounds."""
    if actions.rows is not None:
        return regret(
            np.stack([actions.to_agent(action) for action in chosen]), distribution.logits_parameter().numpy()
        )
    spec = actions.environment_spec
    low, high = np.asarray(spec.minimum, float), np.asarray(spec.maximum, float)
    half, rounding = (high - low) / 2, np.spacing(np.maximum(abs(low), abs(high)).astype(np.float32))
    difference = abs(chosen - in_environment_units(mode(distribution), actions).numpy().astype(float))
    return float(np.max(np.maximum(difference - rounding, 0) / np.where(half > 0, half, 1)))


def mode(distribution: Any) -> tf.Tensor:
    """The most likely actions."""
    if isinstance(distribution, SquashToSpecNormal):
        # Its mode() computes shapes of distributions, for which ONNX has no ops.
        mean = distribution.input_distribution.loc
        return distribution.action_magnitudes * tf.tanh(mean) + distribution.action_means
    return distribution.mode()


def regret(chosen: np.ndarray, scores: np.ndarray) -> float:
    """How much less than the best one any chosen action `[...]` is worth by `scores` `[..., n]`; NaN where a score is.

    Relative to the scores where these are large: rounding errors may exchange actions of nearly equal score.
    """
    missing = scores.max(axis=-1) - np.take_along_axis(scores, np.asarray(chosen)[..., None], axis=-1)[..., 0]
    sizes = np.abs(np.where(scores == numpy_policy.ILLEGAL, 0.0, scores))
    return float(np.max(missing / np.maximum(sizes.max(axis=-1), 1.0)))


def random_observations(policy: tf_policy.TFPolicy, count: int, rng: np.random.Generator) -> Any:
    """`[count, ...]`, around the mean of the policy's training observations if it knows that.

    Otherwise all would be clipped, and no weight behind the normalisation would matter.
    """
    timed = horizon_time_leaf(innermost(policy).time_step_spec.observation)
    seen = {
        module.leaf - (timed is not None and module.leaf > timed): (module.mean.numpy(), module.variance.numpy())
        for module in policy.submodules
        if isinstance(module, RunningNormalization) and module.leaf != timed
    }
    spread = np.resize([1.0, 1.0, 0.1, 10.0], count)
    mask = mask_leaf(policy.time_step_spec.observation, policy.action_spec)

    def draw(k: int, spec: tf.TensorSpec) -> np.ndarray:
        shape, dtype = (count, *spec.shape), spec.dtype.as_numpy_dtype
        if k == mask:
            return (
                rng.integers(2, size=shape) | np.eye(shape[1], dtype=int)[rng.integers(shape[1], size=count)]
            ).astype(dtype)
        if k not in seen and not spec.dtype.is_floating:
            return rng.integers(0, min(255, np.iinfo(dtype).max), shape, dtype, endpoint=True)
        mean, variance = seen.get(k, (0.0, 1.0))
        if k in seen and spec.shape.rank:  # The newest frame of a stacked leaf.
            mean, variance = mean[..., -spec.shape[-1] :], variance[..., -spec.shape[-1] :]
        wide = spread.reshape(-1, *[1] * len(spec.shape)) * np.sqrt(variance)
        values = mean + wide * rng.standard_normal(shape)
        if not spec.dtype.is_floating:
            values = np.clip(np.rint(values), np.iinfo(dtype).min, np.iinfo(dtype).max)
        return values.astype(dtype)

    leaves = tf.nest.flatten(policy.time_step_spec.observation)
    return tf.nest.pack_sequence_as(policy.time_step_spec.observation, [draw(k, spec) for k, spec in enumerate(leaves)])


def _write_numpy(source: Source, folder: Path) -> Path:
    """For `numpy_policy.py`, which is written beside it."""
    policy, description = source.policy, dict(source.description)
    try:
        network = NetworkLayers(innermost(policy), policy.frames if isinstance(policy, SingleFramesPolicy) else ())
    except UnsupportedNetworkError as error:
        raise UserError(f"numpy can't hold this policy: {error}; --format tflite and onnx take any network") from None
    arrays = network.arrays(read_weights(network.variables))
    description |= {"layers": network.layers, "inputs": network.observation}
    of_environment = [leaf for leaf in network.observation if not leaf.get("is_zero")]
    if any("frames" in leaf for leaf in of_environment):
        leaves = zip(description["observation"], of_environment, strict=True)
        description["observation"] = [{**leaf, **of_network} for leaf, of_network in leaves]
        state = numpy_policy.Network(network.observation, network.layers, arrays).state
        description["state"] = [
            {"name": f"state_{k}", "shape": [len(part)], "dtype": "float32"} for k, part in enumerate(state)
        ]
    action = description["action"]
    bounds = {name: np.asarray(action[name], action["dtype"]) for name in ("low", "high", "rows") if name in action}
    path = folder / f"{FILE_NAME}.npz"
    np.savez(path, description=np.array(json.dumps(description)), **bounds, **arrays)
    shutil.copyfile(PLAYER, folder / PLAYER.name)
    return path


def _write_tflite(source: Source, folder: Path) -> Path:
    function = _greedy_function(source)
    with without_notes():
        converter = tf.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()], source.policy)
        # TensorFlow's own ops, which not every interpreter has, are used only if TensorFlow Lite lacks one.
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS]
        return _with_description(source, folder / f"{FILE_NAME}.tflite", converter.convert())


def _write_onnx(source: Source, folder: Path) -> Path:
    import tf2onnx

    function = _greedy_function(source)
    logging.getLogger("tf2onnx").setLevel(logging.ERROR)
    model, _ = tf2onnx.convert.from_function(function, function.input_signature, opset=_OPSET)
    return _with_description(source, folder / f"{FILE_NAME}.onnx", model.SerializeToString())


def _with_description(source: Source, path: Path, model: bytes) -> Path:
    path.write_bytes(model)
    Path(f"{path}.json").write_text(json.dumps(source.description))
    return path


def _greedy_function(source: Source) -> Any:
    """A `tf.function` of the observation's arrays and those of the state, n of each, in the order of the description.

    It returns a dictionary: `action` in the environment's own units, and each part of the next state as
    `next_<its name>`. The time step's other fields are those of a step within an episode: an episode begins with a
    state of zeros.
    """
    policy, description = source.policy, source.description
    inputs, num_leaves = [*description["observation"], *description["state"]], len(description["observation"])
    observation_spec, state_spec = policy.time_step_spec.observation, policy.policy_state_spec

    def act(*arrays: tf.Tensor) -> dict[str, tf.Tensor]:
        n = tf.shape(arrays[0])[0]
        observation = tf.nest.pack_sequence_as(observation_spec, arrays[:num_leaves])
        state = tf.nest.pack_sequence_as(state_spec, arrays[num_leaves:])
        time_step = ts.TimeStep(tf.fill([n], ts.StepType.MID), tf.zeros([n]), tf.ones([n]), observation)
        step = policy._distribution(time_step, state)
        following = zip(description["state"], tf.nest.flatten(step.state), strict=True)
        return {
            "action": in_environment_units(mode(step.action), source.actions),
            **{f"next_{spec['name']}": value for spec, value in following},
        }

    signature = [tf.TensorSpec((None, *spec["shape"]), spec["dtype"], spec["name"]) for spec in inputs]
    return tf.function(act, input_signature=signature, autograph=False)


_WRITERS = {"numpy": _write_numpy, "tflite": _write_tflite, "onnx": _write_onnx}
