"""Policies of agents in TensorFlow: for environments, on disk and as workers run them.

Environments give single frames and take actions in their own units: `of_single_frames` and `EnvironmentUnitsPolicy`
say so to a policy. Workers run a graph by a session: calling a concrete function from Python takes 680 us where a
session that runs the same graph takes 50 us, most of it for the conversion of arguments and results, and the eager
runtime. A session takes NumPy arrays, returns them, and computes the same numbers: the kernels are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tf_agents.policies import greedy_policy, tf_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step
from tf_agents.typing import types
from tf_agents.utils import common

from tfagents_system.envs.actions import LeafActions
from tfagents_system.envs.history import (
    frames_in,
    horizon_time_leaf,
    single_frame_spec,
    with_horizon_time,
    without_horizon_time,
)
from tfagents_system.errors import UserError
from tfagents_system.hyperparameters import FrameStack
from tfagents_system.policies.weights import assign_weights, named_variables
from tfagents_system.policies.worker_policy import Greedy, LaneSteps, WorkerPolicy

_FRAMES, _IS_UNDER_WAY, _OWN = "frames", "is_under_way", "policy"


def of_single_frames(policy: tf_policy.TFPolicy, frame_stack: FrameStack) -> tf_policy.TFPolicy:
    """The policy for what environments give: single frames, no `horizon_time`; the policy itself if it takes that."""
    spec = policy.time_step_spec.observation
    if horizon_time_leaf(spec) is None and max(frames_in(spec, frame_stack), default=1) == 1:
        return policy
    return SingleFramesPolicy(policy, frame_stack)


class SingleFramesPolicy(tf_policy.TFPolicy):
    """Takes what environments give: leaves that are single frames `[B, ..., size]`, and no `horizon_time`.

    Where leaves are stacked, its state holds the previous frames of each of them and the agent's policy's state. In an
    episode's first time step, one of type FIRST or with a state of zeros, the first frame stands in for the previous
    ones. A `horizon_time` is 0, the beginning of a mini-race: all of its time is to come.

    Args:
      policy: The agent's, which takes stacked leaves `[B, ..., frames * size]`, oldest frame first.
      frame_stack: The hyperparameter.

    Attributes:
      agent_policy: That policy.
      frames: Of each leaf of the observation that it takes; empty where none is stacked.
    """

    def __init__(self, policy: tf_policy.TFPolicy, frame_stack: FrameStack) -> None:
        spec = policy.time_step_spec.observation
        self.agent_policy = policy
        self._is_timed = horizon_time_leaf(spec) is not None
        single = single_frame_spec(without_horizon_time(spec) if self._is_timed else spec, frame_stack)
        self._frames = frames_in(single, frame_stack)
        self._is_stacking = max(self._frames, default=1) > 1
        self.frames = frames_in(spec, frame_stack) if self._is_stacking else ()
        state_spec = policy.policy_state_spec
        if self._is_stacking:
            leaves = zip(tf.nest.flatten(single), self._frames, strict=True)
            state_spec = {
                _FRAMES: [  # Those before the newest.
                    tf.TensorSpec((*leaf.shape[:-1], leaf.shape[-1] * (count - 1)), leaf.dtype, leaf.name)
                    for leaf, count in leaves
                    if count > 1
                ],
                _IS_UNDER_WAY: tf.TensorSpec((), tf.int32, _IS_UNDER_WAY),
                _OWN: state_spec,
            }
        super().__init__(
            policy.time_step_spec._replace(observation=single),
            policy.action_spec,
            policy_state_spec=state_spec,
            info_spec=policy.info_spec,
            clip=False,
            automatic_state_reset=False,
            validate_args=False,
        )

    def _variables(self) -> Any:
        return self.agent_policy.variables()

    def _get_initial_state(self, batch_size: int) -> types.NestedTensor:
        own = self.agent_policy.get_initial_state(batch_size)
        if not self._is_stacking:
            return own
        frames = [tf.zeros((batch_size, *spec.shape), spec.dtype) for spec in self.policy_state_spec[_FRAMES]]
        return {_FRAMES: frames, _IS_UNDER_WAY: tf.zeros((batch_size,), tf.int32), _OWN: own}

    def _action(
        self, time_step: Any, policy_state: types.NestedTensor, seed: types.Seed | None
    ) -> policy_step.PolicyStep:
        return self._step(lambda *args: self.agent_policy.action(*args, seed), time_step, policy_state)

    def _distribution(self, time_step: Any, policy_state: types.NestedTensor) -> policy_step.PolicyStep:
        return self._step(self.agent_policy.distribution, time_step, policy_state)

    def _step(self, function: Callable[..., Any], time_step: Any, policy_state: Any) -> policy_step.PolicyStep:
        own, kept = policy_state, None
        if self._is_stacking:
            own = policy_state[_OWN]
            time_step, kept = self._stack(time_step, policy_state)
        if self._is_timed:
            zeros = tf.zeros_like(time_step.reward)[:, None]
            time_step = time_step._replace(observation=with_horizon_time(time_step.observation, zeros))
        step = function(time_step, own)
        return step if kept is None else step._replace(state={**kept, _OWN: step.state})

    def _stack(self, time_step: Any, policy_state: Any) -> tuple[Any, dict[str, Any]]:
        """The time step with stacked leaves, and the frames for the next one."""
        is_first = tf.logical_or(time_step.is_first(), tf.equal(policy_state[_IS_UNDER_WAY], 0))
        leaves, kept, remaining = [], [], iter(policy_state[_FRAMES])
        specs = tf.nest.flatten(self.time_step_spec.observation)
        for leaf, spec, frames in zip(tf.nest.flatten(time_step.observation), specs, self._frames, strict=True):
            if frames > 1:
                is_repeated = tf.reshape(is_first, [-1] + [1] * len(spec.shape))
                repeated = tf.tile(leaf, [1] * len(spec.shape) + [frames - 1])
                leaf = tf.concat([tf.where(is_repeated, repeated, next(remaining)), leaf], axis=-1)
                kept.append(leaf[..., spec.shape[-1] :])
            leaves.append(leaf)
        observation = tf.nest.pack_sequence_as(time_step.observation, leaves)
        state = {_FRAMES: kept, _IS_UNDER_WAY: tf.ones_like(policy_state[_IS_UNDER_WAY])}
        return time_step._replace(observation=observation), state


def innermost(policy: tf_policy.TFPolicy) -> tf_policy.TFPolicy:
    """The inverse of `of_single_frames`: the agent's policy."""
    return policy.agent_policy if isinstance(policy, SingleFramesPolicy) else policy


