"""The update of a whole block: one compiled function runs its K updates without returning to Python."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from absl import logging
from tf_agents.agents import tf_agent
from tf_agents.trajectories import policy_step, time_step, trajectory

from tfagents_system.agents import compiling
from tfagents_system.agents.agent_interface import OwnTrain, Update, make_update
from tfagents_system.agents.behaviour_cloning import WEIGHT
from tfagents_system.agents.compiling import bfloat16_matmuls
from tfagents_system.agents.entropy import FrozenOptimizer
from tfagents_system.agents.fused_update import FusedUpdate
from tfagents_system.agents.noise import UnsupportedAgentError
from tfagents_system.agents.normalization import RunningStatistics
from tfagents_system.agents.update_parts import TD_ERRORS, Measured
from tfagents_system.envs.history import with_horizon_time, without_horizon_time
from tfagents_system.errors import UserError

if TYPE_CHECKING:
    from tfagents_system.replay.sample_forms import SampleForm

_MAX_WEIGHT = 1e8  # A network with larger weights computes nothing useful.


class DivergedError(Exception):
    """Training has diverged: a loss or a weight is not finite, or a weight has exploded."""


class BlockUpdate:
    """Trains any TFAgent on blocks of minibatches from the replay server.

    Compiled when it is built, so that it is ready for the first block. `make_update` provides the update; an agent that
    it does not know is trained by its own `train`, and the log says why. The agent's running statistics of observations
    and returns, if any, include each block before its updates.

    Args:
      agent: The agent to train.
      batch_size: B, the samples of a minibatch.
      form: What a sample is: its arrays, and whether they are steps of a sequence.
      matmul_precision: `float32`, or `bfloat16` for the hidden layers of the agent's networks.
      seed: See FusedUpdate.
      measures: Whether `measure` will be called.
      prior_samples: How many samples of a minibatch come as arrays of their own, behind those of the others.

    Raises:
      UserError: Burn-in, priorities or behaviour cloning are wanted for an agent that is trained by its own `train`, or
        measuring for one that has no losses apart from that.

    Attributes:
      kind: `fused` or `generic`, followed by `bfloat16` if that is used; for display.
      block_spec: Of the arrays of a block: `[None, B, ...]`; with n prior samples `[None, B - n, ...]` of all arrays,
        then `[None, n, ...]`.
      tell_errors: Called after each block of a form that draws by priorities, with `[K, B]` numbers of rows and TD
        errors; None: nobody wants to know.
    """

    def __init__(
        self,
        agent: tf_agent.TFAgent,
        batch_size: int,
        form: SampleForm,
        matmul_precision: str = "float32",
        seed: int = 0,
        measures: bool = False,
        prior_samples: int = 0,
    ) -> None:
        self._agent = agent
        self._is_bfloat16 = matmul_precision == "bfloat16"
        self._observation_spec, self._action_spec = agent.time_step_spec.observation, agent.action_spec
        self._reward_scale = getattr(agent, "reward_scale", None)
        self._form = form
        self.tell_errors: Callable[[np.ndarray, np.ndarray], None] | None = None
        self._is_sequence = form.sequence_length is not None
        outer = (batch_size,) if form.sequence_length is None else (batch_size, form.sequence_length + 1)
        minibatch = [
            tf.TensorSpec((*outer, *spec.shape), spec.dtype)
            for spec in tf.nest.flatten(tuple(self._array_specs().values()))
        ]
        # Traced before the loop, because only the trace reveals the losses' names and number.
        update = self._compiled_update(minibatch, form.burn_in, seed=seed)
        self.kind = self._update.kind + (" bfloat16" if self._is_bfloat16 else "")
        zeros = tf.nest.map_structure(lambda spec: tf.zeros((), spec.dtype), update.structured_outputs[0])
        statistics = RunningStatistics(agent)
        parts = 2 if prior_samples else 1

        def train_block(arrays: list[tf.Tensor]) -> tuple[Measured, list[tf.Tensor], tf.Tensor]:
            num_minibatches = tf.shape(arrays[0])[0]
            for part in range(parts):
                self._update_statistics(arrays[part * len(minibatch) :][: len(minibatch)], statistics)
            sums, errors = zeros, [tf.TensorArray(tf.float32, num_minibatches) for _ in update.structured_outputs[1]]

            def step(k: tf.Tensor, sums: Measured, errors: list[tf.TensorArray]) -> tuple[Any, ...]:
                measured, found = update(_joined([array[k] for array in arrays], parts))
                return k + 1, tf.nest.map_structure(tf.add, sums, measured), _written(errors, k, found)

            _, sums, errors = tf.while_loop(lambda k, *_: k < num_minibatches, step, (0, sums, errors))
            return sums, [each.stack() for each in errors], self._weights_are_sane()

        self.block_spec = [
            tf.TensorSpec((None, size, *spec.shape[1:]), spec.dtype)
            for size in ([batch_size - prior_samples, prior_samples] if prior_samples else [batch_size])
            for spec in minibatch
        ]
        self._train_block = self._compiled_block(train_block)
        self._measure_block = self._compiled_measuring(minibatch, parts) if measures else None

    def __call__(self, arrays: Sequence[np.ndarray]) -> dict[str, float]:
        """Runs one update for each of the K minibatches, in order.

        Args:
          arrays: Those of the form, as the replay server has drawn them, each `[K, B, ...]`.

        Returns:
          Mean of each loss, by name, over those of the K updates that have measured it; without those that none has.
          For SAC and its variants `critic_loss`, `actor_loss`, `alpha_loss` (where alpha is learned) and `q_mean`, the
          mean of the critics' values; for other agents `loss` and what else their `train` returns.

        Raises:
          DivergedError: A loss or a weight is not finite, or a weight is beyond 1e8: the agent can't be used any more.
        """
        with _as_diverged_error():
            sums, errors, is_sane = self._train_block([tf.convert_to_tensor(array) for array in arrays])
        numbers = {name: float(total) / float(count) for name, (total, count) in sums.items() if float(count) > 0}
        _check_finite(numbers)
        if not is_sane:
            raise DivergedError(f"a weight is not finite, or beyond {_MAX_WEIGHT:g}")
        if errors and self.tell_errors is not None:
            self.tell_errors(self._rows(arrays), errors[0].numpy())
        return numbers

    def measure(self, arrays: Sequence[np.ndarray]) -> dict[str, float]:
        """The losses of K minibatches without learning from them: the agent does not change.

        Args:
          arrays: As of a call.

        Returns:
          As of a call, without `loss`.

        Raises:
          DivergedError: A loss is not finite.
        """
        assert self._measure_block is not None, "made without `measures`"
        with _as_diverged_error():
            losses = self._measure_block([tf.convert_to_tensor(array) for array in arrays])
        numbers = {name: float(loss) for name, loss in losses.items()}
        _check_finite(numbers)
        return numbers

    def _update_statistics(self, arrays: list[tf.Tensor], statistics: RunningStatistics) -> None:
        """Adds a block to the running statistics, once, before its updates."""
        named = self._named(arrays)
        weight = named.get("weight")
        statistics.update(tf.nest.flatten(named["observation"]), weight)
        if self._reward_scale is not None:
            self._reward_scale.update(named["returns"], weight)

    def _weights_are_sane(self) -> tf.Tensor:
        """Whether all weights are finite and none has exploded; NaN fails every comparison."""
        weights = [variable for variable in self._agent.trainable_variables if variable.dtype.is_floating]
        return tf.reduce_all([tf.reduce_all(tf.abs(weight) < _MAX_WEIGHT) for weight in weights])

    def _compiled_update(self, minibatch: list[tf.TensorSpec], burn_in_steps: int, **options: Any) -> Any:
        self._update: Update
        try:
            self._update = make_update(self._agent, burn_in_steps=burn_in_steps, **options)
            _make_slots(self._update)
            return self._compiled(self._step, minibatch)
        except UnsupportedAgentError as error:
            if findings := _impossible_by_train(self._agent, self._form, error):
                raise UserError(*findings) from None
            logging.info("generic update, not the fused one of SAC: %s", error)
        self._update = OwnTrain(self._agent)
        return self._compiled(self._step, minibatch)

    def _step(self, experience: Any, **weights: tf.Tensor) -> tuple[Measured, list[tf.Tensor]]:
        """One update: what it has measured, and apart from that the TD errors where there are priorities."""
        measured = dict(self._update.step(experience, **weights))
        if not self._form.is_prioritized:
            return measured, []
        if TD_ERRORS not in measured:
            raise UnsupportedAgentError(f"the update of {type(self._agent).__name__} measures no {TD_ERRORS}")
        return measured, [measured.pop(TD_ERRORS)[0]]

    def _compiled(self, step: Callable[..., Any], minibatch: list[tf.TensorSpec]) -> Any:
        """A compiled function of experience and of the weights of steps `[B, L]`, or of samples `[B]`, if any."""

        def update(arrays: list[tf.Tensor]) -> Any:
            named = self._named(arrays)
            if self._is_sequence:
                return step(self._to_trajectory(named), weight=named["weight"][:, :-1])
            weights = {"weight": named["weight"]} if self._form.is_prioritized else {}
            return step(self._to_transition(named), **weights)

        with bfloat16_matmuls([self._agent]) if self._is_bfloat16 else contextlib.nullcontext():
            # The agent's own `train` may hold anything.
            return compiling.concrete_function(update, [minibatch], by_xla=self._update.kind == FusedUpdate.kind)

    def _compiled_measuring(self, minibatch: list[tf.TensorSpec], parts: int) -> Any:
        losses_of: Any = None
        with contextlib.suppress(NotImplementedError):
            losses_of = self._compiled(self._update.losses, minibatch)
        if losses_of is None or not losses_of.structured_outputs:
            raise UserError(
                f"validation_share is not possible, {type(self._agent).__name__} has no losses that can be measured "
                "without learning: set it to 0"
            )
        specs = tf.nest.map_structure(lambda loss: tf.TensorSpec((), loss.dtype), losses_of.structured_outputs)

        def measure_block(arrays: list[tf.Tensor]) -> dict[str, tf.Tensor]:
            losses = tf.map_fn(lambda each: losses_of(_joined(each, parts)), arrays, fn_output_signature=specs)
            return tf.nest.map_structure(tf.reduce_mean, losses)

        return self._compiled_block(measure_block)

    def _compiled_block(self, function: Callable[..., Any]) -> Any:
        """A compiled function of a block's arrays. AutoGraph would take a fifth of a second to find the same loop."""
        return tf.function(function, input_signature=[self.block_spec], autograph=False).get_concrete_function()

    def _array_specs(self) -> dict[str, Any]:
        """Specs of one step of each array of a block by name, in their order."""
        observation_spec = self._observation_spec
        if self._form.has_horizon_time:
            observation_spec = without_horizon_time(observation_spec)
        nests = {"observation": observation_spec, "action": self._action_spec}
        return {
            array.name: nests.get(array.kind) or tf.TensorSpec((), array.kind)
            for array in self._form.arrays(has_returns=self._reward_scale is not None)
        }

    def _rows(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """The numbers of rows `[K, B]` among the arrays of a block, of its one or two parts."""
        lengths = {name: len(tf.nest.flatten(spec)) for name, spec in self._array_specs().items()}
        place = sum(lengths[name] for name in list(lengths)[: list(lengths).index("row")])
        return np.concatenate(arrays[place :: sum(lengths.values())], axis=1)

    def _named(self, arrays: list[tf.Tensor]) -> dict[str, Any]:
        """The nests of a block's or a minibatch's arrays; observations as the agent takes them."""
        specs = self._array_specs()
        # A tuple: tf.nest would sort the keys of a dictionary.
        named = dict(zip(specs, tf.nest.pack_sequence_as(tuple(specs.values()), arrays), strict=True))
        if self._form.has_horizon_time:
            for name in ("observation", "next_observation"):
                time = named[name.replace("observation", "horizon_time")]
                named[name] = with_horizon_time(named[name], time[..., None])
        return named

    def _to_transition(self, named: dict[str, Any]) -> trajectory.Transition:
        reward, discount = self._scaled(named["reward"]), named["discount"]
        mid = tf.fill(tf.shape(reward), time_step.StepType.MID)
        # The next time step: a discount of 0 is a termination.
        next_step_type = tf.where(discount == 0.0, time_step.StepType.LAST, mid)
        return trajectory.Transition(
            time_step.TimeStep(mid, tf.zeros_like(reward), tf.ones_like(reward), named["observation"]),
            policy_step.PolicyStep(named["action"]),
            time_step.TimeStep(next_step_type, reward, discount, named["next_observation"]),
        )

    def _to_trajectory(self, named: dict[str, Any]) -> trajectory.Trajectory:
        step_type, reward = named["step_type"], self._scaled(named["reward"])
        next_step_type = tf.concat([step_type[:, 1:], step_type[:, -1:]], axis=1)
        return trajectory.Trajectory(
            step_type, named["observation"], named["action"], (), next_step_type, reward, named["discount"]
        )

    def _scaled(self, reward: tf.Tensor) -> tf.Tensor:
        return reward if self._reward_scale is None else self._reward_scale(reward)


def _impossible_by_train(agent: tf_agent.TFAgent, form: SampleForm, reason: Exception) -> list[str]:
    """What is wanted of an agent, and its own `train` does not do."""
    needs = {
        f"recurrent.burn_in={form.burn_in}": (form.burn_in > 0, 0),
        "priority_exponent": (form.is_prioritized, None),
        WEIGHT: (getattr(agent, "_cloning_weight", None) is not None, 0),
    }
    return [
        f"{name} is not possible, {reason}: set it to {without}, or choose an algorithm of the toolkit's own"
        for name, (is_needed, without) in needs.items()
        if is_needed
    ]


def _joined(arrays: Sequence[tf.Tensor], parts: int) -> list[tf.Tensor]:
    """A minibatch's arrays `[B, ...]` from those of its one or two parts."""
    if parts == 1:
        return list(arrays)
    count = len(arrays) // 2
    return [tf.concat(pair, 0) for pair in zip(arrays[:count], arrays[count:], strict=True)]


def _written(arrays: list[tf.TensorArray], place: tf.Tensor, found: list[tf.Tensor]) -> list[tf.TensorArray]:
    return [array.write(place, each) for array, each in zip(arrays, found, strict=True)]


def _make_slots(update: Update) -> None:
    """Makes the optimizers' variables, as their first step would: a tf.function that makes some is traced twice."""
    for optimizer, variables in getattr(update, "optimized", ()):  # A user's own may have none.
        if not isinstance(optimizer, FrozenOptimizer):
            with tf.name_scope(optimizer._name):
                optimizer._create_all_weights(variables)


def _check_finite(losses: Mapping[str, float]) -> None:
    if wrong := {name: value for name, value in losses.items() if not math.isfinite(value)}:
        raise DivergedError(", ".join(f"{name} is {value}" for name, value in wrong.items()))


@contextlib.contextmanager
def _as_diverged_error() -> Iterator[None]:
    """Turns what tf.debugging.check_numerics raises inside a function into DivergedError."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        if "inf or nan" not in str(error).lower():
            raise
        raise DivergedError(_check_numerics_message(error)) from None


def _check_numerics_message(error: tf.errors.InvalidArgumentError) -> str:
    """Extracts `Critic loss is inf or nan` from TensorFlow's long message."""
    lines = [line for line in error.message.splitlines() if "inf or nan" in line.lower()]
    return lines[0].split(" : ")[0].strip().rstrip(".")
