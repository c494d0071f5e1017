"""Tests the whole path to a gateway, step by step, within seconds: name, port, TLS, password, version, inputs."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from tfagents_system.checks.findings import Findings
from tfagents_system.errors import UserError
from tfagents_system.transport.remote import messages
from tfagents_system.transport.remote.credentials import CLIENT, days_left
from tfagents_system.transport.remote.errors import ChannelError
from tfagents_system.transport.remote.frames import Limits
from tfagents_system.transport.remote.stream import Transport, describe
from tfagents_system.transport.remote.tls_client import TlsClient

NAME = "server"
_LIMITS = Limits(message_bytes=2**20, body_bytes=0)
_FEW_DAYS = 14


def check_path(
    address: str,
    credentials: Path,
    password_file: Path | None = None,
    identity: Mapping[str, str] | None = None,
    timeout_secs: float = 5.0,
) -> Findings:
    """Findings on the path to a gateway: facts for each step that worked, then the first obstacle.

    Args:
      address: `host:port`, as in SAC_SERVER.
      credentials: Folder with ca.pem, client.pem and client.key, or the run's own.
      password_file: SAC_PASSWORD_FILE; None if there is none.
      identity: Of this side's inputs (see `messages.identity_of`); None skips the comparison.
      timeout_secs: For each step.
    """
    findings = Findings()
    _ask(findings, address, credentials, password_file, dict(identity or {}), timeout_secs)
    return findings


def _ask(
    findings: Findings,
    address: str,
    credentials: Path,
    password_file: Path | None,
    identity: dict[str, str],
    timeout_secs: float,
) -> messages.Welcome | None:
    """What a gateway answers; None and a finding where it does not take us."""
    with findings.catching(NAME):
        gateway = TlsClient(address, credentials, password_file)
        if (days := days_left(gateway.folder, CLIENT)) < _FEW_DAYS:
            findings.note(NAME, f"the certificates in {gateway.folder} expire in {days} days")
        connection = _reach(findings, gateway, timeout_secs)
        if connection is not None:
            return _prove_ourselves(findings, gateway, connection, identity, timeout_secs)
    return None


def refusals(address: str, credentials: Path, password_file: Path | None, timeout_secs: float = 5.0) -> list[str]:
    """Why the gateway refuses this side whatever its inputs are, such as for a wrong password: told at once, before
    slower checks. Nothing where it lets us in, or can't be asked yet.

    Args:
      address, credentials, password_file, timeout_secs: As of `check_path`.
    """
    try:
        gateway = TlsClient(address, credentials, password_file)
        connection = socket.create_connection((gateway.host, gateway.port), timeout=timeout_secs)
        with contextlib.closing(gateway.secure(connection)) as transport:
            answer = _answer(gateway, transport, {}, timeout_secs)
            if isinstance(answer, messages.Welcome):
                transport.send(messages.Goodbye())
    except (UserError, ChannelError, OSError):
        return []
    return [_refused(gateway, answer)] if isinstance(answer, messages.Refused) and answer.final else []


def _refused(gateway: TlsClient, answer: messages.Refused) -> str:
    return f"the gateway at {gateway.host} port {gateway.port} refuses us: {answer.message}"


def _reach(findings: Findings, gateway: TlsClient, timeout_secs: float) -> socket.socket | None:
    """Name lookup and TCP."""
    try:
        addresses = list(
            dict.fromkeys(
                info[4][0] for info in socket.getaddrinfo(gateway.host, gateway.port, type=socket.SOCK_STREAM)
            )
        )
    except OSError as error:
        findings.error(
            NAME, f"{messages.this_host()} does not know the host {gateway.host} ({error.strerror}): give its address"
        )
        return None
    findings.fact(NAME, f"{gateway.host} is {', '.join(map(str, addresses))}")
    began = time.monotonic()
    try:
        connection = socket.create_connection((gateway.host, gateway.port), timeout=timeout_secs)
    except ConnectionRefusedError:
        findings.error(
            NAME,
            f"nobody listens on {gateway.host} port {gateway.port}: is the run alive, with SAC_GATEWAY_PORT set, and "
            "is this the port in its gateway.json?",
        )
        return None
    except OSError as error:
        why = f"no answer in {timeout_secs:g} s" if isinstance(error, TimeoutError) else error.strerror or str(error)
        findings.error(
            NAME,
            f"{messages.this_host()} can't reach {gateway.host} port {gateway.port} ({why}): is there a firewall "
            "between, or is the host off?",
        )
        return None
    findings.fact(NAME, f"port {gateway.port} answers in {1000 * (time.monotonic() - began):.0f} ms")
    return connection


def _prove_ourselves(
    findings: Findings, gateway: TlsClient, connection: socket.socket, identity: dict[str, str], timeout_secs: float
) -> messages.Welcome | None:
    """TLS, then our hello."""
    try:
        transport = gateway.secure(connection)
    except ChannelError as error:
        findings.error(
            NAME,
            f"{gateway.host} port {gateway.port} does not prove to be the gateway of these credentials ({error}): is "
            "it another run's port, or are ca.pem and client.pem of another run?",
        )
        return None
    try:
        return _say_hello(findings, gateway, transport, identity, timeout_secs)
    except (ChannelError, OSError) as error:
        why = describe(error) if isinstance(error, OSError) else str(error)
        findings.error(
            NAME,
            f"the gateway at {gateway.host} port {gateway.port} ended the connection ({why}): does it know the "
            "authority of client.pem, and has that not expired by its clock? Copy the run's credentials anew",
        )
        return None
    finally:
        transport.close()


def _say_hello(
    findings: Findings, gateway: TlsClient, transport: Transport, identity: dict[str, str], timeout_secs: float
) -> messages.Welcome | None:
    answer = _answer(gateway, transport, identity, timeout_secs)
    findings.fact(NAME, "TLS: both sides have proved themselves")
    if isinstance(answer, messages.Refused):
        findings.error(NAME, _refused(gateway, answer))
    elif isinstance(answer, messages.End):
        findings.error(NAME, f"the run at {gateway.host} port {gateway.port} is over ({answer.why})")
    elif isinstance(answer, messages.Welcome):
        transport.send(messages.Goodbye())
        same = ", the same inputs" if identity else ""
        findings.fact(NAME, f"tfagents_system {answer.version} there as here{same}; {answer.max_workers} worker slots")
        return answer
    else:
        findings.error(
            NAME, f"{gateway.host} port {gateway.port} answers with {type(answer).__name__}: is it a gateway?"
        )
    return None


def _answer(gateway: TlsClient, transport: Transport, identity: dict[str, str], timeout_secs: float) -> object:
    """What the gateway says to our hello."""
    hello = messages.Hello("check", identity, host=messages.this_host())
    transport.send(gateway.with_password(hello))
    answer, _ = transport.receive(messages.FromGateway, _LIMITS, timeout_secs)
    return answer
