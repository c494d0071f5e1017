"""The policy of one of n actions as a worker runs it in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tree
from tf_agents.trajectories import time_step as ts

from tfagents_system.agents.value_network import (
    BOLTZMANN,
    EPSILON,
    NOISE_SCALE,
    ExploringPolicy,
    SamplingPolicy,
    ScorePolicy,
)
from tfagents_system.envs.history import horizon_time_leaf
from tfagents_system.policies.lane_steps import LaneSteps
from tfagents_system.policies.network_layers import UnsupportedNetworkError
from tfagents_system.policies.numpy_scores import NumpyScores
from tfagents_system.policies.policy_interface import WorkerPolicy
from tfagents_system.policies.weights import named_variables, read_weights


class NumpyScorePolicy(WorkerPolicy):
    """The highest score, or exploration from the scores as `agents/value_policy.py` has it.

    Args:
      policy: The one that collects.
      rng: Source of the exploration.

    Raises:
      UnsupportedNetworkError: It is another policy, or its network can't be computed in NumPy.
    """

    inference = "numpy"

    def __init__(self, policy: Any, rng: np.random.Generator) -> None:
        # Exactly these classes: a subclass may act in another way.
        if type(policy) not in (ExploringPolicy, SamplingPolicy):
            raise UnsupportedNetworkError(f"{type(policy).__name__} is no policy that scores actions")
        variables = named_variables(policy)
        names = {variable.ref(): name for name, variable in variables.items()}
        rates = policy.rates if isinstance(policy, ExploringPolicy) else {}
        self._rate_names = {attribute: names[variable.ref()] for attribute, variable in rates.items()}
        self._samples = type(policy) is SamplingPolicy
        weights = read_weights(variables)
        own = horizon_time_leaf(policy.time_step_spec.observation)
        self._scores = NumpyScores(policy.network, variables, weights, own)
        self._rates = self._rates_of(weights)
        self._rng = rng
        self._last: dict[int, tuple[np.ndarray, bool]] = {}  # By environment: scores, and whether it explored.

    def assign(self, weights: Mapping[str, np.ndarray]) -> None:
        self._scores.assign(weights)
        self._rates = self._rates_of(weights)

    def reseed(self, seed: int) -> None:
        self._rng.bit_generator.state = np.random.default_rng(seed).bit_generator.state

    def reset(self, env: int = 0) -> None:
        self._last.pop(env, None)

    def actions(self, time_steps: Mapping[int, ts.TimeStep], greedy: bool) -> dict[int, np.ndarray]:
        observations = [tree.flatten(time_step.observation) for time_step in time_steps.values()]
        leaves = [np.stack(parts) for parts in zip(*observations, strict=True)]
        chosen = self._act(leaves, list(time_steps), greedy)
        return {env: chosen[k : k + 1].reshape(()) for k, env in enumerate(time_steps)}

    def batch(self, steps: LaneSteps, greedy: bool, first: int = 0) -> list[np.ndarray]:
        return [self._act(steps.observation, range(first, first + len(steps.step_type)), greedy)]

    def explored(self, env: int) -> bool:
        return self._last[env][1] if env in self._last else False

    def was_greedy(self, env: int) -> bool:
        return env in self._last and not self._last[env][1]

    def q_values(self, env: int) -> np.ndarray | None:
        return None if self._samples or env not in self._last else self._last[env][0]

    def _act(self, leaves: Any, envs: Any, greedy: bool) -> np.ndarray:
        """Actions `[N]` int32 of environments."""
        scores = self._scores(leaves)
        best = scores.argmax(axis=1)
        chosen = best if greedy else self._explore(scores, best)
        for env, row, is_other in zip(envs, scores, (chosen != best).tolist(), strict=True):
            self._last[env] = row, is_other
        return chosen.astype(np.int32)

    def _explore(self, scores: np.ndarray, best: np.ndarray) -> np.ndarray:
        rng, shape = self._rng, scores.shape
        if self._samples:
            return (scores + rng.gumbel(size=shape)).argmax(axis=1)
        is_random, is_noisy = rng.random((2, len(scores)))
        noisy = (scores + NOISE_SCALE * rng.standard_normal(shape, np.float32)).argmax(axis=1)
        chosen = np.where(is_noisy < self._rates[BOLTZMANN], noisy, best)
        return np.where(is_random < self._rates[EPSILON], rng.integers(shape[1], size=len(scores)), chosen)

    def _rates_of(self, weights: Mapping[str, np.ndarray]) -> dict[str, float]:
        return {attribute: float(weights[name]) for attribute, name in self._rate_names.items()}


def scores_actions(policy: Any) -> bool:
    """Whether a policy chooses one of n actions by their scores."""
    return isinstance(policy, ScorePolicy)
