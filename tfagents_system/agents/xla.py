"""Updates that XLA compiles into one program, on a GPU.

Operation by operation, a GPU waits most of the time: an update has hundreds of them, and starting one takes the CPU
longer than the GPU needs for it. On CPUs TensorFlow's own kernels are the faster ones.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from absl import logging

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
