"""Policies of TensorFlow as functions of flat NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from tf_agents.policies import tf_policy

from tfagents_system.agents.value_network import ScorePolicy
from tfagents_system.policies.frame_stack_policy import innermost
from tfagents_system.policies.graph_session import GraphSession
from tfagents_system.policies.weights import assign_weights, named_variables


class PolicyRunner(Protocol):
    """Two policies as functions of flat arrays.

    Attributes:
      inference: As in WorkerPolicy.
    """

    inference: str

    def assign(self, weights: Mapping[str, np.ndarray]) -> None:
        """Takes new weights, by name."""

    def run(self, greedy: bool, leaves: Sequence[np.ndarray]) -> list[np.ndarray]:
        """From the leaves of time step and policy state to those of action and next policy state, all batched.

        Behind them come the scores of all actions, `[num_envs, n]`, where the policies choose actions by these.
        """

    def close(self) -> None:
        """Frees what it holds."""


class SessionRunner:
    """Policies in a session: several times faster than calling their functions.

    Raises:
      Exception: Of any kind, where a policy can't be moved there.
    """

    inference = "tensorflow session"

    def __init__(
        self, collect: tf_policy.TFPolicy, greedy: tf_policy.TFPolicy, num_envs: int, single_threaded: bool = True
    ) -> None:
        self._variables = named_variables(collect)
        functions = {False: _concrete(collect, collect, num_envs), True: _concrete(greedy, collect, num_envs)}
        self._session = GraphSession(functions, single_threaded)

    def assign(self, weights: Mapping[str, np.ndarray]) -> None:
        assign_weights(self._variables, weights)  # Checks names and shapes, too.
        self._session.assign(self._variables, weights)

    def run(self, greedy: bool, leaves: Sequence[np.ndarray]) -> list[np.ndarray]:
        return self._session(greedy, leaves)

    def close(self) -> None:
        self._session.close()


class FunctionRunner:
    """Policies as TensorFlow's concrete functions, which always work."""

    inference = "tensorflow function"

    def __init__(self, collect: tf_policy.TFPolicy, greedy: tf_policy.TFPolicy, num_envs: int) -> None:
        self._variables = named_variables(collect)
        self._functions = {False: _concrete(collect, collect, num_envs), True: _concrete(greedy, collect, num_envs)}

    def assign(self, weights: Mapping[str, np.ndarray]) -> None:
        assign_weights(self._variables, weights)

    def run(self, greedy: bool, leaves: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [result.numpy() for result in self._functions[greedy](*map(tf.constant, leaves))]

    def close(self) -> None:
        """Has nothing to free."""


def _concrete(policy: tf_policy.TFPolicy, scoring: tf_policy.TFPolicy, num_envs: int) -> Any:
    """A policy as a concrete function of flat arguments, which spares the checks of nests that cost more than acting.

    It takes the leaves of a TimeStep and of the policy state, `[num_envs, ...]`, and returns what `PolicyRunner.run`
    does, with the scores of `scoring`.
    """
    spec, has_scores = (policy.time_step_spec, policy.policy_state_spec), isinstance(innermost(scoring), ScorePolicy)

    def act(*leaves: tf.Tensor) -> list[tf.Tensor]:
        time_step, state = tf.nest.pack_sequence_as(spec, leaves)
        step = policy.action(time_step, state)
        # TensorFlow computes the network once: it finds that both need the same.
        scores = [scoring.distribution(time_step, state).action.logits_parameter()] if has_scores else []
        return [*tf.nest.flatten(step.action), *tf.nest.flatten(step.state), *scores]

    signature = [tf.TensorSpec((num_envs, *leaf.shape), leaf.dtype) for leaf in tf.nest.flatten(spec)]
    try:
        # AutoGraph rewrites all code on the way, TF-Agents' and Keras' too, which takes longer than all else.
        return tf.function(act, input_signature=signature, autograph=False).get_concrete_function()
    except tf.errors.OperatorNotAllowedInGraphError:  # A user's network decides by the value of a tensor.
        return tf.function(act, input_signature=signature).get_concrete_function()
