"""The gateway program: the end, on the first machine, of the tunnels through which other machines join its run.

    SAC_EXP_DIR=RUN python -m tfagents_system.cluster.gateway

Load parameters, admit only authenticated clients, copy their bytes until told to stop, notify all clients. What a
tunnel sends is told in transport/tunnel.py. Whoever has a certificate of the run, and its password, may do what a login
of its user may: Reverb's own protocol has no limits.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import dataclasses
import hmac
import os
import socket
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec
from absl import logging

import tfagents_system
from tfagents_system.errors import EXIT_RESUMABLE, UserError
from tfagents_system.machine.claims import Claims
from tfagents_system.machine.files import read_json, write_json
from tfagents_system.machine.signals import SUPERVISOR_PID_VARIABLE
from tfagents_system.machine.worker_slots import KINDS, SlotCounts, claim_of
from tfagents_system.role import Role, run_role
from tfagents_system.run_files.heartbeat import MOST_BYTES, clean_text, parse_beat, read_heartbeat
from tfagents_system.run_files.run_paths import GATEWAY, TRAINER, RunPaths, worker_role
from tfagents_system.transport import credentials
from tfagents_system.transport.connection import Connection
from tfagents_system.transport.tunnel import (
    CHECK,
    DATA,
    HELLO_BYTES,
    PIECE_BYTES,
    PROTOCOL,
    SILENCE_SECS,
    SLOT_LOST,
    FromGateway,
    FromRole,
    Hello,
    Refused,
    Streams,
    Welcome,
    copy_both_ways,
    describe,
    identity_of,
    keep_alive,
    line_of,
)

HANDSHAKE_SECS = 10.0
KEEP_SECS = 60.0  # How long the slot of a vanished worker is kept for it.
_MAX_HANDSHAKES, _MAX_HANDSHAKES_OF_ONE = 128, 64
_BRUTE_FORCE_SECS = 1.0
_TELL_SECS = 10.0
_START_DEADLINE_SECS = 600.0
_STEP_SECS = 0.5
_FAREWELL_SECS = 15.0
_WORDS: Final = {
    "params": "another params file",
    "config": "another configuration",
    "specs": "other specs",
    "settings": "other settings (--set)",
    "reward": "another reward file",
}


class RefusedError(Exception):
    """A client is refused.

    Args:
      reason: One word, to be counted.
      message: For the user at the other end.
      final: Trying again will not help.
    """

    def __init__(self, reason: str, message: str, final: bool = True) -> None:
        super().__init__(message)
        self.refused = Refused(reason, message, final)


@dataclasses.dataclass(eq=False)
class Session:
    """A role that has joined.

    Attributes:
      peer: Its address.
      slot: Its number; -1 where it has none.
      tasks: Its connections, this one included.
    """

    hello: Hello
    peer: str
    writer: asyncio.StreamWriter
    slot: int = -1
    tasks: set[asyncio.Task[Any]] = dataclasses.field(default_factory=set)

    @property
    def name(self) -> str:
        """Name of the role in logs and heartbeats."""
        return {TRAINER: TRAINER, CHECK: CHECK}.get(self.hello.kind) or worker_role(self.slot)

    def end(self) -> None:
        for task in self.tasks:
            task.cancel()


@dataclasses.dataclass
class _Slot:
    token: str = ""  # Of its worker; empty: it is free.
    session: Session | None = None
    left_at: float = 0.0  # Since when its worker is not connected.

    def is_free(self) -> bool:
        """Whether another worker may have it."""
        return self.session is None and (not self.token or time.monotonic() - self.left_at > KEEP_SECS)


class RemoteSlots:
    """The slots (machine/worker_slots.py) of one run that roles elsewhere may have, which are known by a secret.

    A slot in use is never given twice, and a worker that reconnects or was restarted gets its own slot back.

    Args:
      counts: How many there are.
      port: The replay server's on this machine. Workers that join locally claim by it, too, and get other slots.
      has_trainer: Whether the run has a trainer of its own: then no other may join.
    """

    def __init__(self, counts: SlotCounts, port: int, has_trainer: bool = True) -> None:
        self._counts, self._port, self._has_trainer = counts, port, has_trainer
        self._claims = Claims()
        numbers = range(min(counts.local, counts.planned), counts.most)
        self._slots = {number: _Slot() for number in [-1, *numbers]}  # -1: the trainer's.

    def take(self, session: Session) -> None:
        """Gives a role its slot, and ends its earlier session, which it has lost unnoticed here.

        Raises:
          RefusedError: There is none for it.
        """
        kind, wished, token = session.hello.kind, session.hello.slot, session.hello.token
        if kind == TRAINER and self._has_trainer:
            raise RefusedError("trainer", "the run has a trainer of its own: join as another kind")
        fitting = [-1] if kind == TRAINER else self._counts.for_kind(kind)
        own = [number for number in fitting if self._slots[number].token == token]
        free = [number for number in fitting if self._slots[number].is_free() and number not in own]
        free.sort(key=lambda number: bool(self._slots[number].token))
        # A worker that comes back says which one it was: it can be no other one.
        for number in [number for number in [*own, *free] if wished in (None, number)]:
            if number < 0 or self._claims.take(claim_of(self._port, number)):
                for slot in self._slots.values():
                    if slot.token == token:
                        if slot.session is not None:
                            slot.session.end()
                        slot.token, slot.session = "", None
                self._slots[number], session.slot = _Slot(token, session), number
                return
            self._slots[number] = _Slot()  # It is a worker's of this machine by now.
        if kind == TRAINER:
            raise RefusedError("trainer", "the run has another trainer already", final=False)
        if wished is not None:  # Its process is started again, and takes any.
            raise RefusedError(SLOT_LOST, f"slot {wished} was given to another worker meanwhile ({self._counts})")
        is_kept = any(self._slots[number].session is None for number in fitting)  # For one that has vanished.
        raise RefusedError("slots", self._counts.refusal(kind), final=not is_kept)

    def leave(self, session: Session, *, for_good: bool) -> None:
        """A session has ended, unless a newer one of the same role has its slot."""
        slot = self._slots[session.slot]
        if slot.session is session:
            slot.session, slot.left_at = None, time.monotonic()
            if for_good:
                slot.token = ""
                self.tend()

    def tend(self) -> None:
        """To be called regularly: releases slots whose time of waiting for their worker is over."""
        for number, slot in self._slots.items():
            if number >= 0 and slot.is_free():
                self._claims.release(claim_of(self._port, number))

    def session_of(self, token: str) -> Session | None:
        """The session of a secret."""
        return next((session for session in self.sessions if token and session.hello.token == token), None)

    @property
    def sessions(self) -> list[Session]:
        """All roles connected now."""
        return [slot.session for slot in self._slots.values() if slot.session is not None]


class Refusals:
    """Counts refusals by reason and logs them at a limited rate."""

    def __init__(self) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self._tell_at: dict[str, float] = {}

    def add(self, reason: str, peer: str, message: str) -> None:
        """Counts one refusal; logs one per reason every ten seconds, with the number of all."""
        self.counts[reason] += 1
        if time.monotonic() >= self._tell_at.get(reason, 0.0):
            self._tell_at[reason] = time.monotonic() + _TELL_SECS
            logging.warning("refused %s: %s (%d so far): %s", peer, reason, self.counts[reason], clean_text(message))


@dataclasses.dataclass(frozen=True)
class RunFacts:
    """What the gateway needs to know about its run.

    Attributes:
      paths: The run directory.
      identity: See `identity_of`.
      max_workers: Slots.
      settings: Those that remote roles take over, see `Settings.shared`.
      run: Its number in run.json.
      replay_port: The replay server's on this machine.
    """

    paths: RunPaths
    identity: Mapping[str, str]
    max_workers: int
    settings: Mapping[str, Any]
    run: int
    replay_port: int


class Gateway:
    """Accepts connections and serves them.

    Args:
      facts: Of the run.
      slots: Of roles elsewhere.
      context: TLS, both sides verified.
      password: Empty if none is required.

    Attributes:
      refusals: Which clients were refused.
      started: Tells this process from an earlier one, ns.
    """

    def __init__(self, facts: RunFacts, slots: RemoteSlots, context: ssl.SSLContext, password: str = "") -> None:
        self.refusals, self.slots = Refusals(), slots
        self.started = time.time_ns()
        self._facts, self._context, self._password = facts, context, password.encode()
        self._shaking_hands: collections.Counter[str] = collections.Counter()
        self._tasks = set[asyncio.Task[None]]()
        self._end = ""
        # The bytes of others don't wait for a slow disk. One thread: a role's heartbeats are written in their order.
        self._beat_writer = concurrent.futures.ThreadPoolExecutor(1)

    async def accept(self, listener: socket.socket) -> None:
        """Accepts connections forever, of which only a few that have not proved themselves at a time."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except OSError as error:
                logging.log_every_n_seconds(logging.WARNING, "accept: %s", 60, error)
                await asyncio.sleep(0.1)  # For example, no file descriptor is left.
                continue
            host = address[0].removeprefix("::ffff:")
            is_full = self._shaking_hands.total() >= _MAX_HANDSHAKES
            if is_full or self._shaking_hands[host] >= _MAX_HANDSHAKES_OF_ONE:
                self.refusals.add("busy", host, "too many connections that have not proved themselves")
                connection.close()
                continue
            self._shaking_hands[host] += 1
            task = asyncio.create_task(self._serve(connection, host, f"{host} port {address[1]}"))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def end(self, why: str, deadline_secs: float) -> None:
        """Tells all clients that the run is over, and waits for them to go.

        Args:
          why: `done` or `stopped`.
          deadline_secs: How long they have to send what they still have.
        """
        self._end = why
        for session in self.slots.sessions:
            session.writer.write(line_of(FromGateway(end=why)))
        deadline = time.monotonic() + deadline_secs
        while self.slots.sessions and time.monotonic() < deadline:
            await asyncio.sleep(0.05)

    def state(self) -> dict[str, Any]:
        """For the heartbeat."""
        sessions = self.slots.sessions
        workers = sum(session.slot >= 0 for session in sessions)
        return {"connections": len(self._tasks), "remote_workers": workers, "refused": dict(self.refusals.counts)}

    async def _serve(self, connection: socket.socket, host: str, peer: str) -> None:
        streams: Streams | None = None
        try:
            try:
                async with asyncio.timeout(HANDSHAKE_SECS):
                    streams = await self._secured(connection)
                    hello = await self._hear_hello(streams[0])
                await self._check(hello)
            finally:
                self._shaking_hands -= collections.Counter([host])
            if hello.kind == DATA:
                await self._carry(hello, streams)
            else:
                await self._hold_session(Session(hello, peer, streams[1]), streams[0])
        except RefusedError as error:
            self.refusals.add(error.refused.reason, peer, error.refused.message)
            if streams is not None:
                streams[1].write(line_of(FromGateway(refused=error.refused)))
        except (OSError, EOFError) as error:
            if streams is None:
                self.refusals.add("tls" if isinstance(error, ssl.SSLError) else "silent", peer, describe(error))
            elif isinstance(error, TimeoutError):
                self.refusals.add("silent", peer, describe(error))
        except (ValueError, msgspec.MsgspecError) as error:  # ValueError: a line without end.
            self.refusals.add("malformed", peer, str(error))
        except Exception:  # A bug, or no memory left: the other clients are still served.
            logging.exception("%s", peer)
        finally:
            if streams is not None:
                streams[1].close()

    async def _secured(self, connection: socket.socket) -> Streams:
        """Raises: OSError."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=max(PIECE_BYTES, 2 * MOST_BYTES))
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, connection, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_SECS
        )
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        with contextlib.suppress(OSError):
            keep_alive(writer)
        return reader, writer

    async def _hear_hello(self, reader: asyncio.StreamReader) -> Hello:
        line = await reader.readline()
        if not line:
            raise TimeoutError
        if len(line) > HELLO_BYTES:
            raise ValueError(f"a hello of {len(line)} bytes, at most {HELLO_BYTES} may be")
        return msgspec.json.decode(line, type=Hello)

    async def _check(self, hello: Hello) -> None:
        """Raises RefusedError unless the client may join."""
        if hello.protocol != PROTOCOL:
            text = f"the gateway speaks protocol {PROTOCOL}, you speak {hello.protocol}: install the same version"
            raise RefusedError("version", text)
        if self._password and not hmac.compare_digest(self._password, hello.password.encode()):
            await asyncio.sleep(_BRUTE_FORCE_SECS)
            given = "another one was given" if hello.password else "none was given"
            text = f"the run asks for a password, {given}: set SAC_PASSWORD_FILE to a file with it"
            raise RefusedError("password", text)
        if hello.version != tfagents_system.__version__:
            raise RefusedError(
                "version",
                f"the run has tfagents_system {tfagents_system.__version__}, you have {hello.version[:40]}: install "
                "the same",
            )
        if hello.kind not in (*KINDS, TRAINER, CHECK, DATA):
            raise RefusedError("kind", f"{hello.kind[:40]!r} is none of {', '.join((*KINDS, TRAINER))}")
        if hello.kind != DATA and (hello.kind != CHECK or hello.identity):
            self._check_inputs(hello)

    def _check_inputs(self, hello: Hello) -> None:
        identity = self._facts.identity
        differing = [
            f"{_WORDS.get(name, name)} (SHA-256 {digest[:12]} there, {hello.identity.get(name, 'none')[:12]} here)"
            for name, digest in identity.items()
            if hello.identity.get(name) != digest
        ]
        if differing:
            raise RefusedError(
                "inputs", f"the run was started with {', '.join(differing)}: use the run's own {', '.join(identity)}"
            )

    async def _carry(self, hello: Hello, streams: Streams) -> None:
        """One connection of a role to the replay server; it ends with the role's session."""
        session, task = self.slots.session_of(hello.token), asyncio.current_task()
        if session is None or task is None:
            raise RefusedError("session", "a connection without a session", final=False)
        session.tasks.add(task)
        try:
            replay = await asyncio.open_connection("127.0.0.1", self._facts.replay_port, limit=PIECE_BYTES)
            await copy_both_ways(streams, replay)
        finally:
            session.tasks.discard(task)

    async def _hold_session(self, session: Session, reader: asyncio.StreamReader) -> None:
        if self._end:
            session.writer.write(line_of(FromGateway(end=self._end)))
            return
        facts, task, kind = self._facts, asyncio.current_task(), session.hello.kind
        assert task is not None
        session.tasks.add(task)
        if kind != CHECK:
            self.slots.take(session)
        has_left = False
        try:
            welcome = Welcome(
                session.slot,
                facts.max_workers,
                dict(facts.settings),
                facts.run,
                self.started,
                tfagents_system.__version__,
            )
            session.writer.write(line_of(FromGateway(welcome=welcome)))
            if kind == CHECK:
                return
            logging.info("%s of %s (%s) is in", session.name, clean_text(session.hello.host, 100), session.peer)
            with contextlib.suppress(TimeoutError):  # Its machine has vanished.
                while not has_left and (line := await asyncio.wait_for(reader.readline(), SILENCE_SECS)):
                    message = msgspec.json.decode(line, type=FromRole)
                    has_left = message.leaves
                    if message.beat:
                        await self._beat(session, message.beat)
                    session.writer.write(line_of(FromGateway()))
        finally:
            session.tasks.discard(task)
            session.end()
            if kind != CHECK:
                self.slots.leave(session, for_good=has_left)

    async def _beat(self, session: Session, text: str) -> None:
        """Stores the client's heartbeat as if written here: we name its role, and its times are by our clock."""
        beat = parse_beat(text.encode(errors="replace"))
        if beat is None:
            raise ValueError("a heartbeat that is no JSON object with a state")
        now = time.time()
        ago = beat.get("time", 0.0) - beat.get("since", 0.0) if {"time", "since"} <= beat.keys() else 0.0
        ours = {"role": session.name, "host": session.hello.host[:100], "remote": True, "time": now}
        content = {**beat, **ours, "since": min(now, max(0.0, now - ago))}
        with contextlib.suppress(OSError):  # As with a heartbeat here, a full disk is no error.
            path, loop = self._facts.paths.heartbeat(session.name), asyncio.get_running_loop()
            await loop.run_in_executor(self._beat_writer, write_json, path, content)


