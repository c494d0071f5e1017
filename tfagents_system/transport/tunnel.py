"""The tunnel of a role that joins a run from another machine, and the program that it is.

    worker --Unix socket--> tunnel, its child ==TLS 1.3==> gateway --127.0.0.1--> replay server

The role's `Connection` dials the Unix socket as it would dial the replay server, so Reverb's own protocol is the
protocol. Each connection to the socket gets a TLS connection of its own, whose bytes the gateway (cluster/gateway.py)
copies to and from the replay server. One more, the session, holds the role's slot: after `Hello` and the gateway's
answer it carries heartbeats one way and the end of the run the other, as lines of JSON. All connections end with it.

The program is a process of its own because Reverb's C++ threads may wait for it while they hold the interpreter's
lock, and because steps in real time must not wait for bytes. It holds new connections to the socket while the gateway
can't be reached: gRPC, which would otherwise try again after up to two minutes, then goes on at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from absl import logging

import tfagents_system
from tfagents_system.checks.findings import Findings
from tfagents_system.errors import UserError
from tfagents_system.machine.files import json_text

if TYPE_CHECKING:
    from tfagents_system.run_files.run_paths import RunPaths
    from tfagents_system.settings.overrides import Overrides

DATA, CHECK = "data", "check"  # Kinds of connections beside the kinds of roles.
SLOT_LOST = "slot_lost"  # The reason of a refusal after which a worker's process begins anew.
PING_SECS, SILENCE_SECS = 5.0, 30.0
PIECE_BYTES = 2**18
NAME = "server"  # Of findings on the way to a gateway.
_CONNECT_SECS = 10.0
_HOLD_SECS = 60.0
_RETRY_SECS = 2.0
_FAREWELL_SECS = 5.0
_SPEAK_SECS = 60.0
_FEW_DAYS = 14
_LONGEST_FOLDER = 60  # A Unix socket's path has at most 107 bytes.

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Hello(msgspec.Struct, omit_defaults=True):
    """The first line of each connection to the gateway.

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


class Welcome(msgspec.Struct):
    """The gateway accepts a role.

    Attributes:
      slot: The worker's number; None if this kind has none.
      settings: What a role that joins takes over, see `Settings.shared`.
      run: The run's number in run.json, which another run of the same name does not have.
      gateway: Start of the gateway's process, in ns.
    """

    slot: int | None
    settings: dict[str, Any]
    run: int
    gateway: int


class Refused(msgspec.Struct):
    """The gateway ends the connection.

    Attributes:
      reason: One word, as it counts them.
      message: For the user: the rule, both sides' values, the remedy.
      final: Trying again will not help.
    """

    reason: str
    message: str
    final: bool = True


class FromGateway(msgspec.Struct, omit_defaults=True):
    """A line from the gateway, which the tunnel passes on to its role; an empty one answers a ping.

    Attributes:
      end: The run is over: `done`, or `stopped` (it may be resumed later).
      down: From the tunnel alone: why the gateway can't be reached.
    """

    welcome: Welcome | None = None
    refused: Refused | None = None
    end: str | None = None
    down: str | None = None


class FromRole(msgspec.Struct, omit_defaults=True):
    """A line from a role to the gateway; an empty one is a ping.

    Attributes:
      beat: The content of the role's heartbeat file, as JSON.
      leaves: It will not return: its slot is free.
    """

    beat: str = ""
    leaves: bool = False


class Route(msgspec.Struct):
    """How a tunnel leads to its gateway; the first line of its program's standard input.

    Attributes:
      server_name: The name that the gateway's certificate must have.
      folder: With ca.pem, client.pem and client.key.
      hello: Of the session, with the password.
      socket: The Unix socket that the role dials.
      parent: The role's pid.
    """

    host: str
    port: int
    server_name: str
    folder: str
    hello: Hello
    socket: str = ""
    parent: int = 0


