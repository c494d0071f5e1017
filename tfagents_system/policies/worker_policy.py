"""What computes a worker's actions: NumPy where it can, else TensorFlow, or a policy that never changes.

A lane is one of the environments in which a policy acts; a single environment is a batch of one lane.
"""

from __future__ import annotations

import abc
import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tree
from absl import logging
from tf_agents.policies import py_policy
from tf_agents.trajectories import time_step as ts

from tfagents_system.agents.networks import BOLTZMANN, EPSILON, NOISE_SCALE, ExploringPolicy, ScorePolicy
from tfagents_system.envs.actions import is_finite, mask_leaf, random_legal
from tfagents_system.envs.history import frames_in, leaves_seen_by_actor
from tfagents_system.errors import UserError
from tfagents_system.hyperparameters import FrameStack
from tfagents_system.policies.description import NetworkLayers, UnsupportedNetworkError, network_of
from tfagents_system.policies.files import Policy
from tfagents_system.policies.numpy_policy import ILLEGAL, Network
from tfagents_system.policies.weights import read_weights

_NOISE_BLOCK = 1024  # Drawing few numbers takes about as long as drawing a hundred.

Greedy = bool | np.ndarray


@dataclasses.dataclass(slots=True)
class LaneSteps:
    """Time steps of N lanes, in columns.

    Attributes:
      step_type: N int32: LAST where no episode is under way; that lane's action is not taken.
      reward, discount: N float32: what led to the observations.
      observation: Leaves `[N, ...]` of the flattened nest.
      spec: A nest of an observation's structure.
    """

    step_type: np.ndarray
    reward: np.ndarray
    discount: np.ndarray
    observation: Sequence[np.ndarray]
    spec: Any

    @classmethod
    def of(cls, time_steps: Sequence[ts.TimeStep]) -> LaneSteps:
        """Of unbatched time steps."""
        types, rewards, discounts, observations = zip(*time_steps, strict=True)
        leaves = [np.array(parts) for parts in zip(*map(tree.flatten, observations), strict=True)]
        return cls(np.array(types), np.array(rewards), np.array(discounts), leaves, observations[0])

    def row(self, row: int) -> ts.TimeStep:
        """One lane's, unbatched."""
        observation = tree.unflatten_as(self.spec, [leaf[row] for leaf in self.observation])
        return ts.TimeStep(self.step_type[row], self.reward[row], self.discount[row], observation)


