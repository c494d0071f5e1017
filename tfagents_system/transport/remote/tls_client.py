"""How the remote end reaches the gateway: address, credentials, password, TLS."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import msgspec

from tfagents_system.checks.findings import Findings
from tfagents_system.errors import UserError
from tfagents_system.transport.remote import credentials as credential_files
from tfagents_system.transport.remote.errors import ChannelError, GatewayRefusedError
from tfagents_system.transport.remote.messages import Hello
from tfagents_system.transport.remote.stream import Transport, describe

CONNECT_SECS = 10.0


class TlsClient:
    """How to reach the gateway, and the credentials to show.

    Args:
      address: `host:port`.
      credentials: Folder with ca.pem, client.pem and client.key, or the run's own.
      password_file: None if there is none.

    Attributes:
      address: As above; `host` and `port` are its parts.
      folder: Contains the files in use.

    Raises:
      UserError: The credentials or the password can't be used, or the address is invalid.
    """

    def __init__(self, address: str, credentials: Path, password_file: Path | None) -> None:
        self.address, self.host, self.port = address, "", 0
        self._credentials = credentials
        findings = Findings()
        with findings.catching("credentials"):
            self.host, self.port = split_address(address)
        with findings.catching("credentials"):
            self._load()
        with findings.catching("credentials"):
            self._password = credential_files.read_password(password_file)
        if findings.errors:
            raise UserError(*findings.errors)

    def _load(self) -> None:
        """Reads the credentials, which may have been replaced.

        Raises:
          UserError: They can't be used.
        """
        folder = credential_files.folder_of_client(self._credentials)
        self._context = credential_files.client_context(folder)
        self._server_name = credential_files.server_name(folder, self.host)
        self._ends_at = credential_files.end_of_side(folder, credential_files.CLIENT).timestamp()
        self.folder = folder

    def with_password(self, hello: Hello) -> Hello:
        """The hello with the password, which is only sent inside the encrypted channel."""
        return msgspec.structs.replace(hello, password=self._password)

    def open(self) -> Transport:
        """Raises: ChannelError, OSError; GatewayRefusedError: our credentials have expired."""
        try:
            self._load()
        except UserError as error:
            if time.time() > self._ends_at:
                raise GatewayRefusedError(str(error), "expired") from None
            # Otherwise keep the old credentials.
        return self.secure(socket.create_connection((self.host, self.port), timeout=CONNECT_SECS))

    def secure(self, connection: socket.socket) -> Transport:
        """TLS over a connection, both sides verified.

        Raises:
          ChannelError: The other side is not the gateway of our credentials.
        """
        try:
            tls = self._context.wrap_socket(
                connection, server_hostname=self._server_name, do_handshake_on_connect=False
            )
        except OSError as error:
            connection.close()
            raise ChannelError(describe(error)) from error
        transport = Transport(tls, hears_out=True)
        try:
            transport.handshake(CONNECT_SECS)
        except BaseException:
            transport.close()
            raise
        return transport


def split_address(address: str) -> tuple[str, int]:
    """Host and port of SAC_SERVER.

    Raises:
      UserError: It is not `host:port`.
    """
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise UserError(
            f"SAC_SERVER={address} must be host:port, such as node7:8100: gateway.json in the run directory has both"
        )
    return host, int(port)
