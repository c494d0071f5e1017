"""The tables of the Reverb server, through which the roles exchange all data.

    segments      worker  -> replay    queue   experience (transport/segments.py)
    requests      trainer -> replay    queue   "the minibatches of iteration i" (`Request`)
    blocks        replay  -> trainer   queue   minibatches (`Block`)
    snapshots     trainer -> replay    queue   "your part of this checkpoint" (`Snapshot`)
    priorities    trainer -> replay    queue   `[K, B]`: numbers of rows, int64, and their |TD error|, float32
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
from collections.abc import Sequence
from typing import Any

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


@dataclasses.dataclass(frozen=True)
class Request:
    """The trainer asks for minibatches.

    Attributes:
      session: Of the trainer, a larger one for each of its starts: blocks for an earlier one are dropped.
      iteration: The iteration they are for; they are drawn when its experience has arrived. `OFFLINE`: at once, from
        prior data.
      first: Index of the first minibatch within the iteration (more than 0 after a stop in mid-iteration).
      count: Number of minibatches; they come in blocks of at most `max_block_minibatches` each. `AS_DUE`: the replay
        server decides when the iteration's experience has arrived, and says so in the block.
      updates: Updates done since the run began, before the first of these minibatches.
      recoveries: How often training went back to a checkpoint; each time the draws change.
      uncounted_updates: Those of `updates` that the ratio of updates to steps leaves out: offline ones, another run's.
    """

    session: int
    iteration: int
    first: int
    count: int
    updates: int
    recoveries: int = 0
    uncounted_updates: int = 0

    @property
    def counted_updates(self) -> int:
        """Updates that the ratio counts as done before the first of these minibatches."""
        return max(0, self.updates - self.uncounted_updates)

    def to_wire(self) -> list[np.ndarray]:
        return [np.array(dataclasses.astuple(self), np.int64)]

    @classmethod
    def from_wire(cls, arrays: Sequence[np.ndarray]) -> Request:
        return cls(*arrays[0].tolist())


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
        return cls(arrays[0].tobytes().decode(), bool(arrays[1][0]))


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
      arrays: Of the samples (replay/sampling.py), each `[count + held_out, B, ...]`. A block without minibatches has
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
        *numbers, init_steps = arrays[0].tolist()
        fields: list[Any] = [*numbers, list(arrays[1:]), init_steps]
        return cls(*fields)

    @classmethod
    def empty(cls) -> Block:
        """A block that no trainer has asked for."""
        return cls(0, 0, 0, 0, 0, 0, 0, [])


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far the trainer has come.

    Attributes:
      session: Of the trainer: progress of an earlier session is ignored.
      iteration: Iterations completed: the version of the newest policy.
      train_step: Updates done since the run began.
      eval_iteration: Version of the newest policy to evaluate; -1 if there is none.
      paced_updates, paced_steps: Updates that the ratio of both counts, and environment steps after the first random
        ones as the trainer's newest block has counted them.
      run: The run's number in its run.json: a worker that knows another one starts anew.
      memory: Where the trainer shares its policies with the workers on its machine, see policies/weights.py.
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
        *numbers, memory = dataclasses.astuple(self)
        return [np.array([*numbers, *memory], np.int64)]

    @classmethod
    def from_wire(cls, arrays: Sequence[np.ndarray]) -> Progress:
        *numbers, pid, descriptor = arrays[0].tolist()
        fields: list[Any] = [*numbers, (pid, descriptor)]
        return cls(*fields)


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
        server, env_steps, checkpoint_wanted, received = head.tolist()
        return cls(server, env_steps, workers, bool(checkpoint_wanted), received)
