"""The update of a whole block: one compiled function runs its K updates without returning to Python."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging
from tf_agents.agents import tf_agent
from tf_agents.trajectories import policy_step, time_step, trajectory

from tfagents_system.agents.fused_sac import FusedSacUpdate, UnsupportedAgentError
from tfagents_system.agents.matmul_precision import bfloat16_matmuls

_MAX_WEIGHT = 1e8  # A network with larger weights computes nothing that can be learned from.


class DivergedError(Exception):
    """Training has diverged: a loss or a weight is not finite, or a weight has exploded."""


class BlockUpdate:
    """Trains any TFAgent on blocks of minibatches as the replay server sends them.

    Compiled when it is built, so that the first block finds it ready. A plain SacAgent gets the fused update, any
    other agent its own `train`, and the log says why.

    Args:
      agent: The agent to train.
      batch_size: B, the samples of a minibatch.
      sequence_length: L, the transitions of a sequence, for recurrent agents; None for transitions.
      share_log_pi: See FusedSacUpdate.
      matmul_precision: `float32`, or `bfloat16` for the hidden layers of networks that the agent holds.
      seed: See FusedSacUpdate.
      measures: `measure` will be called.

    Attributes:
      kind: `fused` or `generic`, and `bfloat16` behind it where that is used; for people.
      block_spec: Of the arrays of a block: `[None, B, ...]`.
    """

    def __init__(
        self,
        agent: tf_agent.TFAgent,
        batch_size: int,
        sequence_length: int | None,
        share_log_pi: bool = True,
        matmul_precision: str = "float32",
        seed: int = 0,
        measures: bool = False,
    ) -> None:
        self._agent = agent
        self._seed = seed
        self._is_bfloat16 = matmul_precision == "bfloat16"
        self._observation_spec, self._action_spec = agent.time_step_spec.observation, agent.action_spec
        is_sequence = sequence_length is not None
        self._to_experience = self._to_trajectory if is_sequence else self._to_transition
        outer = (batch_size, sequence_length + 1) if sequence_length is not None else (batch_size,)
        minibatch = [
            tf.TensorSpec((*outer, *spec.shape), spec.dtype) for spec in tf.nest.flatten(self._array_specs(is_sequence))
        ]
        # Traced apart from the loop: the names and number of the losses are known only after that.
        update = self._compiled_update(minibatch, share_log_pi)
        zeros = tf.nest.map_structure(lambda spec: tf.zeros((), spec.dtype), update.structured_outputs)

        def train_block(arrays: list[tf.Tensor]) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
            num_minibatches = tf.shape(arrays[0])[0]
            sums = dict(zeros)
            for k in tf.range(num_minibatches):
                losses = update([array[k] for array in arrays])
                sums = {name: total + losses[name] for name, total in sums.items()}
            means = {name: total / tf.cast(num_minibatches, total.dtype) for name, total in sums.items()}
            return means, self._weights_are_sane()

        self.block_spec = [tf.TensorSpec((None, *spec.shape), spec.dtype) for spec in minibatch]
        self._train_block = tf.function(train_block, input_signature=[self.block_spec]).get_concrete_function()
        self._measure_block = self._compiled_measuring(minibatch) if measures else None

    def __call__(self, arrays: Sequence[np.ndarray]) -> dict[str, float]:
        """Runs one update for each of the K minibatches, in order.

        Args:
          arrays: `Transitions.to_arrays()` or `Sequences.to_arrays()` of the replay server, each `[K, B, ...]`.

        Returns:
          Mean over the K updates of each loss, by name: `loss`, and for SAC `critic_loss`, `actor_loss`, `alpha_loss`.

        Raises:
          DivergedError: A loss or a weight is not finite, or a weight is beyond 1e8: the agent is of no use any more.
        """
        with _divergence_told():
            losses, is_sane = self._train_block([tf.convert_to_tensor(array) for array in arrays])
        numbers = {name: float(loss) for name, loss in losses.items()}
        if wrong := {name: value for name, value in numbers.items() if not math.isfinite(value)}:
            raise DivergedError(", ".join(f"{name} is {value}" for name, value in wrong.items()))
        if not is_sane:
            raise DivergedError(f"a weight is not finite, or beyond {_MAX_WEIGHT:g}")
        return numbers

    def measure(self, arrays: Sequence[np.ndarray]) -> dict[str, float]:
        """The losses of K minibatches without learning from them: nothing of the agent changes.

        Args:
          arrays: As of a call.

        Returns:
          As of a call, without `loss`.

        Raises:
          DivergedError: A loss is not finite.
        """
        assert self._measure_block is not None, "made without `measures`"
        with _divergence_told():
            losses = self._measure_block([tf.convert_to_tensor(array) for array in arrays])
        return {name: float(loss) for name, loss in losses.items()}

    def _weights_are_sane(self) -> tf.Tensor:
        """Whether all weights are finite and none has exploded; NaN fails every comparison."""
        weights = [variable for variable in self._agent.trainable_variables if variable.dtype.is_floating]
        return tf.reduce_all([tf.reduce_all(tf.abs(weight) < _MAX_WEIGHT) for weight in weights])

    def _compiled_update(self, minibatch: list[tf.TensorSpec], share_log_pi: bool) -> Any:
        precision = " bfloat16" if self._is_bfloat16 else ""
        try:
            update = self._compiled(FusedSacUpdate(self._agent, share_log_pi, self._seed), minibatch)
            self.kind = f"fused{precision}"
        except UnsupportedAgentError as error:
            logging.info("generic update, not the fused one of SAC: %s", error)
            update = self._compiled(self._agent.train, minibatch)
            self.kind = f"generic{precision}"
        return update

    def _compiled(self, train: Callable[[Any], tf_agent.LossInfo], minibatch: list[tf.TensorSpec]) -> Any:
        def update(arrays: list[tf.Tensor]) -> dict[str, tf.Tensor]:
            info = train(self._to_experience(arrays))
            losses = {"loss": info.loss}
            return losses | _scalars(info.extra)

        with bfloat16_matmuls([self._agent]) if self._is_bfloat16 else contextlib.nullcontext():
            return tf.function(update, input_signature=[minibatch], autograph=False).get_concrete_function()

    def _compiled_measuring(self, minibatch: list[tf.TensorSpec]) -> Any:
        def minibatch_losses(arrays: list[tf.Tensor]) -> dict[str, tf.Tensor]:
            return _scalars(self._agent.loss(self._to_experience(arrays), training=False).extra)

        losses_of = tf.function(minibatch_losses, input_signature=[minibatch], autograph=False).get_concrete_function()

        specs = tf.nest.map_structure(lambda loss: tf.TensorSpec((), loss.dtype), losses_of.structured_outputs)

        def measure_block(arrays: list[tf.Tensor]) -> dict[str, tf.Tensor]:
            losses = tf.map_fn(losses_of, arrays, fn_output_signature=specs)
            return tf.nest.map_structure(tf.reduce_mean, losses)

        function = tf.function(measure_block, input_signature=[self.block_spec], autograph=False)
        return function.get_concrete_function()

    def _array_specs(self, is_sequence: bool) -> tuple[Any, ...]:
        """Specs of one step of each array of a block, in their order."""
        scalar, step_type = tf.TensorSpec((), tf.float32), tf.TensorSpec((), tf.int32)
        if is_sequence:
            return step_type, self._observation_spec, self._action_spec, scalar, scalar
        return self._observation_spec, self._action_spec, scalar, scalar, self._observation_spec

    def _to_transition(self, arrays: list[tf.Tensor]) -> trajectory.Transition:
        observation, action, reward, discount, next_observation = self._pack(arrays, is_sequence=False)
        mid = tf.fill(tf.shape(reward), time_step.StepType.MID)
        # What the transition led to: a discount of 0 is a termination.
        next_step_type = tf.where(discount == 0.0, time_step.StepType.LAST, mid)
        return trajectory.Transition(
            time_step.TimeStep(mid, tf.zeros_like(reward), tf.ones_like(reward), observation),
            policy_step.PolicyStep(action),
            time_step.TimeStep(next_step_type, reward, discount, next_observation),
        )

    def _to_trajectory(self, arrays: list[tf.Tensor]) -> trajectory.Trajectory:
        step_type, observation, action, reward, discount = self._pack(arrays, is_sequence=True)
        next_step_type = tf.concat([step_type[:, 1:], step_type[:, -1:]], axis=1)
        return trajectory.Trajectory(step_type, observation, action, (), next_step_type, reward, discount)

    def _pack(self, arrays: list[tf.Tensor], is_sequence: bool) -> Any:
        return tf.nest.pack_sequence_as(self._array_specs(is_sequence), arrays)


def _scalars(extra: Any) -> dict[str, tf.Tensor]:
    """The losses that an agent tells beside their sum, by name."""
    named = extra._asdict() if hasattr(extra, "_asdict") else {}
    return {name: value for name, value in named.items() if value.shape.rank == 0}


@contextlib.contextmanager
def _divergence_told() -> Iterator[None]:
    """Turns what tf.debugging.check_numerics raises inside a function into DivergedError."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        if "inf or nan" not in str(error).lower():
            raise
        raise DivergedError(_check_numerics_message(error)) from None


def _check_numerics_message(error: tf.errors.InvalidArgumentError) -> str:
    """`Critic loss is inf or nan`, out of TensorFlow's long account of where that was."""
    lines = [line for line in error.message.splitlines() if "inf or nan" in line.lower()]
    return lines[0].split(" : ")[0].strip().rstrip(".")