def identity_of(paths: RunPaths, overrides: Overrides) -> dict[str, str]:
    """SHA-256 of each of a run's inputs by name, for comparison with another machine's."""
    files = {"params": paths.params, "config": paths.config, "specs": paths.specs}
    contents = {name: path.read_bytes() for name, path in files.items()}
    for path in sorted(paths.input_files.glob("*")):
        contents[f"{paths.input_files.name}/{path.name}"] = path.read_bytes()
    # Without the variables, each machine's own, and defaults, which workers are told.
    contents["settings"] = json.dumps([overrides.params, overrides.config], sort_keys=True).encode()
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def tls_context(protocol: ssl._SSLMethod, folder: Path, side: str) -> ssl.SSLContext:
    """TLS 1.3 with the certificate of one side, which accepts no other side than one of the same authority.

    Raises:
      OSError: A file is missing, or is no certificate.
    """
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(folder / "ca.pem")
    context.load_cert_chain(folder / f"{side}.pem", folder / f"{side}.key")
    return context


def describe(error: BaseException) -> str:
    """What went wrong, in plain words instead of the library's."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {(error.reason or str(error)).lower().replace('_', ' ')}"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


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


def keep_alive(writer: asyncio.StreamWriter) -> None:
    """Small messages go at once, and a connection whose other machine has vanished ends within half a minute."""
    connection = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):  # It has ended already.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * SILENCE_SECS))


def route_to(address: str, hello: Hello, credentials: Path, password_file: Path | None) -> Route:
    """The way to a gateway.

    Args:
      address: `host:port`, as in SAC_SERVER.
      hello: Who we are.
      credentials: Folder with ca.pem, client.pem and client.key, or the run's own.
      password_file: The run's password, if it asks for one.

    Raises:
      UserError: The credentials or the password can't be used, or the address is invalid.
    """
    from tfagents_system.transport import credentials as files  # The tunnel's program does without its libraries.

    findings, password, folder = Findings(), "", files.folder_of_client(credentials)
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        rule = "must be host:port, such as node7:8100: gateway.json in the run directory has both"
        findings.error(NAME, f"SAC_SERVER={address} {rule}")
    findings.error(NAME, *files.check_credentials(folder, files.CLIENT))
    with findings.catching(NAME):
        password = files.read_password(password_file)
    if findings.errors:
        raise UserError(*findings.errors)
    hello = msgspec.structs.replace(
        hello, password=password, host=socket.gethostname()[:100], version=tfagents_system.__version__
    )
    return Route(host, int(port), files.server_name(folder, host), str(folder), hello)


class Tunnel:
    """Runs the program and hears from it; starts it again when it has died.

    Args:
      address, hello, credentials, password_file: As of `route_to`.

    Attributes:
      socket: The path to dial.
      welcome: The gateway's last one; None before it has let us in.
      refused: Why it refuses us for good.
      end_of_run: `done` or `stopped` once the run is over, None before.
      down: Why the gateway does not let us in now; empty while it does.

    Raises:
      UserError: As of `route_to`.
    """

    def __init__(self, address: str, hello: Hello, credentials: Path, password_file: Path | None) -> None:
        self.address = address
        self._route = route_to(address, hello, credentials, password_file)
        beside = None if len(tempfile.gettempdir()) <= _LONGEST_FOLDER else "/tmp"
        self.socket = os.path.join(tempfile.mkdtemp(prefix="sac_tunnel_", dir=beside), "replay")  # In a 0700 folder.
        self._route.socket, self._route.parent = self.socket, os.getpid()
        self.welcome: Welcome | None = None
        self.refused: Refused | None = None
        self.end_of_run: str | None = None
        self.down = "not connected yet"
        self._lock = threading.Lock()
        self._is_closed = False
        self._process = self._start()
        threading.Thread(target=self._follow, name=f"tunnel to {address}", daemon=True).start()

    def describe(self) -> str:
        """Who can't reach whom, why, and what to check; empty if all is well."""
        return self.down and (
            f"{self._route.hello.kind} on {self._route.hello.host} can't reach the gateway at {self.address} "
            f"({self.down}): check that the run is alive, that gateway.json in its directory has this address, and "
            "that no firewall is between (--check tries the whole path)"
        )

    def tell(self, heartbeat: Mapping[str, Any]) -> None:
        """Passes a heartbeat on to the run, if the gateway is reached."""
        self._write(FromRole(beat=json_text(heartbeat)))

    def close(self) -> None:
        """Frees the slot; waits until the gateway has read all that was told before."""
        self._is_closed = True
        self._write(FromRole(leaves=True))
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2 * _FAREWELL_SECS)
        self._process.kill()
        shutil.rmtree(os.path.dirname(self.socket), ignore_errors=True)

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

    def _write(self, message: FromRole) -> None:
        with self._lock, contextlib.suppress(OSError, ValueError):  # It is started again.
            assert self._process.stdin is not None
            self._process.stdin.write(line_of(message))
            self._process.stdin.flush()

    def _follow(self) -> None:
        """In a thread of its own."""
        while True:
            assert self._process.stdout is not None
            for line in self._process.stdout:
                with contextlib.suppress(msgspec.MsgspecError):
                    self._take(msgspec.json.decode(line, type=FromGateway))
            code = self._process.wait()
            if self._is_closed or self.refused is not None:
                return
            self._take(FromGateway(down=f"its tunnel has ended with exit code {code}, and is started again"))
            time.sleep(_RETRY_SECS)
            with self._lock:
                if self._is_closed:
                    return
                try:
                    self._process = self._start()
                except OSError as error:  # For example, no memory is left.
                    logging.log_every_n_seconds(logging.WARNING, "the tunnel can't be started: %s", _SPEAK_SECS, error)

    def _take(self, message: FromGateway) -> None:
        if message.welcome is not None:
            # The slot is this worker's identity: a later session gets the same slot, or none.
            self._route.hello.slot = message.welcome.slot
            self.welcome, self.down = message.welcome, ""
        self.refused = self.refused or message.refused
        self.end_of_run = self.end_of_run or message.end
        self.down = message.down or self.down
        if message.down and self.end_of_run is None:
            logging.log_every_n_seconds(logging.WARNING, "%s", _SPEAK_SECS, self.describe())


