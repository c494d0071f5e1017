"""How our programs end early, and how they speak to the user: in the words of whoever called them."""

from __future__ import annotations

import argparse
import difflib
import errno
import json
import os
import re
import reprlib
import select
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

NAME_VARIABLE = "TFAGENTS_COMMAND"  # Set by `sac`, such as `sac status`.
CALLED = "TFAGENTS_CALL"  # What the user has called, such as `sac train reacher/vars.sh --seed 1`.
# Options that stand for --set of a variable.
SHORT_OPTIONS = {"--name": "SAC_EXP_NAME", "--seed": "SAC_SEED", "--workers": "SAC_NUM_COLLECT_WORKERS"}
TERMS = "TFAGENTS_TERMS"  # JSON: what the caller of a launcher knows other words for, and these.

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_HOPELESS = 3  # Of a role: it failed, and another start would fail in the same way.
EXIT_RESUMABLE = 75  # EX_TEMPFAIL of sysexits.h: everything is saved, the same command resumes.
EXIT_INTERRUPTED = 130  # The shells' exit code of a program that Ctrl-C ended.
EXIT_RENEW = 76  # From a role to its supervisor: it has grown too large, or lost its slot, and begins anew.

_REMEDIES = {
    errno.ENOSPC: "free space on the disk",
    errno.EDQUOT: "free space in your quota",
    errno.EROFS: "make the disk writable",
    errno.EACCES: "make it writable",
    errno.EAGAIN: "end some programs, or raise the limit of processes (ulimit -u)",
    errno.ENOMEM: "end some programs, memory is full",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "the machine has too many open files: end some programs",
}
_NO_TEMPORARY = "No usable temporary directory"


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
    """`repr(value)` of any value from a user: on one line, cut if long or deep; never raises."""
    try:
        return " ".join(_REPR.repr(value).split())
    except Exception:  # For example, an integer with more than 4300 digits.
        return f"<{type(value).__name__}>"


class OptionParser(argparse.ArgumentParser):
    """Options of a command: underscores work in the place of hyphens, and what is wrong is a UserError."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})

    def format_help(self) -> str:
        return super().format_help().replace("positional arguments:", "arguments:")

    def error(self, message: str) -> NoReturn:
        meant, (_, unknown, words) = "", message.partition("unrecognized arguments: ")
        if unknown:
            options = re.findall(r"--[a-z-]+", self.format_help())
            near = [difflib.get_close_matches(word.split("=")[0], options, 1, 0.75) for word in words.split()]
            meant = "".join(f", {name} is meant" for names in near for name in names)
        raise UserError(f"{message.removeprefix('argument ')}{meant}: see {self.prog} --help")

    def add_count(self, name: str, words: str, default: int | None = None) -> None:
        """Adds an option whose value is an integer of at least 1."""
        words = words if default is None else f"{words} (default: {default})"
        self.add_argument(name, type=_count, default=default, metavar="N", help=words)

    def add_settings(self, names: Iterable[str] = SHORT_OPTIONS) -> None:
        """Adds --set, and options that stand for it, as `assignments`: texts NAME=VALUE."""
        words: dict[str, Any] = {"action": "append", "default": [], "dest": "assignments"}
        kinds = "an attribute of TrainParams, a key of the JSON (config.KEY) or a SAC_ variable"
        self.add_argument("--set", metavar="NAME=VALUE", help=f"set {kinds} for this run", **words)
        for name in names:
            variable, metavar = SHORT_OPTIONS[name], "NAME" if name == "--name" else "N"
            text = f"set {variable} for this run"
            self.add_argument(name, type=f"{variable}={{}}".format, metavar=metavar, help=text, **words)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words: list[str] = []
        for word in sys.argv[1:] if args is None else args:
            name, *value = word.split("=", 1)
            words.append("=".join([name.replace("_", "-") if name.startswith("--") else name, *value]))
        return super().parse_known_args(words, namespace)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, found {text}")
    return int(text)


def called_as(otherwise: str) -> str:
    """`sac status`, or what the program is called without `sac`."""
    return os.environ.get(NAME_VARIABLE) or otherwise


def run_name_of(params: Path) -> str:
    """The name of a run for which none is given: the file's without `_params`, of `params.py` its folder's.

    Args:
      params: Absolute.
    """
    return params.parent.name if params.stem == "params" else params.stem.removesuffix("_params")


def in_callers_terms(text: str) -> str:
    """A message with the words of a front such as `tfagents_system.tmrl`: RUN_NAME instead of SAC_EXP_NAME."""
    terms: dict[str, str] = json.loads(os.environ.get(TERMS) or "{}")
    if not terms:
        return text
    longest_first = "|".join(re.escape(term) for term in sorted(terms, key=len, reverse=True))
    return re.sub(rf"(?<![\w/@-])(?:{longest_first})(?![\w/])", lambda found: terms[found[0]], text)


def print_findings(findings: Sequence[str]) -> None:
    """Writes every finding to standard error, one line each."""
    for finding in findings:
        print(f"error: {in_callers_terms(finding)}", file=sys.stderr)


def exit_with(main: Callable[[], int]) -> NoReturn:
    """Runs `main` and exits with its code.

    Errors that are not the program's fault are printed without a traceback: a UserError exits with 2, a full or
    read-only disk and the like with 1. Where nobody reads its output any more, as behind `| head`, it ends silently.
    """
    code = EXIT_FAILED
    try:
        code = main()
        print(end="", flush=True)
    except BrokenPipeError:
        output = select.poll()
        output.register(sys.stdout, 0)
        if not output.poll(0):  # It was another pipe: this one has its reader.
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # For what Python writes at its end.
    except UserError as error:
        print_findings(error.findings)
        code = EXIT_BAD_INPUT
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0)
        if _NO_TEMPORARY in str(error):  # With all that were tried, and ENOENT.
            remedy = "free space in one of them, or set TMPDIR to another folder"
        if remedy is None:
            raise
        print_findings([f"{error}: {remedy}, then start the same command again"])
        code = EXIT_FAILED
    sys.exit(code)
