"""The gateway program: the end, on the first machine, of the tunnels through which workers and trainers join its run.

Load parameters, admit only authenticated clients, copy their bytes until told to stop, notify all clients. What a
tunnel sends is described in transport/tunnel.py. Whoever has the run's credentials, and its password, may do what a
login of its user may: Reverb's own protocol has no limits.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import socket
import ssl
import time
from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec
from absl import logging

import tfagents_system
from tfagents_system.errors import EXIT_RESUMABLE, UserError
from tfagents_system.machine.claims import KINDS, SlotCounts
from tfagents_system.machine.files import read_json, write_json
from tfagents_system.machine.signals import SUPERVISOR_PID_VARIABLE
from tfagents_system.role import Role, run_role
from tfagents_system.run_files.heartbeat import MOST_BYTES, clean_text, parse_beat, read_heartbeat
from tfagents_system.run_files.run_paths import GATEWAY, TRAINER, RunPaths, worker_role
from tfagents_system.transport import credentials
from tfagents_system.transport.connection import Connection
from tfagents_system.transport.tunnel import (
    CHECK,
    DATA,
    LEAVES,
    PIECE_BYTES,
    SILENCE_SECS,
    SLOT_LOST,
    Answer,
    Hello,
    Streams,
    copy_both_ways,
    identity_of,
    line_of,
)

HANDSHAKE_SECS = 10.0
KEEP_SECS = 60.0  # How long the slot of a vanished worker is kept for it.
_BRUTE_FORCE_SECS = 1.0
_SPEAK_SECS = 10.0
_INPUTS = {
    "settings": "settings (--set)",
    "specs": "environment's specs (install the simulator's version that the run has, here as well)",
    "config": "JSON file",
}
_START_DEADLINE_SECS = 600.0
_STEP_SECS = 0.5
_FAREWELL_SECS = 15.0


class RefusedError(Exception):
    """A client is refused: for good, or for now where it `may_try_again`."""

    def __init__(self, reason: str, message: str, *, may_try_again: bool = False) -> None:
        super().__init__(message)
        self.reason, self.message, self.may_try_again = reason, message, may_try_again

    def answer(self) -> Answer:
        if self.may_try_again:
            return Answer(down=f"it refuses us for now: {self.message}")
        return Answer(refused=self.reason, message=self.message)


class Session:
    """A role that has joined.

    Attributes:
      slot: Its number; None where it has none.
      left_at: Since when it is not connected, on the monotonic clock; None while it is.
    """

    def __init__(self, hello: Hello, writer: asyncio.StreamWriter) -> None:
        self.hello, self.writer = hello, writer
        self.slot: int | None = None
        self._tasks = set[asyncio.Task[Any]]()
        self.left_at: float | None = None

    @property
    def name(self) -> str:
        """Name of the role in logs and heartbeats."""
        return self.hello.kind if self.slot is None else worker_role(self.slot)

    def carry(self) -> None:
        """The connection that this task serves ends with the session."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end(self) -> None:
        for task in self._tasks:
            task.cancel()


