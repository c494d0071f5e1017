"""Credentials of the machines that join a run: each machine has its own, which expire and can be revoked by name.

    python -m tfagents_system.transport.remote.machines logs/my_run add laptop [--days 30]
    python -m tfagents_system.transport.remote.machines logs/my_run list
    python -m tfagents_system.transport.remote.machines logs/my_run revoke laptop

A running gateway applies changes within seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import os
import re
import shutil
import socket
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import logging

from tfagents_system.checks.called_as import called_as
from tfagents_system.errors import EXIT_DONE, UserError, exit_with
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.transport.remote import credentials
from tfagents_system.transport.remote.credentials import AUTHORITY_KEY, CLIENT

COMMAND = "python -m tfagents_system.transport.remote.machines"
DAYS = 30
_MOST_DAYS = 365
_RENEW_DAYS = 15  # A machine that can read the run's own folder renews its certificate this long before the end.
_REVOKED = "revoked"  # A text file in the folder: a name a line.


@dataclasses.dataclass(frozen=True)
class Holder:
    """The machine whose certificate the other side has shown.

    Attributes:
      name: Of the machine; the common name in the user's own certificates.
      ends_at: Unix seconds.
    """

    name: str
    ends_at: float

    @classmethod
    def of(cls, certificate: dict[str, Any]) -> Holder:
        """From what `ssl.SSLSocket.getpeercert` returns of a certificate that was verified."""
        names = [value for part in certificate["subject"] for key, value in part if key == "commonName"]
        return cls(names[-1] if names else "", float(ssl.cert_time_to_seconds(certificate["notAfter"])))


class Revocations:
    """The names that are shut out, as the file lists them now.

    Args:
      folder: With the run's credentials.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _REVOKED
        self._names: frozenset[str] = frozenset()

    def names(self) -> frozenset[str]:
        """Reads the file; while it can't be read, the names read before stay shut out."""
        try:
            # Opened, not only stat'ed: on NFS, only opening is sure to show what another machine has written.
            lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines()
            self._names = frozenset(name for line in lines if (name := line.strip()))
        except FileNotFoundError:
            pass
        except OSError as error:
            logging.log_every_n_seconds(logging.WARNING, "%s: %s", 60, self._path, error.strerror)
        return self._names


def add(folder: Path, name: str, days: int = DAYS) -> Path:
    """Makes the credentials of one machine, or new ones; returns the folder with what it needs.

    Raises:
      UserError: The name or the days can't be used, or there is no authority to sign with.
      OSError: They can't be written.
    """
    findings = []
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", name):
        findings.append(f"{name!r} must be a name of at most 63 letters, digits, dots, dashes and underscores")
    elif name in Revocations(folder).names():
        findings.append(f"{name} was revoked, and so would be new ones of that name: take another, such as {name}-2")
    if not 1 <= days <= _MOST_DAYS:
        findings.append(f"--days {days} must be 1 to {_MOST_DAYS}")
    if not (folder / AUTHORITY_KEY).is_file():
        findings.append(
            f"{folder} has no {AUTHORITY_KEY} to make more certificates with (it is your "
            "own): move it away, so that the run's next start makes another"
        )
    if findings:
        raise UserError(*findings)
    own = _folder_of(folder, name)
    own.parent.mkdir(mode=0o700, exist_ok=True)
    beside, old = (own.with_name(f".{name}.{os.getpid()}.{kind}") for kind in ("new", "old"))
    for path in (beside, old):
        shutil.rmtree(path, ignore_errors=True)
    try:
        credentials.issue(folder, beside, name, days)
        with contextlib.suppress(FileNotFoundError):
            os.rename(own, old)
        os.rename(beside, own)
    finally:
        for path in (beside, old):
            shutil.rmtree(path, ignore_errors=True)
    return own