class WorkerPolicy(abc.ABC):
    """Acts in the lanes of one worker, with a memory for each.

    Args:
      num_lanes: Their number.
      names: `actor_observations`, the parts of an observation that the policy takes; None: all.

    Attributes:
      inference: How actions are computed: `numpy`, `tensorflow session`, ...
      why_not_numpy: What keeps it from being computed in NumPy.
      explored: `[num_lanes]` bool: the last action is another one than the greedy one. Known where actions have values.
      was_greedy: `[num_lanes]` bool: the last action is known to be the greedy one, however it was chosen.
      q_values: `[num_lanes, num_actions]` float32 at the last observations, NaN of illegal actions; None where actions
        have no values.
    """

    inference: str
    why_not_numpy = ""
    q_values: np.ndarray | None = None
    _has_scores = _has_values = _is_masked = False
    _rates: dict[str, float]  # Of ExploringPolicy, by attributes.
    _rate_names: Mapping[str, str] = {}  # Of their variables.

    def __init__(self, num_lanes: int, names: Sequence[str] | None = None) -> None:
        self._names = names
        self._leaves: list[int] | None = None
        self._set_lanes(num_lanes)

    def _set_lanes(self, num_lanes: int) -> None:
        self.num_lanes = num_lanes
        self.explored, self.was_greedy = np.zeros((2, num_lanes), np.bool_)

    def with_lanes(self, num_lanes: int) -> WorkerPolicy:
        """A policy with the same weights, which follow this one's, and lanes of its own."""
        other = copy.copy(self)
        other._set_lanes(num_lanes)
        return other

    @abc.abstractmethod
    def act(self, steps: LaneSteps, greedy: Greedy) -> list[np.ndarray]:
        """The actions of all lanes: leaves `[N, ...]` in [-1, 1].

        Args:
          steps: The observations and what led to them.
          greedy: The modes of the policy's distributions rather than samples: of all, or `[N]` bool.
        """

    @abc.abstractmethod
    def reset(self, lanes: Sequence[int]) -> None:
        """Episodes begin in these lanes."""

    def assign(self, weights: Mapping[str, np.ndarray]) -> None:
        """Takes new weights, by name."""
        for attribute, name in self._rate_names.items():
            self._rates[attribute] = float(weights[name])

    def reseed(self, seed: int, *, holds_noise: bool = True) -> None:
        """Seeds the exploration noise from now on.

        Args:
          seed: Of the noise.
          holds_noise: Noise that is held for several steps is held on; otherwise other noise is drawn.

        Raises:
          UserError: It can't be reseeded.
        """
        raise UserError(
            f"SAC_DETERMINISTIC=1 needs a policy that workers can run in NumPy, and {self.why_not_numpy}: use the "
            "default actors, or SAC_DETERMINISTIC=0"
        )

    def memory(self, lane: int) -> list[np.ndarray]:
        """A copy of what it remembers of the episode in a lane, and of noise that is held.

        Those that can be reseeded tell all of it.
        """
        del lane
        return []

    def remember(self, lane: int, memory: Sequence[np.ndarray]) -> None:  # noqa: B027
        """Remembers what `memory` returned."""

    def _seen(self, steps: LaneSteps) -> Sequence[np.ndarray]:
        """The leaves that the policy takes."""
        if self._names is None:
            return steps.observation
        if self._leaves is None:
            self._leaves = leaves_seen_by_actor(steps.spec, self._names)
        return [steps.observation[leaf] for leaf in self._leaves]

    def _explores_as(self, policy: Any, variables: Mapping[str, tf.Variable], seed: int) -> None:
        """Explores as an agent's policy does, with these variables; a ScorePolicy's actions are chosen here."""
        self._rng = np.random.default_rng(seed)
        self._has_scores, self._has_values = isinstance(policy, ScorePolicy), isinstance(policy, ExploringPolicy)
        self._is_masked = mask_leaf(policy.time_step_spec.observation, policy.action_spec) is not None
        rates = policy.rates if self._has_values else {}
        names = {variable.ref(): name for name, variable in variables.items()}
        self._rate_names = {attribute: names[variable.ref()] for attribute, variable in rates.items()}
        self._rates = {attribute: float(variable) for attribute, variable in rates.items()}

    def _choose(self, scores: np.ndarray, greedy: Greedy) -> np.ndarray:
        """Actions `[N]` int32 by their scores `[N, num_actions]`."""
        best = chosen = scores.argmax(axis=1)
        if greedy is not True:
            chosen = np.where(greedy, best, self._explore(scores, best))
        self.was_greedy = chosen == best
        self.explored = ~self.was_greedy
        if self._has_values:
            self.q_values = np.where(scores > ILLEGAL, scores, np.nan) if self._is_masked else scores
        return chosen.astype(np.int32)

    def _explore(self, scores: np.ndarray, best: np.ndarray) -> np.ndarray:
        """Samples of the softmax, or as ExploringPolicy says."""
        rng, shape = self._rng, scores.shape
        if not self._has_values:
            return (scores + rng.gumbel(size=shape)).argmax(axis=1)
        is_random, is_noisy = rng.random((2, len(scores)))
        noisy = (scores + NOISE_SCALE * rng.standard_normal(shape, np.float32)).argmax(axis=1)
        chosen = np.where(is_noisy < self._rates[BOLTZMANN], noisy, best)
        anyone = random_legal(scores > ILLEGAL, rng) if self._is_masked else rng.integers(shape[1], size=len(scores))
        return np.where(is_random < self._rates[EPSILON], anyone, chosen)


