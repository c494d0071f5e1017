"""The gateway: lets authenticated remote programs, and no others, use the tables of the replay server."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from typing import Any

from absl import logging

import tfagents_system
from tfagents_system.checks.frame_stacks import FrameStack
from tfagents_system.report.episodes import MOST_EPISODE_BYTES, MOST_KEPT_BYTES
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.transport.layout import Layout
from tfagents_system.transport.remote import messages
from tfagents_system.transport.remote.admission import Admission, Refusals, RefusedClientError
from tfagents_system.transport.remote.errors import ChannelError, FrameError
from tfagents_system.transport.remote.frames import HELLO_LIMITS
from tfagents_system.transport.remote.listener import Listener
from tfagents_system.transport.remote.remote_slots import NoSlotError, RemoteSlots
from tfagents_system.transport.remote.session import Session
from tfagents_system.transport.remote.shared_tables import SharedTables
from tfagents_system.transport.remote.stream import Transport, describe

HANDSHAKE_SECS = 10.0


@dataclasses.dataclass(frozen=True)
class RunFacts:
    """What the gateway needs to know about its run.

    Attributes:
      paths: The run directory.
      identity: See `messages.identity_of`.
      max_workers: Slots.
      settings: Those that remote roles take over, see `Settings.shared`.
      run: Its number in run.json.
      max_worker_bytes: Of the arrays of one message of a worker.
      max_trainer_bytes: The same for a trainer, which sends weights.
    """

    paths: RunPaths
    identity: Mapping[str, str]
    max_workers: int
    settings: Mapping[str, Any]
    run: int
    max_worker_bytes: int
    max_trainer_bytes: int = 2**30


class Gateway:
    """Accepts connections and serves each in a thread of its own.

    Args:
      facts: Of the run.
      sharing: The replay server's tables.
      slots: Of workers.
      context: TLS, both sides verified.
      password: Empty if none is required.
      has_trainer: Whether the run has a trainer of its own: then no other may join.

    Attributes:
      refusals: Which clients were refused.
    """

    def __init__(
        self,
        facts: RunFacts,
        sharing: SharedTables,
        slots: RemoteSlots,
        context: ssl.SSLContext,
        password: str = "",
        has_trainer: bool = True,
    ) -> None:
        self.facts, self.sharing, self.slots = facts, sharing, slots
        self.refusals = Refusals()
        self.started = time.time_ns()
        self._context = context
        self._admission = Admission(facts.identity, password)
        self._has_trainer = has_trainer
        self._lock = threading.Lock()
        self._sessions: set[Session] = set()
        self._trainer: Session | None = None
        self._end: str | None = None
        self._listener = Listener(self._serve, self.refusals)
        self._received_bytes = self._sent_bytes = 0  # Of sessions that have ended.

    def listen(self, port: int) -> int:
        """Begins to accept connections, on every address; returns the port.

        Args:
          port: 0 takes any free one.

        Raises:
          OSError: The port is in use.
        """
        return self._listener.listen(port)

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
        self._listener.close()
        for session in self._all_sessions():
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

    def _serve(self, connection: socket.socket, host: str, port: int) -> None:
        peer = f"{host} port {port}"
        try:
            tls = self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        except OSError as error:
            self.refusals.add("tls", peer, describe(error))
            connection.close()
            self._listener.has_shaken_hands(host)
            return
        transport = Transport(tls)
        session = None
        try:
            try:
                session = self._admit(transport, peer)
            finally:
                self._listener.has_shaken_hands(host)
            if session is not None and self._begin(session):
                session.run()
        except Exception:  # A bug, or no memory left: the other clients are still served.
            logging.exception("%s", peer)
        finally:
            if session is not None:
                self._end_of(session)
            transport.close()

    def _admit(self, transport: Transport, peer: str) -> Session | None:
        """Authenticates a client; None if it is refused."""
        deadline = time.monotonic() + HANDSHAKE_SECS
        try:
            transport.handshake(HANDSHAKE_SECS)
        except ChannelError as error:
            reason = "tls" if isinstance(error.__cause__, ssl.SSLError) else "silent"
            self.refusals.add(reason, peer, str(error))
            return None
        try:
            hello = self._hear_hello(transport, max(0.0, deadline - time.monotonic()))
            self._admission.check(hello)
            return Session(self, transport, hello, peer)
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
        """Gives a client its place and describes the run to it; False if it is refused."""
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
            worker_id=session.worker_id,
            max_workers=facts.max_workers,
            settings=dict(facts.settings),
            run=facts.run,
            gateway=self.started,
            version=tfagents_system.__version__,
        )
        with contextlib.suppress(ChannelError):  # The receiving thread will notice it.
            session.transport.send(welcome)
        if session.kind != "check":
            logging.info("%s of %s (%s) is in", session.name, session.host, session.peer)
        return True

    def _give_place(self, session: Session) -> None:
        kind = session.kind
        if kind == "trainer":
            self._take_trainers_place(session)
        elif kind != "check":
            session.worker_id = self._take_slot(session)
        with self._lock:
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

    def _take_slot(self, session: Session) -> int:
        try:
            worker_id, before = self.slots.take(session.kind, session.wished, session.token, session)
        except NoSlotError as error:
            raise RefusedClientError(error.reason, str(error), error.final) from None
        if isinstance(before, Session):
            before.transport.shut()  # The same worker's: it has lost that connection, unnoticed on this side.
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


def layout_frame_bytes(
    layout: Layout,
    sequence_length: int | None,
    frame_stack: FrameStack = 1,
    reach: tuple[int, int] = (0, 0),
    *,
    keeps_episodes: bool = False,
    eval_episodes: int = 0,
) -> int:
    """Size of the arrays of a worker's largest message: a segment, or a report, maybe with an episode that is kept.

    Args:
      reach: As of SampleForm: a segment from within an episode repeats so many steps of the one before.
      eval_episodes: Of an evaluation: each report of it has all of the worker's.
    """
    rows = layout.history_rows(frame_stack) + sum(reach) + layout.max_segment_steps(sequence_length) + 1
    kept = MOST_KEPT_BYTES * 4 // 3 if keeps_episodes else 0  # JSON has bytes as base64.
    return max(int(rows * layout.step_bytes), kept, eval_episodes * MOST_EPISODE_BYTES) + 2**20