class Slots:
    """The slots (machine/claims.py) that roles which join may have.

    A slot in use is never given twice, and a worker that reconnects or was restarted gets its own slot back.

    Args:
      counts: How many there are.
      has_trainer: Whether the run has a trainer of its own: then no other may join.
    """

    def __init__(self, counts: SlotCounts, has_trainer: bool = True) -> None:
        self._counts, self._has_trainer = counts, has_trainer
        self._holders: dict[int | None, Session] = {}  # Of each slot the last session; None: the trainer's.

    def take(self, session: Session) -> None:
        """Gives a role its slot, and ends its earlier session, which it has lost unnoticed here.

        Raises:
          RefusedError: There is none for it.
        """
        kind, wanted, token = session.hello.kind, session.hello.slot, session.hello.token
        if kind == TRAINER and self._has_trainer:
            raise RefusedError("trainer", "the run has a trainer of its own: join as another kind")
        fitting: list[int | None] = [None] if kind == TRAINER else [*self._counts.for_kind(kind)]
        earlier = [slot for slot, holder in self._holders.items() if holder.hello.token == token]
        free = [slot for slot in fitting if slot not in earlier and self._is_free(slot)]
        # Slots without a past come first. A worker that comes back says which one it was: it can be no other one.
        for slot in [*earlier, *sorted(free, key=self._holders.__contains__)]:
            if slot in fitting and wanted in (None, slot):
                for lost in earlier:
                    self._holders.pop(lost).end()
                self._holders[slot], session.slot = session, slot
                return
        if kind == TRAINER:
            raise RefusedError("trainer", "the run has another trainer: stop that one first", may_try_again=True)
        if wanted is not None:  # Its process is started again, and takes any.
            raise RefusedError(SLOT_LOST, f"slot {wanted} was given to another worker meanwhile ({self._counts})")
        is_kept = any(self._holders[slot].left_at is not None for slot in fitting if slot in self._holders)
        raise RefusedError("slots", self._counts.refusal(kind), may_try_again=is_kept)  # For one that has vanished.

    def leave(self, session: Session, *, for_good: bool) -> None:
        """A session has ended, unless a newer one of the same role has its slot."""
        if self._holders.get(session.slot) is session:
            session.left_at = time.monotonic()
            if for_good:
                del self._holders[session.slot]

    def session_of(self, token: str) -> Session | None:
        """The session of a secret."""
        return next((session for session in self.sessions if token and session.hello.token == token), None)

    @property
    def sessions(self) -> list[Session]:
        """All roles connected now."""
        return [session for session in self._holders.values() if session.left_at is None]

    def _is_free(self, slot: int | None) -> bool:
        """Whether another worker may have it."""
        holder = self._holders.get(slot)
        return holder is None or (holder.left_at is not None and time.monotonic() - holder.left_at > KEEP_SECS)


