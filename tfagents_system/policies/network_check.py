"""Whether a backend computes a network's actions as TensorFlow does.

Each start checks it of NumPy once, in its trial, and each export of its file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.distributions.utils import SquashToSpecNormal
from tf_agents.policies import tf_policy
from tf_agents.trajectories import time_step as ts

from tfagents_system.agents.noise import mean_and_std
from tfagents_system.agents.normalization import RunningNormalization
from tfagents_system.agents.score_policies import ScorePolicy
from tfagents_system.envs.history import horizon_time_leaf
from tfagents_system.hyperparameters import FrameStack
from tfagents_system.policies.description import UnsupportedNetworkError
from tfagents_system.policies.environment_policies import innermost, of_single_frames
from tfagents_system.policies.tensorflow_policy import TensorFlowWorkerPolicy
from tfagents_system.policies.weights import assign_weights, named_variables, read_weights
from tfagents_system.policies.worker_policy import LaneSteps, NumpyWorkerPolicy

# Of actions in [-1, 1]: products are summed in another order. Measured of exported files with a CrossQ policy
# (256, 256) of HalfCheetah after 50,000 updates, 40 sets of observations: 2.7e-5 (NumPy), 8.2e-5 (TFLite).
TOLERANCE = 3e-4
_LANES = 4


def inference_findings(agent: Any, frame_stack: FrameStack = 1, *, deterministic: bool = False) -> list[str]:
    """What keeps workers from computing an agent's actions; empty if nothing does.

    Args:
      agent: A TFAgent, or its acting part.
      frame_stack: The hyperparameter.
      deterministic: SAC_DETERMINISTIC=1.

    Raises:
      UserError: See TensorFlowWorkerPolicy.
    """
    try:
        difference = network_difference(agent, frame_stack)
    except UnsupportedNetworkError as error:
        if deterministic:
            return [
                f"SAC_DETERMINISTIC=1 needs a policy that workers can run in NumPy, and {error}: use the default "
                "actors, or SAC_DETERMINISTIC=0"
            ]
        TensorFlowWorkerPolicy(agent, 1, frame_stack)
        return []
    if difference <= TOLERANCE:
        return []
    return [
        f"workers would act in NumPy, and these actions differ from the network's by {difference:g} (at most "
        f"{TOLERANCE:g} is a rounding): let actor_ctor return a subclass of its network, which TensorFlow computes"
    ]


def network_difference(agent: Any, frame_stack: FrameStack = 1) -> float:
    """The largest difference of NumPy's actions in [-1, 1] from the network's, greedy or samples; NaN where one is.

    Of one of n actions: see `regret`. Two steps of random episodes are compared, because a memory of zeros hides errors
    in its use, and with other biases, scales and statistics: initial ones are 0 or 1, which hides errors, too.

    Raises:
      UnsupportedNetworkError: NumPy does not compute this network.
    """
    network, rng = of_single_frames(agent.collect_policy, frame_stack), np.random.default_rng(0)
    variables = named_variables(network)
    initial = read_weights(variables)
    moved = {
        name: (initial[name] + rng.uniform(0.0, 0.5, variable.shape)).astype(initial[name].dtype)
        for name, variable in variables.items()
        if variable.dtype.is_floating and not (variable.trainable and variable.shape.rank > 1)
    }
    assign_weights(variables, initial | moved)
    try:
        greedy, sampling = (NumpyWorkerPolicy(agent, 0, _LANES, frame_stack) for _ in range(2))
        differences = []
        for steps, distribution in random_episodes(network, _LANES, 2, rng):
            differences.append(greedy_difference(greedy.act(steps, True)[0], distribution))
            if not isinstance(innermost(network), ScorePolicy):
                mean, std = (values.numpy() for values in mean_and_std(distribution))
                noise = rng.standard_normal(mean.shape).astype(np.float32)
                sampling.network.noise = iter([noise.reshape(_LANES, -1).T])
                differences.append(np.abs(sampling.act(steps, False)[0] - np.tanh(mean + std * noise)).max())
        return float(np.max(differences))
    finally:
        assign_weights(variables, initial)


def random_episodes(
    network: tf_policy.TFPolicy, count: int, num_steps: int, rng: np.random.Generator
) -> Iterator[tuple[LaneSteps, Any]]:
    """Steps of `count` episodes with random observations, and the distributions of the network's actions."""
    state = network.get_initial_state(count)
    for k in range(num_steps):
        step_type = ts.StepType.FIRST if k == 0 else ts.StepType.MID
        observation = random_observations(network, count, rng)
        columns = np.full(count, step_type), np.zeros(count, np.float32), np.ones(count, np.float32)
        step = network.distribution(tf.nest.map_structure(tf.constant, ts.TimeStep(*columns, observation)), state)
        state = step.state
        yield LaneSteps(*columns, tf.nest.flatten(observation), observation), step.action


def greedy_difference(actions: np.ndarray, distribution: Any) -> float:
    """The largest difference of an agent's actions `[n, ...]` from a distribution's mode; of scores the `regret`."""
    if hasattr(distribution, "logits_parameter"):
        return regret(actions, distribution.logits_parameter().numpy())
    return float(np.abs(actions - mode(distribution).numpy()).max())


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
    return float(np.max(missing / np.maximum(np.abs(scores).max(axis=-1), 1.0)))


def random_observations(policy: tf_policy.TFPolicy, count: int, rng: np.random.Generator) -> Any:
    """`[count, ...]`, around the mean of the policy's training observations if it knows that.

    Otherwise all would be clipped, and no weight behind the normalisation would matter.
    """
    spec = policy.time_step_spec.observation
    own = horizon_time_leaf(innermost(policy).time_step_spec.observation)
    seen = {
        module.leaf - (own is not None and module.leaf > own): (module.mean.numpy(), np.sqrt(module.variance.numpy()))
        for module in policy.submodules
        if isinstance(module, RunningNormalization) and module.leaf != own
    }
    return tf.nest.pack_sequence_as(
        spec, [_draw(leaf, seen.get(k), count, rng) for k, leaf in enumerate(tf.nest.flatten(spec))]
    )


def _draw(spec: tf.TensorSpec, seen: tuple[Any, Any] | None, count: int, rng: np.random.Generator) -> np.ndarray:
    """`[count, *shape]`, from (mean, standard deviation) of what networks have seen, if known."""
    shape, dtype = (count, *spec.shape), spec.dtype.as_numpy_dtype
    if seen is not None and spec.shape.rank:  # The newest frame of a stacked leaf.
        seen = seen[0][..., -spec.shape[-1] :], seen[1][..., -spec.shape[-1] :]
    if not spec.dtype.is_floating and seen is None:
        return rng.integers(0, min(255, np.iinfo(dtype).max), shape, dtype, endpoint=True)
    mean, std = seen or (0.0, 1.0)
    spread = np.resize([1.0, 1.0, 0.1, 10.0], count).reshape(-1, *[1] * len(spec.shape))
    values = mean + spread * std * rng.standard_normal(shape)
    if spec.dtype.is_floating:
        return values.astype(dtype)
    return np.clip(np.rint(values), np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype)