def make_worker_policy(
    agent: Any,
    seed: int,
    num_lanes: int = 1,
    frame_stack: FrameStack = 1,
    actor_observations: Sequence[str] | None = None,
    noise_hold_steps: int = 1,
    must_hold: bool = True,
) -> WorkerPolicy:
    """NumPy where the network is one of ours, else TensorFlow.

    Args:
      agent: A TFAgent, or its acting part.
      seed: Of the exploration noise.
      num_lanes: Environments that it acts in.
      frame_stack: The hyperparameter; the policy takes single frames.
      actor_observations: The hyperparameter; the policy takes environments' whole observations.
      noise_hold_steps: The hyperparameter.
      must_hold: Otherwise TensorFlow, which holds no noise, may run it.

    Raises:
      UserError: TensorFlow can't run it, or would have to hold noise.
    """
    tf.random.set_seed(seed % 2**31)
    try:
        return NumpyWorkerPolicy(agent, seed, num_lanes, frame_stack, actor_observations, noise_hold_steps)
    except UnsupportedNetworkError as error:
        logging.info("actions are not computed in NumPy: %s", error)
        why_not_numpy = str(error)
    if noise_hold_steps > 1 and must_hold:
        raise UserError(
            f"noise_hold_steps={noise_hold_steps} needs a policy that workers can run in NumPy, and {why_not_numpy}: "
            "use the default actor without images, or noise_hold_steps=1"
        )
    from tfagents_system.policies.tensorflow_policy import TensorFlowWorkerPolicy

    policy = TensorFlowWorkerPolicy(agent, seed, num_lanes, frame_stack, actor_observations)
    policy.why_not_numpy = why_not_numpy
    return policy


class NumpyWorkerPolicy(WorkerPolicy):
    """Our networks in NumPy: tanh-squashed Gaussians, or scores of n actions; arguments as of `make_worker_policy`.

    Attributes:
      network: Computes the actions of all lanes.

    Raises:
      UnsupportedNetworkError: NumPy can't compute it.
    """

    inference = "numpy"
    network: Network

    def __init__(
        self,
        agent: Any,
        seed: int,
        num_lanes: int = 1,
        frame_stack: FrameStack = 1,
        names: Sequence[str] | None = None,
        noise_hold_steps: int = 1,
    ) -> None:
        policy = agent.collect_policy
        self._layers = NetworkLayers(policy, frames_in(policy.time_step_spec.observation, frame_stack))
        if network_of(agent.policy) is not network_of(policy):
            raise UnsupportedNetworkError("the greedy policy has another network than the one that explores")
        self._action_shape = tuple(policy.action_spec.shape)
        self._arrays = self._layers.arrays(read_weights(self._layers.variables))
        self._explores_as(policy, self._layers.variables, seed)
        self._cumulative = np.cumsum(1.0 / np.arange(1, noise_hold_steps + 1) ** 2)
        super().__init__(num_lanes, names)

    def _set_lanes(self, num_lanes: int) -> None:
        super()._set_lanes(num_lanes)
        layers, like = self._layers, getattr(self, "network", None)
        self.network = Network(layers.observation, layers.layers, self._arrays, num_lanes, like)
        sizes = (int(np.prod(self._action_shape)), 1) if len(self._cumulative) > 1 else ()
        self._held = [np.zeros((size, num_lanes), np.float32) for size in sizes]  # Noise, steps that it is held yet.
        self.network.noise = self._noise(num_lanes)
        self._actions_shape = (num_lanes, *self._action_shape)

    def assign(self, weights: Mapping[str, np.ndarray]) -> None:
        super().assign(weights)
        self._arrays = self._layers.arrays(weights)
        self.network.assign(self._arrays)

    def reseed(self, seed: int, *, holds_noise: bool = True) -> None:
        for held in () if holds_noise else self._held:
            held[:] = 0.0
        self._rng.bit_generator.state = np.random.default_rng(seed).bit_generator.state
        self.network.noise = self._noise(self.num_lanes)  # Without the numbers that were drawn ahead.

    def reset(self, lanes: Sequence[int]) -> None:
        for memory in self.network.state:
            memory[:, lanes] = 0.0

    def memory(self, lane: int) -> list[np.ndarray]:
        return [memory[:, lane].copy() for memory in (*self.network.state, *self._held)]

    def remember(self, lane: int, memory: Sequence[np.ndarray]) -> None:
        for own, values in zip((*self.network.state, *self._held), memory, strict=False):  # It may lack noise.
            own[:, lane] = values

    def act(self, steps: LaneSteps, greedy: Greedy) -> list[np.ndarray]:
        network = self.network
        network.load(steps.observation if self._names is None else self._seen(steps))
        if self._has_scores:
            return [self._choose(network.scores().T.copy(), greedy)]
        self.was_greedy[:] = greedy
        actions = network.act(greedy)
        if self.num_lanes > 1:
            actions = actions.T.copy()
        return [actions.reshape(self._actions_shape)]

    def _noise(self, columns: int) -> Iterator[np.ndarray]:
        """Drawn anew for each step, or held for k, P(k) proportional to k^-2 (FlashSAC, arXiv 2604.04539)."""
        drawn, cumulative = self._drawn(columns), self._cumulative
        if not self._held:
            yield from drawn  # Without end.
        noise, steps_left = self._held
        while True:
            if not steps_left[0, 0]:
                noise[:] = next(drawn)
                steps_left[:] = 1 + cumulative.searchsorted(cumulative[-1] * self._rng.random())
            steps_left -= 1.0
            yield noise

    def _drawn(self, columns: int) -> Iterator[np.ndarray]:
        while True:
            yield from self._rng.standard_normal((_NOISE_BLOCK, int(np.prod(self._action_shape)), columns), np.float32)


