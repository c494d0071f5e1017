"""The update of a block: one compiled function runs its K updates without returning to Python.

What makes an update fast, each part where it stands:

- One graph a block: a loop over its K minibatches inside one function (this file). On a GPU XLA compiles its body, and
  of small networks on CPUs the whole loop, where starting operations takes longer than what they compute.
- log pi comes from the noise that made an action, not back through the inverse of tanh (minibatch.py), and the loss of
  alpha takes that of the actor's loss: TF-Agents' SacAgent evaluates the actor a third time (sac.py).
- The actor's first half does not wait for the critics: with two or more CPUs both run side by side (sac.py).
- Adam is one fused operation a variable, and so is a step of a target (agent.py).
- With `matmul_precision`, hidden layers multiply in bfloat16 where the CPU is faster at it (below).
- Workers act in NumPy (policies/numpy_policy.py).

All randomness follows from seed and train step, so a repeated update is the same.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from absl import logging
from tf_agents.agents import tf_agent
from tf_agents.agents.sac.tanh_normal_projection_network import TanhNormalProjectionNetwork
from tf_agents.networks.normal_projection_network import NormalProjectionNetwork
from tf_agents.trajectories import policy_step, trajectory
from tf_agents.trajectories import time_step as ts

from tfagents_system.agents import iteration_counts as counts
from tfagents_system.agents.agent import Agent, check_scheduled
from tfagents_system.agents.layers import VALUE_LAYER
from tfagents_system.agents.minibatch import TD_ERRORS, Measured, Minibatch, Noise, all_measured
from tfagents_system.agents.normalization import update_statistics
from tfagents_system.envs.history import with_horizon_time, without_horizon_time
from tfagents_system.errors import UserError
from tfagents_system.train_params_base import TrainParamsBase

if TYPE_CHECKING:
    from tfagents_system.replay.sampling import SampleForm

_MAX_WEIGHT = 1e8  # A network with larger weights computes nothing useful.
_SMALL, _LONG_BLOCK = 2e6, 30  # Weights times samples, and updates of an iteration: see `pays_as_one_program`.
_WORTH_COMPILING = 20_000  # Updates of a run: XLA takes two seconds, for DroQ seven.
_HELD_OUT_SEED = 0x68656C64  # Losses without learning use numbers that no update uses.


class DivergedError(Exception):
    """Training has diverged: a loss or a weight is not finite, or a weight has exploded."""


def own_train(agent: tf_agent.TFAgent, minibatch: Minibatch, noise: Noise) -> Measured:
    """The update of any TFAgent: its own `train`; what that reports beside the loss, by name.

    It can't leave out steps of a sequence: padded sequences get weight 0.
    """
    del noise  # It draws its own.
    info = agent.train(minibatch.experience, weights=of_whole_sequences(minibatch.weight))
    return all_measured({"loss": info.loss} | _scalars(info.extra))


def own_losses(agent: tf_agent.TFAgent, minibatch: Minibatch, noise: Noise) -> dict[str, tf.Tensor]:
    """The losses that any TFAgent's own `loss` reports, by name."""
    del noise
    return _scalars(agent.loss(minibatch.experience, of_whole_sequences(minibatch.weight), training=False).extra)


def _scalars(extra: Any) -> dict[str, tf.Tensor]:
    named = extra._asdict() if hasattr(extra, "_asdict") else {}
    return {name: value for name, value in named.items() if value.shape.rank == 0}


def of_whole_sequences(weight: tf.Tensor | None) -> tf.Tensor | None:
    """From `[B, T]` to `[B]`: 0 for padded sequences; the mean is 1 if any sequence is whole."""
    if weight is None:
        return None
    is_whole = tf.cast(tf.reduce_all(weight > 0.0, axis=1), tf.float32)
    return is_whole / tf.maximum(tf.reduce_mean(is_whole), 1e-6)