class EnvironmentUnitsPolicy(tf_policy.TFPolicy):
    """Gives an agent's greedy actions as the environment takes them.

    Args:
      policy: The agent's greedy policy.
      actions: Nest of LeafActions.
    """

    def __init__(self, policy: tf_policy.TFPolicy, actions: Any) -> None:
        super().__init__(
            policy.time_step_spec,
            tf.nest.map_structure(lambda leaf: tensor_spec.from_spec(leaf.environment_spec), actions),
            policy_state_spec=policy.policy_state_spec,
            info_spec=policy.info_spec,
            clip=False,
            automatic_state_reset=False,
            validate_args=False,
        )
        self._policy = policy
        self._actions = actions
        # Traced once for all functions of a SavedModel.
        specs = tf.nest.map_structure(
            lambda spec: tf.TensorSpec([None, *spec.shape], spec.dtype),
            (policy.time_step_spec, policy.policy_state_spec),
        )
        self._act = common.function(self._action_in_units).get_concrete_function(*specs)

    def _variables(self) -> Any:
        return self._policy.variables()

    def _get_initial_state(self, batch_size: int) -> types.NestedTensor:
        return self._policy.get_initial_state(batch_size)

    def _action(
        self, time_step: Any, policy_state: types.NestedTensor, seed: types.Seed | None
    ) -> policy_step.PolicyStep:
        if seed is not None:
            raise ValueError("a greedy policy draws no noise")
        return self._act(time_step, policy_state)

    def _action_in_units(self, time_step: Any, policy_state: types.NestedTensor) -> policy_step.PolicyStep:
        step = self._policy.action(time_step, policy_state)
        return step._replace(action=tf.nest.map_structure(in_environment_units, step.action, self._actions))

    def _distribution(self, time_step: Any, policy_state: types.NestedTensor) -> policy_step.PolicyStep:
        raise NotImplementedError("only actions are in the environment's units")


