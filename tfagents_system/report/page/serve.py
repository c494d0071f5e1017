"""The report as a page that follows runs under way: on this machine alone, for whoever knows its address."""

from __future__ import annotations

import functools
import gzip
import hmac
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tfagents_system.errors import EXIT_DONE, UserError
from tfagents_system.report.long_work import untold
from tfagents_system.report.page.assembly import json_in_html, page, page_data

HOST = "127.0.0.1"
_REFRESH_SECS, _KEPT_SECS = 10.0, 4.0
_LIVE_VIDEO_BYTES = 2_000_000  # Sent with every refresh.


class ReportServer(ThreadingHTTPServer):
    """Serves `/<token>/` and `/<token>/data.json`, and nothing to those who do not know the token.

    Args:
      port: 0: a free one.
      read: Returns the data of the page; called again for a request when the last result is a few seconds old.

    Attributes:
      token: 32 random bytes as text, new in each server.
    """

    daemon_threads = True

    def __init__(self, port: int, read: Callable[[], object]) -> None:
        super().__init__((HOST, port), _Handler)
        self.token = secrets.token_urlsafe(32)
        self._read, self._lock = read, threading.Lock()
        self._kept: tuple[float, object] | None = None

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/{self.token}/"

    def data(self) -> object:
        """Of now, or of a few seconds ago: several browsers cost no more than one."""
        with self._lock:
            if self._kept is None or time.monotonic() - self._kept[0] > _KEPT_SECS:
                self._kept = (time.monotonic(), self._read())
            return self._kept[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that was closed before it had its answer is no error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer
    server_version = "report"
    sys_version = ""
    timeout = 30.0

    def do_GET(self) -> None:
        name = self._name()
        if name not in ("", "data.json"):
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        try:
            data = self.server.data()
            text = json_in_html(data) if name else page(data, refreshed_every_secs=_REFRESH_SECS)
        except (UserError, OSError) as error:  # A run directory that was removed meanwhile.
            print(f"the runs can't be read: {error}", file=sys.stderr, flush=True)
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "the runs can't be read")
        else:
            self._answer(text, "application/json" if name else "text/html")

    def _name(self) -> str | None:
        """What is asked for behind the token; None without the right one."""
        _, token, name = [*self.path.split("/", 2), None, None][:3]
        # The name in `Host` must be this machine's: a page elsewhere must not reach us through a name of its own.
        host = (self.headers.get("Host") or "").rpartition(":")[0]
        is_known = hmac.compare_digest((token or "").encode(), self.server.token.encode())
        return name if is_known and host in (HOST, "localhost") else None

    def _answer(self, text: str, kind: str) -> None:
        content = text.encode()
        packs = "gzip" in (self.headers.get("Accept-Encoding") or "")
        content = gzip.compress(content, 1) if packs else content
        self.send_response(HTTPStatus.OK)
        headers = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(content))}
        headers |= {"Content-Encoding": "gzip"} if packs else {}
        headers |= {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}
        for header, value in headers.items():
            self.send_header(header, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the address, with its token, would be in the log."""


def serve(folders: Sequence[Path], groups: Sequence[str], port: int) -> int:
    """Serves until it is interrupted.

    Raises:
      UserError: A folder is no run directory, or the port is in use.
    """
    read = functools.partial(page_data, folders, groups, most_video_bytes=_LIVE_VIDEO_BYTES)
    try:
        server = ReportServer(port, read)
    except OSError as error:
        raise UserError(f"--port={port} can't be used ({error.strerror}): give another one, or none") from None
    server.data()
    host = socket.gethostname()
    print(f"report: {server.address}", flush=True)
    print(f"from elsewhere: ssh -N -L {server.server_address[1]}:{HOST}:{server.server_address[1]} {host}", flush=True)
    print(f"refreshed every {_REFRESH_SECS:g} s; Ctrl-C ends it", flush=True)
    with server, untold():
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            pass
    return EXIT_DONE
