"""Checks that a faster way to compute a policy's actions agrees with its network."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
import tree
from absl import logging
from tf_agents.policies import tf_policy
from tf_agents.trajectories import time_step as ts

from tfagents_system.agents.value_network import ScorePolicy
from tfagents_system.policies.frame_stack_policy import innermost
from tfagents_system.policies.random_observations import random_observations
from tfagents_system.policies.weights import assign_weights, named_variables, read_weights

if TYPE_CHECKING:
    from tfagents_system.policies.policy_interface import WorkerPolicy

_TOLERANCE = 3e-4  # For actions in [-1, 1]: products are summed in another order.


class NetworkCheck:
    """The network that fast paths are compared with.

    Args:
      collect: The policy that explores.
      greedy: The policy that does not explore.
      num_envs: Number of environments in which they act.
    """

    def __init__(self, collect: tf_policy.TFPolicy, greedy: tf_policy.TFPolicy, num_envs: int) -> None:
        self._collect = collect
        self._greedy = greedy
        self._num_envs = num_envs

    def passes(self, policy: WorkerPolicy) -> bool:
        """Whether a policy's actions are those of the network, in two steps of an episode of random numbers.

        In the first step a memory is zero, which hides errors in its use. Samples are compared if a policy takes
        their noise; otherwise they only have to run.

        Args:
          policy: Afterwards its memories are those at an episode's start.
        """
        rng = np.random.default_rng(0)
        with self._moved_weights(policy, rng):
            return self._is_equal(policy, rng)

    @contextlib.contextmanager
    def _moved_weights(self, policy: WorkerPolicy, rng: np.random.Generator) -> Iterator[None]:
        """Network and policy have other biases, scales and statistics: initial ones are 0 or 1, which hides errors."""
        variables = named_variables(self._collect)
        initial = read_weights(variables)
        moved = dict(initial)
        for name, variable in variables.items():
            if variable.dtype.is_floating and not (variable.trainable and variable.shape.rank > 1):
                moved[name] = (initial[name] + rng.uniform(0.0, 0.5, variable.shape)).astype(initial[name].dtype)
        try:
            assign_weights(variables, moved)
            policy.assign(moved)
            yield
        finally:
            assign_weights(variables, initial)
            policy.assign(initial)

    def _is_equal(self, policy: WorkerPolicy, rng: np.random.Generator) -> bool:
        batches = [self._random_time_step(kind, rng) for kind in (ts.StepType.FIRST, ts.StepType.MID)]
        self._reset(policy)
        policy.actions(self._by_env(batches[0]), greedy=False)  # Checks that it runs.
        for what, difference in (
            ("greedy actions", self._difference_of_modes(policy, batches)),
            ("samples", self._difference_of_samples(policy, batches, rng)),
        ):
            if not difference <= _TOLERANCE:
                logging.warning(
                    "%s of %s inference differ from the network's by %g: it is not used",
                    what,
                    policy.inference,
                    difference,
                )
                return False
        self._reset(policy)
        return True

    def _difference_of_modes(self, policy: WorkerPolicy, batches: list[ts.TimeStep]) -> float:
        self._reset(policy)
        state, differences = self._greedy.get_initial_state(self._num_envs), []
        for batch in batches:
            time_steps = tf.nest.map_structure(tf.constant, batch)
            if isinstance(innermost(self._collect), ScorePolicy):
                scored = self._collect.distribution(time_steps, state)
                state, scores = scored.state, scored.action.logits_parameter().numpy()
                differences.append(_regret(policy.actions(self._by_env(batch), greedy=True), scores))
                continue
            expected = self._greedy.action(time_steps, state)
            state = expected.state
            differences.append(_difference(policy.actions(self._by_env(batch), greedy=True), expected.action))
        return float(np.max(differences))  # NaN where there is one.

    def _difference_of_samples(
        self, policy: WorkerPolicy, batches: list[ts.TimeStep], rng: np.random.Generator
    ) -> float:
        """0 if the policy does not accept the noise."""
        if tf.nest.is_nested(self._collect.action_spec):
            return 0.0
        self._reset(policy)
        state, differences = self._collect.get_initial_state(self._num_envs), [0.0]
        for batch in batches:
            shape = (self._num_envs, *self._collect.action_spec.shape)
            noise = rng.standard_normal(shape).astype(np.float32)
            if not policy.set_noise(noise):
                return 0.0
            expected = self._collect.distribution(tf.nest.map_structure(tf.constant, batch), state)
            state, squashed = expected.state, expected.action
            normal = squashed.input_distribution
            samples = squashed.action_means + squashed.action_magnitudes * tf.tanh(
                normal.mean() + normal.stddev() * noise
            )
            differences.append(_difference(policy.actions(self._by_env(batch), greedy=False), samples))
        return float(np.max(differences))

    def _random_time_step(self, kind: np.ndarray, rng: np.random.Generator) -> ts.TimeStep:
        """Batched, of this step type."""
        zeros = tf.nest.map_structure(
            lambda spec: np.zeros((self._num_envs, *spec.shape), spec.dtype.as_numpy_dtype),
            self._collect.time_step_spec,
        )
        return zeros._replace(
            step_type=np.full_like(zeros.step_type, kind),
            reward=rng.standard_normal(zeros.reward.shape).astype(zeros.reward.dtype),
            discount=np.ones_like(zeros.discount),
            observation=random_observations(self._collect, self._num_envs, rng),
        )

    def _by_env(self, batch: ts.TimeStep) -> dict[int, ts.TimeStep]:
        return {env: tf.nest.map_structure(lambda leaf, env=env: leaf[env], batch) for env in range(self._num_envs)}

    def _reset(self, policy: WorkerPolicy) -> None:
        for env in range(self._num_envs):
            policy.reset(env)


def _regret(found: Mapping[int, Any], scores: np.ndarray) -> float:
    """How much less than the best one any environment's action is worth; NaN where a score is.

    Relative to the scores where these are large: rounding errors may exchange actions of nearly equal score.
    """
    best = scores.max(axis=1)
    taken = np.array([scores[env, int(action)] for env, action in found.items()])
    missing = best[list(found)] - taken
    return float(np.max(missing / np.maximum(np.abs(scores).max(axis=1)[list(found)], 1.0)))


def _difference(found: Mapping[int, Any], expected: Any) -> float:
    """The largest one in any number of any environment's action; NaN where there is one."""
    differences = [
        np.max(np.abs(mine - theirs[env].numpy()), initial=0.0)
        for env, action in found.items()
        for mine, theirs in zip(tree.flatten(action), tf.nest.flatten(expected), strict=True)
    ]
    return float(np.max(differences))
