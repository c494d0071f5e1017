"""Ends a worker that hangs in one of its environments, and reports what it was doing.

machine/watchdog.py ends the process. An environment in a process of its own (SAC_ENV_PYTHON) has the deadlines of
envs/env_process.py instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tfagents_system.envs.env_process import build_timeout_secs
from tfagents_system.envs.loading import AnyEnvironment
from tfagents_system.machine.watchdog import Watchdog


class EnvironmentGuard:
    """A worker's watchdog, in terms of what the worker does with its environments.

    Args:
      path: Where a hang is reported.
      worker_id: The worker.
      step_timeout_secs: SAC_STEP_TIMEOUT_SECS: what they may take for a step or reset; more to be built.

    Attributes:
      call: Calls what writes to the disk: at once, or in a thread where a device is stepped.
    """

    call: Callable[[Callable[[], None]], None]

    def __init__(self, path: Path, worker_id: int, step_timeout_secs: float) -> None:
        self.call = lambda write: write()
        self._watchdog = Watchdog(path, step_timeout_secs)
        self._worker_id = worker_id
        self._build_timeout_secs = build_timeout_secs(step_timeout_secs)

    def stepping(self, envs: Sequence[AnyEnvironment]) -> None:
        """They have their time for a step from now on."""
        self._watchdog.rearm(self._where(envs))
        self.call(self.write)

    def still_stepping(self, envs: Sequence[AnyEnvironment]) -> None:
        """As `stepping`, once a second at most; `write` is for the caller to call."""
        if self._watchdog.is_due():
            self._watchdog.rearm(self._where(envs))

    def write(self) -> None:
        """Writes down what would be reported; any thread may."""
        self._watchdog.write()

    def _where(self, envs: Sequence[AnyEnvironment]) -> str:
        return f"worker {self._worker_id}: {', '.join(env.position for env in envs)}"

    def stopped_stepping(self) -> None:
        """Nothing of the user's runs now."""
        self._watchdog.cancel()

    @contextlib.contextmanager
    def building(self, what: str) -> Iterator[None]:
        """Something that may take as long as building an environment."""
        self._watchdog.arm(f"worker {self._worker_id}: {what}", self._build_timeout_secs)
        yield
        self._watchdog.cancel()

    @contextlib.contextmanager
    def closing(self) -> Iterator[None]:
        """Closing all of them."""
        self._watchdog.arm(f"worker {self._worker_id}: close() of its environments")
        yield
        self._watchdog.cancel()

    def waiting(self) -> None:
        """The worker waits for the replay server, or for a process with deadlines of its own: it does not hang."""
        self._watchdog.keep()
