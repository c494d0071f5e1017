"""Starts launchers, and modules and programs of Python, where all that a run needs is imported already.

Imports are a third of what a short run costs. They are made once for all that a process of tests starts:

    tests ──ask──▶ nursery ──forks──▶ what becomes a start's one process once a launcher has said how that is called

It is a child of the tests, as one that `subprocess.Popen` started.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import importlib
import io
import os
import pickle
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tfagents_system.errors import exit_with
from tfagents_system.launch import forks
from tfagents_system.launch.vars_file import ROOT
from tfagents_system.machine.signals import die_with_parent

_ROOM_BYTES = 4500  # As launcher.sh.
_STANDARD_STREAMS = 3
_NOT_STARTED = 127  # A launcher's exit code, as a shell's.
_NO_EXEC = ROOT / "tests/support/no_exec.sh"


class WarmPopen(subprocess.Popen[str]):
    """A launcher in a session of its own, or `python -m MODULE ARGUMENT...`, or `python -c TEXT ARGUMENT...`.

    Takes `args`, `cwd`, `env` and streams; `exp_dir`, the run directory of a launcher, is not needed.
    """

    def __init__(self, args: Sequence[str], *, exp_dir: Path | None = None, **options: Any) -> None:
        del exp_dir
        super().__init__(args, start_new_session=True, **options)

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *others) -> None:
        assert preexec_fn is None and not pass_fds and executable is None
        (p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite) = others[3:9]
        out = c2pwrite if c2pwrite >= 0 else 1
        streams = [p2cread if p2cread >= 0 else 0, out, errwrite if errwrite >= 0 else 2]
        try:
            request = list(args), str(cwd or os.getcwd()), dict(env or os.environ), os.sched_getaffinity(0)
            self.pid = _nursery().start(request, streams)
            self._child_created = True
        finally:
            for descriptor, ours in ((p2cread, p2cwrite), (c2pwrite, c2pread), (errwrite, errread)):
                if descriptor != -1 and ours != -1:
                    os.close(descriptor)


class _Nursery:
    """The client's end of the process that all others are forked from."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._socket, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("SAC_", "SLURM_"))}
        single = {name: "1" for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        own = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONUNBUFFERED": "1"}
        own["TF_ENABLE_ONEDNN_OPTS"] = "0"  # A tenth of a short run would go into kernels for each shape of its arrays.
        room = {forks.ROOM_VARIABLE: " " * _ROOM_BYTES}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.support.warm_starts", str(theirs.fileno()), "-" * 80],
            stdin=subprocess.DEVNULL,
            env={**environ, **single, **own, **room, "PYTHONPATH": str(ROOT)},
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()

    def start(self, request: Any, streams: Sequence[int]) -> int:
        """The pid of what it becomes, a child of this process."""
        was_subreaper = _is_subreaper()
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
        try:
            socket.send_fds(self._socket, [pickle.dumps(request)], streams)
            self._socket.settimeout(600.0)
            answer = self._socket.recv(100)
        finally:
            if not was_subreaper:
                ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)
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
    forks.import_all()
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
                    _become(streams, *pickle.loads(message))
                os.write(writer, str(pid).encode())
            except BaseException:
                traceback.print_exc()
                os._exit(_NOT_STARTED)
            os._exit(0)
        os.waitpid(between, 0)  # From now on it is the tests' child.
        asked.send(os.read(reader, 100))
        for descriptor in (reader, writer, *streams):
            os.close(descriptor)


def _become(streams: Sequence[int], args: Sequence[str], cwd: str, environ: Mapping[str, str], cpus: set[int]) -> None:
    for target, stream in enumerate(streams):  # First: its own streams tell what fails.
        os.dup2(stream, target)
    os.setsid()
    os.chdir(cwd)
    os.sched_setaffinity(0, cpus)
    os.closerange(_STANDARD_STREAMS, 1024)
    for name, descriptor in (("stdout", 1), ("stderr", 2)):  # The nursery's may be files, which can seek.
        setattr(sys, name, io.TextIOWrapper(io.FileIO(descriptor, "w", closefd=False), line_buffering=True))
    if args[0] != sys.executable:
        _become_start(args, environ)
    _take_environment(environ)
    setattr(os, "execvp", lambda file, words: _become_start(words, os.environ))  # noqa: B010  # `sac train`.
    if args[1] == "-c":
        sys.argv = ["-c", *args[3:]]
        _end(lambda: exec(args[2], {"__name__": "__main__"}))
    sys.argv = list(args[2:])
    _end(lambda: runpy.run_module(args[2], run_name="__main__"))


def _become_start(args: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Lets a launcher, a shell script, say how it would become a start's process, and is that process."""
    with tempfile.TemporaryDirectory() as folder:
        tell = Path(folder) / "told"
        own = {"BASH_ENV": str(_NO_EXEC), "TESTS_TELL": str(tell)}
        launcher = subprocess.Popen(args, env={**environ, **own}, preexec_fn=lambda: die_with_parent(signal.SIGTERM))
        code = launcher.wait()
        if not tell.with_suffix(".environ").exists():
            os._exit(code if code >= 0 else 128 - code)
        module, *arguments = _words(tell.with_suffix(".arguments"))
        told = dict(word.partition("=")[::2] for word in _words(tell.with_suffix(".environ")))
    _take_environment({name: value for name, value in told.items() if name not in own})
    sys.argv = [module, *arguments]
    _end(lambda: exit_with(importlib.import_module(module).main))


def _words(path: Path) -> list[str]:
    return [os.fsdecode(word) for word in path.read_bytes().split(b"\0")[:-1]]


def _take_environment(environ: Mapping[str, str]) -> None:
    forks._room()  # Before the variable that says where it is, is gone.
    os.environ.clear()
    os.environ.update({name: value for name, value in environ.items() if name != forks.ROOM_VARIABLE})
    sys.path[:] = list(dict.fromkeys([*forks.folders_of_python_path(environ), *sys.path]))


def _end(run: Callable[[], object]) -> NoReturn:
    """Runs what a program does, and ends the process with its exit code."""
    code: object = 0
    try:
        run()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int | None) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code or 0)  # type: ignore[arg-type]


if __name__ == "__main__":
    die_with_parent(signal.SIGKILL)
    _serve(socket.socket(fileno=int(sys.argv[1])))
