"""The policy as a worker runs it in NumPy, where the network allows that."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tree
from tf_agents.policies.actor_policy import ActorPolicy
from tf_agents.trajectories import time_step as ts

from tfagents_system.envs.history import horizon_time_leaf
from tfagents_system.policies.lane_steps import LaneSteps
from tfagents_system.policies.network_layers import NetworkLayers, UnsupportedNetworkError
from tfagents_system.policies.numpy_network import Network
from tfagents_system.policies.policy_interface import WorkerPolicy
from tfagents_system.policies.weights import named_variables, read_weights

_NOISE_BLOCK = 1024  # Drawing few numbers takes about as long as drawing a hundred.
# From this number on one matrix product for all observations is faster than one matrix-vector product for each.
_MATRIX_BATCH = 8


class NumpyWorkerPolicy(WorkerPolicy):
    """The default actors in NumPy.

    Args:
      agent: Its collect policy must sample from an actor that `NetworkLayers` can read.
      rng: Source of the exploration noise.
      num_envs: Environments that it acts in.
      frames: Of each leaf of the observation that the actor takes; empty where none is stacked.

    Raises:
      UnsupportedNetworkError: It does not.
    """

    inference = "numpy"

    def __init__(
        self,
        agent: Any,
        rng: np.random.Generator,
        num_envs: int = 1,
        frames: Sequence[int] = (),
    ) -> None:
        if type(agent.collect_policy) is not ActorPolicy:  # A subclass may do more than sample its network.
            raise UnsupportedNetworkError(f"{type(agent.collect_policy).__name__} is not TF-Agents' ActorPolicy itself")
        actor = agent.collect_policy._actor_network
        variables = named_variables(agent.collect_policy)
        own = horizon_time_leaf(agent.collect_policy.time_step_spec.observation)
        self._layers = NetworkLayers(actor, variables, frames, own)
        self._arrays = self._layers.arrays(read_weights(variables))

        def network(columns: int, like: Network | None = None) -> Network:
            return Network(self._layers.observation, self._layers.layers, self._arrays, columns, like)

        first = network(1)
        as_matrix = num_envs >= _MATRIX_BATCH and not first.state
        self._networks = [first, *(network(1, first) for _ in range(0 if as_matrix else num_envs - 1))]
        self._batch = network(num_envs, first) if as_matrix else None
        self._new_batch = functools.partial(network, like=first)
        self._of_lanes: dict[tuple[int, int], Network] = {}  # By the first one and their number.
        spec = agent.collect_policy.time_step_spec.observation
        is_vector = not tf.nest.is_nested(spec) and spec.shape.rank == 1 and spec.dtype == tf.float32
        self._is_vector = is_vector and max(frames, default=1) == 1
        self._action_shape = tuple(agent.collect_policy.action_spec.shape)
        self._rng = rng
        self._draw_noise()

    def assign(self, weights: Mapping[str, np.ndarray]) -> None:
        self._arrays = self._layers.arrays(weights)
        self._networks[0].assign(self._arrays)

    def reseed(self, seed: int) -> None:
        self._rng.bit_generator.state = np.random.default_rng(seed).bit_generator.state
        self._draw_noise()

    def set_noise(self, noise: np.ndarray) -> bool:
        columns = noise.reshape(len(noise), -1).T
        if self._batch is not None:
            self._batch.noise = itertools.chain([columns], self._noise(self._batch))
            return True
        for env, network in enumerate(self._networks):
            network.noise = itertools.chain([columns[:, env : env + 1]], self._noise(network))
        return True

    def reset(self, env: int = 0) -> None:
        if self._batch is None:
            for memory in self._networks[env].state:
                memory[:] = 0.0

    def memory(self, env: int) -> list[np.ndarray]:
        return [] if self._batch is not None else [memory.copy() for memory in self._networks[env].state]

    def remember(self, env: int, memory: Sequence[np.ndarray]) -> None:
        for own, given in zip(self._networks[env].state if memory else (), memory, strict=True):
            own[:] = given.reshape(own.shape)

    def action(self, time_step: ts.TimeStep, greedy: bool) -> np.ndarray:
        return self._act_in(0, time_step, greedy)

    def actions(self, time_steps: Mapping[int, ts.TimeStep], greedy: bool) -> dict[int, np.ndarray]:
        if self._batch is None:
            return {env: self._act_in(env, time_step, greedy) for env, time_step in time_steps.items()}
        for env, time_step in time_steps.items():
            self._load(self._batch, time_step, env)
        actions = np.ascontiguousarray(self._batch.act(greedy).T)
        return {env: actions[env].reshape(self._action_shape) for env in time_steps}

    def reset_lanes(self, lanes: Sequence[int], first: int = 0) -> None:
        for (first_of_batch, _), network in self._of_lanes.items():
            if first_of_batch == first:
                for memory in network.state:
                    memory[:, lanes] = 0.0

    def batch(self, steps: LaneSteps, greedy: bool, first: int = 0) -> list[np.ndarray]:
        network = self._lanes(first, len(steps.step_type))
        network.load_all(steps.observation)
        actions = np.ascontiguousarray(network.act(greedy).T)
        return [actions.reshape(len(actions), *self._action_shape)]

    def _lanes(self, first: int, count: int) -> Network:
        """For all lanes of a vector environment at once, with memories of their own."""
        network = self._of_lanes.get((first, count))
        if network is None:
            network = self._of_lanes[first, count] = self._new_batch(count)
            network.noise = self._noise(network)
        return network

    def _act_in(self, env: int, time_step: ts.TimeStep, greedy: bool) -> np.ndarray:
        network = self._networks[env]
        self._load(network, time_step)
        return network.act(greedy).reshape(self._action_shape)

    def _load(self, network: Network, time_step: ts.TimeStep, column: int = 0) -> None:
        if self._is_vector:
            network.inputs[column][:] = time_step.observation
        else:
            network.load(tree.flatten(time_step.observation), column)

    def _draw_noise(self) -> None:
        """Discards numbers drawn ahead."""
        for network in (*self._networks, *([self._batch] if self._batch else []), *self._of_lanes.values()):
            network.noise = self._noise(network)

    def _noise(self, network: Network) -> Iterator[np.ndarray]:
        while True:
            shape = (_NOISE_BLOCK, int(np.prod(self._action_shape)), network.columns)
            yield from self._rng.standard_normal(shape, np.float32)
