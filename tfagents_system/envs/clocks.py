"""Clocks of environments that act in real time: the machine's, and a virtual one for tests and deterministic runs."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
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
    """The machine's monotonic clock. A thread makes the calls, one after the other."""

    is_real = True

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Any] | None = None

    def now(self) -> float:
        return time.monotonic()

    def sleep_until(self, when: float) -> None:
        while (left := when - time.monotonic()) > 0:
            time.sleep(left)

    def call_at(self, when: float, function: Callable[[], Any]) -> Future[Any]:
        if self._calls is None:
            self._calls = queue.SimpleQueue()
            threading.Thread(target=self._serve, args=(self._calls,), name="clock", daemon=True).start()
        call: Future[Any] = Future()
        self._calls.put((when, function, call))
        return call

    def close(self) -> None:
        if self._calls is not None:
            self._calls.put(None)
            self._calls = None

    def _serve(self, calls: queue.SimpleQueue[Any]) -> None:
        while (request := calls.get()) is not None:
            when, function, call = request
            self.sleep_until(when)
            _make(call, function)


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
            _make(call.future, call.function)
            call.returned_at = self._now
        self._now = until

    def call_at(self, when: float, function: Callable[[], Any]) -> _VirtualCall:
        self._call = _VirtualCall(self, when, function)
        return self._call

    def close(self) -> None:
        self._call = None


class _VirtualCall:
    def __init__(self, clock: VirtualClock, when: float, function: Callable[[], Any]) -> None:
        self._clock, self.when, self.function = clock, when, function
        self.returned_at = when
        self.future: Future[Any] = Future()

    def result(self) -> Any:
        self._clock.sleep_until(self.when)
        self._clock.sleep_until(self.returned_at)
        return self.future.result()


def _make(call: Future[Any], function: Callable[[], Any]) -> None:
    try:
        call.set_result(function())
    except BaseException as error:  # For whoever waits.
        call.set_exception(error)
