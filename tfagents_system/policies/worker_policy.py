"""The policy as a worker runs it: NumPy where the network allows, a graph of TensorFlow otherwise."""

from __future__ import annotations

import abc
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tree
from absl import logging
from tf_agents.policies import greedy_policy, tf_policy
from tf_agents.trajectories import time_step as ts

from tfagents_system.agents.action_sampling import UnsupportedAgentError
from tfagents_system.agents.agent_interface import sampled_actor
from tfagents_system.checks.frame_stacks import FrameStack
from tfagents_system.envs.history import frames_in
from tfagents_system.errors import UserError
from tfagents_system.policies.frame_stack_policy import of_single_frames
from tfagents_system.policies.lane_steps import LaneSteps
from tfagents_system.policies.network_check import NetworkCheck
from tfagents_system.policies.network_layers import NetworkLayers, UnsupportedNetworkError
from tfagents_system.policies.numpy_policy import Network
from tfagents_system.policies.policy_runners import FunctionRunner, PolicyRunner, SessionRunner
from tfagents_system.policies.weights import named_variables, read_weights

_NOISE_BLOCK = 1024  # Drawing few numbers takes about as long as drawing a hundred.
# From this number on one matrix product for all observations is faster than one matrix-vector product for each.
_MATRIX_BATCH = 8


class WorkerPolicy(abc.ABC):
    """Actions for the environments of one worker, which are numbered from 0.

    Attributes:
      inference: How actions are computed: `numpy`, `tensorflow session` or `tensorflow function`.
    """

    inference: str

    @abc.abstractmethod
    def assign(self, weights: Mapping[str, np.ndarray]) -> None:
        """Takes new weights, by name."""

    def reseed(self, seed: int) -> None:
        """Seeds the exploration noise from now on.

        Raises:
          UserError: It can't be reseeded.
        """
        raise UserError(
            f"SAC_DETERMINISTIC=1 needs a policy that workers can run in NumPy, this one runs as a {self.inference} "
            "(the log says why): use the default actors, or SAC_DETERMINISTIC=0"
        )

    def set_noise(self, noise: np.ndarray) -> bool:
        """Uses this noise, `[num_envs, ...]`, for each environment's next sample; False if unsupported."""
        del noise
        return False

    def memory(self, env: int) -> list[np.ndarray]:
        """A copy of what it remembers of the episode in an environment. Those that can be reseeded tell all of it."""
        del env
        return []

    def remember(self, env: int, memory: Sequence[np.ndarray]) -> None:
        """Remembers what `memory` returned."""
        del env, memory

    def checked(self, trained: Mapping[str, np.ndarray]) -> WorkerPolicy:
        """Itself, or a slower policy if its actions with these weights, already loaded, differ from the network's.

        To be called once, with the first trained weights: from then on statistics, for example, are known.
        """
        del trained
        return self

    @abc.abstractmethod
    def reset(self, env: int = 0) -> None:
        """An episode begins in an environment."""

    @abc.abstractmethod
    def actions(self, time_steps: Mapping[int, ts.TimeStep], greedy: bool) -> dict[int, Any]:
        """The actions for unbatched NumPy time steps, by their environments: nests of arrays in [-1, 1].

        Args:
          time_steps: The observations and what led to them.
          greedy: The modes of the policy's distributions rather than samples.
        """

    def action(self, time_step: ts.TimeStep, greedy: bool) -> Any:
        """Like `actions`, for environment 0."""
        return self.actions({0: time_step}, greedy)[0]

    def reset_lanes(self, lanes: Sequence[int], first: int = 0) -> None:
        """Episodes begin in lanes of the vector environment whose lane 0 is environment `first`."""
        for lane in lanes:
            self.reset(first + lane)

    def batch(self, steps: LaneSteps, greedy: bool, first: int = 0) -> list[np.ndarray]:
        """The actions in all lanes of a vector environment: leaves `[N, n]` in [-1, 1].

        Args:
          steps: Of all lanes.
          greedy: As of `actions`.
          first: The environment that is lane 0.
        """
        envs = range(first, first + len(steps.step_type))
        actions = self.actions({env: steps.of_lane(env - first) for env in envs}, greedy)
        return [np.stack(leaves) for leaves in zip(*(tree.flatten(actions[env]) for env in envs), strict=True)]

    def close(self) -> None:
        """Frees its resources; it can't act any more."""
        return


