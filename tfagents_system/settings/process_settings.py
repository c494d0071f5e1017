"""What a user's code sets for its whole process, and our own code in that process needs otherwise.

Environments' own processes import this: it needs nothing but Python 3.9 and NumPy.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

# Those that stop a role, and that of a connection whose other end is gone, which Python ignores.
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_SIGNALS = (*_STOPS, signal.SIGPIPE)
_RAISE = ("raise", "call")

changes: dict[str, None] = {}
"""What `kept` has put back in this process, in words."""


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Puts back what a user's code sets meanwhile and what would end or deafen a program of the run.

    These are handlers of signals, and warnings and rounding that raise: our own libraries warn and underflow. All other
    settings stay the user's.
    """
    filters, modes, depth = list(warnings.filters), dict[str, Any](np.geterr()), sys.getrecursionlimit()
    is_main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in _SIGNALS} if is_main else {}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if handler is not None and signal.getsignal(number) != handler:  # None: not installed by Python.
                signal.signal(number, handler)
                changes[f"signal.signal({number.name}, ...)"] = None
        if errors := [entry for entry in warnings.filters if entry[0] == "error" and entry not in filters]:
            warnings.filters[:] = [entry for entry in warnings.filters if entry not in errors]  # type: ignore[index]
            changes['warnings.simplefilter("error")'] = None
        if raising := {
            kind: modes[kind] for kind, mode in np.geterr().items() if mode in _RAISE and mode != modes[kind]
        }:
            np.seterr(**raising)
            changes[f'numpy.seterr({", ".join(raising)}="raise")'] = None
        if sys.getrecursionlimit() < depth:
            sys.setrecursionlimit(depth)
            changes["sys.setrecursionlimit"] = None


def faults() -> list[str]:
    """Settings of TensorFlow with which roles fail, each with its remedy; it may not be imported."""
    if (tf := sys.modules.get("tensorflow")) is None:
        return []
    backend, precision = tf.keras.backend, tf.keras.mixed_precision.global_policy().name
    is_set = {
        f"the default float type of Keras is {backend.floatx()}, not float32 (set_floatx)": backend.floatx()
        != "float32",
        f"the precision policy of Keras is {precision}, not float32 (set_global_policy)": (
            precision not in ("float32", backend.floatx(), "_infer")  # That of graph mode.
        ),
        "the image format of Keras is channels_first (set_image_data_format)": (
            backend.image_data_format() != "channels_last"
        ),
        "TensorFlow is in graph mode (disable_eager_execution, disable_v2_behavior or a Graph that was entered)": (
            not tf.executing_eagerly()
        ),
        "TensorFlow has a distribution strategy (experimental_set_strategy, or a scope that was entered)": (
            tf.distribute.has_strategy()
        ),
        "TensorFlow sees no CPU (set_visible_devices)": not tf.config.get_visible_devices("CPU"),
    }
    return [
        f"{setting} after SAC_PARAMS and the environment were loaded, and that holds for the run's own networks, too: "
        "remove the call (params, what they import, ~/.keras/keras.json), or give your own layers that setting alone"
        for setting, is_wrong in is_set.items()
        if is_wrong
    ]
