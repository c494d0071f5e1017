"""The gateway: lets remote programs that prove themselves use the tables of the replay server, and no others."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hmac
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import numpy as np
from absl import logging

import tfagents_system
from tfagents_system.run_files.heartbeat import beat_secs
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.transport.remote import messages, permissions
from tfagents_system.transport.remote.errors import ChannelError, FrameError
from tfagents_system.transport.remote.frames import HELLO_LIMITS
from tfagents_system.transport.remote.machines import COMMAND, Holder
from tfagents_system.transport.remote.refusals import Refusals
from tfagents_system.transport.remote.remote_slots import NoSlotError, RemoteSlots
from tfagents_system.transport.remote.session import CHECK_SECS, Session
from tfagents_system.transport.remote.shared_tables import SharedTables
from tfagents_system.transport.remote.stream import Transport, describe
from tfagents_system.transport.segments import Layout

HANDSHAKE_SECS = 10.0
_MAX_HANDSHAKES, _MAX_HANDSHAKES_OF_ONE = 128, 64
_BRUTE_FORCE_SECS = 1.0
_MAX_CHECKS, _MAX_CHECKS_OF_ONE = 32, 8
_TEND_SECS = 2.0
_WORDS: Final = {
    "params": "another params file",
    "config": "another configuration",
    "specs": "other specs",
    "settings": "other settings (--set)",
}


@dataclasses.dataclass(frozen=True)
class RunFacts:
    """What the gateway must know of its run.

    Attributes:
      paths: The run directory.
      layout: Of segments.
      identity: See `messages.identity_of`.
      seed: Of the run.
      num_collect_workers: Planned workers.
      max_workers: Slots.
      settings: SAC_ variables that remote roles take over.
      run: run.json, as text.
      max_worker_bytes: Of the arrays of one message of a worker.
      max_trainer_bytes: The same for a trainer, which sends weights.
    """

    paths: RunPaths
    layout: Layout
    identity: Mapping[str, str]
    seed: int
    num_collect_workers: int
    max_workers: int
    settings: Mapping[str, str]
    run: str
    max_worker_bytes: int
    max_trainer_bytes: int = 2**30


class RefusedClientError(Exception):
    """A client is turned away.

    Args:
      reason: One word, to be counted.
      message: For the user at the other end.
      final: Trying again is in vain.
    """

    def __init__(self, reason: str, message: str, final: bool = True) -> None:
        super().__init__(message)
        self.reason, self.final = reason, final


class Gateway:
    """Accepts connections and serves each in a thread of its own.

    Args:
      facts: Of the run.
      sharing: The replay server's tables.
      slots: Of workers.
      context: TLS, both sides verified.
      password: Empty where none is asked for.
      has_trainer: Whether the run has a trainer of its own: then no other one may come.
      revoked: Names of the machines that are shut out now; asked often.

    Attributes:
      refusals: Who was turned away.
    """

    def __init__(
        self,
        facts: RunFacts,
        sharing: SharedTables,
        slots: RemoteSlots,
        context: ssl.SSLContext,
        password: str = "",
        has_trainer: bool = True,
        revoked: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        self.facts, self.sharing, self.slots = facts, sharing, slots
        self.refusals = Refusals()
        self.started = time.time_ns()
        self.beat_secs = beat_secs(facts.paths.exp_dir)
        self._context = context
        self._password = password.encode()
        self._has_trainer = has_trainer
        self._revoked = revoked
        self._tend_at = 0.0
        self._lock = threading.Lock()
        self._shaking_hands: collections.Counter[str] = collections.Counter()
        self._sessions: set[Session] = set()
        self._trainer: Session | None = None
        self._end: str | None = None
        self._is_closed = False
        self._listener: socket.socket | None = None
        self._received_bytes = self._sent_bytes = 0  # Of sessions that have ended.

    def listen(self, port: int) -> int:
        """Begins to accept connections, on every address; returns the port.

        Args:
          port: 0 takes any free one.

        Raises:
          OSError: The port is in use.
        """
        if socket.has_dualstack_ipv6():
            listener = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=256)
        else:
            listener = socket.create_server(("", port), backlog=256)
        self._listener = listener
        threading.Thread(target=self._accept_forever, args=(listener,), name="accept", daemon=True).start()
        return int(listener.getsockname()[1])

    def end(self, why: str, deadline_secs: float) -> None:
        """Tells all clients that the run is over, and waits for them to go.

        Args:
          why: `done` or `stopped`.
          deadline_secs: How long they have to send what they still have.
        """
        self._end = why
        deadline = time.monotonic() + deadline_secs
        for session in self._all_sessions():
            session.tell_end(why)
        while self._all_sessions() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.close()

    def close(self) -> None:
        """Ends all connections."""
        self._is_closed = True
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # Wakes the thread that accepts.
            self._listener.close()
        for session in self._all_sessions():
            session.transport.shut()

    def tend(self) -> None:
        """To be called now and then: ends connections of machines that were shut out, or whose time is over."""
        if time.monotonic() < self._tend_at:
            return
        self._tend_at = time.monotonic() + _TEND_SECS
        revoked, now = self._revoked(), time.time()
        for session in self._all_sessions():
            is_long = session.client.kind == "check" and time.monotonic() - session.began > CHECK_SECS
            if session.holder.name in revoked or session.holder.ends_at < now or is_long:
                # Not told here, which may take as long as the other side likes: it hears why when it comes back.
                logging.info("%s at %s (%s): its time is over", session.name, session.peer, session.holder.name)
                session.transport.shut()

    def state(self) -> dict[str, Any]:
        """For the heartbeat."""
        sessions = self._all_sessions()
        return {
            "connections": len(sessions),
            "remote_workers": self.slots.connected,
            "received_bytes": self._received_bytes + sum(session.transport.received_bytes for session in sessions),
            "sent_bytes": self._sent_bytes + sum(session.transport.sent_bytes for session in sessions),
            "refused": self.refusals.counts,
        }

    # Accepting.

    def _accept_forever(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, address = listener.accept()
            except OSError as error:
                if self._is_closed:
                    return
                logging.log_every_n_seconds(logging.WARNING, "accept: %s", 60, error)
                time.sleep(0.1)  # Such as no file descriptor left.
                continue
            host = _plain_host(address[0])
            if self._may_shake_hands(host):
                thread = threading.Thread(target=self._serve, args=(connection, host, address[1]), daemon=True)
                try:
                    thread.start()
                    continue
                except RuntimeError:  # No thread can be started.
                    self._has_shaken_hands(host)
            self.refusals.add(
                "busy", f"{host} port {address[1]}", "too many connections that have not proved themselves"
            )
            connection.close()

    def _may_shake_hands(self, host: str) -> bool:
        with self._lock:
            is_full = self._shaking_hands.total() >= _MAX_HANDSHAKES
            if is_full or self._shaking_hands[host] >= _MAX_HANDSHAKES_OF_ONE:
                return False
            self._shaking_hands[host] += 1
            return True

    def _has_shaken_hands(self, host: str) -> None:
        with self._lock:
            self._shaking_hands -= collections.Counter([host])

    def _serve(self, connection: socket.socket, host: str, port: int) -> None:
        peer = f"{host} port {port}"
        try:
            tls = self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        except OSError as error:
            self.refusals.add("tls", peer, describe(error))
            connection.close()
            self._has_shaken_hands(host)
            return
        transport = Transport(tls)
        session = None
        try:
            try:
                session = self._admit(transport, peer)
            finally:
                self._has_shaken_hands(host)
            if session is not None and self._begin(session):
                session.run()
        except Exception:  # A mistake of ours, or no memory left: the others are served.
            logging.exception("%s", peer)
        finally:
            if session is not None:
                self._end_of(session)
            transport.close()

    def _admit(self, transport: Transport, peer: str) -> Session | None:
        """Lets a client prove itself; None where it is turned away."""
        deadline = time.monotonic() + HANDSHAKE_SECS
        try:
            transport.handshake(HANDSHAKE_SECS)
        except ChannelError as error:
            reason = "tls" if isinstance(error.__cause__, ssl.SSLError) else "silent"
            self.refusals.add(reason, peer, str(error))
            return None
        try:
            hello = self._hear_hello(transport, max(0.0, deadline - time.monotonic()))
            holder = Holder.of(transport.peer_certificate())
            self._check_hello(hello, holder)
            return Session(self, transport, hello, peer, holder)
        except RefusedClientError as refusal:
            self._refuse(transport, peer, refusal)
        except ChannelError as error:
            self.refusals.add("silent", peer, str(error))
        return None

    def _refuse(self, transport: Transport, peer: str, refusal: RefusedClientError) -> None:
        self.refusals.add(refusal.reason, peer, str(refusal))
        with contextlib.suppress(ChannelError):
            transport.send(messages.Refused(refusal.reason, str(refusal), refusal.final))

    @staticmethod
    def _hear_hello(transport: Transport, secs: float) -> messages.Hello:
        try:
            hello, _ = transport.receive(messages.Hello, HELLO_LIMITS, secs, rest_secs=secs)
        except FrameError as error:
            raise RefusedClientError("frame", str(error)) from None
        assert isinstance(hello, messages.Hello)
        return hello

    def _begin(self, session: Session) -> bool:
        """Gives a client its place and says what the run is like; False where it is turned away."""
        try:
            if self._end is not None:
                session.transport.send(messages.End(self._end))
                return False
            self._give_place(session)
        except RefusedClientError as refusal:
            self._refuse(session.transport, session.peer, refusal)
            return False
        except ChannelError:
            return False
        facts = self.facts
        welcome = messages.Welcome(
            worker_id=session.client.worker_id,
            seed=facts.seed,
            num_collect_workers=facts.num_collect_workers,
            max_workers=facts.max_workers,
            settings=dict(facts.settings),
            run=facts.run,
            gateway=self.started,
            version=tfagents_system.__version__,
            max_frame_bytes=session.limits.body_bytes,
        )
        with contextlib.suppress(ChannelError):  # Whoever receives will see it.
            session.transport.send(welcome)
        if session.client.kind != "check":
            logging.info("%s of %s (%s, %s) is in", session.name, session.host, session.holder.name, session.peer)
        return True

    def _give_place(self, session: Session) -> None:
        kind = session.client.kind
        if kind == "trainer":
            self._take_trainers_place(session)
        elif kind != "check":
            session.client = permissions.Client(kind, self._take_slot(session))
        with self._lock:
            checks = [other.holder.name for other in self._sessions if other.client.kind == "check"]
            is_full = len(checks) >= _MAX_CHECKS or checks.count(session.holder.name) >= _MAX_CHECKS_OF_ONE
            if kind == "check" and is_full:
                raise RefusedClientError(
                    "busy", f"{len(checks)} programs only check the way to the run now: try again in a minute", False
                )
            self._sessions.add(session)

    def _end_of(self, session: Session) -> None:
        try:
            session.end()
        finally:
            with self._lock:
                self._sessions.discard(session)
                if self._trainer is session:
                    self._trainer = None
                self._received_bytes += session.transport.received_bytes
                self._sent_bytes += session.transport.sent_bytes

    def _check_hello(self, hello: messages.Hello, holder: Holder) -> None:
        if hello.protocol != messages.PROTOCOL:
            raise RefusedClientError(
                "version",
                f"the gateway speaks protocol {messages.PROTOCOL}, you speak {hello.protocol}: install the "
                "same version",
            )
        if self._password and not hmac.compare_digest(self._password, hello.password.encode()):
            time.sleep(_BRUTE_FORCE_SECS)
            given = "another one was given" if hello.password else "none was given"
            raise RefusedClientError(
                "password", f"the run asks for a password, {given}: set SAC_PASSWORD_FILE to a file with it"
            )
        if holder.name in self._revoked():
            raise RefusedClientError(
                "revoked",
                f"this machine's credentials ({holder.name[:100]!r}) were revoked: ask for others "
                f"({COMMAND} RUN add NAME, on the run's machine)",
            )
        if hello.version != tfagents_system.__version__:
            raise RefusedClientError(
                "version",
                f"the run has tfagents_system {tfagents_system.__version__}, you have {hello.version[:40]}: install "
                "the same",
            )
        if hello.kind not in messages.KINDS:
            raise RefusedClientError("kind", f"{hello.kind[:40]!r} is none of {', '.join(messages.KINDS)}")
        differing = [
            f"{_WORDS.get(name, name)} (SHA-256 {digest[:12]} there, {hello.identity.get(name, 'none')[:12]} here)"
            for name, digest in self.facts.identity.items()
            if hello.identity.get(name) != digest
        ]
        if differing and not (hello.kind == "check" and not hello.identity):
            raise RefusedClientError(
                "inputs",
                f"the run was started with {', '.join(differing)}: use the run's own {', '.join(self.facts.identity)}",
            )

    def _take_slot(self, session: Session) -> int:
        try:
            worker_id, before = self.slots.take(session.client.kind, session.wished, session.token, session)
        except NoSlotError as error:
            raise RefusedClientError("slots", str(error), error.final) from None
        if isinstance(before, Session):
            before.transport.shut()  # Of the same worker: it has lost that connection and does not know it yet.
        return worker_id

    def _take_trainers_place(self, session: Session) -> None:
        if self._has_trainer:
            raise RefusedClientError("trainer", "the run has a trainer of its own: join as another kind")
        with self._lock:
            before, self._trainer = self._trainer, session
            if before is not None and before.token != session.token:
                self._trainer = before
                raise RefusedClientError("trainer", f"the run has a trainer already, of {before.peer}", final=False)
        if before is not None:
            before.transport.shut()

    def _all_sessions(self) -> list[Session]:
        with self._lock:
            return list(self._sessions)


def _plain_host(host: str) -> str:
    return host.removeprefix("::ffff:")


def layout_frame_bytes(layout: Layout, sequence_length: int | None, frame_stack: int = 1) -> int:
    """Of the arrays of a worker's largest message, a segment or a report."""
    rows = layout.history_rows(frame_stack) + layout.max_segment_steps(sequence_length) + 1
    return int(rows * layout.step_bytes + np.int64(2**20))