CheckAgain = Callable[[WorkerPolicy, Mapping[str, np.ndarray]], WorkerPolicy]


def make_worker_policy(agent: Any, seed: int, num_envs: int = 1, frame_stack: FrameStack = 1) -> WorkerPolicy:
    """The fastest way to run the policy of `agent`. Rejects a fast path whose actions differ from the network's.

    Args:
      agent: A TFAgent, or its acting part.
      seed: Of the exploration noise.
      num_envs: Environments that it acts in.
      frame_stack: The hyperparameter; the policy takes single frames.
    """
    tf.random.set_seed(seed % 2**31)
    collect = of_single_frames(agent.collect_policy, frame_stack)
    greedy = of_single_frames(greedy_policy.GreedyPolicy(agent.policy), frame_stack)
    check = NetworkCheck(collect, greedy, num_envs)

    def in_session(single_threaded: bool) -> WorkerPolicy:
        runner = SessionRunner(collect, greedy, num_envs, single_threaded)
        return TensorFlowWorkerPolicy(collect, runner, num_envs)

    def in_tensorflow() -> WorkerPolicy:
        for single_threaded in (True, False):
            if policy := _tried(lambda: in_session(single_threaded), check):  # noqa: B023 (called at once)
                return policy
        return TensorFlowWorkerPolicy(collect, FunctionRunner(collect, greedy, num_envs), num_envs)

    def check_again(policy: WorkerPolicy, trained: Mapping[str, np.ndarray]) -> WorkerPolicy:
        if check.passes(policy, trained):
            return policy
        slower = in_tensorflow()
        slower.assign(trained)
        return slower

    rng = np.random.default_rng(seed)
    return _tried(lambda: _in_numpy(agent, rng, num_envs, frame_stack, check_again), check) or in_tensorflow()


def _tried(make: Callable[[], WorkerPolicy], check: NetworkCheck) -> WorkerPolicy | None:
    """A policy, if it can be made and acts like the network."""
    policy: WorkerPolicy | None = None
    try:
        policy = make()
        if check.passes(policy):
            return policy
    except UnsupportedNetworkError as error:
        logging.info("actions are not computed in NumPy: %s", error)
    except Exception as error:  # A user's policy may contain anything; the next path may support it.
        logging.info("a faster way to compute actions does not take this policy: %r", error)
    if policy is not None:
        policy.close()
    return None


def why_not_numpy(agent: Any, frame_stack: FrameStack = 1) -> str:
    """Why workers can't compute the actions of `agent` in NumPy; empty if they can."""
    try:
        _in_numpy(agent, np.random.default_rng(0), 1, frame_stack).close()
    except UnsupportedNetworkError as error:
        return str(error)
    return ""


def _in_numpy(
    agent: Any, rng: np.random.Generator, num_envs: int, frame_stack: FrameStack, check_again: CheckAgain | None = None
) -> NumpyWorkerPolicy:
    frames = frames_in(agent.collect_policy.time_step_spec.observation, frame_stack)
    return NumpyWorkerPolicy(agent, rng, num_envs, check_again, frames)


