"""One process that has imported everything, from which the roles of a run are forked.

TensorFlow and what is built on it take four seconds of CPU time and 250 MB to import. If each role is a program of its
own, every one pays that; forked from here they start at once and share the memory.

    prepare (later: the supervisor, the same process) ──asks──▶ fork server ──forks──▶ check of the environment, roles

The server never runs TensorFlow, a user's code or a second thread: a fork copies the calling thread alone, so there
may be no other. A role is forked twice, and its first parent ends at once: the kernel then makes it a child of the
supervisor, which can wait for it, and which it must not outlive. The server is only needed for the next fork.

A forked role begins when the supervisor says so, by a pipe between the two. A supervisor that hears nothing from the
server in time closes the pipe, which ends the role, and starts a program instead: the role never runs twice.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from tfagents_system.errors import EXIT_DONE, EXIT_FAILED, UserError, exit_with
from tfagents_system.launch.fork_messages import NO_MARK, CallDiedError, CallRequest, ForkRequest, ForkServerError
from tfagents_system.launch.forked_process import reap_orphans, set_subreaper
from tfagents_system.launch.python_path import folders_of_python_path
from tfagents_system.launch.role_process import MARK_VARIABLE
from tfagents_system.machine import memory
from tfagents_system.machine.processes import describe_stuck, end_all, is_alive, kill_session
from tfagents_system.machine.signals import STOP_SIGNALS, SUPERVISOR_PID_VARIABLE, die_with_parent, role_stop_signal

_PRELOADED = (
    "tfagents_system.sac_replay_buffer",
    "tfagents_system.sac_train",
    "tfagents_system.sac_collect",
    "tfagents_system.sac_gateway",
    "tfagents_system.sac_tracker",
    "tfagents_system.launch.prepare",
    "tfagents_system.launch.environment_checks",
    # Not mujoco itself: when it is imported it decides how to render, by variables that a user's code may set.
    "gymnasium",
    "glfw",
)
# Pandas, which TensorFlow imports, imports it where it is installed. Roles may still import it.
_STARTS_THREADS = "pyarrow"
_PR_SET_NAME = 15


@contextlib.contextmanager
def _left_out(module: str) -> Iterator[None]:
    """As if a package were not installed."""
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]


def serve(connection: Connection) -> None:
    """Imports, then forks what it is asked for, until the client's end is closed."""
    try:
        import_all()
    except Exception as error:
        traceback.print_exc()
        connection.send((False, f"the fork server can't import the roles: {error}"))
        return
    connection.send((True, None))
    answer_requests(connection)


def import_all() -> None:
    """Imports what roles need.

    Raises:
      RuntimeError: That has started a thread.
    """
    gc.disable()  # Imports leave no garbage, and looking for it takes a fifth of their time.
    with _stderr_held_back(), _left_out(_STARTS_THREADS):
        for module in _PRELOADED:
            importlib.import_module(module)
    if (threads := len(os.listdir("/proc/self/task"))) != 1:
        raise RuntimeError(f"after its imports the fork server has {threads} threads instead of one")
    gc.collect()
    gc.freeze()  # Looking for garbage among these modules would copy their pages into every role.
    gc.enable()


def answer_requests(connection: Connection) -> None:
    """Forks what it is asked for, until the client's end is closed."""
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        answer: tuple[bool, Any]
        try:
            if isinstance(request, ForkRequest):
                with Connection(recv_handle(connection), writable=False) as begin:
                    answer = True, _fork_role(request, connection, begin)
            else:
                answer = True, _call(request, connection)
        except EOFError:
            return
        except Exception as error:
            answer = False, str(error)
        connection.send(answer)


