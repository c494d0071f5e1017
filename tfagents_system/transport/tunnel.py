"""How a role joins a run: what both ends say, the role's end of the wire, and the program in between.

    worker --Unix socket--> tunnel, its child ==TLS 1.3==> gateway --127.0.0.1--> replay server

The role's `Connection` dials the Unix socket as it would dial the replay server, so Reverb's own protocol is the
protocol. Each connection to the socket gets a TLS connection of its own, whose bytes the gateway (cluster/gateway.py)
copies to and from the replay server. One more, the session, holds the role's slot: after `Hello` and the gateway's
answer it carries heartbeats one way and the end of the run the other, as lines of JSON. All connections end with it.

The program is a process of its own because Reverb's C++ threads may wait for it while they hold the interpreter's
lock, and because steps in real time must not wait for bytes. It holds new connections to the socket while the gateway
can't be reached: gRPC, which would otherwise try again after up to two minutes, then continues at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from absl import logging

import tfagents_system
from tfagents_system.checks.findings import Findings
from tfagents_system.errors import UserError
from tfagents_system.machine.files import read_json, write_json
from tfagents_system.transport.credentials import check_credentials, describe, read_password, tls_context

if TYPE_CHECKING:
    from tfagents_system.run_files.run_paths import RunPaths
    from tfagents_system.settings.resolved import Overrides, Settings
    from tfagents_system.transport.connection import Connection

DATA, CHECK = "data", "check"  # Kinds of connections beside the kinds of roles.
LEAVES = b'"leaves"\n'  # A role says that it will not return.
SLOT_LOST = "slot_lost"  # The reason of a refusal after which a worker's process begins anew.
SILENCE_SECS = 30.0
PIECE_BYTES = 2**18
NAME = "server"  # Of findings on the way to a gateway.
_BEAT_SECS = 2.0
_CONNECT_SECS = 10.0
_HOLD_SECS = 60.0
_RETRY_SECS = 2.0
_FAREWELL_SECS = 5.0
_SPEAK_SECS = 60.0
_START_DEADLINE_SECS = 600.0
_POLL_SECS = 0.05

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


# What both ends say.


class Hello(msgspec.Struct, omit_defaults=True):
    """The first line of each connection to the gateway. In a session heartbeats follow, and empty lines as pings.

    Attributes:
      kind: A worker's kind, `trainer`, or one of DATA and CHECK.
      identity: SHA-256 of the inputs that both sides must share, by name (see `identity_of`); a check may leave it out.
      slot: The requested one; None takes any.
      token: Random secret of one role: whoever presents it gets that role's slot back. DATA: of its session.
      password: Of SAC_PASSWORD_FILE.
    """

    kind: str
    identity: dict[str, str] = {}
    slot: int | None = None
    token: str = ""
    password: str = ""
    host: str = ""
    version: str = ""

    def __repr__(self) -> str:  # Never the password or the token: this ends up in logs.
        return f"Hello({self.kind!r}, slot={self.slot}, version={self.version!r}, host={self.host!r})"


class Answer(msgspec.Struct, omit_defaults=True):
    """A line from the gateway, which the tunnel passes on to its role; an empty one answers a heartbeat.

    Attributes:
      run: The role is in: the run's number in run.json, which another run of the same name does not have.
      slot: Of a role that is in: the worker's number; None if its kind has none.
      settings: Likewise: what it takes over, see `Settings.shared`.
      refused: The role is refused for good: the reason in one word, as the gateway counts them.
      message: Then for the user: the rule, both sides' values, the remedy.
      end: The run is over: `done`, or `stopped` (it may be resumed later).
      down: Why the role is not in now; its tunnel tries again.
    """

    run: int | None = None
    slot: int | None = None
    settings: dict[str, Any] = {}
    refused: str = ""
    message: str = ""
    end: str | None = None
    down: str = ""


class Route(msgspec.Struct):
    """How a tunnel leads to its gateway; the first line of its program's standard input.

    Attributes:
      credentials: Folder with the run's certificate.
      hello: Of the session, with the password.
      socket: The Unix socket that the role dials.
      heartbeat: The role's file, whose content the gateway gets.
    """

    host: str
    port: int
    credentials: str
    hello: Hello
    socket: str = ""
    heartbeat: str = ""


def identity_of(paths: RunPaths, overrides: Overrides) -> dict[str, str]:
    """SHA-256 of each of a run's inputs by name, for comparison with another machine's."""
    files = {"params": paths.params, "config": paths.config, "specs": paths.specs}
    contents = {name: path.read_bytes() for name, path in files.items()}
    for path in sorted(paths.input_files.glob("*")):
        contents[f"{paths.input_files.name}/{path.name}"] = path.read_bytes()
    # Without the variables, each machine's own, and defaults, which workers are told.
    contents["settings"] = json.dumps([overrides.params, overrides.config], sort_keys=True).encode()
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def line_of(message: msgspec.Struct) -> bytes:
    return msgspec.json.encode(message) + b"\n"


async def copy_both_ways(one: Streams, other: Streams) -> None:
    """Copies the bytes of two connections until either ends; then closes both."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(PIECE_BYTES):
            writer.write(piece)
            await writer.drain()

    copies = [asyncio.create_task(copy(one[0], other[1])), asyncio.create_task(copy(other[0], one[1]))]
    try:
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in copies:
            task.cancel()
        await asyncio.gather(*copies, return_exceptions=True)  # A connection that breaks has ended.
        for _, writer in (one, other):
            writer.close()