# The whole path, tried before a role starts.


def check_path(
    address: str,
    credentials: Path,
    password_file: Path | None = None,
    identity: Mapping[str, str] | None = None,
    timeout_secs: float = 5.0,
) -> Findings:
    """Findings on the path to a gateway: what it answers, or the first obstacle.

    Args:
      address, credentials, password_file: As of `route_to`.
      identity: Of this side's inputs (see `identity_of`); None skips the comparison.
      timeout_secs: For each step.
    """
    from tfagents_system.transport.credentials import CLIENT, days_left

    findings = Findings()
    with findings.catching(NAME):
        route = route_to(address, Hello(CHECK, dict(identity or {})), credentials, password_file)
        if (days := days_left(Path(route.folder), CLIENT)) < _FEW_DAYS:
            findings.note(NAME, f"the certificates in {route.folder} expire in {days} days")
        where = f"the gateway at {address}"
        try:
            answer = _ask(route, timeout_secs)
        except (OSError, msgspec.MsgspecError) as error:
            raise UserError(_obstacle(route, error)) from None
        if answer.refused is not None:
            findings.error(NAME, f"{where} refuses us: {answer.refused.message}")
        elif answer.welcome is None:
            findings.error(NAME, f"the run at {address} is over ({answer.end})")
        else:
            same = " and the same inputs" if identity else ""
            findings.fact(NAME, f"{where} lets us in: it has tfagents_system {tfagents_system.__version__}{same}")
    return findings


def refusals(address: str, credentials: Path, password_file: Path | None, timeout_secs: float = 5.0) -> list[str]:
    """Why the gateway refuses this side whatever its inputs are, such as for a wrong password: told at once, before
    slower checks. Nothing where it lets us in, or can't be asked yet.

    Args:
      address, credentials, password_file, timeout_secs: As of `check_path`.
    """
    try:
        refused = _ask(route_to(address, Hello(CHECK), credentials, password_file), timeout_secs).refused
    except (UserError, OSError, msgspec.MsgspecError):
        return []
    return [f"the gateway at {address} refuses us: {refused.message}"] if refused is not None else []


def _ask(route: Route, timeout_secs: float) -> FromGateway:
    """What the gateway says to our hello."""
    with (
        socket.create_connection((route.host, route.port), timeout_secs) as plain,
        _client_context(route).wrap_socket(plain, server_hostname=route.server_name) as tls,
        tls.makefile("rb") as lines,
    ):
        tls.sendall(line_of(route.hello))
        return msgspec.json.decode(lines.readline(2**20), type=FromGateway)


