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

changes: dict[str, None] = {}
"""What `kept` has put back in this process, in words."""


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Puts back what a user's code sets meanwhile and what would end or deafen a program of the run.

    These are handlers of signals, and warnings and rounding that raise: our own libraries warn and underflow. All other
    settings stay the user's.
    """
    filters, modes = list(warnings.filters), dict[str, Any](np.geterr())
    is_main = threading.current_thread() is threading.main_thread()  # Others can't set handlers.
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
        raising = {kind for kind, mode in np.geterr().items() if mode in ("raise", "call") and mode != modes[kind]}
        if raising:
            np.seterr(**{kind: modes[kind] for kind in raising})
            changes['numpy.seterr(...="raise")'] = None


def faults() -> list[str]:
    """A setting of TensorFlow with which roles fail, with its remedy; it may not be imported."""
    if (tf := sys.modules.get("tensorflow")) is None:
        return []
    config, keras = sys.modules["tensorflow.python.framework.config"], tf.keras
    floatx, policy = keras.backend.floatx(), keras.mixed_precision.global_policy().name
    wrong = {
        "graph mode (disable_eager_execution or a Graph)": not tf.executing_eagerly(),
        f"{floatx} (set_floatx)": floatx != "float32",
        f"{policy} (set_global_policy)": policy != "float32",
        "channels_first (set_image_data_format)": keras.backend.image_data_format() != "channels_last",
        "deterministic operations (enable_op_determinism, TF_DETERMINISTIC_OPS; SAC_DETERMINISTIC=1 does what a run "
        "needs)": config.is_op_determinism_enabled(),
        "a distribution strategy (set_strategy)": tf.distribute.has_strategy(),
        "no CPU (set_visible_devices)": not tf.config.get_visible_devices("CPU"),
    }
    return [
        f"params or environment set for the whole process {setting}, which the run's own networks can't have: remove "
        "that (from what they import and ~/.keras/keras.json, too), or set it for your own layers alone"
        for setting, is_wrong in wrong.items()
        if is_wrong
    ][:1]  # It may have set the others, too.
