"""A machine with a login for tests: a small program in the place of `ssh`, or a real sshd on a free port."""

from __future__ import annotations

import contextlib
import getpass
import os
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

FAKE_HOST = "me@fake"
_REFUSAL, _HOME, _CALLS = "FAKE_SSH_REFUSAL", "FAKE_SSH_HOME", "FAKE_SSH_CALLS"
_SSHD = "/usr/sbin/sshd"


def make_fake(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a program `ssh` in front of PATH whose host is this machine, with `folder` as home directory."""
    put_in_path(f'exec {sys.executable} {__file__} "$@"', folder, monkeypatch)
    monkeypatch.setenv(_HOME, str(folder))
    monkeypatch.setenv(_CALLS, str(folder / "calls"))


def refuse(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the fake one end with these words."""
    monkeypatch.setenv(_REFUSAL, words)


def calls(folder: Path) -> list[str]:
    """Arguments of each start of the fake one."""
    return (folder / "calls").read_text().splitlines()


@contextlib.contextmanager
def real_host(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Starts an sshd of our own, and puts an `ssh` in front of PATH that has a key for it; gives what to call it."""
    if not os.access(_SSHD, os.X_OK) or shutil.which("ssh-keygen") is None or shutil.which("ssh") is None:
        pytest.skip("needs sshd, ssh and ssh-keygen (Debian: openssh-server, openssh-client)")
    for name in ("host_key", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True, timeout=30)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    lines = [f"Port {port}", "ListenAddress 127.0.0.1", f"HostKey {folder}/host_key", "PidFile none", "UsePAM no"]
    lines += [f"AuthorizedKeysFile {folder}/key.pub", "StrictModes no", "PasswordAuthentication no"]
    (folder / "sshd_config").write_text("\n".join(lines) + "\n")
    host_key = (folder / "host_key.pub").read_text()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}")
    client = [f"UserKnownHostsFile {folder}/known_hosts", f"IdentityFile {folder}/key", "IdentitiesOnly yes"]
    (folder / "ssh_config").write_text("\n".join(client) + "\n")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # Asked for by Debian's sshd.
    with (folder / "sshd.log").open("w") as log:
        daemon = subprocess.Popen([_SSHD, "-D", "-e", "-f", folder / "sshd_config"], stderr=log)
    try:
        host = f"ssh://{getpass.getuser()}@127.0.0.1:{port}"
        put_in_path(f'exec {shutil.which("ssh")} -F {folder}/ssh_config "$@"', folder, monkeypatch)
        for _ in range(50):
            tried = subprocess.run(["ssh", "-o", "BatchMode=yes", host, "true"], capture_output=True, timeout=30)
            if tried.returncode == 0:
                break
            time.sleep(0.1)
        else:
            told = (folder / "sshd.log").read_text()[-500:]
            pytest.skip(f"the sshd of this machine lets nobody in: {tried.stderr.decode()} {told}")
        yield host
    finally:
        daemon.terminate()
        daemon.wait(10)


def put_in_path(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a program `ssh` in front of PATH that runs a command."""
    program = folder / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{command}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def _copy(one: socket.socket, other: socket.socket) -> None:
    with one, other:
        while True:
            for ready in select.select([one, other], [], [])[0]:
                data = ready.recv(65536)
                if not data:
                    return
                (other if ready is one else one).sendall(data)


def _forward(here: str, port: str, there: str, target: str) -> None:
    with socket.create_server((here, int(port))) as listener:
        while True:
            accepted, _ = listener.accept()
            try:
                onward = socket.create_connection((there, int(target)), timeout=5)
            except OSError:
                accepted.close()
                continue
            threading.Thread(target=_copy, args=(accepted, onward), daemon=True).start()


def _main(arguments: list[str]) -> int:
    """As ssh: `-N -L HERE:PORT:THERE:PORT HOST`, or HOST and a command."""
    with open(os.environ[_CALLS], "a") as log:
        log.write(" ".join(arguments) + "\n")
    if words := os.environ.get(_REFUSAL):
        print(words, file=sys.stderr)
        return 255
    if "-N" in arguments:
        _forward(*arguments[arguments.index("-L") + 1].split(":"))
    print("A line of the login shell.", flush=True)
    os.chdir(os.environ[_HOME])
    return subprocess.call(arguments[-1], shell=True)


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
