"""Chooses how a worker runs its policy: NumPy where the network allows, a graph of TensorFlow otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tree
from absl import logging
from tf_agents.policies import greedy_policy, tf_policy
from tf_agents.trajectories import time_step as ts

from tfagents_system.agents.value_network import ExploringPolicy
from tfagents_system.checks.frame_stacks import FrameStack
from tfagents_system.envs.history import policy_frames
from tfagents_system.policies.frame_stack_policy import innermost, of_single_frames
from tfagents_system.policies.lane_steps import LaneSteps
from tfagents_system.policies.network_check import NetworkCheck
from tfagents_system.policies.network_layers import UnsupportedNetworkError
from tfagents_system.policies.numpy_score_policy import NumpyScorePolicy, scores_actions
from tfagents_system.policies.numpy_worker_policy import NumpyWorkerPolicy
from tfagents_system.policies.parts_of_observation import PolicyOfParts
from tfagents_system.policies.policy_interface import WorkerPolicy
from tfagents_system.policies.policy_runners import FunctionRunner, PolicyRunner, SessionRunner


def make_worker_policy(
    agent: Any,
    seed: int,
    num_envs: int = 1,
    frame_stack: FrameStack = 1,
    actor_observations: Sequence[str] | None = None,
) -> WorkerPolicy:
    """The fastest way to run the policy of `agent`. Rejects a fast path whose actions differ from the network's.

    Args:
      agent: A TFAgent, or its acting part.
      seed: Of the exploration noise.
      num_envs: Environments that it acts in.
      frame_stack: The hyperparameter; the policy takes single frames.
      actor_observations: The hyperparameter; the policy takes environments' whole observations.
    """
    policy = _fastest_policy(agent, seed, num_envs, frame_stack)
    return policy if actor_observations is None else PolicyOfParts(policy, actor_observations)


def _fastest_policy(agent: Any, seed: int, num_envs: int, frame_stack: FrameStack) -> WorkerPolicy:
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

    rng = np.random.default_rng(seed)
    return _tried(lambda: _in_numpy(agent, rng, num_envs, frame_stack), check) or in_tensorflow()


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


def _in_numpy(agent: Any, rng: np.random.Generator, num_envs: int, frame_stack: FrameStack) -> WorkerPolicy:
    frames = policy_frames(agent.collect_policy.time_step_spec.observation, frame_stack)
    if not scores_actions(agent.collect_policy):
        return NumpyWorkerPolicy(agent, rng, num_envs, frames)
    if max(frames, default=1) > 1:
        raise UnsupportedNetworkError("frames are stacked")
    return NumpyScorePolicy(agent.collect_policy, rng)


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
        self._num_actions = len(tf.nest.flatten(policy.action_spec))
        self._has_values = isinstance(innermost(policy), ExploringPolicy)
        self._last: dict[int, tuple[np.ndarray, bool]] = {}  # By environment: scores, and whether it explored.

    def assign(self, weights: Mapping[str, np.ndarray]) -> None:
        self._runner.assign(weights)

    def reset(self, env: int = 0) -> None:
        self._state = [leaf.copy() for leaf in self._state]  # What TensorFlow returned may be read-only.
        for leaf, initial in zip(self._state, self._initial_state, strict=True):
            leaf[env] = initial[env]
        self._last.pop(env, None)

    def explored(self, env: int) -> bool:
        return env in self._last and self._last[env][1]

    def was_greedy(self, env: int) -> bool:
        return env in self._last and not self._last[env][1]

    def q_values(self, env: int) -> np.ndarray | None:
        return self._last[env][0] if self._has_values and env in self._last else None

    def actions(self, time_steps: Mapping[int, ts.TimeStep], greedy: bool) -> dict[int, Any]:
        for env, time_step in time_steps.items():
            for batch, leaf in zip(self._inputs, tree.flatten(time_step), strict=True):
                batch[env] = leaf
        chosen = self._run(greedy, list(time_steps))
        return {env: self._action(chosen, env) for env in time_steps}

    def batch(self, steps: LaneSteps, greedy: bool, first: int = 0) -> list[np.ndarray]:
        lanes = slice(first, first + len(steps.step_type))
        own = [steps.step_type, steps.reward, steps.discount, *steps.observation]
        for batch, leaf in zip(self._inputs, own, strict=True):
            batch[lanes] = leaf
        return [leaf[lanes] for leaf in self._run(greedy, list(range(lanes.start, lanes.stop)))]

    def close(self) -> None:
        self._runner.close()

    def _run(self, greedy: bool, envs: list[int]) -> list[np.ndarray]:
        """The leaves of the actions of all environments; what these have done is remembered."""
        results = self._runner.run(greedy, [*self._inputs, *self._state])
        chosen, end = results[: self._num_actions], self._num_actions + len(self._state)
        self._keep(results[self._num_actions : end], envs)
        for scores in results[end:]:
            is_other = chosen[0] != scores.argmax(axis=1)
            self._last |= {env: (scores[env], bool(is_other[env])) for env in envs}
        return chosen

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
