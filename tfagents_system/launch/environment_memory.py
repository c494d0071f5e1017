"""The memory that environments take, as a start measures it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import psutil

from tfagents_system.envs import loading
from tfagents_system.launch.random_steps import take_steps
from tfagents_system.train_params_base import TrainParamsBase

_STEPS = 20  # What an environment takes only later is not seen.


def resident_bytes() -> int:
    """Memory of this process, and of those that it and its environments have started."""
    own = psutil.Process()
    total = 0
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # It has just ended.
            total += process.memory_info().rss
    return total


def bytes_of_another(params: TrainParamsBase, seed: int, enter: Callable[[str], None]) -> int:
    """What one more collect environment adds to a worker that has one.

    Args:
      enter: Called with a description of what may take long.

    Raises:
      UserError, EnvironmentFault: It can't be built, or fails.
    """
    enter("building another collect environment")
    before = resident_bytes()
    with contextlib.closing(loading.make_collect_env(params, 0, seed, 1)) as env:
        take_steps(env, seed, _STEPS)
        return max(0, resident_bytes() - before)
