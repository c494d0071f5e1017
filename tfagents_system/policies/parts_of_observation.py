"""Policies that see a part of what an environment gives (`actor_observations`): what they are given of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tree
from tf_agents.trajectories import time_step as ts

from tfagents_system.envs.history import leaves_seen_by_actor, seen_by_actor
from tfagents_system.policies.lane_steps import LaneSteps
from tfagents_system.policies.policy_interface import WorkerPolicy


def parts_for(observation: Any, spec: Any) -> Any:
    """The parts of an observation that a policy asks for by its spec; the observation may have more of them."""
    if isinstance(spec, Mapping) and isinstance(observation, Mapping):
        return {key: parts_for(observation[key], each) for key, each in spec.items()}
    return observation


def arrays_for(observation: Any, spec: Any) -> Any:
    """The parts of an observation that a policy asks for, as arrays of its spec's shapes and dtypes.

    Raises:
      ValueError: A part is not there, or has another shape.
    """
    remedy = (
        "a policy takes what training's environment gives: discrete parts one-hot, and action_history where the params "
        "ask for it"
    )

    def array(path: tuple[Any, ...], one: Any) -> np.ndarray:
        name = "/".join(map(str, path)) or "observation"
        found = observation
        for key in path:
            try:
                found = found[key]
            except (KeyError, IndexError, TypeError):
                raise ValueError(f"the observation has no part {name}: {remedy}") from None
        value = np.asarray(found, one.dtype)
        if value.shape != tuple(one.shape):
            raise ValueError(f"{name} must have the shape {tuple(one.shape)}, found {value.shape}: {remedy}")
        return value

    return tree.map_structure_with_path(array, spec)


class PolicyOfParts(WorkerPolicy):
    """Gives a worker's policy the parts of each observation that the actor sees.

    Args:
      policy: Takes these alone.
      names: `actor_observations`.
    """

    def __init__(self, policy: WorkerPolicy, names: Sequence[str]) -> None:
        self._policy = policy
        self._names = names
        self._of_lanes: tuple[list[int], Any] | None = None  # The numbers of their leaves, and their spec.
        self.inference = policy.inference

    def assign(self, weights: Mapping[str, np.ndarray]) -> None:
        self._policy.assign(weights)

    def reseed(self, seed: int) -> None:
        self._policy.reseed(seed)

    def set_noise(self, noise: np.ndarray) -> bool:
        return self._policy.set_noise(noise)

    def memory(self, env: int) -> list[np.ndarray]:
        return self._policy.memory(env)

    def remember(self, env: int, memory: Sequence[np.ndarray]) -> None:
        self._policy.remember(env, memory)

    def reset(self, env: int = 0) -> None:
        self._policy.reset(env)

    def actions(self, time_steps: Mapping[int, ts.TimeStep], greedy: bool) -> dict[int, Any]:
        return self._policy.actions({env: self._seen(each) for env, each in time_steps.items()}, greedy)

    def action(self, time_step: ts.TimeStep, greedy: bool) -> Any:
        return self._policy.action(self._seen(time_step), greedy)

    def reset_lanes(self, lanes: Sequence[int], first: int = 0) -> None:
        self._policy.reset_lanes(lanes, first)

    def batch(self, steps: LaneSteps, greedy: bool, first: int = 0) -> list[np.ndarray]:
        if self._of_lanes is None:
            self._of_lanes = leaves_seen_by_actor(steps.spec, self._names), seen_by_actor(steps.spec, self._names)
        leaves, spec = self._of_lanes
        seen = steps._replace(observation=[steps.observation[leaf] for leaf in leaves], spec=spec)
        return self._policy.batch(seen, greedy, first)

    def explored(self, env: int) -> bool:
        return self._policy.explored(env)

    def explored_lanes(self, count: int, first: int = 0) -> np.ndarray:
        return self._policy.explored_lanes(count, first)

    def was_greedy(self, env: int) -> bool:
        return self._policy.was_greedy(env)

    def q_values(self, env: int) -> np.ndarray | None:
        return self._policy.q_values(env)

    def close(self) -> None:
        self._policy.close()

    def _seen(self, time_step: ts.TimeStep) -> ts.TimeStep:
        return time_step._replace(observation=seen_by_actor(time_step.observation, self._names))
