"""A tunnel to another machine keeps at least 0.7 of the blocks of a plain connection; and how many of the segments.

    python -m benchmarks.tunnel [--quick]

A real Reverb server on the first CPU and the client, with its tunnel's program, on the last one. The gateway on a CPU
of its own, as in a run that leaves one free (the jobs of submit.sh leave two), on two CPUs on the client's; and on the
server's, where both have one CPU for what the server alone has in the plain case. All ways in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

from benchmarks.outcome import Outcome, parse_args
from benchmarks.replay import BlockClient, replay_server, steps_in_per_sec, taken_per_sec
from tfagents_system.machine.cpus import allowed_cpus

_DEADLINE_SECS = 120.0
_IDENTITY = {"params": "benchmark"}
_STEPS = 100_000
_APART, _SHARED = "tunnel, gateway apart", "tunnel, gateway on the server's CPU"


def serve(pipe: Pipe, reverb_port: int, folder: Path, cpu: int) -> None:
    """A gateway to a replay server; serves until it is killed."""
    os.sched_setaffinity(0, {cpu})
    from tfagents_system.cluster.gateway import Gateway, RemoteSlots, listen
    from tfagents_system.machine.worker_slots import SlotCounts
    from tfagents_system.run_files.run_paths import RunPaths
    from tfagents_system.transport import credentials

    paths = RunPaths(folder)
    credentials.ensure_credentials(paths.credentials, "benchmark")
    slots = RemoteSlots(SlotCounts(0, 1, 2), reverb_port, has_trainer=False)  # From 0: segments are of worker 0.
    gateway, listener = Gateway(paths, _IDENTITY, {"variables": {}, "defaults": {}}, 0, reverb_port, slots), listen(0)

    async def run() -> None:
        await (await gateway.listen(listener, credentials.server_context(paths.credentials))).serve_forever()

    pipe.send(listener.getsockname()[1])
    asyncio.run(run())


@contextlib.contextmanager
def gateway_to(reverb_port: int, folder: Path, cpu: int) -> Iterator[int]:
    """A gateway process on a CPU; yields its port."""
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=serve, args=(theirs, reverb_port, folder, cpu), daemon=True)
    process.start()
    try:
        if not ours.poll(_DEADLINE_SECS):
            raise TimeoutError("the gateway did not start")
        yield ours.recv()
    finally:
        process.kill()
        process.join(10)


def connect(port: int, folder: Path, kind: str) -> Any:
    """A connection through a tunnel."""
    from tfagents_system.run_files.run_paths import RunPaths
    from tfagents_system.transport.connection import Connection
    from tfagents_system.transport.tunnel import Hello, Tunnel

    tunnel = Tunnel(f"localhost:{port}", Hello(kind, _IDENTITY, token=kind), RunPaths(folder).credentials, None)
    while tunnel.welcome is None:
        time.sleep(0.1)
    connection = Connection(tunnel.address, lambda: False, tunnel.socket)
    connection.wait_until_up(_DEADLINE_SECS)
    return connection


def main() -> None:
    args = parse_args(argparse.ArgumentParser(description=__doc__))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    cpus = allowed_cpus()
    os.sched_setaffinity(0, {cpus[-1]})
    outcome = Outcome(__doc__.splitlines()[0])
    secs, rounds = (1.0, 1) if args.quick else (3.0, 5)
    figures: dict[str, list[float]] = {}
    with (
        # One server per path: the reader of one would take the other's blocks.
        replay_server(_STEPS, cpus[0]) as (plain_port, _),
        replay_server(_STEPS, cpus[0]) as (apart_port, _),
        replay_server(_STEPS, cpus[0]) as (shared_port, _),
        tempfile.TemporaryDirectory() as apart_folder,
        tempfile.TemporaryDirectory() as shared_folder,
        gateway_to(apart_port, Path(apart_folder), cpus[1]) as apart,
        gateway_to(shared_port, Path(shared_folder), cpus[0]) as shared,
    ):
        ways: dict[str, tuple[Any, BlockClient]] = {"plain": (None, BlockClient(plain_port))}
        for way, port, place in ((_APART, apart, apart_folder), (_SHARED, shared, shared_folder)):
            worker, trainer = (connect(port, Path(place), kind) for kind in ("collect", "trainer"))
            ways[way] = worker, BlockClient(0, trainer)
        for _ in range(rounds):
            for way, (connection, blocks) in ways.items():
                for steps in (1000, 50):
                    rate = steps_in_per_sec(plain_port, secs, steps, connection)
                    figures.setdefault(f"{way}: segments of {steps} steps", []).append(rate)
                figures.setdefault(f"{way}: blocks", []).append(taken_per_sec(blocks, secs))
    medians = {name: statistics.median(values) for name, values in figures.items()}
    for name, value in medians.items():
        outcome.row(name, value, "minibatches/s" if "blocks" in name else "steps/s")
    for way in (_APART, _SHARED):
        for what in ("segments of 1000 steps", "segments of 50 steps", "blocks"):
            target = 0.7 if what == "blocks" else None  # Each segment waits for an answer.
            outcome.ratio(f"{way}: {what} over plain", medians[f"{way}: {what}"] / medians[f"plain: {what}"], target)
    outcome.note(f"CPUs {cpus}: the server on the first, the client on the last, the gateway apart on the second")
    outcome.print()


if __name__ == "__main__":
    main()