class BlockUpdate:
    """Trains any TFAgent on blocks of minibatches from the replay server.

    Compiled when it is built, so that it is ready for the first block. Algorithms of the toolkit are trained by their
    `update`, any other TFAgent by its own `train`, and the log says so. The agent's running statistics of observations
    and returns, if any, include each block before its updates.

    Args:
      batch_size: B, the samples of a minibatch.
      form: What a sample is: its arrays, and whether they are steps of a sequence.
      matmul_precision: `float32`, or `bfloat16` for the hidden layers of the agent's networks.
      seed: Determines all random numbers together with the train step.
      measures: Whether `measure` will be called.
      prior_samples: How many samples of a minibatch come as arrays of their own, behind those of the others.
      is_one_program: Whether XLA compiles the whole loop of a block, if it can.

    Raises:
      UserError: Burn-in, priorities or measuring are wanted of an agent that is trained by its own `train`.

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
        is_one_program: bool = False,
    ) -> None:
        self._is_one_program = is_one_program
        self._agent, self._seed = agent, seed
        self._is_fused = isinstance(agent, Agent)
        self._update = agent.update if self._is_fused else functools.partial(own_train, agent)
        self._measured_losses = agent.losses if self._is_fused else functools.partial(own_losses, agent)
        self._is_bfloat16 = matmul_precision == "bfloat16"
        self.kind = ("fused" if self._is_fused else "generic") + (" bfloat16" if self._is_bfloat16 else "")
        if not self._is_fused:
            _check_own_train(agent, form)
        for optimizer, variables in agent.optimized.values() if self._is_fused else ():
            with tf.name_scope(optimizer._name):  # Now: a tf.function that makes variables is traced twice.
                optimizer._create_all_weights(variables)
        self._is_prioritized = form.is_prioritized
        self.tell_errors: Callable[[np.ndarray, np.ndarray], None] | None = None
        self._form, self._reward_scale = form, getattr(agent, "reward_scale", None)
        observation_spec = agent.time_step_spec.observation
        if form.has_horizon_time:
            observation_spec = without_horizon_time(observation_spec)
        nests = {"observation": observation_spec, "action": agent.action_spec}
        self._of_one_step: dict[str, Any] = {
            name: nests.get(kind) or tf.TensorSpec((), kind)
            for name, kind in form.arrays(has_returns=self._reward_scale is not None).items()
        }
        times = () if form.sequence_length is None else (form.sequence_length + 1,)
        leaves = tf.nest.flatten(tuple(self._of_one_step.values()))
        self._specs = [tf.TensorSpec((batch_size, *times, *spec.shape), spec.dtype) for spec in leaves]
        sizes = [batch_size - prior_samples, prior_samples] if prior_samples else [batch_size]
        self.block_spec = [
            tf.TensorSpec((None, size, *spec.shape[1:]), spec.dtype) for size in sizes for spec in self._specs
        ]
        self._train_block = self._compiled_training(len(sizes))
        self._measure_block = self._compiled_measuring(len(sizes)) if measures else None

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
        sums, errors, is_sane = _run(self._train_block, arrays)
        numbers = {name: float(total) / float(count) for name, (total, count) in sums.items() if float(count) > 0}
        _check_finite(numbers)
        if not is_sane:
            raise DivergedError(f"a weight is not finite, or beyond {_MAX_WEIGHT:g}")
        if errors and self.tell_errors is not None:
            self.tell_errors(self._rows(arrays), errors[0].numpy())
        return numbers

    def measure(self, arrays: Sequence[np.ndarray]) -> dict[str, float]:
        """The losses of K minibatches without learning from them: the agent does not change. Otherwise as a call."""
        assert self._measure_block is not None, "made without `measures`"
        numbers = {name: float(loss) for name, loss in _run(self._measure_block, arrays).items()}
        _check_finite(numbers)
        return numbers

    def _named(self, arrays: list[tf.Tensor]) -> dict[str, Any]:
        """The nests of a block's or a minibatch's arrays; observations as the agent takes them."""
        specs = self._of_one_step
        # A tuple: tf.nest would sort the keys of a dictionary.
        named = dict(zip(specs, tf.nest.pack_sequence_as(tuple(specs.values()), arrays), strict=True))
        if self._form.has_horizon_time:
            for name in ("observation", "next_observation"):
                time = named[name.replace("observation", "horizon_time")]
                named[name] = with_horizon_time(named[name], time[..., None])
        return named

    def _minibatch(self, arrays: list[tf.Tensor]) -> Minibatch:
        """What an update of the agent learns from."""
        named = self._named(arrays)
        reward, discount = named["reward"], named["discount"]
        if self._reward_scale is not None:
            reward = self._reward_scale(reward)
        if self._form.sequence_length is not None:
            types = named["step_type"]
            next_types = tf.concat([types[:, 1:], types[:, -1:]], axis=1)
            seen = types, named["observation"], named["action"], (), next_types, reward, discount
            return Minibatch(trajectory.Trajectory(*seen), named["weight"][:, :-1], self._form.burn_in)
        mid = tf.fill(tf.shape(reward), ts.StepType.MID)
        # The next time step: a discount of 0 is a termination.
        next_types = tf.where(discount == 0.0, ts.StepType.LAST, mid)
        transition = trajectory.Transition(
            ts.TimeStep(mid, tf.zeros_like(reward), tf.ones_like(reward), named["observation"]),
            policy_step.PolicyStep(named["action"]),
            ts.TimeStep(next_types, reward, discount, named["next_observation"]),
        )
        return Minibatch(transition, named["weight"] if self._form.is_prioritized else None)

    def _rows(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """The numbers of rows `[K, B]` among the arrays of a block, of its one or two parts."""
        lengths = {name: len(tf.nest.flatten(spec)) for name, spec in self._of_one_step.items()}
        place = sum(lengths[name] for name in list(lengths)[: list(lengths).index("row")])
        return np.concatenate(arrays[place :: sum(lengths.values())], axis=1)

    def _update_statistics(self, arrays: list[tf.Tensor]) -> None:
        """Adds a block to the running statistics, once, before its updates."""
        named = self._named(arrays)
        weight = named.get("weight")
        update_statistics(self._agent, tf.nest.flatten(named["observation"]), weight)
        if self._reward_scale is not None:
            self._reward_scale.update(named["returns"], weight)

    def _weights_are_sane(self) -> tf.Tensor:
        """Whether all weights are finite and none has exploded; NaN fails every comparison."""
        weights = [variable for variable in self._agent.trainable_variables if variable.dtype.is_floating]
        return tf.reduce_all([tf.reduce_all(tf.abs(weight) < _MAX_WEIGHT) for weight in weights])

    def _step(self, minibatch: Minibatch) -> tuple[Measured, list[tf.Tensor]]:
        """One update: what it has measured, and apart from that the TD errors where there are priorities."""
        noise = Noise(self._seed, self._agent.train_step_counter)
        with noise.of_dropout():
            measured = dict(self._update(minibatch, noise))
        if not self._is_prioritized:
            return measured, []
        if TD_ERRORS not in measured:
            raise UserError(
                f"priority_exponent is not possible, the update of {type(self._agent).__name__} measures no "
                f"{TD_ERRORS}: set it to None, or choose an algorithm of the toolkit's own"
            )
        return measured, [measured.pop(TD_ERRORS)[0]]

    def _losses(self, minibatch: Minibatch) -> dict[str, tf.Tensor]:
        noise = Noise(self._seed ^ _HELD_OUT_SEED, self._agent.train_step_counter)
        with noise.of_dropout():
            return self._measured_losses(minibatch, noise)

    def _compiled(self, step: Callable[[Minibatch], Any]) -> Any:
        """A compiled function of a minibatch's arrays."""

        def update(arrays: list[tf.Tensor]) -> Any:
            return step(self._minibatch(arrays))

        with bfloat16_matmuls([self._agent]) if self._is_bfloat16 else contextlib.nullcontext():
            # The agent's own `train` may hold anything.
            by_xla = self._is_fused and not self._is_one_program and xla_is_usable()
            return concrete_function(update, [self._specs], by_xla=by_xla)

    def _compiled_training(self, parts: int) -> Any:
        # Traced before the loop, because only the trace reveals the losses' names and number.
        update = self._compiled(self._step)
        zeros = tf.nest.map_structure(lambda spec: tf.zeros((), spec.dtype), update.structured_outputs[0])
        length = len(self._specs)

        def run(arrays: list[tf.Tensor], num_minibatches: tf.Tensor) -> tuple[Measured, list[tf.Tensor]]:
            size, specs = tf.shape(arrays[0])[0], update.structured_outputs[1]
            errors = [tf.TensorArray(spec.dtype, size, element_shape=spec.shape) for spec in specs]

            def step(k: tf.Tensor, sums: Measured, errors: list[tf.TensorArray]) -> tuple[Any, ...]:
                measured, td_errors = update(_joined([array[k] for array in arrays], parts))
                written = [array.write(k, values) for array, values in zip(errors, td_errors, strict=True)]
                return k + 1, tf.nest.map_structure(tf.add, sums, measured), written

            _, sums, errors = tf.while_loop(lambda k, *_: k < num_minibatches, step, (0, zeros, errors))
            return sums, [array.stack() for array in errors]

        program = self._program_of(run)

        def train_block(arrays: list[tf.Tensor]) -> tuple[Measured, list[tf.Tensor], tf.Tensor]:
            for part in range(parts):
                self._update_statistics(arrays[part * length :][:length])
            return *program(arrays, tf.shape(arrays[0])[0]), self._weights_are_sane()

        return concrete_function(train_block, [self.block_spec], by_xla=False)

    def _program_of(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """The loop over a block's minibatches; compiled by XLA its shapes are fixed, and zeros fill a block up."""
        if not self._is_one_program:
            return run
        specs = [tf.TensorSpec((counts.MAX_BLOCK_MINIBATCHES, *spec.shape[1:]), spec.dtype) for spec in self.block_spec]
        program = concrete_function(run, [specs, tf.TensorSpec((), tf.int32)], by_xla=True)
        program([tf.zeros(spec.shape, spec.dtype) for spec in specs], tf.constant(0))  # XLA compiles at the first call.

        def run_padded(arrays: list[tf.Tensor], count: tf.Tensor) -> tuple[Measured, list[tf.Tensor]]:
            missing = counts.MAX_BLOCK_MINIBATCHES - count
            full = [tf.pad(array, [[0, missing], *[[0, 0]] * (array.shape.rank - 1)]) for array in arrays]
            full = [tf.ensure_shape(array, spec.shape) for array, spec in zip(full, specs, strict=True)]
            sums, errors = program(full, count)
            return sums, [array[:count] for array in errors]

        return run_padded

    def _compiled_measuring(self, parts: int) -> Any:
        try:
            losses_of = self._compiled(self._losses)
        except NotImplementedError:
            raise UserError(
                f"validation_share is not possible, {type(self._agent).__name__} has no losses that can be measured "
                "without learning: set it to 0"
            ) from None
        specs = tf.nest.map_structure(lambda loss: tf.TensorSpec((), loss.dtype), losses_of.structured_outputs)

        def measure_block(arrays: list[tf.Tensor]) -> dict[str, tf.Tensor]:
            losses = tf.map_fn(lambda each: losses_of(_joined(each, parts)), arrays, fn_output_signature=specs)
            return tf.nest.map_structure(tf.reduce_mean, losses)

        return concrete_function(measure_block, [self.block_spec], by_xla=False)


def make_block_update(
    params: TrainParamsBase,
    agent: tf_agent.TFAgent,
    matmul_precision: str = "float32",
    seed: int = 0,
    *,
    deterministic: bool = False,
) -> BlockUpdate:
    """Compiles the update of a block as a run does; arguments and errors as of BlockUpdate.

    Deterministic ones do without XLA on CPUs: a run that is extended until XLA pays would draw other random numbers.
    """
    pays = not deterministic and matmul_precision == "float32" and pays_as_one_program(params, agent)
    return BlockUpdate(
        agent,
        params.batch_size,
        params.sample_form_ctor(),
        matmul_precision,
        seed,
        measures=params.validation_share > 0,
        prior_samples=counts.prior_samples(params),
        is_one_program=pays,
    )


def pays_as_one_program(params: TrainParamsBase, agent: tf_agent.TFAgent) -> bool:
    """Whether XLA for CPUs makes a run's updates faster if it compiles the loop over a block.

    SAC with networks (64, 64) and 100 samples of 3 numbers is 1.6 times as fast on one CPU, and 1.1 on two; with 256
    samples 1.2 and 0.9. Short blocks are slower: zeros fill them up. IQN multiplies its samples by fractions.
    """
    if not isinstance(agent, Agent) or tf.config.list_physical_devices("GPU"):
        return False
    inputs = tf.nest.flatten(agent.time_step_spec.observation)
    is_plain = params.sample_form_ctor().sequence_length is None and all(spec.shape.rank <= 1 for spec in inputs)
    learning = [*agent.critic_variables, *agent.actor_variables]
    is_small = sum(variable.shape.num_elements() for variable in learning) * params.batch_size <= _SMALL
    steps = params.env_steps_per_iter or params.num_train_episodes_per_iter * params.horizon
    updates = counts.updates_of_iteration(params) or counts.updates_due(steps, counts.updates_ratio(params) or 0.0)
    are_many = updates >= _LONG_BLOCK and counts.iterations_of_run(params, 1) * updates >= _WORTH_COMPILING
    return is_plain and is_small and are_many and not params.asynchronous and params.algorithm != "iqn"


def check_agent(params: TrainParamsBase, agent: tf_agent.TFAgent) -> None:
    """Tries what a user's own agent may not support; the toolkit's own agents are known to.

    Raises:
      UserError: It can't be trained this way.
    """
    check_scheduled(params, agent)
    gamma = getattr(agent, "_gamma", params.discount)
    if params.n_step > 1 and gamma != params.discount:
        raise UserError(
            f"TrainParams.n_step={params.n_step} sums rewards with discount={params.discount}, and the agent of "
            f"agent_ctor has gamma={gamma}: they must be the same, let agent_ctor take self.discount"
        )
    form = params.sample_form_ctor()
    if params.priority_exponent is not None and not form.is_prioritized:
        raise UserError(
            f"TrainParams.priority_exponent={params.priority_exponent:g}, and the form of sample_form_ctor does not "
            "draw by priorities: set priority_exponent to None, or let the form be one with is_prioritized"
        )
    if isinstance(agent, Agent):
        return
    if form.sequence_length is not None and form.sequence_length > params.horizon:
        raise UserError(
            "TrainParams.recurrent: its sequence_length and burn_in are longer than any episode "
            f"(horizon={params.horizon}), and the update of this agent, its own train, learns from whole sequences "
            f"alone: lower it to at most {params.horizon}, or use an algorithm of the toolkit's own"
        )
    make_block_update(params, agent)


def _check_own_train(agent: tf_agent.TFAgent, form: SampleForm) -> None:
    """What an agent's own `train` does not do must not be wanted."""
    wanted = {f"recurrent.burn_in={form.burn_in}": form.burn_in, "priority_exponent": form.is_prioritized}
    if findings := [
        f"{name} is not possible, {type(agent).__name__} is trained by its own train: leave it out, or choose an "
        "algorithm of the toolkit's own"
        for name, is_wanted in wanted.items()
        if is_wanted
    ]:
        raise UserError(*findings)
    logging.info("%s is trained by its own train: it is none of the toolkit's algorithms", type(agent).__name__)


def _joined(arrays: Sequence[tf.Tensor], parts: int) -> list[tf.Tensor]:
    """A minibatch's arrays `[B, ...]` from those of its one or two parts."""
    if parts == 1:
        return list(arrays)
    count = len(arrays) // 2
    return [tf.concat(pair, 0) for pair in zip(arrays[:count], arrays[count:], strict=True)]


def _check_finite(losses: Mapping[str, float]) -> None:
    if wrong := {name: value for name, value in losses.items() if not math.isfinite(value)}:
        raise DivergedError(", ".join(f"{name} is {value}" for name, value in wrong.items()))


def _run(function: Callable[[list[tf.Tensor]], Any], arrays: Sequence[np.ndarray]) -> Any:
    """A compiled function of a block; where an agent's own `train` checks numerics, it raises DivergedError."""
    try:
        return function([tf.convert_to_tensor(array) for array in arrays])
    except tf.errors.InvalidArgumentError as error:
        # The first line of TensorFlow's long message that says `Critic loss is inf or nan`, as TF-Agents has it.
        lines = [line for line in error.message.splitlines() if "inf or nan" in line.lower()]
        if not lines:
            raise
        raise DivergedError(lines[0].split(" : ")[0].strip().rstrip(".")) from None


# XLA.

_FLAGS = "XLA_FLAGS"
_CUDA_FOLDER = "--xla_gpu_cuda_data_dir"
_FALLBACK = "--xla_gpu_unsafe_fallback_to_driver_on_ptxas_not_found"  # Else XLA would end the process.


@functools.cache
def xla_is_usable() -> bool:
    """Whether TensorFlow has a GPU for which XLA compiles here, tried once; the log says why not.

    XLA needs libdevice of CUDA's compiler package, which is part of the extra `gpu`.
    """
    if not tf.config.list_physical_devices("GPU"):
        return False
    add_flags(os.environ, _cuda_of_the_extra())
    try:
        # Both are functions of libdevice.
        tf.function(lambda x: tf.tanh(tf.exp(x)), autograph=False, jit_compile=True)(tf.ones(2)).numpy()
    except tf.errors.OpError as error:
        _warn(error)
        return False
    return True


def add_flags(environ: MutableMapping[str, str], cuda: Path | None) -> None:
    """Says where CUDA's compiler is, unless the user's own XLA_FLAGS do; XLA reads them at its first compilation.

    Args:
      cuda: The folder with `nvvm/libdevice` and `bin/ptxas`; None: wherever XLA looks by itself.
    """
    flags = {_FALLBACK: "true", **({_CUDA_FOLDER: str(cuda)} if cuda else {})}
    own = environ.get(_FLAGS, "")
    environ[_FLAGS] = " ".join([own, *(f"{name}={value}" for name, value in flags.items() if name not in own)]).strip()


def _cuda_of_the_extra() -> Path | None:
    """The folder of the package nvidia-cuda-nvcc-cu12, if it is installed."""
    try:
        spec = importlib.util.find_spec("nvidia.cuda_nvcc")
    except ModuleNotFoundError:
        return None
    folders = [Path(place) for place in (spec and spec.submodule_search_locations) or ()]
    return next((folder for folder in folders if (folder / "nvvm" / "libdevice").is_dir()), None)


def concrete_function(function: Callable[..., Any], signature: Sequence[Any], *, by_xla: bool) -> Any:
    """A compiled function of tensors of this signature. AutoGraph would take a fifth of a second to find its loops.

    Args:
      by_xla: Whether XLA compiles it, unless an operation of it is none of XLA's: the log says so.
    """
    if by_xla:
        compiled = tf.function(function, input_signature=signature, autograph=False, jit_compile=True)
        try:
            zeros = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), signature)
            compiled.experimental_get_compiler_ir(*zeros)(stage="hlo")
        except (tf.errors.OpError, NotImplementedError, TypeError, ValueError) as error:
            _warn(error)
        else:
            logging.info("compiled by XLA")
            return compiled.get_concrete_function()
    return tf.function(function, input_signature=signature, autograph=False).get_concrete_function()