def listen(port: int) -> socket.socket:
    """A listening socket, on every address.

    Raises:
      OSError: The port is in use.
    """
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=256)
    return socket.create_server(("", port), backlog=256)


def serve(role: Role) -> int:
    """Serves until told to stop; returns the exit code."""
    folder = credentials_folder(role)
    context = credentials.server_context(folder)
    password = credentials.read_password(role.variables.password_file)
    connection = Connection(role.server_address, role.stop.is_set)
    role.wait_until_up(connection, _START_DEADLINE_SECS)
    port = int(role.server_address.rpartition(":")[2])
    identity = identity_of(role.paths, role.settings.overrides)
    facts = RunFacts(role.paths, identity, role.max_workers, role.settings.shared(), role.run_id, port)
    # A supervisor has started a trainer, unless that is elsewhere; without a supervisor it may be anywhere.
    has_trainer = SUPERVISOR_PID_VARIABLE in os.environ and role.variables.local_trainer
    gateway = Gateway(facts, RemoteSlots(role.slots, port, has_trainer), context, password)
    listener = _listen(role, role.variables.gateway_port or 0)
    number = listener.getsockname()[1]
    own = {"host": host_name(), "port": number, "pid": os.getpid(), "started": gateway.started}
    write_json(role.paths.gateway_json, own)
    logging.info("listening on port %d; credentials in %s, password: %s", number, folder, "yes" if password else "no")
    asyncio.run(_serve(role, gateway, listener))
    return EXIT_RESUMABLE


