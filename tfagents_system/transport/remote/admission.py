"""Who may join: what the gateway checks when a client says hello, and whom it has refused."""

from __future__ import annotations

import collections
import hmac
import threading
import time
from collections.abc import Mapping
from typing import Final

from absl import logging

import tfagents_system
from tfagents_system.transport.remote import messages

_BRUTE_FORCE_SECS = 1.0
_TELL_SECS = 10.0
_WORDS: Final = {
    "params": "another params file",
    "config": "another configuration",
    "specs": "other specs",
    "settings": "other settings (--set)",
    "reward": "another reward file",
}


class RefusedClientError(Exception):
    """A client is refused.

    Args:
      reason: One word, to be counted.
      message: For the user at the other end.
      final: Trying again will not help.
    """

    def __init__(self, reason: str, message: str, final: bool = True) -> None:
        super().__init__(message)
        self.reason, self.final = reason, final


class Admission:
    """The rules of one run.

    Args:
      identity: Of the run's inputs, see `messages.identity_of`.
      password: Empty if none is required.
    """

    def __init__(self, identity: Mapping[str, str], password: str) -> None:
        self._identity = identity
        self._password = password.encode()

    def check(self, hello: messages.Hello) -> None:
        """Raises RefusedClientError unless the client may join."""
        if hello.protocol != messages.PROTOCOL:
            raise RefusedClientError(
                "version",
                f"the gateway speaks protocol {messages.PROTOCOL}, you speak {hello.protocol}: install the "
                "same version",
            )
        self._check_password(hello)
        if hello.version != tfagents_system.__version__:
            raise RefusedClientError(
                "version",
                f"the run has tfagents_system {tfagents_system.__version__}, you have {hello.version[:40]}: install "
                "the same",
            )
        if hello.kind not in messages.KINDS:
            raise RefusedClientError("kind", f"{hello.kind[:40]!r} is none of {', '.join(messages.KINDS)}")
        if hello.kind != "check" or hello.identity:
            self._check_inputs(hello)

    def _check_password(self, hello: messages.Hello) -> None:
        if self._password and not hmac.compare_digest(self._password, hello.password.encode()):
            time.sleep(_BRUTE_FORCE_SECS)
            given = "another one was given" if hello.password else "none was given"
            raise RefusedClientError(
                "password", f"the run asks for a password, {given}: set SAC_PASSWORD_FILE to a file with it"
            )

    def _check_inputs(self, hello: messages.Hello) -> None:
        differing = [
            f"{_WORDS.get(name, name)} (SHA-256 {digest[:12]} there, {hello.identity.get(name, 'none')[:12]} here)"
            for name, digest in self._identity.items()
            if hello.identity.get(name) != digest
        ]
        if differing:
            raise RefusedClientError(
                "inputs",
                f"the run was started with {', '.join(differing)}: use the run's own {', '.join(self._identity)}",
            )


class Refusals:
    """Counts refusals by reason and logs them at a limited rate; safe in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: collections.Counter[str] = collections.Counter()
        self._tell_at: dict[str, float] = {}
        self._untold: collections.Counter[str] = collections.Counter()

    def add(self, reason: str, peer: str, message: str) -> None:
        """Counts one refusal; logs one per reason every ten seconds, with the number of those in between.

        Args:
          reason: One word.
          peer: Address of the other side.
          message: What to tell.
        """
        with self._lock:
            self._counts[reason] += 1
            now = time.monotonic()
            if now < self._tell_at.get(reason, 0.0):
                self._untold[reason] += 1
                return
            self._tell_at[reason] = now + _TELL_SECS
            untold = self._untold.pop(reason, 0)
        more = f" ({untold} more of that kind before)" if untold else ""
        logging.warning("refused %s: %s: %s%s", peer, reason, message, more)

    @property
    def counts(self) -> dict[str, int]:
        """By reason."""
        with self._lock:
            return dict(self._counts)