def route_to(address: str, hello: Hello, credentials: Path, password_file: Path | None) -> Route:
    """The way to the gateway at an address `host:port`, as in SAC_SERVER.

    Raises:
      UserError: The credentials or the password, of SAC_PASSWORD_FILE, can't be used.
    """
    findings, password = Findings(), ""
    findings.error(NAME, *check_credentials(credentials))
    with findings.catching(NAME):
        password = read_password(password_file)
    if findings.errors:
        raise UserError(*findings.errors)
    host, _, port = address.rpartition(":")
    here = {"host": socket.gethostname()[:100], "version": tfagents_system.__version__}
    hello = msgspec.structs.replace(hello, password=password, **here)
    return Route(host.removeprefix("[").removesuffix("]"), int(port), str(credentials), hello)


# The path, tried before a role starts.


def check_path(
    address: str,
    credentials: Path,
    password_file: Path | None = None,
    identity: Mapping[str, str] | None = None,
    *,
    must_answer: bool = True,
) -> Findings:
    """Findings on the path to a gateway: what it answers, or the first obstacle.

    Args:
      identity: Of this side's inputs (see `identity_of`); None skips the comparison.
      must_answer: It is an error, too, that nobody answers yet.
    """
    findings = Findings()
    with findings.catching(NAME):
        answer = _ask(route_to(address, Hello(CHECK, dict(identity or {})), credentials, password_file))
        if answer.refused:
            findings.error(NAME, f"the gateway at {address} refuses us: {answer.message}")
        elif answer.run is not None:
            same = " and the same inputs" if identity else ""
            version = f"tfagents_system {tfagents_system.__version__}{same}"
            findings.fact(NAME, f"the gateway at {address} lets us in: it has {version}")
        elif must_answer:
            findings.error(NAME, answer.down or f"the run at {address} is over ({answer.end})")
    return findings


def _ask(route: Route, timeout_secs: float = 5.0) -> Answer:
    """What the gateway says to our hello."""
    try:
        with (
            socket.create_connection((route.host, route.port), timeout_secs) as plain,
            tls_context(ssl.PROTOCOL_TLS_CLIENT, Path(route.credentials)).wrap_socket(plain) as tls,
            tls.makefile("rb") as lines,
        ):
            tls.sendall(line_of(route.hello))
            return msgspec.json.decode(lines.readline(2**20), type=Answer)
    except (OSError, msgspec.MsgspecError) as error:
        return Answer(down=_obstacle(route, error))


