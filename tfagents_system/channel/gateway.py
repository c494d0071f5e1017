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
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from absl import logging

import tfagents_system
from tfagents_system.channel import access, messages
from tfagents_system.channel.errors import ChannelError, CutShortError, FrameError
from tfagents_system.channel.frames import HELLO_LIMITS, Arrays, Limits
from tfagents_system.channel.refusals import Refusals
from tfagents_system.channel.remote_slots import NoSlotError, RemoteSlots
from tfagents_system.channel.sharing import Sharing
from tfagents_system.channel.streaming import Arrivals
from tfagents_system.channel.transport import Transport, describe
from tfagents_system.launch.run_paths import TRAINER, RunPaths, worker_role
from tfagents_system.replay import tables
from tfagents_system.replay.segments import Layout
from tfagents_system.report.beats import parse_beat
from tfagents_system.report.heartbeat import BeatFile, beat_secs

HANDSHAKE_SECS = 10.0
IDLE_SECS = 30.0  # Clients say something every few seconds.
_MAX_HANDSHAKES, _MAX_HANDSHAKES_OF_ONE = 128, 64
_PUT_SECS = 5.0
_BRUTE_FORCE_SECS = 1.0
_MESSAGE_BYTES = 256 * 1024
_LOG_BYTES = 1024 * 1024
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

    Attributes:
      refusals: Who was turned away.
    """

    def __init__(
        self,
        facts: RunFacts,
        sharing: Sharing,
        slots: RemoteSlots,
        context: ssl.SSLContext,
        password: str = "",
        has_trainer: bool = True,
    ) -> None:
        self.facts, self.sharing, self.slots = facts, sharing, slots
        self.refusals = Refusals()
        self.started = time.time_ns()
        self.beat_secs = beat_secs(facts.paths.exp_dir)
        self._context = context
        self._password = password.encode()
        self._has_trainer = has_trainer
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
            session = self._admit(connection, peer)
        finally:
            self._has_shaken_hands(host)
        if session is None:
            return
        try:
            session.run()
        finally:
            with self._lock:
                self._sessions.discard(session)
                if self._trainer is session:
                    self._trainer = None
                self._received_bytes += session.transport.received_bytes
                self._sent_bytes += session.transport.sent_bytes
            session.transport.close()

    def _admit(self, connection: socket.socket, peer: str) -> Session | None:
        """Lets a client prove itself; None where it is turned away."""
        deadline = time.monotonic() + HANDSHAKE_SECS
        try:
            tls = self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        except OSError as error:
            self.refusals.add("tls", peer, describe(error))
            connection.close()
            return None
        transport = Transport(tls)
        try:
            transport.handshake(HANDSHAKE_SECS)
        except ChannelError as error:
            reason = "tls" if isinstance(error.__cause__, ssl.SSLError) else "silent"
            self.refusals.add(reason, peer, str(error))
            transport.close()
            return None
        try:
            hello = self._hear_hello(transport, max(0.0, deadline - time.monotonic()))
            return self._welcome(transport, hello, peer)
        except RefusedClientError as refusal:
            self.refusals.add(refusal.reason, peer, str(refusal))
            with contextlib.suppress(ChannelError):
                transport.send(messages.Refused(refusal.reason, str(refusal), refusal.final))
        except ChannelError as error:
            self.refusals.add("silent", peer, str(error))
        transport.close()
        return None

    @staticmethod
    def _hear_hello(transport: Transport, secs: float) -> messages.Hello:
        try:
            hello, _ = transport.receive(messages.Hello, HELLO_LIMITS, secs, rest_secs=secs)
        except FrameError as error:
            raise RefusedClientError("frame", str(error)) from None
        assert isinstance(hello, messages.Hello)
        return hello

    def _welcome(self, transport: Transport, hello: messages.Hello, peer: str) -> Session | None:
        self._check_hello(hello)
        if self._end is not None:
            transport.send(messages.End(self._end))
            transport.close()
            return None
        session = Session(self, transport, hello, peer)
        worker_id = -1
        if hello.kind == "trainer":
            self._take_trainers_place(session, hello)
        elif hello.kind != "check":
            worker_id = self._take_slot(session, hello)
        session.client = access.Client(hello.kind, worker_id)
        facts = self.facts
        with self._lock:
            self._sessions.add(session)
        try:
            transport.send(
                messages.Welcome(
                    worker_id=worker_id,
                    seed=facts.seed,
                    num_collect_workers=facts.num_collect_workers,
                    max_workers=facts.max_workers,
                    settings=dict(facts.settings),
                    run=facts.run,
                    gateway=self.started,
                    version=tfagents_system.__version__,
                    max_frame_bytes=session.limits.body_bytes,
                )
            )
        except ChannelError:
            pass  # Its thread will see it.
        if hello.kind != "check":
            logging.info("%s of %s (%s) is in", session.name, hello.host[:100], peer)
        return session

    def _check_hello(self, hello: messages.Hello) -> None:
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

    def _take_slot(self, session: Session, hello: messages.Hello) -> int:
        try:
            worker_id, before = self.slots.take(hello.kind, hello.worker_id, hello.token, session)
        except NoSlotError as error:
            raise RefusedClientError("slots", str(error), error.final) from None
        if isinstance(before, Session):
            before.transport.shut()  # Of the same worker: it has lost that connection and does not know it yet.
        return worker_id

    def _take_trainers_place(self, session: Session, hello: messages.Hello) -> None:
        if self._has_trainer:
            raise RefusedClientError("trainer", "the run has a trainer of its own: join as another kind")
        with self._lock:
            before, self._trainer = self._trainer, session
            if before is not None and before.token != hello.token:
                self._trainer = before
                raise RefusedClientError("trainer", f"the run has a trainer already, of {before.peer}", final=False)
        if before is not None:
            before.transport.shut()

    def _all_sessions(self) -> list[Session]:
        with self._lock:
            return list(self._sessions)


class Session:
    """One client that has proved itself.

    Args:
      gateway: It belongs to.
      transport: To the client.
      hello: What it said.
      peer: Its address.
    """

    def __init__(self, gateway: Gateway, transport: Transport, hello: messages.Hello, peer: str) -> None:
        facts = gateway.facts
        body_bytes = {"trainer": facts.max_trainer_bytes, "check": 0}.get(hello.kind, facts.max_worker_bytes)
        self.limits = Limits(_MESSAGE_BYTES, body_bytes)
        self.transport = transport
        self.peer = peer
        self.token = hello.token
        self.client = access.Client(hello.kind, -1)
        self._gateway = gateway
        self._host = hello.host[:100]
        self._under_way = Arrivals(gateway.sharing.connection)
        self._has_said_goodbye = False
        self._logged_bytes = 0
        self._beats: BeatFile | None = None

    @property
    def name(self) -> str:
        """Of the role, in logs and heartbeats."""
        return {"trainer": TRAINER, "check": "check"}.get(self.client.kind) or worker_role(self.client.worker_id)

    def run(self) -> None:
        """Serves the client until it or the connection ends."""
        try:
            while not self._has_said_goodbye:
                message, arrays = self.transport.receive(messages.FromClient, self.limits, IDLE_SECS)
                if isinstance(message, messages.Put) and message.id < 0:
                    self._put_streamed(message, arrays)
                else:
                    self._answer(message, arrays)
                if not self.transport.has_data():
                    self._store()
        except FrameError as error:
            self._gateway.refusals.add("frame", f"{self.name} at {self.peer}", str(error))
            with contextlib.suppress(ChannelError):
                self.transport.send(messages.Refused("frame", str(error)))
        except CutShortError as error:
            self._gateway.refusals.add("truncated", f"{self.name} at {self.peer}", str(error))
        except ChannelError as error:
            logging.info("%s at %s: %s", self.name, self.peer, error)
        finally:
            if self._beats is not None:
                self._beats.flush()  # Its last words: a client that says goodbye waits for the end of the connection.
            self.transport.shut()
            self._gateway.sharing.forget(self, self.send_item)
            if self.client.worker_id >= 0:
                self._gateway.slots.leave(self.client.worker_id, self, for_good=self._has_said_goodbye)

    def tell_end(self, why: str) -> None:
        """Tells the client that the run is over."""
        with contextlib.suppress(ChannelError):
            self.transport.offer(messages.End(why))

    def send_news(self, arrays: Arrays) -> None:
        """Raises: ChannelError."""
        self.transport.offer(messages.News(tables.news(self.client.worker_id)), arrays)

    def send_item(self, table: str, number: int, arrays: Arrays) -> None:
        """Raises: ChannelError."""
        self.transport.send(messages.Item(table, number), arrays)

    def _answer(self, message: messages.FromClient, arrays: Arrays) -> None:
        sharing, send = self._gateway.sharing, self.transport.send
        match message:
            case messages.Ping():
                send(messages.Pong())
            case messages.Put():
                self._put(message, arrays)
            case messages.Newest():
                access.check_access(self.client, "newest", message.table)
                newest = sharing.newest(message.table)
                send(messages.NewestIs(message.id, newest is not None), newest or ())
            case messages.Size():
                access.may_ask_size(self.client, message.table)
                send(messages.SizeIs(message.id, sharing.connection.size(message.table)))
            case messages.Follow():
                access.check_access(self.client, "follow", message.table)
                sharing.news.add(self)
            case messages.Feed():
                access.check_access(self.client, "take", message.table)
                access.check_item(self.client, message.table, arrays, self._gateway.facts.layout)
                sharing.feed(message.table, arrays)
            case messages.Take():
                access.check_access(self.client, "take", message.table)
                sharing.queue(message.table).take(self.send_item, message.credits, message.seen)
            case messages.Beat():
                self._beat(message.content)
            case messages.Log():
                self._log(message)
            case messages.Goodbye():
                self._has_said_goodbye = True
            case _:
                raise FrameError("a second hello")

    def _put(self, message: messages.Put, arrays: Arrays) -> None:
        self._check_put(message, arrays)
        ok = self._gateway.sharing.connection.try_put(message.tables, arrays, _PUT_SECS)
        self.transport.send(messages.Done(message.id, ok))

    def _check_put(self, message: messages.Put, arrays: Arrays) -> None:
        if not message.tables:
            raise FrameError("an item for no table")
        for table in message.tables:
            access.check_access(self.client, "put", table)
            access.check_item(self.client, table, arrays, self._gateway.facts.layout)

    def _put_streamed(self, message: messages.Put, arrays: Arrays) -> None:
        self._check_put(message, arrays)
        if len(message.tables) != 1 or message.tables[0] not in access.STREAMED:
            raise FrameError("an item that is to be waited for, with the id of one that is not")
        if not self._under_way.has_room(message.tables[0]):
            self._store()
        self._under_way.add(message.id, message.tables[0], arrays)

    def _store(self) -> None:
        if (done := self._under_way.store(_PUT_SECS)) is not None:
            self.transport.send(done)

    def _beat(self, text: str) -> None:
        """The client's heartbeat, as if it had written it here: its role is what we say, its times are of our clock."""
        beat = parse_beat(text.encode(errors="replace"))
        if beat is None:
            raise FrameError("a heartbeat that is no JSON object with a state")
        if self.client.kind == "check":
            return
        if self._beats is None:
            self._beats = BeatFile(self._gateway.facts.paths.heartbeat(self.name), self._gateway.beat_secs)
        now = time.time()
        ago = beat.get("time", 0.0) - beat.get("since", 0.0) if {"time", "since"} <= beat.keys() else 0.0
        ours = {"role": self.name, "host": self._host, "remote": True, "time": now}
        self._beats.write({**beat, **ours, "since": min(now, max(0.0, now - ago))})

    def _log(self, message: messages.Log) -> None:
        """Lines of the client's log go to the log of its role, without what could steer a terminal."""
        self._logged_bytes += len(message.text)
        if self.client.kind == "check" or self._logged_bytes > _LOG_BYTES:
            raise FrameError(f"more than {_LOG_BYTES} bytes of a log")
        lines = ["".join(c if c.isprintable() or c == "\t" else "?" for c in line) for line in message.text.split("\n")]
        try:
            with open(self._gateway.facts.paths.log(self.name), "a", encoding="utf-8") as log:
                log.write(f"--- {message.name[:100]!r} of {self._host!r} ({self.peer}):\n" + "\n".join(lines) + "\n")
        except OSError as error:
            logging.log_every_n_seconds(logging.WARNING, "log of %s: %s", 60, self.name, error)


def _plain_host(host: str) -> str:
    return host.removeprefix("::ffff:")


def layout_frame_bytes(layout: Layout, sequence_length: int | None, frame_stack: int = 1) -> int:
    """Of the arrays of a worker's largest message, a segment or a report."""
    rows = layout.history_rows(frame_stack) + layout.max_segment_steps(sequence_length) + 1
    return int(rows * layout.step_bytes + np.int64(2**20))
