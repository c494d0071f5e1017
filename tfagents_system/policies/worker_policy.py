"""The policy as a worker runs it: NumPy where the network allows, one concrete TensorFlow function otherwise."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.policies import greedy_policy, tf_policy
from tf_agents.trajectories import time_step as ts

from tfagents_system.policies.numpy_actor import NumpyActor, UnsupportedNetworkError
from tfagents_system.policies.weights import assign_weights, named_variables


class WorkerPolicy(abc.ABC):
    """Actions for one environment, one time step at a time.

    Attributes:
      inference: How actions are computed: `numpy` or `tensorflow`.
    """

    inference: str

    @abc.abstractmethod
    def assign(self, weights: Mapping[str, np.ndarray]) -> None:
        """Takes new weights, by name."""

    @abc.abstractmethod
    def reset(self) -> None:
        """An episode begins."""

    @abc.abstractmethod
    def action(self, time_step: ts.TimeStep, greedy: bool) -> Any:
        """The action for an unbatched NumPy time step: a nest of arrays in [-1, 1].

        Args:
          time_step: The observation and what led to it.
          greedy: The mode of the policy's distribution rather than a sample.
        """


def make_worker_policy(agent: Any, seed: int) -> WorkerPolicy:
    """The fastest way to run the policy of `agent`."""
    try:
        return NumpyWorkerPolicy(agent, np.random.default_rng(seed))
    except UnsupportedNetworkError:
        tf.random.set_seed(seed % 2**31)
        return TensorFlowWorkerPolicy(agent.collect_policy, greedy_policy.GreedyPolicy(agent.policy))


class NumpyWorkerPolicy(WorkerPolicy):
    """The default actor in NumPy.

    Args:
      agent: Its collect policy must sample from an actor that `NumpyActor` can compute.
      rng: Source of the exploration noise.

    Raises:
      UnsupportedNetworkError: It does not.
    """

    inference = "numpy"

    def __init__(self, agent: Any, rng: np.random.Generator) -> None:
        # Exactly SAC's own policies: a subclass or a wrapper may act in another way than its network says.
        from tf_agents.agents.sac.sac_agent import SacAgent
        from tf_agents.policies.actor_policy import ActorPolicy

        if type(agent) is not SacAgent or type(agent.collect_policy) is not ActorPolicy:
            raise UnsupportedNetworkError(f"{type(agent).__name__} is not TF-Agents' SacAgent")
        self._actor = NumpyActor(agent.collect_policy._actor_network, named_variables(agent.collect_policy))
        self._rng = rng

    def assign(self, weights: Mapping[str, np.ndarray]) -> None:
        self._actor.assign(weights)

    def reset(self) -> None:
        pass

    def action(self, time_step: ts.TimeStep, greedy: bool) -> np.ndarray:
        if greedy:
            return self._actor.mode(time_step.observation)
        return self._actor.sample(time_step.observation, self._rng)


class TensorFlowWorkerPolicy(WorkerPolicy):
    """Any TFPolicy, recurrent ones included.

    Args:
      collect_policy: Explores. Its variables are the ones that `assign` sets.
      greedy: Evaluates; shares those variables.
    """

    inference = "tensorflow"

    def __init__(self, collect_policy: tf_policy.TFPolicy, greedy: tf_policy.TFPolicy) -> None:
        self._variables = named_variables(collect_policy)
        self._initial_state = tf.nest.flatten(collect_policy.get_initial_state(1))
        self._state = self._initial_state
        self._action_spec = collect_policy.action_spec
        self._collect, self._greedy = _compiled(collect_policy), _compiled(greedy)

    def assign(self, weights: Mapping[str, np.ndarray]) -> None:
        assign_weights(self._variables, weights)

    def reset(self) -> None:
        self._state = self._initial_state

    def action(self, time_step: ts.TimeStep, greedy: bool) -> Any:
        batched = [tf.constant(np.asarray(leaf)[None]) for leaf in tf.nest.flatten(time_step)]
        actions, self._state = (self._greedy if greedy else self._collect)(*batched, *self._state)
        return tf.nest.pack_sequence_as(self._action_spec, [action.numpy()[0] for action in actions])


def _compiled(policy: tf_policy.TFPolicy) -> Any:
    """A concrete function of flat arguments: it spares the checks of nests and signatures that cost more than acting.

    It takes the leaves of a TimeStep and of the policy state, with a batch dimension of 1, and returns those of the
    action and of the next policy state.
    """
    spec = (policy.time_step_spec, policy.policy_state_spec)

    def act(*leaves: tf.Tensor) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        step = policy.action(*tf.nest.pack_sequence_as(spec, leaves))
        return tf.nest.flatten(step.action), tf.nest.flatten(step.state)

    signature = [tf.TensorSpec((1, *leaf.shape), leaf.dtype) for leaf in tf.nest.flatten(spec)]
    return tf.function(act, input_signature=signature).get_concrete_function()
