"""Forks a run's processes from the one that checks, starts and supervises it.

Importing TensorFlow and what is built on it takes 4 s of CPU time and 260 MB. The supervisor pays for it once; the
trial of a user's code and all roles, those that are restarted days later too, are forks of it and share that memory.

A fork copies the calling thread alone, with the locks that other threads hold. So the supervisor never has a second
thread, and never runs a TensorFlow operation, which would start some: `fork_program` refuses otherwise. Seen with
TensorFlow 2.15 and Reverb 0.14: their import leaves one thread if BLAS libraries have one (variables that must be set
before NumPy is loaded, see launcher.sh) and pyarrow, which pandas imports, is left out.

A fork inherits what its parent has open: flock, claims and the port belong to open files, and would be held by a role
that outlives its supervisor. So it first closes all but the standard streams.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, NoReturn

from tfagents_system import OWN
from tfagents_system.errors import EXIT_DONE, EXIT_FAILED, UserError, exit_with, in_callers_terms
from tfagents_system.launch.vars_file import folders_of_python_path
from tfagents_system.machine.processes import children, end_all, is_alive, kill_session, started_apart
from tfagents_system.machine.signals import STOP_SIGNALS, SUPERVISOR_PID_VARIABLE, die_with_parent
from tfagents_system.run_files.run_paths import GATEWAY, REPLAY, TRACKER, TRAINER

MARK_VARIABLE = "TFAGENTS_ROLE_START"  # In the environment of a role and of all that it starts.
ROOM_VARIABLE = "TFAGENTS_ROOM"  # Spaces in the environment of the exec, see `show_marks`.
_MARKS = ("SAC_EXP_DIR", SUPERVISOR_PID_VARIABLE, MARK_VARIABLE)
_WORKER = "tfagents_system.sac_collect"
_ROLES = {
    REPLAY: "tfagents_system.sac_replay_buffer",
    TRAINER: "tfagents_system.sac_train",
    GATEWAY: "tfagents_system.cluster.gateway",
    TRACKER: "tfagents_system.sac_tracker",
}
_MODULES = _ROLES | {  # Those that write results are imported when they are needed.
    "plot": "tfagents_system.report.plots",
    "video": "tfagents_system.run",
    "report": "tfagents_system.report.page",
    "track": "tfagents_system.report.tracking",
}
_PRELOADED = (
    "tensorflow",
    "reverb",
    "tf_agents",
    *_ROLES.values(),
    _WORKER,
    "tfagents_system.launch.environment_checks",
    # Not mujoco itself: when it is imported it decides how to render, by variables that a user's code may set.
    "gymnasium",
    "glfw",
)
# Pandas, which TensorFlow imports, imports it where it is installed. Roles may still import it.
_STARTS_THREADS = "pyarrow"
# BLAS libraries read these when they are loaded. A user's own values are kept under OWN and are back after the import.
_SINGLE_THREADED = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
# TensorFlow reads the last two when it is imported, for all that is forked later.
_FOR_IMPORT = dict.fromkeys(_SINGLE_THREADED, "1") | {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
_POLL_SECS = 0.02
_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36

_stderr = [2]  # The last one is the user's.
_shown = dict[str, str]()  # This process's marks.
_early_ends = list[Callable[[], Collection[str] | None]]()


class CallDiedError(Exception):
    """The process that a function was called in ended before the function did."""


def import_all(look: Callable[[], None] = lambda: None) -> None:
    """Imports what roles need, once.

    Args:
      look: Called now and then.

    Raises:
      RuntimeError: That has started a thread.
    """
    if all(module in sys.modules for module in _PRELOADED):
        return
    gc.disable()  # Imports leave no garbage, and looking for it takes a fifth of their time.
    before = {name: os.environ.get(name) for name in _FOR_IMPORT}
    os.environ.update(_FOR_IMPORT)
    sys.modules[_STARTS_THREADS] = None  # type: ignore[assignment]  # As if it were not installed.
    try:
        for module in _PRELOADED:
            look()
            with _stderr_held_back():
                importlib.import_module(module)
    finally:
        del sys.modules[_STARTS_THREADS]
        _restore(before)
    require_one_thread()
    gc.collect()
    gc.freeze()  # Looking for garbage among these modules would copy their pages into every fork.
    gc.enable()


def _restore(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def restore_variables() -> None:
    """Gives variables that the exec has set for this process alone (launcher.sh) their own values again."""
    _room()
    os.environ.pop(ROOM_VARIABLE, None)
    _restore({name: os.environ.pop(OWN + name, None) for name in _SINGLE_THREADED})


def require_one_thread() -> None:
    """Raises a RuntimeError with the names of all threads where there is more than one."""
    threads = os.listdir("/proc/self/task")
    if len(threads) > 1:
        names = [Path(f"/proc/self/task/{thread}/comm").read_text().strip() for thread in threads]
        raise RuntimeError(f"this process can't be forked, it has {len(threads)} threads: {', '.join(names)}")


@contextlib.contextmanager
def _stderr_held_back() -> Iterator[None]:
    """Shows what the block writes to stderr only if an exception ends it.

    TensorFlow's import reports as errors that three parts for GPUs are registered twice, which is harmless here.
    """
    stderr = os.dup(2)
    _stderr.append(stderr)
    with open(os.memfd_create("stderr"), "w+b") as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(stderr, held.read())
            raise
        finally:
            os.dup2(_stderr.pop(), 2)
            os.close(stderr)


# A process that is forked.


class ForkedProcess:
    """A child of this process: the part of subprocess.Popen that its supervisor needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self.wait(os.WNOHANG)

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, options: int = 0) -> int | None:
        """The exit code, once there is one; `options` as of os.waitpid."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:
                self.returncode = EXIT_FAILED  # Something else has taken its exit code.
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


def fork_program(
    main: Callable[[], int],
    name: str,
    environ: Mapping[str, str],
    *,
    log: Path | None = None,
    cpus: Sequence[int] = (),
    kept: Collection[int] = (),
) -> ForkedProcess:
    """Forks a process that leads a session and calls `main` as a program does: what it returns is the exit code.

    It is killed if this process dies, until it says otherwise (`die_with_parent`).

    Args:
      name: What `ps` and `top` show.
      environ: Its whole environment.
      log: Where its output is appended; None: where this process's goes.
      cpus: CPU ids that it is pinned to; empty: those of this process.
      kept: Descriptors that stay open in it.

    Raises:
      OSError: No process can be made, such as EAGAIN or ENOMEM; or there is no log.
      RuntimeError: This process has a second thread.
    """
    require_one_thread()
    environ = {**environ, SUPERVISOR_PID_VARIABLE: str(os.getpid())}
    output = None if log is None else os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    with contextlib.suppress(OSError, ValueError):  # What is buffered must not be written twice.
        sys.stdout.flush()
        sys.stderr.flush()
    # A signal that comes while the child still has this process's handlers would be lost there.
    blocked_before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _become(main, name, environ, output, cpus, kept)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)
        if output is not None:
            os.close(output)
    return ForkedProcess(pid)


def _become(
    main: Callable[[], int],
    name: str,
    environ: Mapping[str, str],
    output: int | None,
    cpus: Sequence[int],
    kept: Collection[int],
) -> NoReturn:
    """The fork's own life: whatever happens, it never returns to the code of its parent."""
    code = EXIT_FAILED
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if output is not None:
            os.dup2(output, 1)
            os.dup2(output, 2)
        for descriptor in {*map(int, os.listdir("/proc/self/fd"))} - {0, 1, 2, *kept}:
            with contextlib.suppress(OSError):  # That of the list itself.
                os.close(descriptor)
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        show_marks(environ)
        os.environ.clear()
        os.environ.update(environ)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        die_with_parent(signal.SIGKILL)
        # PYTHONPATH's own come last: none hides what the toolkit imports only later.
        sys.path[:] = list(dict.fromkeys([*sys.path, *folders_of_python_path(environ)]))
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)
        if cpus:
            os.sched_setaffinity(0, cpus)
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed()  # Python's own generator does this by itself.
        code = main()
    except SystemExit as error:
        code = EXIT_DONE if error.code is None else error.code if isinstance(error.code, int) else EXIT_FAILED
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def show_marks(environ: Mapping[str, str]) -> None:
    """Makes /proc show this process's marks, by which later starts and the supervisor find what belongs to a run.

    The kernel shows the environment of the last exec, for forks as well: their marks are written into the room that it
    has for them. What they fork themselves, in any session, has these marks, too. Marks that `environ` lacks stay.
    """
    _shown.update((name, environ[name]) for name in _MARKS if name in environ)
    if (room := _room()) is not None:
        address, size = room
        text = "".join(f"{name}={value}\0" for name, value in _shown.items()).encode(errors="surrogateescape")
        ctypes.memmove(address, (text + f"{ROOM_VARIABLE}=".encode())[:size].ljust(size), size)