@contextlib.contextmanager
def _stderr_held_back() -> Iterator[None]:
    """Shows what the block writes to stderr only if an exception ends it.

    TensorFlow's import reports as errors that three parts for GPUs are registered twice, which is harmless here.
    """
    stderr = os.dup(2)
    with open(os.memfd_create("stderr"), "w+b") as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(stderr, held.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


def _fork(child: Callable[[], None], what: str) -> int:
    """Forks a process that calls `child` and ends: whatever happens there, it never returns to the server's code.

    Raises:
      ForkServerError: No further process can be made.
    """
    try:
        pid = os.fork()
    except OSError as error:
        raise ForkServerError(f"{what} can't be forked ({error.strerror})") from None
    if pid == 0:
        try:
            child()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(EXIT_FAILED)
    return pid


def _fork_role(request: ForkRequest, connection: Connection, begin: Connection) -> int:
    """Forks twice; returns the pid of the role.

    Raises:
      ForkServerError: There is none, or its pid is unknown and it will end by itself.
    """
    reader, writer = Pipe(duplex=False)

    def role() -> None:
        reader.close()
        writer.close()
        _as_program(lambda: _become_role(request, connection, begin))

    def first_parent() -> None:
        try:
            writer.send((True, _fork(role, request.name)))
        except ForkServerError as error:
            writer.send((False, str(error)))

    with reader:
        with writer:
            between = _fork(first_parent, request.name)
        try:
            is_fine, content = reader.recv()
        except (EOFError, OSError):
            is_fine, content = False, f"{request.name} can't be forked (the process in between died)"
        os.waitpid(between, 0)  # From now on the role is the supervisor's child.
    if not is_fine:
        raise ForkServerError(content)
    return int(content)


def _become_role(request: ForkRequest, connection: Connection, begin: Connection) -> NoReturn:
    connection.close()
    os.setsid()
    log = os.open(request.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    _fresh_process(request.environ, request.name)
    if MARK_VARIABLE in request.environ:
        _write_over_mark(request.environ[MARK_VARIABLE])
    _wait_for_the_word(begin)
    if request.cpus:
        os.sched_setaffinity(0, request.cpus)
    sys.argv = [request.module, *request.arguments]
    exit_with(importlib.import_module(request.module).main)


def _wait_for_the_word(begin: Connection) -> None:
    """Waits until the supervisor, by now the parent, says that this is the role; else ends the process."""
    with begin:
        try:
            begin.recv()
        except (EOFError, OSError):
            print("note: this process was forked too late and ends before it has begun", file=sys.stderr)
            sys.exit(EXIT_FAILED)


def _call(request: CallRequest, connection: Connection) -> bytes:
    """Forks a process for a function; returns what the client is to return or raise, pickled."""
    # Not a pipe: its end would never come while a process that the function has started holds it open.
    with open(os.memfd_create("result"), "w+b") as result:
        set_subreaper(True)  # Adopts what a simulator has started elsewhere, instead of the client.
        pid = _fork(lambda: _as_program(lambda: _become_call(request, connection, result)), "the check")

        def end(*_: Any) -> NoReturn:
            _end_call(pid)
            os._exit(EXIT_FAILED)

        with _handled_by(end):
            _, status = os.waitpid(pid, 0)
        _end_call(pid)
        set_subreaper(False)  # Roles are the supervisor's children.
        if code := os.waitstatus_to_exitcode(status):
            return pickle.dumps(CallDiedError(signal.Signals(-code).name if code < 0 else f"exit code {code}"))
        result.seek(0)
        return result.read() or pickle.dumps(CallDiedError("exit code 0"))  # It called os._exit.


@contextlib.contextmanager
def _handled_by(end: Callable[..., NoReturn]) -> Iterator[None]:
    """Calls `end` when the client is gone, or all processes of a job are told to end."""
    numbers = {signal.SIGTERM, role_stop_signal()}
    for number in numbers:
        signal.signal(number, end)
    yield
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)


def _end_call(pid: int) -> None:
    """Ends a called process and all that it has started; the server has no other children meanwhile."""
    kill_session(pid)
    own = os.getpid()
    if stuck := end_all(lambda: [child for child in memory.children(own) if is_alive(child)]):
        print(f"note: {describe_stuck('what the check has started', stuck)}", file=sys.stderr, flush=True)
    reap_orphans([])


def _become_call(request: CallRequest, connection: Connection, result: BinaryIO) -> int:
    connection.close()
    os.setsid()
    environ = {**request.environ, SUPERVISOR_PID_VARIABLE: str(os.getppid())}
    _fresh_process(environ, "sac_check")
    die_with_parent()
    outcome: Any
    try:
        outcome = getattr(importlib.import_module(request.module), request.function)(*request.arguments)
    except UserError as error:
        outcome = error
    result.write(pickle.dumps(outcome))
    result.flush()
    return EXIT_DONE


def _as_program(main: Callable[[], int]) -> NoReturn:
    """Calls what a program does, and ends the process with the exit code that it gives."""
    code = EXIT_FAILED
    try:
        code = main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else EXIT_FAILED
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _fresh_process(environ: Mapping[str, str], name: str) -> None:
    """Makes a forked process like a program that was just started.

    Args:
      name: What `ps` and `top` show.
    """
    os.environ.clear()
    os.environ.update(environ)
    # As Python itself would have made it from PYTHONPATH; the server's own entries follow.
    sys.path[:] = list(dict.fromkeys([*folders_of_python_path(environ), *sys.path]))
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)
    import numpy as np

    np.random.seed()  # Python's own generator does this by itself.


def _write_over_mark(mark: str) -> None:
    """/proc shows the server's environment for a forked process; from now on it has the role's own mark there.

    So whatever the role forks without starting a program is known as the role's, too, in any session.
    """
    start, end = place_in_stat(50)
    if 0 < start < end:
        own, name = NO_MARK.encode(), f"{MARK_VARIABLE}=".encode()
        place = ctypes.string_at(start, end - start).find(name + own)
        if place >= 0 and len(mark) <= len(own):
            ctypes.memmove(start + place + len(name), mark.encode().ljust(len(own), b"\0"), len(own))


def place_in_stat(field: int) -> tuple[int, int]:
    """Two neighbouring fields of this process, from 3 on: 48 and 49 are arg_start and arg_end, 50 and 51 of env_."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()  # See proc_pid_stat(5).
    return int(fields[field - 3]), int(fields[field - 2])


def main_with(work: Callable[[], None]) -> NoReturn:
    """Works as a server, a child of its client."""
    die_with_parent()
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    with contextlib.suppress(BrokenPipeError):  # The client is gone.
        work()
    os._exit(0)


def main() -> NoReturn:
    main_with(lambda: serve(Connection(int(sys.argv[1]))))


if __name__ == "__main__":
    main()
