"""Replay: over 2,000 minibatches/s to another process, over 500,000 steps/s in, and the learner does not wait for it.

    python -m benchmarks.replay [--quick]

Batch 256, observation 28, action 8, in a ring of 1,000,000 steps: a real Reverb server in a process of its own.
Draws of three steps, mini-races and priorities are compared in this process, in turns.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.outcome import Outcome, parse_args
from tfagents_system.machine.cpus import allowed_cpus

OBSERVATION, ACTION, BATCH = 28, 8, 256
_DEADLINE_SECS = 300.0
_SEGMENT_STEPS = 1000
_ITERATION = 100  # minibatches


def make_layout() -> Any:
    from tfagents_system.transport.segments import Column, Layout

    return Layout((Column("observation", (OBSERVATION,), "float32"),), (Column("action", (ACTION,), "float32"),))


def make_segment(steps: int, number: int = 0) -> Any:
    """Steps of worker 0, numbered as the sender would."""
    from tfagents_system.transport.segments import Segment

    rng = np.random.default_rng(number)
    return Segment(
        worker_id=0,
        incarnation=1,
        number=number,
        iteration=0,
        end_of_iteration=False,
        starts_episode=True,
        ends_episode=True,
        observation=[rng.standard_normal((steps + 1, OBSERVATION), np.float32)],
        action=[rng.standard_normal((steps, ACTION), np.float32)],
        reward=rng.standard_normal(steps, np.float32),
        discount=np.ones(steps, np.float32),
    )


def no_pacing() -> Any:
    """Every requested minibatch may be drawn at once."""
    from tfagents_system.replay.pacing import Pacing

    class NoPacing(Pacing):
        def env_steps(self, iteration: int) -> int:
            return iteration

        def allowed(self, request: Any, done: int) -> int:
            return int(request.count - done)

        def waiting_for(self, request: Any) -> str:
            return ""

    return NoPacing()


def serve(pipe: Pipe, port: int, folder: Path, steps: int, num_workers: int, cpu: int, is_lockstep: bool) -> None:
    """A replay server with a full ring, on one CPU; serves until the pipe says so."""
    os.sched_setaffinity(0, {cpu})  # Reverb's threads, which start later, inherit it.
    import reverb

    from tfagents_system.replay.pacing import Lockstep
    from tfagents_system.replay.recovery import SnapshotWriter
    from tfagents_system.replay.ring import Ring
    from tfagents_system.replay.sampling import DrawSettings, TransitionForm
    from tfagents_system.replay.server import ReplayService
    from tfagents_system.transport import tables
    from tfagents_system.transport.connection import Connection

    process = psutil.Process()
    rows = steps + -(-steps // _SEGMENT_STEPS)
    started = time.perf_counter()
    ring = Ring.open(folder, make_layout(), rows)
    opened_secs = time.perf_counter() - started
    segment_steps = min(_SEGMENT_STEPS, steps)
    segment = make_segment(segment_steps)
    for segment.number in range(-(-ring.num_rows // segment_steps)):  # Its slack, too: all its memory is in use.
        ring.append(segment)
    all_tables = tables.make_tables(num_workers)
    server = reverb.Server(list(all_tables.values()), port)
    connection = Connection(f"localhost:{port}", lambda: False)
    draw = DrawSettings(BATCH, TransitionForm(), _ITERATION, seed=0)
    blocks, snapshots = all_tables[tables.BLOCKS], SnapshotWriter(ring, folder / "checkpoints")
    pacing = Lockstep(ring, num_workers, straggler_secs=math.inf) if is_lockstep else no_pacing()
    if is_lockstep:
        ring.clear()
    service = ReplayService(ring, connection, blocks, num_workers, draw, pacing, snapshots)
    pipe.send({"ring_bytes": ring.files.num_bytes, "open_secs": opened_secs, "pid": os.getpid()})
    while not pipe.poll():
        for _ in range(20):
            service.step()
    pipe.send(process.memory_full_info().pss)
    server.stop()
    os._exit(0)  # Threads that read from Reverb block in C++.


@contextlib.contextmanager
def replay_server(
    steps: int, cpu: int, num_workers: int = 1, is_lockstep: bool = False
) -> Iterator[tuple[int, dict[str, Any]]]:
    """A server process on a CPU; gives its port and a dictionary of what it says, complete when the server has ended.

    Raises:
      RuntimeError: It ended before it served.
    """
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    ours, theirs = multiprocessing.Pipe()
    with tempfile.TemporaryDirectory(dir=os.environ.get("SAC_REPLAY_DIR")) as folder:
        context = multiprocessing.get_context("spawn")
        arguments = (theirs, port, Path(folder), steps, num_workers, cpu, is_lockstep)
        process = context.Process(target=serve, args=arguments, daemon=True)
        process.start()
        theirs.close()  # Now the pipe ends with the server, and nobody waits for one that has died.
        try:
            if not ours.poll(_DEADLINE_SECS):
                raise TimeoutError("the replay server did not start")
            try:
                told = ours.recv()
            except EOFError:
                raise RuntimeError("the replay server ended before it served: see above") from None
            yield port, told
            ours.send("stop")
            told["pss"] = ours.recv() if ours.poll(_DEADLINE_SECS) else float("nan")
        finally:
            process.join(10)
            process.kill()


class BlockClient:
    """Asks for minibatches and takes them, as the trainer does: the next iteration is asked for ahead of time."""

    def __init__(self, port: int, connection: Any = None) -> None:
        from tfagents_system.transport import tables
        from tfagents_system.transport.connection import Connection

        self._tables = tables
        self._connection = connection or Connection(f"localhost:{port}", lambda: False)
        self._blocks = self._connection.reader(tables.BLOCKS)
        self._iterations = itertools.count()
        self._session = time.time_ns()
        for _ in range(2):
            self._ask()

    def _ask(self) -> None:
        iteration = next(self._iterations)
        request = self._tables.Request(self._session, iteration, 0, _ITERATION, iteration * _ITERATION)
        self._connection.put(self._tables.REQUESTS, request.to_wire())

    def next_block(self) -> list[np.ndarray]:
        """The arrays of one iteration's minibatches."""
        arrays = self._blocks.get(_DEADLINE_SECS)
        if arrays is None:
            raise TimeoutError("no block came")
        self._ask()
        return list(self._tables.Block.from_wire(arrays).arrays)