async def _serve(role: Role, gateway: Gateway, listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: logging.debug("%s", context))
    accepting = asyncio.create_task(gateway.accept(listener))
    while not role.stop.is_set():
        gateway.slots.tend()
        role.heartbeat.beat("serving", port=port, **gateway.state())
        await asyncio.sleep(_STEP_SECS)
    role.heartbeat.beat("ending", port=port, **gateway.state())
    trainer = read_heartbeat(role.paths.heartbeat(TRAINER)) or {}
    await gateway.end("done" if trainer.get("state") == "done" else "stopped", _FAREWELL_SECS)
    accepting.cancel()
    role.heartbeat.beat("stopped", port=port, **gateway.state())


def host_name() -> str:
    """This machine's name for others. /etc/hosts may name it `localhost` first, where they would reach themselves."""
    names = (socket.getfqdn(), os.environ.get("SLURMD_NODENAME", ""), socket.gethostname())
    return next((name for name in names if name and not name.startswith(("localhost", "ip6-"))), names[-1])


def credentials_folder(role: Role) -> Path:
    """SAC_CREDENTIALS_DIR, or the folder of the run, whose credentials are created if missing.

    Raises:
      UserError: They can't be made.
    """
    if role.variables.credentials_dir is not None:
        return role.variables.credentials_dir
    credentials.ensure_credentials(role.paths.credentials, role.variables.exp_name)
    return role.paths.credentials


def _listen(role: Role, wanted: int) -> socket.socket:
    """On the port of an earlier start unless one is set: machines that joined reconnect to it.

    Raises:
      UserError: The port is in use.
    """
    before = (read_json(role.paths.gateway_json) or {}).get("port")
    for port in [before, 0] if wanted == 0 and isinstance(before, int) else [wanted]:
        try:
            return listen(port)
        except (OSError, OverflowError) as error:
            if port != wanted:
                continue
            raise UserError(
                f"SAC_GATEWAY_PORT={wanted} can't be listened on ({error}): choose another port, or 0 for any free one"
            ) from None
    raise AssertionError


def main() -> NoReturn:
    run_role(GATEWAY, serve)


if __name__ == "__main__":
    main()