def revoke(folder: Path, name: str) -> None:
    """Shuts a machine out for good: its name can't get new credentials either.

    In the user's own certificates the common name counts.

    Raises:
      UserError: There was never a machine of that name.
      OSError: The file can't be written.
    """
    if name in Revocations(folder).names():
        return
    known = _names(folder)
    is_ours = (folder / AUTHORITY_KEY).exists()  # Otherwise only their maker knows the names.
    if not name.isprintable() or name != name.strip() or not name or (is_ours and name not in known):
        raise UserError(f"there are no credentials named {name!r}: {', '.join(known) or 'there are none at all'}")
    # Appended, not replaced: on NFS, another machine may see a replaced file for a minute.
    with open(os.open(folder / _REVOKED, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8") as file:
        file.write(f"\n{name}\n")  # The last line may lack its end: edited by hand, or the disk was full.
        file.flush()
        os.fsync(file.fileno())


def folder_of_client(folder: Path) -> Path:
    """Where this machine's credentials are: `folder` itself, or its part of the run's own folder, renewed in time.

    Raises:
      UserError: They are needed and can't be made.
    """
    if (folder / f"{CLIENT}.pem").exists() or not (folder / AUTHORITY_KEY).exists():
        return folder
    name = name_of_this_machine()
    own = _folder_of(folder, name)
    if _days_left(own) >= _RENEW_DAYS:
        return own
    try:
        with _one_at_a_time(folder):
            return own if _days_left(own) >= _RENEW_DAYS else add(folder, name)
    except OSError as error:
        if _days_left(own) >= 0:
            return own
        raise UserError(
            f"{own} can't be made: {error.strerror}: make it on the run's machine ({COMMAND} RUN add {name})"
        ) from None


def name_of_this_machine() -> str:
    """This machine's name in its credentials."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).lstrip("._-")[:63] or "unnamed"


def _days_left(own: Path) -> int:
    """Days left of usable credentials; -1 if they can't be used."""
    return -1 if credentials.check_credentials(own, CLIENT) else credentials.days_left(own, CLIENT)


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """A lock among this machine's processes, which all use the same name."""
    with open(folder / AUTHORITY_KEY, "r+b") as file:
        with contextlib.suppress(OSError):  # A file system without locks: the last one wins.
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def describe(folder: Path) -> list[str]:
    """A line for each machine: its name, its end, and whether it was revoked."""
    revoked = Revocations(folder).names()
    lines = []
    for name in sorted({*_names(folder), *revoked}):
        words = ["revoked"] if name in revoked else []
        with contextlib.suppress(OSError, ValueError):
            words.append(f"until {credentials.end_of(_folder_of(folder, name) / f'{CLIENT}.pem'):%Y-%m-%d %H:%M} UTC")
        lines.append(f"{name}: {', '.join(words)}")
    return lines


def _folder_of(folder: Path, name: str) -> Path:
    return folder / "machines" / name


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "machines").glob("[!.]*"))


def main(argv: Sequence[str] | None = None) -> int:
    """Makes, lists or revokes."""
    parser = argparse.ArgumentParser(
        prog=called_as(COMMAND), description="Credentials of the machines that join a run."
    )
    parser.add_argument("run", type=Path, help="the run directory, or the folder with its credentials")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="names and ends")
    for command, words in (("add", "makes those of one machine"), ("revoke", "shuts one out, within seconds")):
        commands.add_parser(command, help=words).add_argument("name", help="of the machine")
    commands.choices["add"].add_argument("--days", type=int, default=DAYS, help="how long they are good (default: 30)")
    flags = parser.parse_args(argv)
    paths = RunPaths(flags.run.absolute())
    folder = paths.exp_dir if (paths.exp_dir / "ca.pem").exists() else paths.credentials
    if not paths.exp_dir.is_dir():
        raise UserError(f"{paths.exp_dir} is no run directory: start the run first (run_script.sh)")
    credentials.ensure_credentials(folder, paths.exp_dir.name)
    if flags.command == "add":
        own = add(folder, flags.name, flags.days)
        end = credentials.end_of(own / f"{CLIENT}.pem")
        print(
            f"{own}: good until {end:%Y-%m-%d %H:%M} UTC. Copy this folder to {flags.name} (scp -r), and give it there"
        )
        print("with join_script.sh --credentials DIR, or as SAC_CREDENTIALS_DIR")
    elif flags.command == "revoke":
        revoke(folder, flags.name)
        print(f"{flags.name} is shut out; a gateway that is running ends its connections within seconds")
    else:
        print("\n".join(describe(folder)) or "no machine has any yet")
    return EXIT_DONE


if __name__ == "__main__":
    exit_with(main)
