"""Writes a policy as a file of another format, and compares it with the checkpoint before the file gets its name."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tree
from tf_agents.policies import py_policy, tf_policy
from tf_agents.trajectories import time_step as ts

from tfagents_system.envs import specs
from tfagents_system.envs.actions import LeafActions
from tfagents_system.envs.history import policy_time_step_spec, seen_by_actor
from tfagents_system.errors import UserError
from tfagents_system.policies import exports, files
from tfagents_system.policies.description import Description, UnsupportedNetworkError, describe
from tfagents_system.policies.environment_policies import of_single_frames
from tfagents_system.policies.files import load_policy, load_saved_model
from tfagents_system.policies.names import iteration_of
from tfagents_system.policies.network_check import TOLERANCE, random_observations, regret
from tfagents_system.policies.weights import assign_weights, named_variables, read_weights
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.train_params_base import TrainParamsBase

_EPISODES, _STEPS = 8, 4


class ExportError(Exception):
    """A file could not be written, or acts differently from the checkpoint."""


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
        found = load_policy(written, "--out")
        difference = largest_difference(source, found)
        if not difference <= TOLERANCE:
            raise ExportError(
                f"{written.name} acts otherwise than {source.description['checkpoint']} (by {difference:.2g} of half "
                f"the action's range, {TOLERANCE:g} is allowed): nothing was written"
            )
        for file in Path(temporary).iterdir():
            os.replace(file, folder / file.name)
    return folder / written.name, difference


def notes(path: Path) -> str:
    """Further notes on a written file."""
    if path.suffix == ".npz":
        return f"; {files.PLAYER.name} beside it plays it"
    if path.suffix == ".tflite" and exports.uses_tensorflow_ops(path):
        return "; it needs an interpreter with TensorFlow's own ops (Flex)"
    return ""


def largest_difference(source: Source, found: py_policy.PyPolicy, seed: int = 0) -> float:
    """The largest difference of two policies' actions on random observations, as a share of half the action's range.

    Of policies that choose one of n actions: how much lower the chosen one's score is than the best one's, as a share
    of the scores, because rounding may exchange actions of nearly equal score.

    Compares several steps of several episodes, singly and batched. float32 rounding at the action's bounds does not
    count: 0 means that there is no other difference.
    """
    rng = np.random.default_rng(seed)
    steps = [random_observations(source.policy, _EPISODES, rng) for _ in range(_STEPS)]
    expected = [_acts(source.reference, [_one(step, k) for step in steps]) for k in range(_EPISODES)]
    alone = [_acts(found, [_one(step, k) for step in steps]) for k in range(_EPISODES)]
    together = _acts(found, steps, _EPISODES)
    if source.actions.rows is not None:
        scores = _scores(source.policy, steps)
        every = [together, *(np.swapaxes(each, 0, 1) for each in (np.array(alone), np.array(expected)))]
        chosen = [[[source.actions.to_agent(action) for action in step] for step in taken] for taken in every]
        return float(np.max([regret(np.array(actions), scores) for actions in chosen]))
    low, high = source.actions.environment_spec.minimum, source.actions.environment_spec.maximum
    half_range = np.subtract(high, low) / 2.0
    scale = np.where(half_range > 0, half_range, 1.0)
    one_rounding = np.spacing(np.maximum(np.abs(low), np.abs(high)).astype(np.float32))
    differences = np.abs([np.subtract(alone, expected), np.subtract(np.swapaxes(together, 0, 1), expected)])
    # NaN stays NaN, which is not below the tolerance.
    return float(np.max(np.maximum(differences - one_rounding, 0.0) / scale))


def _acts(policy: py_policy.PyPolicy, observations: Sequence[Any], n: int = 1) -> np.ndarray:
    """The actions of an episode, or of n at once: `[T, ..., action_dim]` float64."""
    state, actions = policy.get_initial_state(n), []
    for k, observation in enumerate(observations):
        step_type = ts.StepType.FIRST if k == 0 else ts.StepType.MID
        step = policy.action(ts.TimeStep(step_type, np.float32(0.0), np.float32(1.0), observation), state)
        state = step.state
        actions.append(np.asarray(step.action, np.float64))
    return np.stack(actions)


def _scores(policy: tf_policy.TFPolicy, steps: Sequence[Any]) -> np.ndarray:
    """The scores `[T, episodes, n]` of all actions."""
    state, scores = policy.get_initial_state(_EPISODES), []
    for k, observation in enumerate(steps):
        step_type = tf.fill([_EPISODES], ts.StepType.FIRST if k == 0 else ts.StepType.MID)
        zeros, ones = tf.zeros([_EPISODES]), tf.ones([_EPISODES])
        time_step = ts.TimeStep(step_type, zeros, ones, tf.nest.map_structure(tf.constant, observation))
        step = policy.distribution(time_step, state)
        state = step.state
        scores.append(step.action.logits_parameter().numpy())
    return np.stack(scores)


def _one(batch: Any, k: int) -> Any:
    return tree.map_structure(lambda leaf: leaf[k], batch)


def _write_numpy(source: Source, folder: Path) -> Path:
    path = folder / "policy.npz"
    try:
        files.save_numpy(path, source.policy, source.description)
    except UnsupportedNetworkError as error:
        raise UserError(f"numpy can't hold this policy: {error}; --format tflite and onnx take any network") from None
    shutil.copyfile(files.PLAYER, folder / files.PLAYER.name)
    return path


def _write_tflite(source: Source, folder: Path) -> Path:
    path = folder / "policy.tflite"
    exports.save_tflite(path, source.policy, source.actions, source.description)
    return path


def _write_onnx(source: Source, folder: Path) -> Path:
    path = folder / "policy.onnx"
    exports.save_onnx(path, source.policy, source.actions, source.description)
    return path


_WRITERS = {"numpy": _write_numpy, "tflite": _write_tflite, "onnx": _write_onnx}
