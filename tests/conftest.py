"""Settings that hold for every test: quiet TensorFlow, no GPU, the same random inputs in every run."""

import ctypes
import gc
import itertools
import os
import signal
import sys
import uuid
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
# As many processes of tests as CPUs: threads of one would wait for those of the others. Runs set their own.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", TF_NUM_INTRAOP_THREADS="1", TF_NUM_INTEROP_THREADS="1")

# As in the foreground, for the programs that tests start, too: what a shell starts in the background ignores it.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

import pytest  # noqa: E402
from absl import logging  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

from tests.support import launching  # noqa: E402
from tfagents_system.machine import claims  # noqa: E402

_PR_SET_CHILD_SUBREAPER = 36
gc.disable()  # Looking for garbage takes a quarter of the collection's time, until its end.

settings.register_profile("seeded", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("nightly", deadline=None, max_examples=1000, suppress_health_check=list(HealthCheck))
settings.load_profile("seeded")  # `--hypothesis-profile nightly` comes after it: new inputs, and more of them.


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require", action="store_true", help="a test fails that would be skipped for what is missing here"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes an hour is run where it is asked for. With xdist, see `_mixed`."""
    if "nightly" not in config.option.markexpr:
        nightly = [item for item in items if item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=nightly)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
    if hasattr(config, "workerinput"):
        items[:] = _mixed(items)


def _mixed(items: list[pytest.Item]) -> list[pytest.Item]:
    """Whole files, by turns one with real runs and one without; many short files are left for the end.

    Real runs wait much of their time, for each other and for moments: what only computes uses the CPUs meanwhile. With
    the files of few tests last, as xdist has them unless told otherwise, all real runs meet, and one CPU waits for the
    longest.
    """
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    by_length = sorted(files.values(), key=len, reverse=True)
    by_kind: dict[bool, list[list[pytest.Item]]] = {True: [], False: []}
    for file in by_length:
        by_kind[any(item.get_closest_marker("slow") for item in file)].append(file)
    pairs: Iterator[Any] = itertools.zip_longest(by_kind[True], by_kind[False], fillvalue=[])
    return [item for pair in pairs for file in pair for item in file]


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)  # Traces of functions make thousands of objects, few of them garbage.
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and item.config.getoption("--require"):
        report.outcome, report.longrepr = "failed", f"skipped, though all is required: {report.longrepr}"
    return report


@pytest.fixture(autouse=True, scope="module")
def no_run_left() -> Iterator[None]:
    """What a failed test has left running would take the CPUs from those after it."""
    yield
    launching.end_all()


@pytest.fixture(autouse=True)
def environment_as_before() -> Iterator[None]:
    """Programs that a test runs in this process, such as `sac`, set variables for what they become."""
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(autouse=True)
def warnings_told() -> Iterator[None]:
    """Programs that a test runs in this process, such as run.py, make it quieter; later tests look for warnings."""
    before = logging.get_verbosity()
    yield
    logging.set_verbosity(before)


@pytest.fixture(autouse=True)
def no_subreaper_left() -> Iterator[None]:
    """A supervisor that a test runs in this process adopts orphans; those of later tests are not this process's."""
    yield
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture
def claims_prefix(monkeypatch: pytest.MonkeyPatch) -> str:
    """Claims of this test are apart from those of real runs and of other tests on this machine."""
    prefix = f"test_{uuid.uuid4().hex}"
    monkeypatch.setattr(claims, "_PREFIX", prefix)
    return prefix


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """Programs that a test runs in this process, such as a start's checks, let Ctrl-C end it without KeyboardInterrupt:
    a later test that sends one would end all tests.
    """
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        if handler is not None and signal.getsignal(number) != handler:
            signal.signal(number, handler)


# Classes that start a thread, and the arguments of their `close`.
_TO_CLOSE: dict[tuple[str, str], tuple[float, ...]] = {
    ("tfagents_system.transport.connection", "Connection"): (),
    ("tfagents_system.replay.recovery", "SnapshotWriter"): (5.0,),
}
_PREPARATION = ("tfagents_system.launch.prepare", "Preparation")


@pytest.fixture(autouse=True)
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Readers that look for earlier tests' servers would take the CPUs from later tests; writers keep rings open; and
    checks keep temporary folders.
    """
    opened: dict[tuple[str, str], list[Any]] = {what: [] for what in _TO_CLOSE}
    for what, made in opened.items():
        _note_each(monkeypatch, what, made.append)
    prepared: weakref.WeakSet[Any] = weakref.WeakSet()  # One that nobody holds has removed its folders itself.
    _note_each(monkeypatch, _PREPARATION, prepared.add)
    yield
    for preparation in list(prepared):
        preparation.close()
    for what, arguments in _TO_CLOSE.items():
        for each in opened[what]:
            each.close(*arguments)
    if len(os.listdir("/proc/self/fd")) > 300:
        gc.collect()  # Rings that only refer to themselves: `select` knows 1024 files.


def _note_each(monkeypatch: pytest.MonkeyPatch, what: tuple[str, str], note: Callable[[Any], None]) -> None:
    """Every object of a class, where its module is loaded."""
    module, name = what
    if module not in sys.modules:
        return
    kind = getattr(sys.modules[module], name)
    make = kind.__init__

    def make_and_note(self: Any, *args: object, **kwargs: object) -> None:
        make(self, *args, **kwargs)
        note(self)

    monkeypatch.setattr(kind, "__init__", make_and_note)
