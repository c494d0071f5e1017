"""A replay server serves 1,000 workers: what one iteration of one of them costs it, and what is full first.

    python -m benchmarks.many_clients [--quick]

Simulated workers: each sends a segment of 1,000 steps, reads what is stored, and reads the newest policy of a
(256, 256) network, over and over, from a few processes. Then they wait for a policy, as workers do while the trainer
updates, and it is published. The server has a CPU of its own where there are two or more.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from typing import Any

import numpy as np
import psutil

from benchmarks.outcome import Outcome, parse_args
from benchmarks.replay import make_segment, replay_server
from tfagents_system.machine.topology import allowed_cpus, format_cpu_list

_DEADLINE_SECS = 120.0
_PROCESSES = 4
_MOST_CPUS = {256: 0.1, 1000: 0.3}  # Of the server, while so many workers wait.
_POLICY_BYTES = 4 * (28 * 256 + 256 + 256 * 256 + 256 + 256 * 16 + 16)


def simulate(pipe: Pipe, port: int, worker_ids: range) -> None:
    """Workers that only talk to the server; follows the pipe's orders until `stop`."""
    from tfagents_system.transport import tables
    from tfagents_system.transport.connection import Connection
    from tfagents_system.worker.progress import ProgressReader
    from tfagents_system.worker.sender import SegmentSender

    connections = [Connection(f"localhost:{port}", lambda: False) for _ in worker_ids]
    progress = [ProgressReader(c, worker_id) for c, worker_id in zip(connections, worker_ids, strict=True)]
    policies = [c.newest(tables.WEIGHTS) for c in connections]
    statuses = [c.newest(tables.STATUS) for c in connections]
    senders = [SegmentSender(c, w, time.time_ns()) for c, w in zip(connections, worker_ids, strict=True)]
    segment = make_segment(1000)
    pipe.send("ready")
    while True:
        order, secs = pipe.recv()
        if order == "stop":
            os._exit(0)
        if order == "news":
            pipe.send((until_all_know(progress, secs), time.monotonic()))
        elif order == "wait":
            pipe.send(wait_for_a_policy(progress, senders, secs))
        else:
            started, done = time.monotonic(), 0
            while time.monotonic() - started < secs or (not secs and done < len(senders)):
                k = done % len(senders)
                if order in ("all", "segment"):
                    senders[k].send(segment)
                if order in ("all", "confirm"):
                    tables.Stored.from_wire(statuses[k].get(_DEADLINE_SECS) or ()).worker(worker_ids[k])
                if order in ("all", "policy"):
                    assert policies[k].get(_DEADLINE_SECS) is not None
                done += 1
            pipe.send((done, time.monotonic() - started))


def until_all_know(progress: list[Any], secs: float) -> int:
    """How many workers learn of another iteration by news within the time."""
    before, deadline = [reader.newest for reader in progress], time.monotonic() + secs
    woken = 0
    for reader, known in zip(progress, before, strict=True):
        while reader.newest == known and time.monotonic() < deadline:
            reader.get(0.2)
        woken += reader.newest != known
    return woken


def wait_for_a_policy(progress: list[Any], senders: list[Any], secs: float) -> int:
    """Waits like workers: each checks news and stored data five times a second. Returns the number of checks."""
    deadline, rounds = time.monotonic() + secs, 0
    while (began := time.monotonic()) < deadline:
        for reader, sender in zip(progress, senders, strict=True):
            reader.get(0.0)
            sender.confirm()
        rounds += 1
        time.sleep(max(0.0, 0.2 - (time.monotonic() - began)))
    return rounds