def minibatches_per_sec(port: int, secs: float) -> float:
    return taken_per_sec(BlockClient(port), secs)


def taken_per_sec(client: BlockClient, secs: float) -> float:
    """Minibatches that a client takes."""
    for _ in range(5):
        client.next_block()
    started, blocks = time.perf_counter(), 0
    while time.perf_counter() - started < secs:
        client.next_block()
        blocks += 1
    return blocks * _ITERATION / (time.perf_counter() - started)


def steps_in_per_sec(port: int, secs: float, segment_steps: int, connection: Any = None) -> float:
    """Sends like a worker: numbered, and done only when the server reports everything as stored."""
    from tfagents_system.transport.connection import Connection, Waiting
    from tfagents_system.worker.sender import SegmentSender

    connection = connection or Connection(f"localhost:{port}", lambda: False)
    sender = SegmentSender(connection, 0, time.time_ns())
    segment = make_segment(segment_steps)
    started, sent = time.perf_counter(), 0
    while time.perf_counter() - started < secs:
        sender.send(segment)
        sent += 1
        if sent % 50 == 0:
            sender.confirm()
    sender.flush(Waiting("the segments", _DEADLINE_SECS, lambda: False))
    return sent * segment_steps / (time.perf_counter() - started)


def learner_ratio(port: int, rounds: int) -> tuple[float, float]:
    """Updates/s with blocks from the server, and on one constant block, in turns."""
    from benchmarks.update import make_update

    update = make_update()
    client = BlockClient(port)
    constant = client.next_block()
    update(constant)
    replay, fixed = [], []
    for _ in range(rounds):
        started = time.perf_counter()
        update(client.next_block())
        replay.append(_ITERATION / (time.perf_counter() - started))
        # The server keeps running in this round, but it fills its two blocks in the first moments.
        started = time.perf_counter()
        update(constant)
        fixed.append(_ITERATION / (time.perf_counter() - started))
    return statistics.median(replay), statistics.median(fixed)