def in_environment_units(action: tf.Tensor, actions: LeafActions) -> tf.Tensor:
    """From an agent's actions `[B, ...]` of one leaf to those of the environment, `[B, *environment_spec.shape]`."""
    if actions.rows is not None:
        return tf.gather(tf.constant(actions.rows), action)
    spec, dtype = actions.environment_spec, action.dtype.as_numpy_dtype
    low, high = (np.asarray(bound, dtype) for bound in (spec.minimum, spec.maximum))
    scaled = low + (action + 1.0) * 0.5 * (high - low)
    # Rounding may exceed the bounds by one unit in the last place; and 0.1 of 32 bits is above that of 64.
    low = np.where(low < spec.minimum, np.nextafter(low, dtype(np.inf)), low)
    high = np.where(high > spec.maximum, np.nextafter(high, dtype(-np.inf)), high)
    return tf.cast(tf.clip_by_value(scaled, low, high), spec.dtype)


# In workers.


class TensorFlowWorkerPolicy(WorkerPolicy):
    """Any TFPolicy, recurrent ones included; arguments as of `make_worker_policy`.

    Raises:
      UserError: The policy captures something that a session can't have.
    """

    inference = "tensorflow session"

    def __init__(
        self,
        agent: Any,
        seed: int,
        num_lanes: int = 1,
        frame_stack: FrameStack = 1,
        names: Sequence[str] | None = None,
    ) -> None:
        collect = of_single_frames(agent.collect_policy, frame_stack)
        greedy = of_single_frames(greedy_policy.GreedyPolicy(agent.policy), frame_stack)
        self._policies = {False: collect, True: greedy}
        self._variables = named_variables(collect)
        specs = tf.nest.flatten(collect.time_step_spec)
        self._dtypes = [spec.dtype.as_numpy_dtype for spec in specs]
        self._num_actions = len(tf.nest.flatten(collect.action_spec))
        self._session = GraphSession()
        self._explores_as(agent.collect_policy, self._variables, seed)
        super().__init__(num_lanes, names)
        # The first call takes long, and chooses the executor.
        zeros = [np.zeros((num_lanes, *spec.shape), dtype) for spec, dtype in zip(specs, self._dtypes, strict=True)]
        self._session((False, num_lanes), [*zeros, *self._state])

    def _set_lanes(self, num_lanes: int) -> None:
        super()._set_lanes(num_lanes)
        for is_greedy in (False,) if self._has_scores else (False, True):
            if (is_greedy, num_lanes) not in self._session.calls:  # Else a copy has these lanes already.
                function = _concrete(self._policies[is_greedy], num_lanes, gives_scores=self._has_scores)
                self._session.add((is_greedy, num_lanes), function)
        self._initial = [leaf.numpy() for leaf in tf.nest.flatten(self._policies[False].get_initial_state(num_lanes))]
        self._state = [leaf.copy() for leaf in self._initial]

    def assign(self, weights: Mapping[str, np.ndarray]) -> None:
        super().assign(weights)
        assign_weights(self._variables, weights)  # Checks names and shapes, too.
        self._session.assign(self._variables, weights)

    def reset(self, lanes: Sequence[int]) -> None:
        for leaf, initial in zip(self._state, self._initial, strict=True):
            leaf[lanes] = initial[lanes]

    def act(self, steps: LaneSteps, greedy: Greedy) -> list[np.ndarray]:
        leaves = (steps.step_type, steps.reward, steps.discount, *self._seen(steps))
        inputs = [np.asarray(leaf, dtype) for leaf, dtype in zip(leaves, self._dtypes, strict=True)] + self._state
        if self._has_scores:
            results = self._session((False, self.num_lanes), inputs)
        elif isinstance(greedy, bool):
            results = self._session((greedy, self.num_lanes), inputs)
        else:
            results, modes = (self._session((is_greedy, self.num_lanes), inputs) for is_greedy in (False, True))
            for leaf, mode in zip(results, modes, strict=True):
                leaf[greedy] = mode[greedy]
        for leaf, following in zip(self._state, results[self._num_actions :], strict=True):
            leaf[:] = following
        if self._has_scores:
            return [self._choose(results[0], greedy)]
        self.was_greedy[:] = greedy
        return results[: self._num_actions]


