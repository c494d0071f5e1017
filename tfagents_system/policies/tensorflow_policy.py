"""Any TFPolicy as a worker runs it: its graph, run by a session.

Calling a concrete function from Python takes 680 us where a session that runs the same graph takes 50 us: most of that
is the conversion of arguments and results, and the eager runtime. A session takes NumPy arrays, returns them, and
computes the same numbers: the kernels are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tf_agents.policies import greedy_policy, tf_policy

from tfagents_system.agents.score_policies import ExploringPolicy, ScorePolicy
from tfagents_system.errors import UserError
from tfagents_system.hyperparameters import FrameStack
from tfagents_system.policies.environment_policies import innermost, of_single_frames
from tfagents_system.policies.weights import assign_weights, named_variables
from tfagents_system.policies.worker_policy import Greedy, LaneSteps, WorkerPolicy


class TensorFlowWorkerPolicy(WorkerPolicy):
    """Any TFPolicy, recurrent ones included.

    Args:
      agent: A TFAgent, or its acting part.
      num_lanes, frame_stack, names: As of `make_worker_policy`.

    Raises:
      UserError: The policy captures something that a session can't have.
    """

    inference = "tensorflow session"

    def __init__(
        self, agent: Any, num_lanes: int = 1, frame_stack: FrameStack = 1, names: Sequence[str] | None = None
    ) -> None:
        collect = of_single_frames(agent.collect_policy, frame_stack)
        greedy = of_single_frames(greedy_policy.GreedyPolicy(agent.policy), frame_stack)
        self._policies = {False: collect, True: greedy}
        self._variables = named_variables(collect)
        self._num_actions = len(tf.nest.flatten(collect.action_spec))
        self._has_values = isinstance(innermost(collect), ExploringPolicy)
        functions = [(False, num_lanes), (True, num_lanes)]
        self._session = GraphSession({name: _concrete(self._policies, *name) for name in functions})
        super().__init__(num_lanes, names)
        # Graphs with control flow of TensorFlow 1 are told by their first call.
        specs = tf.nest.flatten(collect.time_step_spec)
        self._dtypes = [spec.dtype.as_numpy_dtype for spec in specs]
        zeros = [np.zeros((num_lanes, *spec.shape), spec.dtype.as_numpy_dtype) for spec in specs]
        self._session.choose_executor((False, num_lanes), [*zeros, *self._state])

    def _set_lanes(self, num_lanes: int) -> None:
        super()._set_lanes(num_lanes)
        for function in ((False, num_lanes), (True, num_lanes)):
            if function not in self._session:  # Of a copy with other lanes.
                self._session.add(function, _concrete(self._policies, *function))
        self._initial = [leaf.numpy() for leaf in tf.nest.flatten(self._policies[False].get_initial_state(num_lanes))]
        self._state = [leaf.copy() for leaf in self._initial]

    def assign(self, weights: Mapping[str, np.ndarray]) -> None:
        assign_weights(self._variables, weights)  # Checks names and shapes, too.
        self._session.assign(self._variables, weights)

    def reset(self, lanes: Sequence[int]) -> None:
        for leaf, initial in zip(self._state, self._initial, strict=True):
            leaf[lanes] = initial[lanes]

    def act(self, steps: LaneSteps, greedy: Greedy) -> list[np.ndarray]:
        leaves = (steps.step_type, steps.reward, steps.discount, *self._seen(steps))
        inputs = [np.asarray(leaf, dtype) for leaf, dtype in zip(leaves, self._dtypes, strict=True)] + self._state
        if isinstance(greedy, bool):
            results = self._session((greedy, self.num_lanes), inputs)
        else:
            sampled, modes = (self._session((is_greedy, self.num_lanes), inputs) for is_greedy in (False, True))
            for leaf, mode in zip(sampled, modes, strict=True):
                leaf[greedy] = mode[greedy]
            results = sampled
        end = self._num_actions + len(self._state)
        for leaf, following in zip(self._state, results[self._num_actions : end], strict=True):
            leaf[:] = following
        self.was_greedy[:] = greedy
        for scores in results[end:]:
            self._note_values(results[0], scores, are_values=self._has_values)
        return results[: self._num_actions]


def _concrete(policies: Mapping[bool, tf_policy.TFPolicy], is_greedy: bool, num_lanes: int) -> Any:
    """A policy as a concrete function from the leaves of a TimeStep and of the policy state, `[num_lanes, ...]`.

    With an unknown number of lanes, a graph would compute the shapes of distributions in each step, which takes as long
    as all else. It returns the leaves of action and next policy state, and behind them the scores `[num_lanes, n]` of
    the policy that explores where that chooses actions by scores.
    """
    policy, scoring = policies[is_greedy], policies[False]
    spec, has_scores = (policy.time_step_spec, policy.policy_state_spec), isinstance(innermost(scoring), ScorePolicy)

    def act(*leaves: tf.Tensor) -> list[tf.Tensor]:
        time_step, state = tf.nest.pack_sequence_as(spec, leaves)
        step = policy.action(time_step, state)
        # TensorFlow computes the network once: it finds that both need the same.
        scores = [scoring.distribution(time_step, state).action.logits_parameter()] if has_scores else []
        return [*tf.nest.flatten(step.action), *tf.nest.flatten(step.state), *scores]

    signature = [tf.TensorSpec((num_lanes, *leaf.shape), leaf.dtype) for leaf in tf.nest.flatten(spec)]
    try:
        # AutoGraph rewrites all code on the way, TF-Agents' and Keras' too, which takes longer than all else.
        return tf.function(act, input_signature=signature, autograph=False).get_concrete_function()
    except tf.errors.OperatorNotAllowedInGraphError:  # A user's network decides by the value of a tensor.
        return tf.function(act, input_signature=signature).get_concrete_function()


class GraphSession:
    """Several concrete functions over the same variables, whose values are copied.

    Args:
      functions: By name; with flat arguments and results.

    Raises:
      UserError: A function captures something that is neither a variable nor a constant.
    """

    def __init__(self, functions: Mapping[Any, Any]) -> None:
        captured = {variable.ref(): variable for function in functions.values() for variable in function.variables}
        self._values = {ref: variable.numpy() for ref, variable in captured.items()}
        self._graph = tf.Graph()
        with self._graph.as_default():
            self._copies = {
                ref: tf.compat.v1.Variable(
                    tf.zeros(variable.shape, variable.dtype), shape=variable.shape, use_resource=True
                )
                for ref, variable in captured.items()
            }
            self._new_values = {ref: tf.compat.v1.placeholder(var.dtype, var.shape) for ref, var in captured.items()}
            self._assigns = {ref: copy.assign(self._new_values[ref]).op for ref, copy in self._copies.items()}
            self._ends = {name: self._import(function) for name, function in functions.items()}
        self._start(single_threaded=True)

    def choose_executor(self, name: Any, leaves: Sequence[np.ndarray]) -> None:
        """Calls one function: where the operations can't run one after another in this thread, several run them."""
        try:
            self(name, leaves)
        except tf.errors.OpError:
            self._session.close()
            self._start(single_threaded=False)
            self(name, leaves)

    def __contains__(self, name: Any) -> bool:
        """Whether it has a function."""
        return name in self._ends

    def add(self, name: Any, function: Any) -> None:
        """Takes another function over the same variables."""
        with self._graph.as_default():
            self._ends[name] = self._import(function)
        self._calls[name] = self._call_of(name)

    def _start(self, *, single_threaded: bool) -> None:
        """`single_threaded` saves more than half of the time of small graphs."""
        # Operations use the threads of the process: TF_NUM_INTRAOP_THREADS of the CPU plan.
        config = tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=tf.config.threading.get_intra_op_parallelism_threads(),
            inter_op_parallelism_threads=1,
            use_per_session_threads=True,
        )
        config.experimental.executor_type = "SINGLE_THREADED_EXECUTOR" if single_threaded else ""
        self._run_options = config_pb2.RunOptions(inter_op_thread_pool=-1 if single_threaded else 0)
        self._session = tf.compat.v1.Session(graph=self._graph, config=config)
        self._calls = {name: self._call_of(name) for name in self._ends}
        self._assign(self._values)

    def _call_of(self, name: Any) -> Any:
        feeds, fetches, targets, _ = self._ends[name]
        # The public Session.make_callable takes a path that is five times as slow.
        return self._session._make_callable_from_options(
            config_pb2.CallableOptions(feed=feeds, fetch=fetches, target=targets, run_options=self._run_options)
        )

    def __call__(self, name: Any, leaves: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Runs one function."""
        return self._calls[name](*[leaves[position] for position in self._ends[name][-1]])

    def assign(self, variables: Mapping[str, tf.Variable], weights: Mapping[str, np.ndarray]) -> None:
        """Sets the copies of `variables` to the values in `weights`, by name."""
        values = {variable.ref(): weights[name] for name, variable in variables.items()}
        self._assign({ref: value for ref, value in values.items() if ref in self._copies})

    def _assign(self, values: Mapping[Any, np.ndarray]) -> None:
        # Copies: a variable may take over the memory of the array that is fed.
        feeds = {self._new_values[ref]: np.array(value) for ref, value in values.items()}
        self._session.run([self._assigns[ref] for ref in values], feeds)

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