class Gateway:
    """Accepts connections and serves them.

    Args:
      paths: The run directory.
      identity: Of the run's inputs, see `identity_of`.
      welcome: What a role is told that is let in, but for its slot.
      replay_port: The replay server's on this machine.
      slots: Of roles that join.
      password: Empty if none is required.

    Attributes:
      refused: How many clients were refused, by reason.
    """

    def __init__(
        self,
        paths: RunPaths,
        identity: Mapping[str, str],
        welcome: Answer,
        replay_port: int,
        slots: Slots,
        password: str = "",
    ) -> None:
        self._paths, self._identity, self._welcome = paths, identity, welcome
        self._replay_port, self.slots, self._password = replay_port, slots, password
        self.refused = collections.Counter[str]()
        self._logged_at = collections.defaultdict[str, float](lambda: -_SPEAK_SECS)
        self._end = ""

    async def listen(self, listener: socket.socket, context: ssl.SSLContext) -> asyncio.Server:
        """Serves until the server is closed, or the event loop ends; see `credentials.server_context`."""
        limit = max(PIECE_BYTES, 2 * MOST_BYTES)
        return await asyncio.start_server(
            self._serve, sock=listener, ssl=context, ssl_handshake_timeout=HANDSHAKE_SECS, limit=limit, backlog=256
        )

    async def end(self, why: str, deadline_secs: float) -> None:
        """Tells all clients that the run is over (`done` or `stopped`), and waits for them to send what they have."""
        self._end = why
        for session in self.slots.sessions:
            session.writer.write(line_of(Answer(end=why)))
        deadline = time.monotonic() + deadline_secs
        while self.slots.sessions and time.monotonic() < deadline:
            await asyncio.sleep(0.05)

    def state(self) -> dict[str, Any]:
        """For the heartbeat."""
        workers = sum(session.slot is not None for session in self.slots.sessions)
        return {"remote_workers": workers, "refused": dict(self.refused)}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, of somebody with the run's certificate."""
        host, port, *_ = writer.get_extra_info("peername") or ("?", 0)
        peer = f"{host.removeprefix('::ffff:')} port {port}"
        try:
            async with asyncio.timeout(HANDSHAKE_SECS):
                hello = msgspec.json.decode(await reader.readline(), type=Hello)
            await self._check(hello)
            if hello.kind == DATA:
                await self._carry(hello, (reader, writer))
            else:
                await self._hold_session(Session(hello, writer), reader, peer)
        except RefusedError as error:
            self._count(error.reason, peer, error.message)
            writer.write(line_of(error.answer()))
        except (OSError, EOFError):  # It has ended.
            pass
        except (ValueError, msgspec.MsgspecError) as error:  # ValueError: a line without end.
            self._count("malformed", peer, str(error))
        except Exception:  # A bug, or no memory left: the other clients are still served.
            logging.exception("%s", peer)
        finally:
            writer.close()

    def _count(self, reason: str, peer: str, message: str) -> None:
        self.refused[reason] += 1
        if (now := time.monotonic()) >= self._logged_at[reason] + _SPEAK_SECS:
            self._logged_at[reason] = now
            logging.warning("refused %s: %s (%d so far): %s", peer, reason, self.refused[reason], clean_text(message))

    async def _check(self, hello: Hello) -> None:
        """Raises RefusedError unless the client may join."""
        if fault := credentials.password_fault(self._password, hello.password):
            await asyncio.sleep(_BRUTE_FORCE_SECS)
            raise RefusedError("password", fault)
        if hello.version != tfagents_system.__version__:
            ours, theirs = tfagents_system.__version__, hello.version[:40]
            raise RefusedError("version", f"the run has tfagents_system {ours}, you have {theirs}: install the same")
        if hello.kind not in (*KINDS, TRAINER, CHECK, DATA):
            raise RefusedError("kind", f"{hello.kind[:40]!r} is none of {', '.join((*KINDS, TRAINER))}")
        if hello.kind == DATA or (hello.kind == CHECK and not hello.identity):
            return
        differing = [
            f"{_INPUTS.get(name, name)} (SHA-256 {digest[:12]} there, {hello.identity.get(name, 'none')[:12]} here)"
            for name, digest in self._identity.items()
            if hello.identity.get(name) != digest
        ]
        if differing:
            raise RefusedError("inputs", f"the run was started with other inputs: use its own {', '.join(differing)}")

    async def _carry(self, hello: Hello, streams: Streams) -> None:
        """One connection of a role to the replay server."""
        session = self.slots.session_of(hello.token)
        if session is None:
            raise RefusedError("session", "a connection without a session")
        session.carry()
        replay = await asyncio.open_connection("127.0.0.1", self._replay_port, limit=PIECE_BYTES)
        await copy_both_ways(streams, replay)

    async def _hold_session(self, session: Session, reader: asyncio.StreamReader, peer: str) -> None:
        writer, is_check, has_left = session.writer, session.hello.kind == CHECK, False
        if self._end:
            writer.write(line_of(Answer(end=self._end)))
            return
        if not is_check:
            self.slots.take(session)
        writer.write(line_of(msgspec.structs.replace(self._welcome, slot=session.slot)))
        if is_check:
            return
        session.carry()
        try:
            logging.info("%s of %s (%s) is in", session.name, clean_text(session.hello.host, 100), peer)
            with contextlib.suppress(TimeoutError):  # Its machine has vanished.
                while not has_left and (line := await asyncio.wait_for(reader.readline(), SILENCE_SECS)):
                    has_left = line == LEAVES
                    if line.strip() and not has_left:
                        await self._write_beat(session, line)
                    writer.write(line_of(Answer()))
        finally:
            session.end()
            self.slots.leave(session, for_good=has_left)

    async def _write_beat(self, session: Session, line: bytes) -> None:
        """Stores a role's heartbeat as if written here: we name its role, and its times are by our clock."""
        beat = parse_beat(line)
        if beat is None:
            raise ValueError("a heartbeat that is no JSON object with a state")
        now = time.time()
        ago = beat.get("time", 0.0) - beat.get("since", 0.0) if {"time", "since"} <= beat.keys() else 0.0
        ours = {"role": session.name, "host": session.hello.host[:100], "remote": True, "time": now}
        content = {**beat, **ours, "since": min(now, max(0.0, now - ago))}
        with contextlib.suppress(OSError):  # As with a heartbeat here, a full disk is no error.
            # The bytes of others don't wait for a slow disk.
            await asyncio.to_thread(write_json, self._paths.heartbeat(session.name), content, is_durable=False)