class Clients:
    """`count` simulated workers in a few processes."""

    def __init__(
        self, port: int, count: int, target: Callable[..., None] = simulate, most_processes: int = _PROCESSES
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._processes: list[Any] = []
        self._pipes: list[Pipe] = []
        num_processes = min(most_processes, count)
        for k in range(num_processes):
            ours, theirs = multiprocessing.Pipe()
            share = range(k * count // num_processes, (k + 1) * count // num_processes)
            process = context.Process(target=target, args=(theirs, port, share), daemon=True)
            process.start()
            self._processes.append(process)
            self._pipes.append(ours)
        self._answers()

    def ask(self, order: str, details: Any) -> list[Any]:
        """The answers of all processes."""
        self.begin(order, details)
        return self._answers()

    def begin(self, order: str, details: Any) -> None:
        """Gives an order; `finish` takes the answers."""
        for pipe in self._pipes:
            pipe.send((order, details))

    def finish(self) -> list[Any]:
        """The answers to `begin`."""
        return self._answers()

    def _answers(self) -> list[Any]:
        deadline = time.monotonic() + _DEADLINE_SECS
        answers: dict[Any, Any] = {}
        while len(answers) < len(self._pipes):
            missing = [pipe for pipe in self._pipes if pipe not in answers]
            ready = wait(missing, max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("a process of simulated workers does not answer")
            answers.update({pipe: pipe.recv() for pipe in self._pipes if pipe in ready})
        return list(answers.values())

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


def measure(outcome: Outcome, count: int, server_cpu: int, secs: float, most_processes: int) -> None:
    """All figures of one number of workers."""
    from tfagents_system.transport import tables
    from tfagents_system.transport.connection import Connection

    with replay_server(100_000, server_cpu, count) as (port, told):
        connection = Connection(f"localhost:{port}", lambda: False)
        connection.put(tables.WEIGHTS, [np.zeros(_POLICY_BYTES, np.uint8)])
        connection.put(tables.PROGRESS, tables.Progress(1, 0, 0, -1).to_wire())
        clients = Clients(port, count, most_processes=most_processes)
        server = psutil.Process(told["pid"])
        try:
            for order in ("segment", "confirm", "policy", "all"):
                clients.ask(
                    order, 0.0
                )  # Each worker's first one, which asks the server for its tables, is not counted.
                before = sum(server.cpu_times()[:2])
                answers = clients.ask(order, secs)
                cpu = sum(server.cpu_times()[:2]) - before
                done = sum(number for number, _ in answers)
                elapsed = max(duration for _, duration in answers)
                outcome.row(f"{count} workers, {order}: rate", done / elapsed, "1/s")
                outcome.row(f"{count} workers, {order}: server's CPU", 1000 * cpu / done, "ms each")
            measure_waiting(outcome, clients, connection, count, server, 2.5 * secs)
        finally:
            clients.close()
    outcome.row(f"{count} workers: server's memory beside the ring", (told["pss"] - told["ring_bytes"]) / 2**20, "MiB")


def measure_waiting(
    outcome: Outcome, clients: Clients, connection: Any, count: int, server: psutil.Process, secs: float
) -> None:
    """All wait while the trainer updates, then it publishes: the server's CPU, and the trainer's time."""
    from tfagents_system.trainer.publisher import Publisher

    publisher = Publisher(connection, count)
    before = sum(server.cpu_times()[:2])
    clients.ask("wait", secs)
    waiting = (sum(server.cpu_times()[:2]) - before) / secs
    outcome.row(f"{count} workers wait: server's CPU", waiting, "CPUs")
    if count in _MOST_CPUS:
        most = _MOST_CPUS[count]
        outcome.ratio(f"{count} workers wait: {most} CPUs over the server's", most / max(waiting, 1e-3), 1.0)
    publications = [publish(clients, publisher, version) for version in range(1, 6)]
    held, told, awake, woken = (statistics.median(figures) for figures in zip(*publications, strict=True))
    outcome.row(f"{count} workers: publishing, of the trainer's time", 1000 * held, "ms")
    if count == max(_MOST_CPUS):
        outcome.ratio(f"{count} workers: 5 ms over publishing, of the trainer's time", 0.005 / held, 1.0)
    outcome.row(f"{count} workers: until a policy and the news are published", 1000 * told, "ms")
    outcome.row(f"{count} workers: until all are awake", 1000 * awake, "ms")
    outcome.row(f"{count} workers: woken", woken, "workers")


def publish(clients: Clients, publisher: Any, version: int) -> tuple[float, float, float, int]:
    """Seconds of the trainer's thread, until all is published, until the last worker knows, and how many know."""
    from tfagents_system.policies import weights
    from tfagents_system.transport import tables

    variables = policy_variables()
    clients.begin("news", _DEADLINE_SECS / 2)
    time.sleep(1.0)  # They wait now.
    started = time.monotonic()
    arrays = weights.to_arrays(weights.read_weights(variables))
    publisher.publish([np.array([1, version, version], np.int64), *arrays], None, tables.Progress(1, version, 1, -1))
    held = time.monotonic() - started
    publisher.wait()
    told = time.monotonic() - started
    answers = clients.finish()
    return held, told, max(at for _, at in answers) - started, sum(woken for woken, _ in answers)


def policy_variables() -> dict[str, Any]:
    """Of a (256, 256) network."""
    import tensorflow as tf

    shapes = [(28, 256), (256,), (256, 256), (256,), (256, 16), (16,)]
    return {f"variable_{number}": tf.Variable(tf.zeros(shape)) for number, shape in enumerate(shapes)}


def main() -> None:
    args = parse_args()
    outcome = Outcome(__doc__.splitlines()[0])
    cpus = allowed_cpus()
    others = cpus[1:] or cpus
    os.sched_setaffinity(0, others)  # The simulated workers inherit it.
    for count in (8,) if args.quick else (16, 256, 1000):
        measure(outcome, count, cpus[0], *((0.3, 2) if args.quick else (8.0, _PROCESSES)))
    outcome.note(f"the server on CPU {cpus[0]}, the simulated workers on {format_cpu_list(others)}")
    outcome.print()


if __name__ == "__main__":
    main()
