"""The requests to a fork server, and its errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

BEGIN = "begin"  # The word that a forked role waits for.
# In the server's environment in place of a role's own mark, and long enough for it.
NO_MARK = 100 * "-"


class ForkServerError(Exception):
    """The fork server is gone, does not answer, or could not do what it was asked to."""


class CallDiedError(Exception):
    """The process that a function was called in ended before the function did."""


@dataclasses.dataclass(frozen=True)
class ForkRequest:
    """Asks for a role; the pipe that tells it to begin follows this.

    Attributes:
      module: Its `main` is run.
      name: For ps and top.
      log: Where its output is appended.
      cpus: CPU ids that it is pinned to; empty: none.
      arguments: Of its command line.
    """

    module: str
    name: str
    environ: Mapping[str, str]
    log: str
    cpus: tuple[int, ...]
    arguments: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class CallRequest:
    """Asks for a function's result, from a process of its own that is a child of the server."""

    module: str
    function: str
    arguments: tuple[Any, ...]
    environ: Mapping[str, str]