@functools.cache
def _room() -> tuple[int, int] | None:
    """Address and size of the room for marks, None without any; marks of whoever executed this program are hidden."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[50 - 3]), int(fields[51 - 3])  # See proc_pid_stat(5).
    entries = ctypes.string_at(start, end - start).split(b"\0") if 0 < start < end else []
    for name in {ROOM_VARIABLE, *_MARKS} & os.environ.keys():
        os.environ[name] = os.environ[name]  # Elsewhere: what C code reads is no longer there.
    address, room = start, None
    for entry in entries:
        name = os.fsdecode(entry.partition(b"=")[0])
        if name == ROOM_VARIABLE:
            room = address, len(entry)
        elif name in _MARKS:
            ctypes.memset(address, ord("_"), 1)
        address += len(entry) + 1
    return room


# The call of a function in a fork.


def call(
    function: Callable[[Callable[[Any], None]], Any],
    name: str,
    environ: Mapping[str, str],
    watch: Callable[[Any], bool] = lambda told: False,
) -> Any:
    """The result of a function, called in a fork; what that leaves running, in any session, is killed.

    Args:
      function: Called with a function that tells this process something.
      name, environ: As of `fork_program`.
      watch: Called many times a second with what it has told last, None before; True ends it.

    Raises:
      UserError: The function raised it.
      CallDiedError: The fork died, or was ended; it has written the traceback of any other exception.
      OSError, RuntimeError: See `fork_program`.
    """
    starter, messages = RoleStarter(), os.memfd_create("messages")
    process: ForkedProcess | None = None

    def end() -> None:
        if process is not None:
            kill_session(process.pid)
            process.wait()
            starter.end_orphans()

    told = None
    try:
        process = fork_program(lambda: _answer(function, messages), name, environ, kept=[messages])
        # A description of its own: the fork's has another offset.
        with before_early_end(end), open(f"/proc/self/fd/{messages}", "rb") as file:
            is_over = False
            while not (watch(told) or is_over):  # It sees what was told last, too.
                is_over = process.poll() is not None  # First: what it has written is there then.
                for kind, content in _complete(file):
                    if kind == "raised":
                        raise content
                    if kind == "returned":
                        return content
                    told = content
                time.sleep(_POLL_SECS)
            end()
        code = process.wait() or 0
        raise CallDiedError(f"exit code {code}" if code >= 0 else signal.Signals(-code).name)
    finally:
        end()
        os.close(messages)


def _answer(function: Callable[[Callable[[Any], None]], Any], messages: int) -> int:
    def send(kind: str, content: Any) -> None:
        with open(messages, "wb", closefd=False) as file:
            pickle.dump((kind, content), file)

    try:
        send("returned", function(lambda content: send("told", content)))
    except UserError as error:
        send("raised", error)
    return EXIT_DONE


def _complete(file: BinaryIO) -> Iterator[tuple[str, Any]]:
    """The further messages that are complete.

    They are in memory and in no pipe: a process that the fork has left may hold that open.
    """
    while True:
        begin = file.tell()
        try:
            yield pickle.load(file)
        except (EOFError, pickle.UnpicklingError):
            file.seek(begin)
            return


# Roles.


class RoleStarter:
    """Starts the roles' processes as forks of this one, which adopts what they leave: what a role has started becomes
    its child when its own parent has ended.
    """

    def __init__(self) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._others = set(children(os.getpid()))  # Which are there for another reason.

    def start(
        self, role: str, cpus: Sequence[int], environ: Mapping[str, str], log: Path, arguments: Sequence[str] = ()
    ) -> ForkedProcess:
        """Starts the process of a role, or one that writes results, on these CPUs, or on any if none are given.

        Raises:
          OSError: It can't be started.
        """

        def run() -> NoReturn:
            sys.argv = [module, *arguments]
            exit_with(importlib.import_module(module).main)

        module = _MODULES.get(role, _WORKER)
        import_all()
        return fork_program(run, f"sac_{role}", environ, log=log, cpus=cpus)

    def orphans(self, roles: Collection[int]) -> set[int]:
        """Pids of the children that this process has adopted; `roles`: pids of the roles' processes."""
        return set(children(os.getpid())) - {*roles, *self._others, *started_apart()}

    def reap_orphans(self, roles: Collection[int]) -> None:
        """Takes the exit codes of orphans that have ended; `roles` as of `orphans`."""
        for pid in self.orphans(roles):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    def end_orphans(self) -> None:
        """Ends all orphans, once no role is left: such as those without marks, in sessions of their own."""
        end_all(lambda: [pid for pid in self.orphans(()) if is_alive(pid)])
        self.reap_orphans(())


# The end of a start whose run has not begun.


def end_early_on_signals() -> None:
    """From now on, until there is a StopFlag, a stop signal ends this process: its run has not begun.

    First it does what `before_early_end` says, the newest first, then it tells that nothing was started. As process 1
    of a container, which signals do not end by default, it has the exit code that a shell has for the signal.
    """

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        words = ["nothing was started"]
        for action in reversed(_early_ends):
            words += action() or []
        with contextlib.suppress(OSError):  # Not by a stream, which may be in the middle of a write.
            after = "\n" if os.isatty(_stderr[-1]) else ""  # `^C`, or a bar.
            line = f"stopped by {signal.Signals(number).name}: {in_callers_terms('; '.join(words))}"
            os.write(_stderr[-1], f"{after}{line}\n".encode())
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        os._exit(128 + number)

    for number in (*STOP_SIGNALS, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # See StopFlag.
            signal.signal(number, end)


@contextlib.contextmanager
def before_early_end(action: Callable[[], Collection[str] | None]) -> Iterator[None]:
    """While the block runs, an early end (see above) does this first; it returns what the user must know of it."""
    _early_ends.append(action)
    try:
        yield
    finally:
        _early_ends.remove(action)