def _obstacle(route: Route, error: Exception) -> str:
    """What is between us and the gateway: the rule, what was found, the remedy."""
    where, here = f"{route.host} port {route.port}", route.hello.host
    if isinstance(error, EOFError):
        return f"the gateway at {where} has ended the connection"
    if isinstance(error, socket.gaierror):
        return f"{here} does not know the host {route.host} ({error.strerror}): give its address"
    if isinstance(error, ConnectionRefusedError):
        return (
            f"nobody listens on {where}: is the run alive, with SAC_GATEWAY_PORT set, and is this the port in its "
            "gateway.json?"
        )
    if isinstance(error, ssl.SSLError | ConnectionError | msgspec.MsgspecError):
        return (
            f"{where} does not prove to be the gateway of these credentials, or does not accept them "
            f"({describe(error)}): is it another run's port, or are they another run's? Copy the run's credentials anew"
        )
    return f"{here} can't reach {where} ({describe(error)}): is there a firewall between, or is the host off?"


# The role's end.


class SlotLostError(Exception):
    """While this worker was out of reach its slot was given to another one: a new process of it gets another slot."""


class Tunnel:
    """A role's place in the run that it has joined: runs the program, and hears from it.

    Args:
      hello: Who the role is.
      heartbeat: The role's file.

    Attributes:
      socket: The path to dial.
      welcome: The gateway's last answer that let us in; None before.
      refused: Its answer that refuses us for good.
      end_of_run: `done` or `stopped` once the run is over, None before.
      down: Why the gateway does not let us in now; empty while it does.
      connection: To the replay server, once it answers (see `join`).
      settings: The role's own, with what it takes over from the run, likewise.
      run: Of a trainer: the number of the run that its own directory belongs to, likewise.

    Raises:
      UserError: As of `route_to`.
    """

    connection: Connection
    settings: Settings
    run: int | None = None

    def __init__(
        self, address: str, hello: Hello, credentials: Path, password_file: Path | None, heartbeat: Path
    ) -> None:
        self.address = address
        self._route = route_to(address, hello, credentials, password_file)
        # A folder of mode 0700 at a short path: that of a Unix socket has at most 107 bytes.
        self.socket = os.path.join(tempfile.mkdtemp(prefix="sac_tunnel_", dir="/tmp"), "replay")
        self._route.socket, self._route.heartbeat = self.socket, str(heartbeat)
        self.welcome: Answer | None = None
        self.refused: Answer | None = None
        self.end_of_run: str | None = None
        self.down = "not connected yet"
        self._is_closed = False
        self._process = self._start()
        threading.Thread(target=self._follow, name=f"tunnel to {address}", daemon=True).start()

    @property
    def worker_id(self) -> int:
        """The worker's number, which is its slot; -1 for the trainer."""
        return -1 if self.welcome is None or self.welcome.slot is None else self.welcome.slot

    def ended(self) -> str | None:
        """Why the run is over for this role: `done` or `stopped`, if it says so; `replaced` for a trainer where another
        run has taken its place (`--fresh`); `refused`, see `check`; else None.
        """
        if self.end_of_run is not None:
            return self.end_of_run
        return "replaced" if self._is_replaced() else "refused" if self.refused is not None else None

    def check(self) -> None:
        """Raises:
        UserError: The gateway refuses the role by now, or another run has taken the place of a trainer's.
        SlotLostError: A worker's slot was given to another one.
        """
        if self._is_replaced():
            raise UserError(
                f"the run at {self.address} has begun anew since this trainer joined it: begin anew here, too (--fresh)"
            )
        if self.refused is not None:
            text = f"the gateway at {self.address} refuses us: {self.refused.message}"
            raise SlotLostError(text) if self.refused.refused == SLOT_LOST else UserError(text)

    def leave(self) -> None:
        """Frees the slot, after everything was sent; waits until the gateway has the last heartbeat."""
        self._is_closed = True
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError, subprocess.TimeoutExpired):
            self._process.stdin.write(LEAVES)
            self._process.stdin.flush()
            self._process.wait(2 * _FAREWELL_SECS)
        self._process.kill()
        shutil.rmtree(os.path.dirname(self.socket), ignore_errors=True)

    def _is_replaced(self) -> bool:
        # Each start of the run sends its number anew: another one may have taken its place meanwhile.
        return self.run is not None and self.welcome is not None and self.welcome.run != self.run

    def _start(self) -> subprocess.Popen[bytes]:
        # A session of its own: Ctrl-C must not reach it before its role has sent everything.
        paths = [str(Path(tfagents_system.__file__).parent.parent), os.environ.get("PYTHONPATH")]
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tfagents_system.transport.tunnel"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.write(line_of(self._route))
            process.stdin.flush()
        return process

    def _follow(self) -> None:
        """Hears from the program, and starts it again when it has died; in a thread of its own."""
        while not self._is_closed:
            assert self._process.stdout is not None
            for line in self._process.stdout:
                with contextlib.suppress(msgspec.MsgspecError):  # It died as it wrote.
                    self._take(msgspec.json.decode(line, type=Answer))
            code = self._process.wait()
            if self._is_closed or self.refused is not None:
                return
            self._take(Answer(down=f"its tunnel has ended with exit code {code}, and is started again"))
            time.sleep(_RETRY_SECS)
            with contextlib.suppress(OSError):  # For example, no memory is left: then once more.
                self._process = self._process if self._is_closed else self._start()

    def _take(self, answer: Answer) -> None:
        if answer.run is not None:
            # The slot is this worker's identity: a later session gets the same slot, or none.
            self._route.hello.slot = answer.slot
            self.welcome, self.down = answer, ""
        self.refused = self.refused or (answer if answer.refused else None)
        self.end_of_run = self.end_of_run or answer.end
        if answer.down and self.end_of_run is None:
            self.down = answer.down
            words = "not in the run at %s: %s (--check tries the whole path)"
            logging.log_every_n_seconds(logging.WARNING, words, _SPEAK_SECS, self.address, self.down)


