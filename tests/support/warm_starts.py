"""Starts launchers with a fork server that has imported everything already, and such fork servers or modules alone.

Imports are a third of what a short run costs. They are made once for all runs that a process of tests starts:

    tests ──ask──▶ nursery ──forks──▶ launcher ──forks──▶ fork server

The launcher hands its fork server over to the programs that take its place, as `prepare` does to the supervisor. It is
a child of the tests, as one that `subprocess.Popen` started, and its fork server is one of its own.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import io
import os
import pickle
import runpy
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from tfagents_system.launch import fork_server
from tfagents_system.launch.fork_client import HANDLE_VARIABLE, ForkServer
from tfagents_system.launch.fork_messages import NO_MARK
from tfagents_system.launch.forked_process import set_subreaper
from tfagents_system.launch.python_path import ROOT
from tfagents_system.launch.role_process import MARK_VARIABLE
from tfagents_system.machine.signals import SUPERVISOR_PID_VARIABLE, die_with_parent

_ROOM = (
    "TESTS_ROOM"  # The kernel shows a process's environment where the first one was: room for that of a fork server.
)
_ROOM_BYTES = 1 << 16
_STANDARD_STREAMS = 3
_NOT_STARTED = 127  # A launcher's exit code, as a shell's.


class WarmPopen(subprocess.Popen[str]):
    """A launcher in a session of its own, with a fork server; takes `args`, `cwd`, `env` and streams.

    Args:
      exp_dir: The run directory, which marks the processes of the run. None: there is no launcher, `args` are
        `python -m MODULE ARGUMENT...`, and the module is run where all is imported.
    """

    def __init__(self, args: Sequence[str], *, exp_dir: Path | None, **options: Any) -> None:
        self._exp_dir = exp_dir
        super().__init__(args, start_new_session=True, **options)

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *others) -> None:
        assert preexec_fn is None and not pass_fds and executable is None
        (p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite) = others[3:9]
        out = c2pwrite if c2pwrite >= 0 else 1
        streams = [p2cread if p2cread >= 0 else 0, out, errwrite if errwrite >= 0 else 2]
        try:
            exp_dir = None if self._exp_dir is None else str(self._exp_dir)
            request = list(args), str(cwd), dict(env), exp_dir, os.sched_getaffinity(0)
            self.pid = _nursery().start(request, streams)
            self._child_created = True
        finally:
            for descriptor, ours in ((p2cread, p2cwrite), (c2pwrite, c2pread), (errwrite, errread)):
                if descriptor != -1 and ours != -1:
                    os.close(descriptor)


def warm_fork_server(environ: Mapping[str, str]) -> ForkServer:
    """What `ForkServer.start` gives, ready at once: a child of this process, which it ends with."""
    ours, theirs = socket.socketpair()
    with theirs:
        own = {SUPERVISOR_PID_VARIABLE: str(os.getpid()), MARK_VARIABLE: NO_MARK}
        pid = _nursery().start({**environ, **own}, [theirs.fileno()])
    server = ForkServer(Connection(ours.detach()), pid)
    server._is_ready = True
    return server


class _Nursery:
    """The client's end of the process that launchers are forked from."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._socket, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("SAC_", "SLURM_"))}
        room = "-" * _ROOM_BYTES
        single = {name: "1" for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        own = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.support.warm_starts", str(theirs.fileno()), "-" * 80],
            stdin=subprocess.DEVNULL,
            env={**environ, **single, **own, "PYTHONPATH": str(ROOT), _ROOM: room},
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()

    def start(self, request: Any, streams: Sequence[int]) -> int:
        """The pid of a launcher, or of a fork server where only its environment and one descriptor are given.

        It is a child of this process.
        """
        was_subreaper = _is_subreaper()
        set_subreaper(True)
        try:
            socket.send_fds(self._socket, [pickle.dumps(request)], streams)
            self._socket.settimeout(600.0)
            answer = self._socket.recv(100)
        finally:
            set_subreaper(was_subreaper)
        assert answer, "the process that launchers are forked from is gone"
        return int(answer)

    def close(self) -> None:
        self._socket.close()
        self._process.wait(30.0)


@functools.cache
def _nursery() -> _Nursery:
    nursery = _Nursery()
    atexit.register(nursery.close)
    return nursery


def _is_subreaper() -> bool:
    value = ctypes.c_int()
    ctypes.CDLL(None).prctl(37, ctypes.byref(value), 0, 0, 0)  # PR_GET_CHILD_SUBREAPER
    return bool(value.value)


def _serve(asked: socket.socket) -> None:
    fork_server.import_all()
    while True:
        message, streams, _, _ = socket.recv_fds(asked, 1 << 20, _STANDARD_STREAMS)
        if not message:
            return
        reader, writer = os.pipe()
        if (between := os.fork()) == 0:
            try:
                first_parent = os.getpid()
                if (pid := os.fork()) == 0:
                    asked.close()
                    while os.getppid() == first_parent:  # Who is to end with its parent would end with this one.
                        time.sleep(0.001)
                    _become(pickle.loads(message), streams)
                os.write(writer, str(pid).encode())
            except BaseException:
                traceback.print_exc()
                os._exit(_NOT_STARTED)
            os._exit(0)
        os.waitpid(between, 0)  # From now on the launcher is the tests' child.
        asked.send(os.read(reader, 100))
        for descriptor in (reader, writer, *streams):
            os.close(descriptor)


def _become(request: Any, descriptors: Sequence[int]) -> NoReturn:
    if isinstance(request, dict):
        (descriptor,) = descriptors
        _become_fork_server(Connection(descriptor), request)
    _become_launcher(descriptors, *request)


def _become_launcher(
    streams: Sequence[int],
    args: Sequence[str],
    cwd: str,
    environ: Mapping[str, str],
    exp_dir: str | None,
    cpus: set[int],
) -> NoReturn:
    for target, stream in enumerate(streams):  # First: the launcher's own streams tell what fails.
        os.dup2(stream, target)
    os.setsid()
    os.chdir(cwd)
    os.sched_setaffinity(0, cpus)
    os.closerange(_STANDARD_STREAMS, 1024)
    if exp_dir is None:
        _become_module(args, environ)
    ours, theirs = socket.socketpair()
    launcher = os.getpid()
    if (pid := os.fork()) == 0:
        ours.close()
        own = {"SAC_EXP_DIR": exp_dir, SUPERVISOR_PID_VARIABLE: str(launcher), MARK_VARIABLE: NO_MARK}
        _become_fork_server(Connection(theirs.detach()), {**environ, **own})
    theirs.close()
    os.set_inheritable(ours.fileno(), True)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execve(args[0], list(args), {**environ, HANDLE_VARIABLE: f"{ours.detach()},{pid}"})


def _become_module(args: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    def run() -> int:
        runpy.run_module(module, run_name="__main__")
        return 0

    os.environ.clear()
    os.environ.update(environ)
    for name, descriptor in (("stdout", 1), ("stderr", 2)):  # The nursery's may be files, which can seek.
        setattr(sys, name, io.TextIOWrapper(io.FileIO(descriptor, "w", closefd=False), line_buffering=True))
    _, _, module, *arguments = args
    sys.argv = [module, *arguments]
    fork_server._as_program(run)


def _become_fork_server(connection: Connection, environ: Mapping[str, str]) -> NoReturn:
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(environ)
    _show_environment(environ)
    fork_server.main_with(lambda: fork_server.answer_requests(connection))


def _show_environment(environ: Mapping[str, str]) -> None:
    """Writes it where the kernel looks for it: marks of the run's processes are found there."""
    start, end = fork_server.place_in_stat(50)
    place = ctypes.string_at(start, end - start).find(f"{_ROOM}=".encode())
    text = b"".join(f"{name}={value}\0".encode() for name, value in environ.items())
    assert place >= 0 and len(text) < _ROOM_BYTES
    ctypes.memmove(start + place, text.ljust(_ROOM_BYTES, b"\0"), _ROOM_BYTES)


if __name__ == "__main__":
    die_with_parent(signal.SIGKILL)
    _serve(socket.socket(fileno=int(sys.argv[1])))