def _warn(error: Exception) -> None:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    logging.warning("XLA does not compile the update, which is slower without it: %s", lines[0])


# bfloat16, for CPUs that have it.

_MIN_UNITS = 32
_HEADS = (TanhNormalProjectionNetwork, NormalProjectionNetwork)
_TRIAL_SIZE, _TRIAL_PRODUCTS, _TRIALS = 256, 20, 5
_WORTHWHILE = 1.2  # Casts and other operations would consume a smaller gain, which is not worth the lost digits.


@contextlib.contextmanager
def bfloat16_matmuls(networks: Iterable[tf.Module]) -> Iterator[None]:
    """Code traced inside multiplies the hidden Dense layers of `networks` in bfloat16, forwards and backwards.

    Operands are rounded to bfloat16 where they enter a product; variables, biases, activations, losses and gradients
    are float32. Heads of actors, critics' last layers and layers of fewer than 32 units stay float32: they compute
    Q-values, quantiles, means and standard deviations, where precision matters and time does not.
    """
    modules = [module for network in networks for module in (network, *network.submodules)]
    in_heads = {id(part) for module in modules if isinstance(module, _HEADS) for part in module.submodules}
    layers = [
        module
        for module in {id(module): module for module in modules}.values()
        if type(module) is tf.keras.layers.Dense
        and id(module) not in in_heads
        and module.units >= _MIN_UNITS
        and module.name != VALUE_LAYER
    ]
    for layer in layers:
        layer.call = functools.partial(_bfloat16_dense, layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.call


def _bfloat16_dense(layer: Any, inputs: tf.Tensor) -> tf.Tensor:
    rounded = (tf.cast(operand, tf.bfloat16) for operand in (inputs, layer.kernel))
    outputs = tf.cast(tf.matmul(*rounded), tf.float32)
    if layer.use_bias:
        outputs = tf.nn.bias_add(outputs, layer.bias)
    return layer.activation(outputs) if layer.activation is not None else outputs


def bfloat16_speedup() -> float:
    """Speedup of this process's matrix products in bfloat16 over float32, including the rounding."""
    operands = tf.random.stateless_normal((_TRIAL_SIZE, _TRIAL_SIZE), seed=(0, 0)) / 16.0

    def seconds(dtype: tf.DType) -> float:
        def products() -> tf.Tensor:
            value = operands
            for _ in range(_TRIAL_PRODUCTS):
                value = tf.cast(tf.matmul(tf.cast(value, dtype), tf.cast(operands, dtype)), tf.float32)
            return value

        function, times = tf.function(products, autograph=False).get_concrete_function(), []
        for _ in range(_TRIALS):
            started = time.perf_counter()
            function().numpy()
            times.append(time.perf_counter() - started)
        return min(times)

    return seconds(tf.float32) / seconds(tf.bfloat16)


def choose_precision(wanted: str) -> tuple[str, str]:
    """The precision to use, and why it is not bfloat16 where that or `auto` is wanted; elsewhere the reason is empty.

    Measured at each start, in the process that trains: a run may continue tomorrow on another CPU.
    """
    if wanted == "float32":
        return "float32", ""
    speedup = bfloat16_speedup()
    if speedup >= _WORTHWHILE:
        return "bfloat16", ""
    return "float32", f"bfloat16 products are only {speedup:.2f} times as fast as float32 ones on this CPU"