def _concrete(policy: tf_policy.TFPolicy, num_lanes: int, *, gives_scores: bool) -> Any:
    """A policy as a concrete function from the leaves of a TimeStep and of the policy state, `[num_lanes, ...]`.

    With an unknown number of lanes, a graph would compute the shapes of distributions in each step, which takes as long
    as all else. It returns the leaves of the action, or scores `[num_lanes, n]`, and those of the next policy state.
    """
    spec = policy.time_step_spec, policy.policy_state_spec

    def act(*leaves: tf.Tensor) -> list[tf.Tensor]:
        step = (policy.distribution if gives_scores else policy.action)(*tf.nest.pack_sequence_as(spec, leaves))
        chosen = step.action.logits_parameter() if gives_scores else step.action
        return [*tf.nest.flatten(chosen), *tf.nest.flatten(step.state)]

    signature = [tf.TensorSpec((num_lanes, *leaf.shape), leaf.dtype) for leaf in tf.nest.flatten(spec)]
    try:
        # AutoGraph rewrites all code on the way, TF-Agents' and Keras' too, which takes longer than all else.
        return tf.function(act, input_signature=signature, autograph=False).get_concrete_function()
    except tf.errors.OperatorNotAllowedInGraphError:  # A user's network decides by the value of a tensor.
        return tf.function(act, input_signature=signature).get_concrete_function()