def listen(port: int) -> socket.socket:
    """A listening socket, on every address.

    Raises:
      OSError: The port is in use.
    """
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def serve(role: Role) -> int:
    """Serves until told to stop; returns the exit code."""
    variables, paths = role.variables, role.paths
    folder = variables.credentials_dir or paths.credentials
    if variables.credentials_dir is None:
        credentials.make_credentials(folder, variables.exp_name)
    context, password = credentials.server_context(folder), credentials.read_password(variables.password_file)
    connection = Connection(role.server_address, role.stop.is_set)
    role.wait_until_up(connection, _START_DEADLINE_SECS)
    replay_port = int(role.server_address.rpartition(":")[2])
    # A supervisor has started a trainer, unless that is elsewhere; without a supervisor it may be anywhere.
    has_trainer = SUPERVISOR_PID_VARIABLE in os.environ and variables.local_trainer
    identity, slots = identity_of(paths, role.settings.overrides), Slots(variables.slots, has_trainer)
    welcome = Answer(run=role.run_id, settings=role.settings.shared())
    gateway = Gateway(paths, identity, welcome, replay_port, slots, password)
    listener = _listener(role)
    port = listener.getsockname()[1]
    address = {"host": host_name(), "port": port, "machine": socket.gethostname(), "pid": os.getpid()}
    write_json(paths.gateway_json, address)
    logging.info("listening on port %d; credentials in %s, password: %s", port, folder, "yes" if password else "no")
    asyncio.run(_serve(role, gateway, listener, context))
    return EXIT_RESUMABLE


async def _serve(role: Role, gateway: Gateway, listener: socket.socket, context: ssl.SSLContext) -> None:
    port = listener.getsockname()[1]
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: logging.debug("%s", context))
    server = await gateway.listen(listener, context)
    while not role.stop.is_set():
        role.heartbeat.beat("serving", port=port, **gateway.state())
        await asyncio.sleep(_STEP_SECS)
    role.heartbeat.beat("ending", port=port, **gateway.state())
    trainer = read_heartbeat(role.paths.heartbeat(TRAINER)) or {}
    await gateway.end("done" if trainer.get("state") == "done" else "stopped", _FAREWELL_SECS)
    server.close()
    role.heartbeat.beat("stopped", port=port, **gateway.state())


def host_name() -> str:
    """This machine's name for others. /etc/hosts may name it `localhost` first, where they would reach themselves."""
    names = (socket.getfqdn(), os.environ.get("SLURMD_NODENAME", ""), socket.gethostname())
    return next((name for name in names if name and not name.startswith(("localhost", "ip6-"))), names[-1])


def _listener(role: Role) -> socket.socket:
    """On the port of an earlier start unless one is set: machines that joined reconnect to it."""
    port = role.variables.gateway_port or 0
    if port == 0:
        with contextlib.suppress(KeyError, OSError, OverflowError, TypeError):
            return listen((read_json(role.paths.gateway_json) or {})["port"])
    try:
        return listen(port)
    except OSError as error:
        raise UserError(
            f"SAC_GATEWAY_PORT={port} can't be listened on ({error}): choose another port, or 0 for any free one"
        ) from None


def main() -> NoReturn:
    run_role(GATEWAY, serve)
