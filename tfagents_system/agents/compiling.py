"""How updates are compiled: by XLA on a GPU, and with matrix products in bfloat16 where the CPU has them."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from absl import logging
from tf_agents.agents.sac.tanh_normal_projection_network import TanhNormalProjectionNetwork
from tf_agents.networks.normal_projection_network import NormalProjectionNetwork

from tfagents_system.agents.layers import VALUE_LAYER

_FLAGS = "XLA_FLAGS"
_CUDA_FOLDER = "--xla_gpu_cuda_data_dir"
_FALLBACK = "--xla_gpu_unsafe_fallback_to_driver_on_ptxas_not_found"  # Else XLA would end the process.


@functools.cache
def is_usable() -> bool:
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
    """A compiled function of tensors of this signature; AutoGraph leaves it alone.

    Args:
      by_xla: Whether XLA may compile it. Then it does where `is_usable`, unless an operation of it is none of XLA's:
        the log says so.
    """
    if by_xla and is_usable():
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
    logging.warning("XLA does not compile the update, which is several times slower without it: %s", lines[0])


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
    modules = {id(module): module for network in networks for module in (network, *network.submodules)}
    in_heads = {id(part) for module in modules.values() if isinstance(module, _HEADS) for part in module.submodules}
    layers = [
        module
        for key, module in modules.items()
        if key not in in_heads and type(module) is tf.keras.layers.Dense and _is_hidden(module)
    ]
    for layer in layers:
        layer.call = _bfloat16_call(layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.call


def _is_hidden(layer: Any) -> bool:
    return layer.units >= _MIN_UNITS and layer.name != VALUE_LAYER


def _bfloat16_call(layer: Any) -> Any:
    def call(inputs: tf.Tensor) -> tf.Tensor:
        rounded = (tf.cast(operand, tf.bfloat16) for operand in (inputs, layer.kernel))
        outputs = tf.cast(tf.matmul(*rounded), tf.float32)
        if layer.use_bias:
            outputs = tf.nn.bias_add(outputs, layer.bias)
        return layer.activation(outputs) if layer.activation is not None else outputs

    return call


def bfloat16_speedup() -> float:
    """Speedup of this process's matrix products in bfloat16 over float32, including the rounding."""
    operands = tf.random.stateless_normal((_TRIAL_SIZE, _TRIAL_SIZE), seed=(0, 0)) / 16.0

    def products(is_rounded: bool) -> Any:
        def repeat() -> tf.Tensor:
            value = operands
            for _ in range(_TRIAL_PRODUCTS):
                if is_rounded:
                    value = tf.cast(tf.matmul(*(tf.cast(x, tf.bfloat16) for x in (value, operands))), tf.float32)
                else:
                    value = tf.matmul(value, operands)
            return value

        return tf.function(repeat, autograph=False).get_concrete_function()

    rounded, exact = products(True), products(False)
    return min(_seconds(exact) for _ in range(_TRIALS)) / min(_seconds(rounded) for _ in range(_TRIALS))


def _seconds(function: Any) -> float:
    started = time.perf_counter()
    function().numpy()
    return time.perf_counter() - started


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
