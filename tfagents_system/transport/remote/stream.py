"""Whole frames over one TLS connection, in both directions at once, with a deadline for everything."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from tfagents_system.transport.remote import frames
from tfagents_system.transport.remote.errors import ChannelError, CutShortError, FrameError

_PIECE_BYTES = 256 * 1024
_STALL_SECS = 30.0
_LEAST_BYTES_PER_SEC = 16 * 1024  # A slower client ties us up on purpose.
_NO_BODY = np.empty(0, np.uint8)

_Result = TypeVar("_Result")


class Transport:
    """Sends and receives frames. Any thread may send; one thread receives.

    Python's ssl does not protect a connection against two threads (bpo-44999 and others): every call into it is
    non-blocking and under a lock, and the waiting happens outside the lock.

    Args:
      tls: Connected; its handshake may still be pending.
      stall_secs: How long the other side may stop reading.
      hears_out: It may do so for as long as it says something: the gateway reads nothing while it answers at length.

    Attributes:
      received_bytes: So far.
      sent_bytes: So far.
    """

    def __init__(self, tls: ssl.SSLSocket, stall_secs: float = _STALL_SECS, hears_out: bool = False) -> None:
        tls.setblocking(False)
        with contextlib.suppress(OSError):
            tls.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._tls = tls
        self._stall_secs = stall_secs
        self._hears_out = hears_out
        self._heard_at = 0.0
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._is_closed = False
        self._urgent: list[frames.Buffer] | None = None
        self.received_bytes = self.sent_bytes = 0

    def handshake(self, timeout_secs: float) -> None:
        """Raises: ChannelError, ssl.SSLError, OSError."""
        deadline = time.monotonic() + timeout_secs
        self._attempt(self._tls.do_handshake, lambda: deadline, "a TLS handshake")

    def send(self, message: msgspec.Struct, arrays: Sequence[np.ndarray] = ()) -> None:
        """Sends one frame.

        Raises:
          ChannelError: The connection is broken, or the other side does not read.
        """
        buffers = frames.encode(message, arrays)
        with self._sending:
            self._send_all(buffers)
        self._send_urgent()

    def send_unless_busy(self, message: msgspec.Struct) -> None:
        """Sends one small frame without waiting for others; none while another is being sent, which says as much.

        Raises:
          ChannelError: The connection is broken, or the other side does not read.
        """
        if self._sending.acquire(blocking=False):
            try:
                self._send_all(frames.encode(message, ()))
            finally:
                self._sending.release()
            self._send_urgent()

    def offer(self, message: msgspec.Struct, arrays: Sequence[np.ndarray] = ()) -> None:
        """Sends one small frame as soon as no other is being sent; replaces one that was not sent yet.

        Raises:
          ChannelError: The connection is broken.
        """
        self._urgent = frames.encode(message, arrays)
        self._send_urgent()

    def receive(
        self,
        types: Any,
        limits: frames.Limits,
        idle_secs: float,
        rest_secs: float | None = None,
        on_part: Callable[[], None] = lambda: None,
    ) -> tuple[Any, frames.Arrays]:
        """The next message and its arrays.

        Args:
          types: Union of the messages that may come.
          limits: Of a frame.
          idle_secs: How long to wait for the first byte.
          rest_secs: How long the rest may take after it; None: by its length.
          on_part: Called whenever some of its arrays' bytes have arrived.

        Raises:
          ChannelError: The connection has ended, or nothing arrived; CutShortError: in the middle of a frame.
          FrameError: It is not a frame, or not of these types.
        """
        head = bytearray(frames.HEAD_BYTES)
        self._fill(memoryview(head)[:1], idle_secs, "a message")
        try:
            least_secs = self._stall_secs if rest_secs is None else rest_secs
            return self._receive_rest(head, types, limits, least_secs, on_part)
        except FrameError:
            raise
        except ChannelError as error:
            raise CutShortError(f"in the midst of a message: {error}") from None

    def _receive_rest(
        self, head: bytearray, types: Any, limits: frames.Limits, least_secs: float, on_part: Callable[[], None]
    ) -> tuple[Any, frames.Arrays]:
        self._fill(memoryview(head)[1:], least_secs, "the rest of a message")
        message_bytes, body_bytes = frames.read_head(head, limits)
        encoded = bytearray(message_bytes)
        body = np.empty(body_bytes, np.uint8) if body_bytes else _NO_BODY
        secs = least_secs + (message_bytes + body_bytes) / _LEAST_BYTES_PER_SEC
        began = time.monotonic()
        self._fill(memoryview(encoded), secs, "the rest of a message")
        message = frames.decode_message(encoded, types)
        if body_bytes:
            self._fill(body.data, secs - (time.monotonic() - began), "the rest of a message", on_part)
        heads = getattr(message, "arrays", [])
        if body_bytes and not heads:
            raise FrameError(f"{type(message).__name__} with {body_bytes} bytes that belong to no array")
        return message, frames.decode_arrays(heads, body)

    def shut(self) -> None:
        """Ends the connection for both sides; wakes every thread that waits for it."""
        with self._lock:
            self._is_closed = True
            # Not SSLSocket.shutdown, after which the same object would send and receive in plain text.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._tls, socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends the connection; to be called when no other thread uses it any more."""
        self.shut()
        with contextlib.suppress(OSError):
            self._tls.close()

    def _send_urgent(self) -> None:
        while self._urgent is not None and self._sending.acquire(blocking=False):
            try:
                buffers, self._urgent = self._urgent, None
                if buffers is not None:
                    self._send_all(buffers)
            finally:
                self._sending.release()

    def _send_all(self, buffers: Sequence[frames.Buffer]) -> None:
        try:
            for piece in _pieces(buffers):
                began = time.monotonic()
                while len(piece):
                    sent = self._attempt(
                        lambda piece=piece: self._tls.send(piece),  # type: ignore[misc]
                        lambda began=began: self._stall_secs + max(began, self._heard_at if self._hears_out else 0.0),  # type: ignore[misc]
                        "room to send",
                    )
                    self.sent_bytes += sent
                    piece = piece[sent:]
        except ChannelError:
            self.shut()  # Half a frame may have been sent: nothing can follow it.
            raise

    def _fill(
        self, view: memoryview, timeout_secs: float, what: str, on_part: Callable[[], None] = lambda: None
    ) -> None:
        deadline = time.monotonic() + timeout_secs
        while len(view):
            count = self._attempt(lambda view=view: self._tls.recv_into(view), lambda: deadline, what)  # type: ignore[misc]
            if count == 0:
                raise ChannelError("the other side has ended the connection")
            self.received_bytes += count
            self._heard_at = time.monotonic()
            view = view[count:]
            on_part()

    def _attempt(self, operation: Callable[[], _Result], deadline: Callable[[], float], what: str) -> _Result:
        """Calls `operation` until it need not wait any more."""
        while True:
            with self._lock:
                if self._is_closed:
                    raise ChannelError("the connection is closed")
                try:
                    return operation()
                except ssl.SSLWantReadError:
                    event = select.POLLIN
                except ssl.SSLWantWriteError:
                    event = select.POLLOUT
                except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                    raise ChannelError("the other side has ended the connection") from None
                except OSError as error:
                    raise ChannelError(describe(error)) from error
                descriptor = self._tls.fileno()
            remaining = deadline() - time.monotonic()
            if remaining <= 0:
                raise ChannelError(f"waited in vain for {what}")
            poll = select.poll()
            poll.register(descriptor, event)
            poll.poll(max(1, int(min(remaining, 1.0) * 1000)))


def describe(error: OSError) -> str:
    """What went wrong, in plain words instead of the library's."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {(error.reason or str(error)).lower().replace('_', ' ')}"
    return error.strerror or str(error)


def _pieces(buffers: Sequence[frames.Buffer]) -> list[memoryview]:
    """Joins small buffers and splits large ones: between two of them the other direction gets its turn."""
    pieces: list[memoryview] = []
    small = bytearray()
    for buffer in buffers:
        if len(buffer) + len(small) <= _PIECE_BYTES // 16:
            small += buffer
            continue
        if small:
            pieces.append(memoryview(small))
            small = bytearray()
        view = memoryview(buffer)
        pieces += [view[start : start + _PIECE_BYTES] for start in range(0, len(view), _PIECE_BYTES)]
    if small:
        pieces.append(memoryview(small))
    return pieces
