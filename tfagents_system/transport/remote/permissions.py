"""Which kind of remote program may write and read which table, and what an item may contain."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from tfagents_system.report.episodes import Report
from tfagents_system.transport import bundles, tables
from tfagents_system.transport.layout import Layout
from tfagents_system.transport.remote.errors import FrameError
from tfagents_system.transport.segments import MalformedSegmentError

_ALL_WORKERS = frozenset({"collect", "expert", "eval", "test"})
_COLLECTORS = frozenset({"collect", "expert"})
_TRAINER = frozenset({"trainer"})
_ALL = _ALL_WORKERS | _TRAINER
_NOBODY: frozenset[str] = frozenset()
_NEWS = "news_"  # Prefix of all news tables.


@dataclasses.dataclass(frozen=True)
class _Access:
    """Kinds of programs by the access to a table that they have."""

    put: frozenset[str] = _NOBODY
    newest: frozenset[str] = _NOBODY
    take: frozenset[str] = _NOBODY
    follow: frozenset[str] = _NOBODY


_ACCESS = {
    tables.SEGMENTS: _Access(put=_COLLECTORS),
    tables.REPORTS: _Access(put=_COLLECTORS | {"eval"}, take=_TRAINER),
    tables.STATUS: _Access(newest=_ALL),
    tables.PROGRESS: _Access(put=_TRAINER, newest=_ALL),
    tables.WEIGHTS: _Access(put=_TRAINER, newest=_ALL_WORKERS),
    tables.EVAL_WEIGHTS: _Access(put=_TRAINER, newest=_ALL_WORKERS),
    tables.REQUESTS: _Access(put=_TRAINER),
    tables.SNAPSHOTS: _Access(put=_TRAINER),
    tables.HEADERS: _Access(newest=_TRAINER),
    tables.PRIORITIES: _Access(put=_TRAINER),
    tables.BLOCKS: _Access(take=_TRAINER),
    _NEWS: _Access(put=_TRAINER, follow=_ALL_WORKERS),  # Workers: their own one.
}


# Their writers do not wait for each item: they resend lost items by themselves, seconds later.
STREAMED = (tables.SEGMENTS, tables.REQUESTS)


@dataclasses.dataclass(frozen=True)
class Client:
    """Who is at the other end.

    Attributes:
      kind: One of messages.KINDS.
      worker_id: Its slot; -1 where it has none.
    """

    kind: str
    worker_id: int


def check_access(client: Client, what: str, table: str) -> None:
    """Raises FrameError unless the client may `put`, `newest`, `take` or `follow` the table."""
    access = _ACCESS.get(_NEWS if table.startswith(_NEWS) else table)
    is_allowed = access is not None and client.kind in getattr(access, what)
    if is_allowed and what == "follow":
        is_allowed = table == tables.news(client.worker_id)
    if not is_allowed:
        raise FrameError(f"a program of kind {client.kind!r} may not {what} the table {table[:40]!r}")


def may_ask_size(client: Client, table: str) -> None:
    """Raises FrameError unless the client has some access to the table."""
    access = _ACCESS.get(_NEWS if table.startswith(_NEWS) else table, _Access())
    if not any(client.kind in kinds for kinds in dataclasses.astuple(access)):
        raise FrameError(f"a program of kind {client.kind!r} may not know of the table {table[:40]!r}")


def check_item(client: Client, table: str, arrays: Sequence[np.ndarray], layout: Layout) -> None:
    """Checks that the arrays fit the table and are the client's own.

    Raises:
      FrameError: They are not.
    """
    try:
        if table == tables.SEGMENTS:
            for segment in bundles.from_wire(arrays, layout):
                _own(client, segment.worker_id)
        else:
            _CHECKS[_NEWS if table.startswith(_NEWS) else table](client, arrays)
    except (MalformedSegmentError, tables.MalformedMessageError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FrameError(f"an item for {table[:40]!r} that it is not for: {error}") from None


def _own(client: Client, worker_id: int) -> None:
    if client.worker_id not in (worker_id, -1):
        raise FrameError(f"experience or a report of worker {worker_id} from worker {client.worker_id}")


def _check_report(client: Client, arrays: Sequence[np.ndarray]) -> None:
    if len(arrays) != 1 or arrays[0].dtype != np.uint8 or arrays[0].ndim != 1:
        raise FrameError("a report that is not one array of bytes")
    _own(client, Report.from_wire(list(arrays)).worker_id)


def _check_weights(client: Client, arrays: Sequence[np.ndarray]) -> None:
    """As the trainer publishes them: three numbers, names, values."""
    del client
    if len(arrays) < 2 or arrays[0].dtype != np.int64 or arrays[0].shape != (3,) or arrays[1].dtype != np.uint8:
        raise FrameError("weights that do not begin with three int64 and the names")


def _check_block(client: Client, arrays: Sequence[np.ndarray]) -> None:
    """The dummy item (see `Connection.feed_dead_reader`)."""
    del client
    empty = tables.Block.empty().to_wire()
    if len(arrays) != 1 or arrays[0].dtype != np.int64 or not np.array_equal(arrays[0], empty[0]):
        raise FrameError("a block of minibatches, which only the replay server makes")


_CHECKS: dict[str, Callable[[Client, Sequence[np.ndarray]], object]] = {
    tables.REPORTS: _check_report,
    tables.BLOCKS: _check_block,
    tables.PROGRESS: lambda client, arrays: tables.Progress.from_wire(arrays),
    _NEWS: lambda client, arrays: tables.Progress.from_wire(arrays),
    tables.WEIGHTS: _check_weights,
    tables.EVAL_WEIGHTS: _check_weights,
    tables.REQUESTS: lambda client, arrays: tables.Request.from_wire(arrays),
    tables.SNAPSHOTS: lambda client, arrays: tables.Snapshot.from_wire(arrays),
    tables.PRIORITIES: lambda client, arrays: tables.TdErrors.from_wire(arrays),
}