def join(
    role: str,
    server: str,
    stop: Callable[[], bool],
    settings: Settings,
    paths: RunPaths,
    say: Callable[[str], None] = lambda why: None,
) -> Tunnel:
    """Joins the run at `server`.

    Args:
      role: Name of the role in its own folder, such as `worker_0`, where its token is remembered.
      stop: Tells whether the role is to stop; ends every wait.
      settings: Its own.
      paths: Its own folder.
      say: Called with the reason as long as the gateway does not let it in.

    Raises:
      UserError, SlotLostError: The run has no slot for it, or refuses it.
      StoppedError, ServerUnreachableError: See `Waiting.check`.
    """
    from tfagents_system.run_files import run_directory
    from tfagents_system.run_files.run_paths import TRAINER
    from tfagents_system.transport.connection import Connection, Waiting

    variables, is_trainer = settings.variables, role == TRAINER
    assert variables.credentials_dir is not None, "whoever sets the server sets them, too"
    # By the token the gateway knows which slot this worker had.
    remembered = {"token": secrets.token_hex(16), **(read_json(paths.slot(role)) or {})}
    kind, identity = TRAINER if is_trainer else variables.worker_role, identity_of(paths, settings.overrides)
    hello = Hello(kind, identity, token=remembered["token"])
    tunnel = Tunnel(server, hello, variables.credentials_dir, variables.password_file, paths.heartbeat(role))
    waiting = Waiting(
        lambda: f"the gateway at {server} to let us in: {tunnel.down}",
        _START_DEADLINE_SECS,
        lambda: stop() or tunnel.end_of_run is not None,
    )
    try:
        while tunnel.welcome is None:
            tunnel.check()
            waiting.check()
            say(tunnel.down)
            time.sleep(_POLL_SECS)
        tunnel.settings = settings.joined(tunnel.welcome.settings)
        if is_trainer:
            tunnel.run = (remembered.get("run") if run_directory.has_begun(paths) else None) or tunnel.welcome.run
        tunnel.check()
        tunnel.connection = Connection(server, stop, tunnel.socket)
        tunnel.connection.wait_until_up(_START_DEADLINE_SECS)
    except BaseException:
        tunnel.leave()
        raise
    write_json(paths.slot(role), {**remembered, "run": tunnel.run})
    return tunnel


# The program.


