"""TensorFlow functions without the overhead of calling them: their graphs, run by one session.

Calling a concrete function from Python takes 300-400 us, most of it in the conversion of arguments and results and in
the eager runtime. A session that runs the same graph through a prepared callable takes a fifth of that, takes NumPy
arrays, returns them, and computes the same numbers: the kernels are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2


class UnsupportedFunctionError(Exception):
    """The function captures something that can't be moved into a session; the message says what."""


class GraphSession:
    """Several concrete functions over the same variables, whose values are copied.

    Args:
      functions: By name; with flat arguments and results.
      single_threaded: Runs the ops one after another in the calling thread, which saves more than half of the time of
        small graphs. A graph that can't be run this way raises in its first call.

    Raises:
      UnsupportedFunctionError: A function captures something that is neither a variable nor a constant.
    """

    def __init__(self, functions: Mapping[Any, Any], single_threaded: bool = True) -> None:
        captured = {variable.ref(): variable for function in functions.values() for variable in function.variables}
        values = {ref: variable.numpy() for ref, variable in captured.items()}
        graph = tf.Graph()
        with graph.as_default():
            self._copies = {ref: _copy_of(variable) for ref, variable in captured.items()}
            self._new_values = {ref: tf.compat.v1.placeholder(var.dtype, var.shape) for ref, var in captured.items()}
            self._assigns = {ref: copy.assign(self._new_values[ref]).op for ref, copy in self._copies.items()}
            # Most networks read only part of a time step, and each array passed costs time.
            self._used = {name: _positions_of_read_arguments(function) for name, function in functions.items()}
            ends = {name: self._import(function) for name, function in functions.items()}
            # Ops use the threads of the process: TF_NUM_INTRAOP_THREADS of the CPU plan.
            config = tf.compat.v1.ConfigProto(
                intra_op_parallelism_threads=tf.config.threading.get_intra_op_parallelism_threads(),
                inter_op_parallelism_threads=1,
                use_per_session_threads=True,
                experimental=tf.compat.v1.ConfigProto.Experimental(
                    executor_type="SINGLE_THREADED_EXECUTOR" if single_threaded else ""
                ),
            )
            self._run_options = config_pb2.RunOptions(inter_op_thread_pool=-1 if single_threaded else 0)
            self._session = tf.compat.v1.Session(graph=graph, config=config)
            self._calls = {name: self._callable(*end) for name, end in ends.items()}
        self._assign(values)

    def __call__(self, name: Any, leaves: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Runs one function."""
        return self._calls[name](*[leaves[position] for position in self._used[name]])

    def assign(self, variables: Mapping[str, tf.Variable], weights: Mapping[str, np.ndarray]) -> None:
        """Sets the copies of `variables` to the values in `weights`, by name."""
        copied = {variable.ref(): weights[name] for name, variable in variables.items()}
        self._assign({ref: value for ref, value in copied.items() if ref in self._copies})

    def close(self) -> None:
        """Frees the session's threads."""
        self._session.close()

    def _assign(self, values: Mapping[Any, np.ndarray]) -> None:
        ops = [self._assigns[ref] for ref in values]
        # Copies: a variable may take over the memory of the array that is fed.
        self._session.run(ops, {self._new_values[ref]: np.array(value) for ref, value in values.items()})

    def _import(self, function: Any) -> tuple[list[tf.Tensor], list[tf.Tensor], list[tf.Operation]]:
        """Adds a function's graph; returns its inputs, outputs and side effects."""
        by_handle = {id(variable.handle): variable.ref() for variable in function.variables}
        inputs_of: dict[str, Any] = {}
        for outer, inner in function.graph.captures:
            if id(outer) in by_handle:
                inputs_of[inner.name] = self._copies[by_handle[id(outer)]].handle
            elif outer.dtype in (tf.resource, tf.variant):
                raise UnsupportedFunctionError(f"it captures {outer!r}, which is no variable")
            else:
                inputs_of[inner.name] = tf.constant(outer.numpy())
        arguments = [function.inputs[position] for position in _positions_of_read_arguments(function)]
        feeds = [tf.compat.v1.placeholder(argument.dtype, argument.shape) for argument in arguments]
        inputs_of |= {argument.name: feed for argument, feed in zip(arguments, feeds, strict=True)}
        outputs = [output.name for output in function.outputs]
        effects = [op.name for op in function.graph.control_outputs]
        imported = tf.graph_util.import_graph_def(
            function.graph.as_graph_def(), input_map=inputs_of, return_elements=outputs + effects
        )
        return feeds, imported[: len(outputs)], imported[len(outputs) :]

    def _callable(
        self, feeds: Sequence[tf.Tensor], fetches: Sequence[tf.Tensor], targets: Sequence[tf.Operation]
    ) -> Any:
        # The public Session.make_callable takes a path that is five times as slow.
        options = config_pb2.CallableOptions(
            feed=[feed.name for feed in feeds],
            fetch=[fetch.name for fetch in fetches],
            target=[target.name for target in targets],
            run_options=self._run_options,
        )
        return self._session._make_callable_from_options(options)


def _positions_of_read_arguments(function: Any) -> list[int]:
    arguments = function.inputs[: len(function.inputs) - len(function.graph.captures)]
    returned = {output.name for output in function.outputs}
    return [k for k, argument in enumerate(arguments) if argument.consumers() or argument.name in returned]


def _copy_of(variable: tf.Variable) -> Any:
    return tf.compat.v1.Variable(
        tf.zeros(variable.shape, variable.dtype), shape=variable.shape, dtype=variable.dtype, use_resource=True
    )
