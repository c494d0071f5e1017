"""The tables of the Reverb server, through which the roles exchange all data.

    segments      worker  -> replay    queue   experience (transport/segments.py)
    requests      trainer -> replay    queue   "the minibatches of iteration i" (`Request`)
    blocks        replay  -> trainer   queue   minibatches (`Block`)
    snapshots     trainer -> replay    queue   "your part of this checkpoint" (`Snapshot`)
    priorities    trainer -> replay    queue   TD errors of drawn steps (`TdErrors`)
    status        replay  -> all       newest  what is stored from each worker (`Stored`)
    progress      trainer -> all       newest  how far the trainer has come (`Progress`)
    news_<i>      trainer -> worker i  news    the same, to wake it
    weights       trainer -> workers   newest  the policy to collect with
    eval_weights  trainer -> workers   newest  the policy to evaluate
    reports       workers -> trainer   queue   returns of episodes, as JSON

Each of the SAC_MAX_WORKERS worker slots has a news table.

A queue holds each item until it is read once; a newest table holds one item, read as often as wanted; a news table
holds the newest item until it is read once, so that its reader can sleep until there is something new.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import numpy as np
import reverb

from tfagents_system.transport.segments import NOTHING_STORED, WorkerRecord

SEGMENTS = "segments"
REQUESTS = "requests"
BLOCKS = "blocks"
SNAPSHOTS = "snapshots"
PRIORITIES = "priorities"
STATUS = "status"
PROGRESS = "progress"
WEIGHTS = "weights"
EVAL_WEIGHTS = "eval_weights"
REPORTS = "reports"

MAX_BLOCKS = 2  # Few, because they are large.
# Items a queue holds before writers must wait.
_QUEUES = {SEGMENTS: 1000, REQUESTS: 100, BLOCKS: MAX_BLOCKS + 1, SNAPSHOTS: 100, PRIORITIES: 100, REPORTS: 10_000}
_CHECKPOINT = re.compile(rb"[A-Za-z0-9_]{1,100}")  # Cannot name a path outside the checkpoints' folder.
_NEWEST = (STATUS, PROGRESS, WEIGHTS, EVAL_WEIGHTS)


def news(worker_id: int) -> str:
    """The table that wakes a worker."""
    return f"news_{worker_id}"


def make_tables(max_workers: int) -> dict[str, reverb.Table]:
    """All tables, empty, by name, of a run with `max_workers` worker slots."""
    queues = [reverb.Table.queue(name, max_size) for name, max_size in _QUEUES.items()]
    newest = [_single_item_table(name, max_times_sampled=0) for name in _NEWEST]
    wakers = [_single_item_table(news(worker_id), max_times_sampled=1) for worker_id in range(max_workers)]
    return {table.name: table for table in queues + newest + wakers}


def _single_item_table(name: str, max_times_sampled: int) -> reverb.Table:
    """A new item replaces the old one: writers never wait, readers wait for the first item."""
    return reverb.Table(
        name,
        sampler=reverb.selectors.Lifo(),
        remover=reverb.selectors.Fifo(),
        max_size=1,
        max_times_sampled=max_times_sampled,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )


AS_DUE = -1  # As many minibatches as updates_per_env_step requires.
OFFLINE = -1  # The iteration before the first, whose minibatches are of prior data alone.


class MalformedMessageError(ValueError):
    """A message whose arrays are malformed."""


@dataclasses.dataclass(frozen=True)
class Request:
    """The trainer asks for minibatches.

    Attributes:
      session: Of the trainer, see `trainer_session`: blocks for an earlier one are dropped.
      iteration: The iteration they are for; they are drawn when its experience has arrived. `OFFLINE`: at once, from
        prior data.
      first: Index of the first minibatch within the iteration (more than 0 after a stop in mid-iteration).
      count: Number of minibatches; they come in blocks of at most `max_block_minibatches` each. `AS_DUE`: the replay
        server decides when the iteration's experience has arrived, and says so in the block.
      updates: Updates done since the run began, before the first of these minibatches.
      recoveries: How often training went back to a checkpoint; each time the draws change.
      ratio_offset: Updates that count as done for the ratio beside these, since it was another one before; may be
        negative.
    """

    session: int
    iteration: int
    first: int
    count: int
    updates: int
    recoveries: int = 0
    ratio_offset: int = 0

    @property
    def counted_updates(self) -> int:
        """Updates that the ratio counts as done before the first of these minibatches."""
        return max(0, self.updates + self.ratio_offset)

    def to_wire(self) -> list[np.ndarray]:
        return [_row(self)]

    @classmethod
    def from_wire(cls, arrays: Sequence[np.ndarray]) -> Request:
        """Reads what `to_wire` made.

        Raises:
          MalformedMessageError: It is anything else.
        """
        request = cls(*(int(value) for value in _only_array(arrays, np.int64, len(dataclasses.fields(cls)))))
        iteration = 0 if request.iteration == OFFLINE else request.iteration
        others = dataclasses.astuple(dataclasses.replace(request, count=0, ratio_offset=0, iteration=iteration))
        if min(others) < 0 or (request.count < 1 and request.count != AS_DUE):
            raise MalformedMessageError(f"impossible request {request}")
        return request


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The trainer asks for the replay server's part of a checkpoint that it is writing; it may ask repeatedly.

    Attributes:
      checkpoint: Name of the checkpoint.
      is_far: The trainer does not see the replay server's run directory: a checkpoint without an agent is made there.
    """

    checkpoint: str
    is_far: bool = False

    def to_wire(self) -> list[np.ndarray]:
        return [np.frombuffer(self.checkpoint.encode(), np.uint8), np.array([self.is_far], np.int64)]

    @classmethod
    def from_wire(cls, arrays: Sequence[np.ndarray]) -> Snapshot:
        """Reads what `to_wire` made.

        Raises:
          MalformedMessageError: It is anything else, or is not allowed as a folder's name.
        """
        name = _only_array(arrays[:1], np.uint8, None).tobytes()
        if not _CHECKPOINT.fullmatch(name):
            raise MalformedMessageError(f"not the name of a checkpoint: {name[:100]!r}")
        return cls(name.decode(), bool(_only_array(arrays[1:], np.int64, 1)[0]))


