"""Clocks of environments that act in real time: the machine's, and a virtual one for tests and deterministic runs.

Runs under SAC_ENV_PYTHON as well: the standard library is needed, Python 3.9.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol


class Call(Protocol):
    """A call at a time."""

    def result(self) -> Any:
        """Waits until the call has returned; returns what it has, or raises what it has raised."""


class Clock(Protocol):
    """A clock in seconds.

    Attributes:
      is_real: Whether its time passes by itself.
    """

    is_real: bool

    def now(self) -> float:
        """The time."""

    def sleep_until(self, when: float) -> None:
        """Returns at that time, or at once if it has passed."""

    def call_at(self, when: float, function: Callable[[], Any]) -> Call:
        """Calls a function at that time, whatever the caller does then. One call at a time."""

    def close(self) -> None:
        """Frees what it holds; no calls follow."""


class MonotonicClock:
    """The machine's monotonic clock.

    Where the caller waits for the result already, the call is made in the caller's thread, without a switch of threads.
    """

    is_real = True

    def __init__(self) -> None:
        self._alarm: _Alarm | None = None

    def now(self) -> float:
        return time.monotonic()

    def sleep_until(self, when: float) -> None:
        while (left := when - time.monotonic()) > 0:
            time.sleep(left)

    def call_at(self, when: float, function: Callable[[], Any]) -> _AlarmCall:
        self._alarm = self._alarm or _Alarm()
        return self._alarm.set(_AlarmCall(self, when, function))

    def close(self) -> None:
        if self._alarm is not None:
            self._alarm.end()
            self._alarm = None


class _AlarmCall:
    """Made by whoever comes first: the alarm's thread at its time, or before that who waits for the result."""

    def __init__(self, clock: MonotonicClock, when: float, function: Callable[[], Any]) -> None:
        self.when = when
        self._clock, self._function = clock, function
        self._taken = threading.Lock()  # By whoever makes the call, for good.
        self._is_done = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None

    def result(self) -> Any:
        if self._taken.acquire(blocking=False):
            self._make()
        else:
            self._is_done.wait()
        if self._error is not None:
            raise self._error
        return self._value

    def make_if_free(self) -> None:
        """Makes the call unless somebody else does."""
        if self._taken.acquire(blocking=False):
            self._make()

    def _make(self) -> None:
        self._clock.sleep_until(self.when)
        try:
            self._value = self._function()
        except BaseException as error:  # For whoever waits.
            self._error = error
        self._is_done.set()


class _Alarm:
    """A thread that makes one call after the other."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._call: _AlarmCall | None = None
        self._has_ended = False
        threading.Thread(target=self._serve, name="alarm", daemon=True).start()

    def set(self, call: _AlarmCall) -> _AlarmCall:
        """The next call; the last one has been made."""
        with self._changed:
            self._call = call
            self._changed.notify()
        return call

    def end(self) -> None:
        with self._changed:
            self._has_ended, self._call = True, None
            self._changed.notify()

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not self._has_ended and (self._call is None or self._call.when > time.monotonic()):
                    self._changed.wait(None if self._call is None else self._call.when - time.monotonic())
                if self._has_ended:
                    return
                call, self._call = self._call, None
            assert call is not None
            call.make_if_free()


class VirtualClock:
    """A clock that stands still unless somebody sleeps or advances it.

    A call at a time sees that time, however far the caller advances at once. What the call itself takes does not hold
    up the caller before it waits for the result.
    """

    is_real = False

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._call: _VirtualCall | None = None

    def now(self) -> float:
        return self._now

    def advance(self, secs: float) -> None:
        """Lets time pass."""
        self.sleep_until(self._now + secs)

    def sleep_until(self, when: float) -> None:
        until, call = max(self._now, when), self._call
        if call is not None and call.when <= until:
            self._call = None
            self._now = max(self._now, call.when)
            call.make()
        self._now = until

    def call_at(self, when: float, function: Callable[[], Any]) -> _VirtualCall:
        self._call = _VirtualCall(self, when, function)
        return self._call

    def close(self) -> None:
        self._call = None


class _VirtualCall:
    def __init__(self, clock: VirtualClock, when: float, function: Callable[[], Any]) -> None:
        self.when = when
        self._clock, self._function = clock, function
        self._returned_at = when
        self._value: Any = None
        self._error: BaseException | None = None

    def make(self) -> None:
        try:
            self._value = self._function()
        except BaseException as error:  # For whoever waits.
            self._error = error
        self._returned_at = self._clock.now()

    def result(self) -> Any:
        self._clock.sleep_until(self.when)
        self._clock.sleep_until(self._returned_at)
        if self._error is not None:
            raise self._error
        return self._value