class _Program:
    """Args: route: From its role."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self._role_pid = os.getppid()
        self._is_in = asyncio.Event()
        self._session: asyncio.StreamWriter | None = None
        self._carried = set[asyncio.Task[None]]()
        self._last_beat = b""
        self._is_over = False

    async def run(self, role: asyncio.StreamReader) -> None:
        """Until the role leaves or dies, or the gateway refuses it for good."""
        with contextlib.suppress(FileNotFoundError):  # Of an earlier process of this tunnel.
            os.unlink(self._route.socket)
        server = await asyncio.start_unix_server(self._carry, self._route.socket, limit=PIECE_BYTES)
        tasks = [asyncio.create_task(task) for task in (self._stay_in(), self._leave_with(role), self._beat())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            server.close()
            for task in (*tasks, *self._carried):
                task.cancel()

    async def _stay_in(self) -> None:
        """Returns once the gateway has refused the role for good, or has seen it off."""
        while not self._is_over:
            try:
                await self._hold_session()
            except (OSError, EOFError, ValueError, msgspec.MsgspecError) as error:
                self._tell(Answer(down=_obstacle(self._route, error)))
            finally:
                self._session = None
                self._is_in.clear()
                for task in self._carried:
                    task.cancel()
            if not self._is_over:
                await asyncio.sleep(_RETRY_SECS)

    async def _hold_session(self) -> None:
        reader, writer = await _dial(self._route, self._route.hello)
        try:
            while line := await asyncio.wait_for(reader.readline(), SILENCE_SECS):
                answer = msgspec.json.decode(line, type=Answer)
                if answer.run is not None:
                    self._route.hello.slot = answer.slot
                    self._session, self._last_beat = writer, b""
                    self._is_in.set()
                if answer != Answer():
                    self._tell(answer)
                self._is_over |= bool(answer.refused)
                if answer.refused or answer.down:
                    return
        finally:
            writer.close()
        if not self._is_over:
            raise EOFError

    async def _beat(self) -> None:
        """Sends each heartbeat of the role, and else that we are alive; ends when the role does."""
        while os.getppid() == self._role_pid:
            self._send_beat()
            await asyncio.sleep(_BEAT_SECS)

    def _send_beat(self, more: bytes = b"") -> None:
        """Sends the line in the role's file, or an empty one if it was sent before."""
        if self._session is None:
            return
        beat, before = b"\n", self._last_beat
        with contextlib.suppress(OSError):
            self._last_beat = beat = Path(self._route.heartbeat).read_bytes()
        self._session.write((b"\n" if beat == before else beat) + more)

    async def _leave_with(self, role: asyncio.StreamReader) -> None:
        """Ends when the role leaves or dies."""
        self._is_over = bool(await role.readline())
        if self._is_over and self._session is not None:
            self._send_beat(LEAVES)
            await asyncio.sleep(_FAREWELL_SECS)  # `_stay_in` returns when the gateway has read all.

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of the role to the replay server."""
        task = asyncio.current_task()
        assert task is not None
        try:
            await asyncio.wait_for(self._is_in.wait(), _HOLD_SECS)
            self._carried.add(task)
            hello = msgspec.structs.replace(self._route.hello, kind=DATA, identity={}, slot=None)
            await copy_both_ways((reader, writer), await _dial(self._route, hello))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._carried.discard(task)
            writer.close()

    def _tell(self, message: Answer) -> None:
        with contextlib.suppress(OSError):  # The role has died.
            os.write(1, line_of(message))


async def _dial(route: Route, hello: Hello) -> Streams:
    """A connection to the gateway that has said hello."""
    context = tls_context(ssl.PROTOCOL_TLS_CLIENT, Path(route.credentials))  # The files may have been replaced.
    async with asyncio.timeout(_CONNECT_SECS):
        # One of the host's addresses may lead nowhere: the next one is tried beside it.
        streams = await asyncio.open_connection(
            route.host, route.port, ssl=context, limit=PIECE_BYTES, happy_eyeballs_delay=0.25
        )
        streams[1].write(line_of(hello))
        await streams[1].drain()
    return streams


async def _main() -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: None)  # Connections that break are told where they matter.
    role = asyncio.StreamReader(limit=2**20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(role), sys.stdin)
    route = msgspec.json.decode(await role.readline(), type=Route)
    await _Program(route).run(role)
    shutil.rmtree(os.path.dirname(route.socket), ignore_errors=True)


if __name__ == "__main__":
    # Its role decides when it ends: it still sends what it has when a job, a terminal or a user stops everything.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    asyncio.run(_main())