@dataclasses.dataclass(frozen=True)
class TdErrors:
    """The trainer tells how wrong its critics were about the steps of minibatches.

    Attributes:
      rows: `[K, B]` int64: numbers of rows of the ring, negative ones of none.
      errors: `[K, B]` float32: |TD error|, finite.
    """

    rows: np.ndarray
    errors: np.ndarray

    def to_wire(self) -> list[np.ndarray]:
        return [self.rows, self.errors]

    @classmethod
    def from_wire(cls, arrays: Sequence[np.ndarray]) -> TdErrors:
        """Reads what `to_wire` made.

        Raises:
          MalformedMessageError: It is anything else.
        """
        rows, errors = arrays if len(arrays) == 2 else (np.zeros(0), np.zeros(0))
        if rows.dtype != np.int64 or errors.dtype != np.float32 or rows.ndim != 2 or rows.shape != errors.shape:
            raise MalformedMessageError("expected numbers of rows [K, B] int64 and as many TD errors float32")
        if not np.all((errors >= 0) & np.isfinite(errors)):
            raise MalformedMessageError("a TD error below 0, or one that is not finite")
        return cls(rows, errors)


@dataclasses.dataclass
class Block:
    """Minibatches for consecutive updates.

    Attributes:
      session: Of the request.
      iteration: Of the request.
      first: Index of the block's first minibatch within the iteration.
      count: Minibatches in the block.
      env_steps: Environment steps of the run up to this iteration, random ones included; where asynchronous, all that
        were stored when the block was drawn.
      total: Minibatches of the whole iteration.
      held_out: Minibatches of held-out experience after the others, for measuring only; in an iteration's last block.
      arrays: Of the samples (replay/samples.py), each `[count + held_out, B, ...]`. A block without minibatches has
        none: the iteration has no (more) updates.
      init_steps: Those of `env_steps` before training.
    """

    session: int
    iteration: int
    first: int
    count: int
    env_steps: int
    total: int
    held_out: int
    arrays: list[np.ndarray]
    init_steps: int = 0

    def to_wire(self) -> list[np.ndarray]:
        meta = (self.session, self.iteration, self.first, self.count, self.env_steps, self.total, self.held_out)
        return [np.array([*meta, self.init_steps], np.int64), *self.arrays]

    @classmethod
    def from_wire(cls, arrays: Sequence[np.ndarray]) -> Block:
        session, iteration, first, count, env_steps, total, held_out, init_steps = (int(value) for value in arrays[0])
        return cls(session, iteration, first, count, env_steps, total, held_out, list(arrays[1:]), init_steps)

    @classmethod
    def empty(cls) -> Block:
        """A block that no trainer has asked for."""
        return cls(0, 0, 0, 0, 0, 0, 0, [])


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far the trainer has come.

    Attributes:
      session: Of the trainer, see `trainer_session`: progress of an earlier session is ignored.
      iteration: Iterations completed: the version of the newest policy.
      train_step: Updates done since the run began.
      eval_iteration: Version of the newest policy to evaluate; -1 if there is none.
      paced_updates, paced_steps: Updates without offline ones, and environment steps after the first random ones as the
        trainer's newest block has counted them, since the run has the ratios of both that it has now.
      run: The run's number in its run.json: a worker that knows another one starts anew.
      memory: Where the trainer shares its policies with the workers on its machine, see policies/shared_weights.py.
    """

    session: int
    iteration: int
    train_step: int
    eval_iteration: int
    paced_updates: int = 0
    paced_steps: int = 0
    run: int = 0
    memory: tuple[int, int] = (0, 0)

    def to_wire(self) -> list[np.ndarray]:
        row = [self.session, self.iteration, self.train_step, self.eval_iteration]
        row += [self.paced_updates, self.paced_steps, self.run, *self.memory]
        return [np.array(row, np.int64)]

    @classmethod
    def from_wire(cls, arrays: Sequence[np.ndarray]) -> Progress:
        """Reads what `to_wire` made.

        Raises:
          MalformedMessageError: It is anything else.
        """
        *ids, updates, steps, run, pid, descriptor = _only_array(arrays, np.int64, 9).tolist()
        session, iteration, train_step, eval_iteration = ids
        return cls(session, iteration, train_step, eval_iteration, updates, steps, run, (pid, descriptor))


@dataclasses.dataclass(frozen=True)
class Stored:
    """What the replay server has stored.

    Attributes:
      server: Start of the server's process, in ns: another value means that it was restarted.
      env_steps: Environment steps since the run began.
      workers: `Ring.worker_rows()`. It is sent unchanged, and each worker reads its own row: making Python objects of
        all rows would be expensive, their bytes are not.
      checkpoint_wanted: A checkpoint is needed early: experience in the last one will be overwritten soon.
      received: Items of the queue `segments` received since the server started, refused ones included.
    """

    server: int
    env_steps: int
    workers: np.ndarray
    checkpoint_wanted: bool = False
    received: int = 0

    @property
    def init_episodes(self) -> int:
        """How many of the initial random episodes (or steps) are complete, over all workers."""
        return int(self.workers[:, -1].sum())

    def worker(self, worker_id: int) -> WorkerRecord:
        """What is stored from one worker."""
        place = int(np.searchsorted(self.workers[:, 0], worker_id))
        is_there = place < len(self.workers) and self.workers[place, 0] == worker_id
        return WorkerRecord(*self.workers[place, 1:].tolist()) if is_there else NOTHING_STORED

    def to_wire(self) -> list[np.ndarray]:
        return [np.array([self.server, self.env_steps, self.checkpoint_wanted, self.received], np.int64), self.workers]

    @classmethod
    def from_wire(cls, arrays: Sequence[np.ndarray]) -> Stored:
        head, workers = arrays
        server, env_steps, checkpoint_wanted, received = (int(value) for value in head)
        return cls(server, env_steps, workers, bool(checkpoint_wanted), received)


def _row(message: Request) -> np.ndarray:
    return np.array(dataclasses.astuple(message), np.int64)


def _only_array(arrays: Sequence[np.ndarray], dtype: type, length: int | None) -> np.ndarray:
    """The one array of a message, if it has this dtype, one dimension, and this length."""
    if len(arrays) != 1:
        raise MalformedMessageError(f"expected 1 array but found {len(arrays)}")
    array = arrays[0]
    if array.dtype != dtype or array.ndim != 1 or length not in (None, len(array)):
        raise MalformedMessageError(
            f"expected {np.dtype(dtype)} ({'any' if length is None else length},) but found {array.dtype} {array.shape}"
        )
    return array