def _client_context(route: Route) -> ssl.SSLContext:
    return tls_context(ssl.PROTOCOL_TLS_CLIENT, Path(route.folder), "client")


def _obstacle(route: Route, error: Exception) -> str:
    where, here = f"{route.host} port {route.port}", route.hello.host
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
            f"({describe(error)}): is it another run's port, or are ca.pem and client.pem of another run or expired? "
            "Copy the run's credentials anew"
        )
    return f"{here} can't reach {where} ({describe(error)}): is there a firewall between, or is the host off?"


# The program.


class _Program:
    """Args: route: From its role."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self._hello = route.hello
        self._is_in = asyncio.Event()
        self._session: asyncio.StreamWriter | None = None
        self._carried = set[asyncio.Task[None]]()
        self._is_over = False

    async def run(self, role: asyncio.StreamReader) -> None:
        """Until the role leaves or dies, or the gateway refuses it for good."""
        with contextlib.suppress(FileNotFoundError):  # Of an earlier process of this tunnel.
            os.unlink(self._route.socket)
        server = await asyncio.start_unix_server(self._carry, self._route.socket, limit=PIECE_BYTES)
        tasks = [asyncio.create_task(task) for task in (self._stay_in(), self._hear(role), self._ping())]
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
                self._tell(FromGateway(down=describe(error)))
            finally:
                self._session = None
                self._is_in.clear()
                for task in self._carried:
                    task.cancel()
            if not self._is_over:
                await asyncio.sleep(_RETRY_SECS)

    async def _hold_session(self) -> None:
        reader, writer = await self._dial(self._hello)
        try:
            while line := await asyncio.wait_for(reader.readline(), SILENCE_SECS):
                message = msgspec.json.decode(line, type=FromGateway)
                if message.refused is not None and not message.refused.final:
                    raise OSError(f"it refuses us for now: {message.refused.message}")
                if message.welcome is not None:
                    self._hello.slot = message.welcome.slot
                    self._session = writer
                    self._is_in.set()
                if message != FromGateway():
                    self._tell(message)
                if message.refused is not None:
                    self._is_over = True
                    return
        finally:
            writer.close()
        if not self._is_over:
            raise OSError("the gateway has ended the connection")

    async def _hear(self, role: asyncio.StreamReader) -> None:
        """Passes on what the role tells, until it leaves or dies."""
        while line := await role.readline():
            if self._session is not None:
                self._session.write(line)
            if msgspec.json.decode(line, type=FromRole).leaves:
                self._is_over = True
                if self._session is not None:
                    await asyncio.sleep(_FAREWELL_SECS)  # `_stay_in` returns when the gateway has read all.
                return

    async def _ping(self) -> None:
        """Says that we are alive; ends when the role is not, whose children may hold the pipe open."""
        while os.getppid() == self._route.parent:
            await asyncio.sleep(PING_SECS)
            if self._session is not None:
                self._session.write(line_of(FromRole()))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of the role to the replay server."""
        task = asyncio.current_task()
        assert task is not None
        try:
            await asyncio.wait_for(self._is_in.wait(), _HOLD_SECS)
            self._carried.add(task)
            hello = msgspec.structs.replace(self._hello, kind=DATA, identity={}, slot=None)
            await copy_both_ways((reader, writer), await self._dial(hello))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._carried.discard(task)
            writer.close()

    async def _dial(self, hello: Hello) -> Streams:
        route, context = self._route, _client_context(self._route)  # Files may have been replaced.
        async with asyncio.timeout(_CONNECT_SECS):
            # One of the host's addresses may lead nowhere: the next one is tried beside it.
            streams = await asyncio.open_connection(
                route.host,
                route.port,
                ssl=context,
                server_hostname=route.server_name,
                limit=PIECE_BYTES,
                happy_eyeballs_delay=0.25,
            )
            keep_alive(streams[1])
            streams[1].write(line_of(hello))
            await streams[1].drain()
        return streams

    def _tell(self, message: FromGateway) -> None:
        with contextlib.suppress(OSError):  # The role has died.
            os.write(1, line_of(message))


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
