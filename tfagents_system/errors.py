"""The two ways in which a program of ours ends early, and how each is told to the user."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_HOPELESS = 3  # Of a role: failed, and another start of it would fail in the same way.
EXIT_RESUMABLE = 75  # EX_TEMPFAIL of sysexits.h: everything is saved, the same command goes on.
EXIT_RENEW = 76  # Between a role and its supervisor: it has grown too large, and starts anew with what is saved.


class UserError(Exception):
    """Input that the user must change.

    Args:
      *findings: One sentence each: the rule, the value found, and the remedy.
    """

    def __init__(self, *findings: str) -> None:
        super().__init__("\n".join(findings))
        self.findings: tuple[str, ...] = findings


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 80
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = 12


def shown(value: object) -> str:
    """`repr(value)` of whatever a user has given: on one line, cut where it is long or deep, never an exception."""
    try:
        return " ".join(_REPR.repr(value).split())
    except Exception:  # Such as of an integer with more than 4300 digits.
        return f"<{type(value).__name__}>"


def print_findings(findings: Sequence[str]) -> None:
    """Writes every finding to standard error, one line each."""
    for finding in findings:
        print(f"error: {finding}", file=sys.stderr)


def exit_with(main: Callable[[], int]) -> NoReturn:
    """Runs `main` and exits with its code; a UserError is printed without a traceback and exits with 2."""
    try:
        code = main()
    except UserError as error:
        print_findings(error.findings)
        code = EXIT_BAD_INPUT
    sys.exit(code)