class FixedPolicy(WorkerPolicy):
    """A policy that no update changes, from disk or a user's function. It acts in the environment's own units.

    A PyPolicy gets the parts of observations that it asks for, a function all of them.

    Args:
      policy: A PyPolicy, or a function from an observation to an action.
      actions: Nest of LeafActions: workers get the agent's actions.
    """

    why_not_numpy = "an expert's is computed by itself"

    def __init__(self, policy: py_policy.PyPolicy | Callable[[Any], Any], actions: Any, num_lanes: int = 1) -> None:
        self._policy, self._actions = policy, actions
        self._is_from_disk = isinstance(policy, py_policy.PyPolicy)
        self._source = "the policy from disk" if self._is_from_disk else "the expert (expert_policy_ctor)"
        self.inference = getattr(policy, "inference", "saved model") if self._is_from_disk else "function of the params"
        super().__init__(num_lanes)

    def _set_lanes(self, num_lanes: int) -> None:
        super()._set_lanes(num_lanes)
        self._players: list[Any] = [
            Policy(self._policy) if self._is_from_disk else self._policy for _ in range(num_lanes)
        ]

    def reset(self, lanes: Sequence[int]) -> None:
        for lane in lanes if self._is_from_disk else ():
            self._players[lane].reset()

    def act(self, steps: LaneSteps, greedy: Greedy) -> list[np.ndarray]:
        specs = [leaf.spec for leaf in tree.flatten(self._actions)]
        actions = [np.zeros((self.num_lanes, *spec.shape), spec.dtype) for spec in specs]
        for lane in np.flatnonzero(steps.step_type != ts.StepType.LAST):
            # Copies: what a user's function keeps must not change with the next steps.
            action = self._players[lane](tree.map_structure(np.array, steps.row(lane).observation))
            if not all(map(is_finite, tree.flatten(action))):
                raise FloatingPointError(f"the action of {self._source} is not finite ({action}): correct that policy")
            chosen = tree.map_structure(lambda leaf, own: leaf.to_agent(own), self._actions, action)
            for leaf, value in zip(actions, tree.flatten(chosen), strict=True):
                leaf[lane] = value
        self.was_greedy[:] = greedy
        return actions