class NumpyWorkerPolicy(WorkerPolicy):
    """The default actors in NumPy.

    Args:
      agent: Its collect policy must sample from an actor that `NetworkLayers` can read.
      rng: Source of the exploration noise.
      num_envs: Environments that it acts in.
      check_again: For `checked`; it holds the network, which is not needed afterwards.
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
        check_again: CheckAgain | None = None,
        frames: Sequence[int] = (),
    ) -> None:
        try:
            actor = sampled_actor(agent)
        except UnsupportedAgentError as error:
            raise UnsupportedNetworkError(str(error)) from None
        variables = named_variables(agent.collect_policy)
        self._layers = NetworkLayers(actor, variables, frames)
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
        self._check_again = check_again

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

    def checked(self, trained: Mapping[str, np.ndarray]) -> WorkerPolicy:
        check_again, self._check_again = self._check_again, None
        if check_again is None:
            return self
        kept = [self.memory(env) for env in range(len(self._networks))]
        policy = check_again(self, trained)
        for env, memory in enumerate(kept):  # Episodes may be under way.
            self.remember(env, memory)
        return policy

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


class TensorFlowWorkerPolicy(WorkerPolicy):
    """Any TFPolicy, recurrent ones included.

    Args:
      policy: The one that explores, for its specs.
      runner: Runs it.
      num_envs: Environments that it acts in: its batch is always of this size.
    """

    def __init__(self, policy: tf_policy.TFPolicy, runner: PolicyRunner, num_envs: int = 1) -> None:
        self.inference = runner.inference
        self._runner = runner
        self._num_envs = num_envs
        self._action_spec = policy.action_spec
        self._is_one_leaf = not tf.nest.is_nested(policy.action_spec)
        self._inputs = [
            np.zeros((num_envs, *spec.shape), spec.dtype.as_numpy_dtype)
            for spec in tf.nest.flatten(policy.time_step_spec)
        ]
        self._initial_state = [leaf.numpy() for leaf in tf.nest.flatten(policy.get_initial_state(num_envs))]
        self._state = [leaf.copy() for leaf in self._initial_state]

    def assign(self, weights: Mapping[str, np.ndarray]) -> None:
        self._runner.assign(weights)

    def reset(self, env: int = 0) -> None:
        self._state = [leaf.copy() for leaf in self._state]  # What TensorFlow returned may be read-only.
        for leaf, initial in zip(self._state, self._initial_state, strict=True):
            leaf[env] = initial[env]

    def actions(self, time_steps: Mapping[int, ts.TimeStep], greedy: bool) -> dict[int, Any]:
        for env, time_step in time_steps.items():
            for batch, leaf in zip(self._inputs, tree.flatten(time_step), strict=True):
                batch[env] = leaf
        results = self._runner.run(greedy, [*self._inputs, *self._state])
        split = len(results) - len(self._state)
        self._keep(results[split:], list(time_steps))
        return {env: self._action(results[:split], env) for env in time_steps}

    def batch(self, steps: LaneSteps, greedy: bool, first: int = 0) -> list[np.ndarray]:
        lanes = slice(first, first + len(steps.step_type))
        own = [steps.step_type, steps.reward, steps.discount, *steps.observation]
        for batch, leaf in zip(self._inputs, own, strict=True):
            batch[lanes] = leaf
        results = self._runner.run(greedy, [*self._inputs, *self._state])
        split = len(results) - len(self._state)
        self._keep(results[split:], list(range(lanes.start, lanes.stop)))
        return [leaf[lanes] for leaf in results[:split]]

    def close(self) -> None:
        self._runner.close()

    def _keep(self, state: Sequence[np.ndarray], envs: list[int]) -> None:
        """Stores the next state of the stepped environments."""
        if len(envs) < self._num_envs:
            kept = [leaf.copy() for leaf in self._state]
            for leaf, new in zip(kept, state, strict=True):
                leaf[envs] = new[envs]
            state = kept
        self._state = list(state)

    def _action(self, leaves: Sequence[np.ndarray], env: int) -> Any:
        if self._is_one_leaf:
            return leaves[0][env]
        return tf.nest.pack_sequence_as(self._action_spec, [leaf[env] for leaf in leaves])
