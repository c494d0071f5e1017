"""The remote end's connection to the gateway, made again whenever it breaks."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable

import msgspec
from absl import logging

from tfagents_system.transport.remote import messages
from tfagents_system.transport.remote.errors import ChannelError, GatewayRefusedError, SlotLostError
from tfagents_system.transport.remote.frames import Arrays, Limits
from tfagents_system.transport.remote.messages import Hello, Welcome
from tfagents_system.transport.remote.stream import Transport, describe
from tfagents_system.transport.remote.tls_client import CONNECT_SECS, TlsClient

_IDLE_SECS = 30.0
_FAREWELL_SECS = 5.0
_FIRST_BACKOFF_SECS, _MAX_BACKOFF_SECS = 0.5, 5.0
_GATEWAY_LIMITS = Limits(message_bytes=2**20, body_bytes=2**32)
_SPEAK_SECS = 60.0


class Channel:
    """A thread connects, says hello, passes messages on, and reconnects.

    Args:
      tls_client: Connects to the gateway.
      hello: Who we are.
      begin: Called with each new connection, and whether the gateway is another process than before; calls `use`.
      take: Called with each message that is not about the connection itself, and its arrays.
      lost: Called when a connection has ended.

    Attributes:
      changed: Notified when an attribute below changes; `begin`, `take` and `lost` are called without holding it.
      transport: The connection; None while there is none.
      welcome: The gateway's last welcome message.
      refusal: Why the gateway refuses us for good.
      end_of_run: `done` or `stopped` once the run is over, None before.
      is_closed: We have said goodbye.
    """

    def __init__(
        self,
        tls_client: TlsClient,
        hello: Hello,
        begin: Callable[[Transport, bool], None],
        take: Callable[[msgspec.Struct, Arrays], None],
        lost: Callable[[], None],
    ) -> None:
        self.changed = threading.Condition()
        self.transport: Transport | None = None
        self.welcome: Welcome | None = None
        self.refusal: GatewayRefusedError | SlotLostError | None = None
        self.end_of_run: str | None = None
        self.is_closed = False
        self._tls_client = tls_client
        self._hello = msgspec.structs.replace(
            hello, token=hello.token or secrets.token_hex(16), host=hello.host or messages.this_host()
        )
        self._tell_begin, self._take, self._lost = begin, take, lost
        self._down_since, self._why_down = time.time(), "not connected yet"

    def start(self) -> None:
        """Begins to connect."""
        name = f"channel {self._tls_client.address}"
        threading.Thread(target=self._stay_connected, name=name, daemon=True).start()

    def use(self, transport: Transport) -> None:
        """To be called by `begin` after it has sent everything that must come first."""
        with self.changed:
            self.transport = transport
            self.changed.notify_all()

    def tell(self, message: msgspec.Struct) -> None:
        """Sends a message if connected; it may get lost."""
        with self.changed:
            transport = self.transport
        if transport is not None:
            with contextlib.suppress(ChannelError):
                transport.send(message)

    def close(self) -> None:
        """Says goodbye, and waits until the gateway has read that and everything before it."""
        self.is_closed = True
        self.tell(messages.Goodbye())
        with self.changed:
            # The gateway ends the connection: ending it here would lose what the gateway has not read yet.
            self.changed.wait_for(lambda: self.transport is None, _FAREWELL_SECS)
            if self.transport is not None:
                self.transport.shut()
            self.changed.notify_all()

    @property
    def is_left(self) -> bool:
        """Whether the channel is finished: we have said goodbye, or the run is over."""
        return self.is_closed or self.end_of_run is not None

    @property
    def is_over(self) -> bool:
        """Whether no further connection is tried."""
        return self.is_left or self.refusal is not None

    def raise_if_refused(self) -> None:
        """Raises: GatewayRefusedError, SlotLostError."""
        if self.refusal is not None:
            raise self.refusal

    def describe(self) -> str:
        """Who can't reach whom, since when, why, and what to check; empty if all is well."""
        with self.changed:
            if self.transport is not None:
                return ""
            since = time.strftime("%H:%M:%S", time.localtime(self._down_since))
            return (
                f"{self._hello.kind} on {self._hello.host} can't reach the gateway at {self._tls_client.address} since "
                f"{since} ({self._why_down}): check that the run is alive, that gateway.json in its directory has this "
                "address, and that no firewall is between (--check tries the whole path)"
            )

    def _stay_connected(self) -> None:
        backoff_secs, spoke_at = _FIRST_BACKOFF_SECS, 0.0
        while not self.is_over:
            try:
                with contextlib.closing(self._connect()) as transport:
                    backoff_secs = _FIRST_BACKOFF_SECS
                    self._receive_forever(transport)
            except (GatewayRefusedError, SlotLostError) as refusal:
                self.refusal = refusal
                logging.error("%s", refusal)
            except (ChannelError, OSError) as error:
                self._went_down(str(error) if isinstance(error, ChannelError) else describe(error))
            except BaseException as error:  # A bug here must not leave the role waiting silently.
                self._went_down(f"{type(error).__name__}: {error}")
                logging.exception("channel")
            with self.changed:
                self.transport = None
                self.changed.notify_all()
            self._lost()
            if self.is_over:
                return
            if time.monotonic() - spoke_at > _SPEAK_SECS:
                spoke_at = time.monotonic()
                logging.warning("%s", self.describe())
            with self.changed:
                self.changed.wait(backoff_secs)
            backoff_secs = min(_MAX_BACKOFF_SECS, 2 * backoff_secs)

    def _went_down(self, why: str) -> None:
        with self.changed:
            if self.transport is not None:
                self._down_since = time.time()
            self.transport, self._why_down = None, why

    def _connect(self) -> Transport:
        transport = self._tls_client.open()
        try:
            transport.send(self._tls_client.with_password(self._hello))
            answer, _ = transport.receive(messages.FromGateway, _GATEWAY_LIMITS, CONNECT_SECS)
            if isinstance(answer, messages.Refused):
                if answer.final:
                    raise self._refused(answer)
                raise ChannelError(f"it refuses us for now: {answer.message}")
            if isinstance(answer, messages.End):
                self._ended(answer.why)
            if not isinstance(answer, Welcome):
                raise ChannelError(f"it answers with {type(answer).__name__}")
            self._begin(transport, answer)
        except BaseException:
            transport.close()
            raise
        return transport

    def _refused(self, answer: messages.Refused) -> GatewayRefusedError | SlotLostError:
        what = f"the gateway at {self._tls_client.address} refuses us: {answer.message}"
        if answer.reason == messages.SLOT_LOST:
            return SlotLostError(what)
        return GatewayRefusedError(what, answer.reason)

    def _begin(self, transport: Transport, welcome: Welcome) -> None:
        is_new_gateway = self.welcome is None or self.welcome.gateway != welcome.gateway
        # The slot is this worker's identity: a later connection gets the same slot, or none.
        worker_id = welcome.worker_id if welcome.worker_id >= 0 else self._hello.worker_id
        self._hello = msgspec.structs.replace(self._hello, worker_id=worker_id)
        self.welcome = welcome
        self._tell_begin(transport, is_new_gateway)

    def _receive_forever(self, transport: Transport) -> None:
        """Runs until the connection ends, also after the run is over: final messages are still to be sent."""
        while True:
            message, arrays = transport.receive(messages.FromGateway, _GATEWAY_LIMITS, _IDLE_SECS)
            if isinstance(message, messages.Refused):
                raise self._refused(message)
            if isinstance(message, messages.End):
                self._ended(message.why)
            else:
                self._take(message, arrays)

    def _ended(self, why: str) -> None:
        if self.end_of_run is None:
            self.end_of_run = why
            logging.info("the run is over: %s", why)