class GraphSession:
    """Concrete functions over the same variables, whose values are copied.

    Attributes:
      calls: The functions by name, with flat arguments and results.
    """

    def __init__(self) -> None:
        self._graph = tf.Graph()
        self._copies: dict[Any, tf.Variable] = {}
        self._assigns: dict[Any, tuple[Any, Any]] = {}  # Placeholder and operation.
        self._ends: dict[Any, tuple[list[str], list[str], list[str], list[int]]] = {}
        self.calls: dict[Any, Any] = {}
        self._start(single_threaded=True)

    def add(self, name: Any, function: Any) -> None:
        """Takes a function.

        Raises:
          UserError: It captures something that is neither a variable nor a constant.
        """
        new = {var.ref(): var for var in function.variables if var.ref() not in self._copies}
        with self._graph.as_default():
            for ref, var in new.items():
                zeros = tf.zeros(var.shape, var.dtype)
                self._copies[ref] = tf.compat.v1.Variable(zeros, shape=var.shape, use_resource=True)
                value = tf.compat.v1.placeholder(var.dtype, var.shape)
                self._assigns[ref] = value, self._copies[ref].assign(value).op
            self._ends[name] = self._import(function)
        self.calls[name] = self._call_of(name)
        self._assign({ref: var.numpy() for ref, var in new.items()})

    def _start(self, *, single_threaded: bool) -> None:
        """`single_threaded` saves more than half of the time of small graphs."""
        # Operations use the threads of the process: TF_NUM_INTRAOP_THREADS of the CPU plan.
        config = tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=tf.config.threading.get_intra_op_parallelism_threads(),
            inter_op_parallelism_threads=1,
            use_per_session_threads=True,
        )
        config.experimental.executor_type = "SINGLE_THREADED_EXECUTOR" if single_threaded else ""
        self._is_single_threaded = single_threaded
        self._run_options = config_pb2.RunOptions(inter_op_thread_pool=-1 if single_threaded else 0)
        self._session = tf.compat.v1.Session(graph=self._graph, config=config)
        self.calls = {name: self._call_of(name) for name in self._ends}

    def _call_of(self, name: Any) -> Any:
        feeds, fetches, targets, _ = self._ends[name]
        # The public Session.make_callable takes a path that is five times as slow.
        return self._session._make_callable_from_options(
            config_pb2.CallableOptions(feed=feeds, fetch=fetches, target=targets, run_options=self._run_options)
        )

    def __call__(self, name: Any, leaves: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Runs one function."""
        inputs = [leaves[position] for position in self._ends[name][-1]]
        try:
            return self.calls[name](*inputs)
        except tf.errors.OpError:
            if not self._is_single_threaded:
                raise
        # Control flow of TensorFlow 1 can't run in one thread, as its first call tells.
        values = self._session.run(self._copies)
        self._session.close()
        self._start(single_threaded=False)
        self._assign(values)
        return self.calls[name](*inputs)

    def assign(self, variables: Mapping[str, tf.Variable], weights: Mapping[str, np.ndarray]) -> None:
        """Sets the copies of `variables` to the values in `weights`, by name."""
        values = {variable.ref(): weights[name] for name, variable in variables.items()}
        self._assign({ref: value for ref, value in values.items() if ref in self._copies})

    def _assign(self, values: Mapping[Any, np.ndarray]) -> None:
        # Copies: a variable may take over the memory of the array that is fed.
        feeds = {self._assigns[ref][0]: np.array(value) for ref, value in values.items()}
        self._session.run([self._assigns[ref][1] for ref in values], feeds)

    def _import(self, function: Any) -> tuple[list[str], list[str], list[str], list[int]]:
        """Adds a function's graph.

        Returns:
          Names of its inputs, outputs and side effects, and the positions of those arguments that it reads: most
          networks read only a part of a time step, and each array passed costs time.
        """
        by_handle = {id(variable.handle): variable.ref() for variable in function.variables}
        inputs_of: dict[str, Any] = {}
        for outer, inner in function.graph.captures:
            if id(outer) in by_handle:
                inputs_of[inner.name] = self._copies[by_handle[id(outer)]].handle
            elif outer.dtype in (tf.resource, tf.variant):
                raise UserError(
                    f"workers can't run the agent's policy: it captures {outer!r}, which is no variable. Let "
                    "agent_ctor or actor_ctor use variables and constants alone"
                )
            else:
                inputs_of[inner.name] = tf.constant(outer.numpy())
        arguments = function.inputs[: len(function.inputs) - len(function.graph.captures)]
        outputs = [output.name for output in function.outputs]
        read = [k for k, argument in enumerate(arguments) if argument.consumers() or argument.name in outputs]
        feeds = [tf.compat.v1.placeholder(arguments[k].dtype, arguments[k].shape) for k in read]
        inputs_of |= {arguments[k].name: feed for k, feed in zip(read, feeds, strict=True)}
        effects = [op.name for op in function.graph.control_outputs]
        imported = tf.graph_util.import_graph_def(
            function.graph.as_graph_def(), input_map=inputs_of, return_elements=outputs + effects
        )
        names = [end.name for end in (*feeds, *imported)]
        ends = names[: len(feeds)], names[len(feeds) : len(feeds) + len(outputs)], names[len(feeds) + len(outputs) :]
        return *ends, read