def full_ring(folder: Path, steps: int) -> Any:
    """A ring of so many steps, its slack in use too."""
    from tfagents_system.replay.ring import Ring

    ring = Ring.open(folder, make_layout(), steps + -(-steps // _SEGMENT_STEPS))
    segment = make_segment(min(_SEGMENT_STEPS, steps))
    for segment.number in range(-(-ring.num_rows // _SEGMENT_STEPS)):
        ring.append(segment)
    return ring


def draws_per_sec(steps: int, rounds: int) -> dict[str, list[float]]:
    """Minibatches/s of each kind of draws of three steps, round by round.

    With priorities, those of each block are also changed by its TD errors, as the server does.
    """
    from tfagents_system.replay import sampling
    from tfagents_system.replay.priorities import Priorities
    from tfagents_system.replay.sampling import DrawSettings, MiniRaces, TransitionForm

    rng, races = np.random.default_rng(0), MiniRaces(140)
    with tempfile.TemporaryDirectory(dir=os.environ.get("SAC_REPLAY_DIR")) as folder:
        ring = full_ring(Path(folder), steps)
        priorities = Priorities(ring, 0.6)
        forms = {
            "plain draws": TransitionForm(3),
            "mini-races": TransitionForm(3, races=races),
            "draws with priorities": TransitionForm(3, is_prioritized=True),
            "mini-races with priorities": TransitionForm(3, races=races, is_prioritized=True),
        }
        found: dict[str, list[float]] = {name: [] for name in forms}
        for _ in range(rounds):
            for name, form in forms.items():
                settings = DrawSettings(BATCH, form, _ITERATION, seed=0, priorities=priorities, beta=0.6)
                started = time.perf_counter()
                for _ in range(5):
                    arrays = sampling.draw(ring, rng, settings, _ITERATION)
                    if form.is_prioritized:
                        rows = arrays[-1].ravel()
                        priorities.measure(rows, rng.random(len(rows), np.float32))
                found[name].append(5 * _ITERATION / (time.perf_counter() - started))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="", help="comma-separated ring sizes in steps, to see the growth")
    args = parse_args(parser)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    cpus = allowed_cpus()
    os.sched_setaffinity(0, {cpus[-1]})  # As the launcher does it: the trainer's CPU is its own.
    outcome = Outcome(__doc__.splitlines()[0])
    secs = 0.3 if args.quick else 8.0
    sizes = [int(size) for size in args.sizes.split(",") if size] or (
        [100_000] if args.quick else [10_000, 100_000, 1_000_000, 10_000_000]
    )
    for steps in sizes:
        is_claim = steps == 1_000_000
        with replay_server(steps, cpus[0]) as (port, told):
            out = minibatches_per_sec(port, secs)
            into = steps_in_per_sec(port, secs, _SEGMENT_STEPS)
            outcome.row(f"out of {steps:,} steps", out, "minibatches/s")
            outcome.row(f"into {steps:,} steps", into, "steps/s")
            if is_claim or args.quick:
                outcome.row("into it, segments of 50 steps", steps_in_per_sec(port, secs, 50), "steps/s")
                outcome.ratio("minibatches/s over 2,000", out / 2000, 1.0)
                outcome.ratio("steps/s in over 500,000", into / 500_000, 1.0)
                replay, fixed = learner_ratio(port, 1 if args.quick else 15)
                outcome.row("learner with replay", replay, "updates/s")
                outcome.ratio("learner with replay over constant batch", replay / fixed, 0.97)
        fixed_bytes = told["pss"] - told["ring_bytes"]
        outcome.row(f"memory beside {steps:,} steps in {told['ring_bytes'] >> 20:,} MiB", fixed_bytes / 2**20, "MiB")
        outcome.row(f"opening an empty ring of {steps:,} steps", told["open_secs"] * 1000, "ms")
        if is_claim:
            outcome.ratio("400 MB over the memory beside the steps", 400e6 / fixed_bytes, 1.0)
    rates = draws_per_sec(sizes[0] if args.quick else 1_000_000, 1 if args.quick else 20)
    for name, values in rates.items():
        outcome.row(f"{name} of three steps, without the server", statistics.median(values), "minibatches/s")
    outcome.ratio("mini-races: minibatches/s over 1,500", statistics.median(rates["mini-races"]) / 1500, 1.0)
    for name, target in (("mini-races", 0.6), ("draws with priorities", None), ("mini-races with priorities", 0.4)):
        of_rounds = [value / plain for value, plain in zip(rates[name], rates["plain draws"], strict=True)]
        outcome.ratio(f"{name} over plain draws", statistics.median(of_rounds), target)
    outcome.note(f"CPUs {cpus}: the server on the first, the client on the last")
    outcome.print()


if __name__ == "__main__":
    main()
