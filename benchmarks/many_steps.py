"""Hundreds of workers, iterations of steps: 500,000 steps/s come in, and the resource that is full first has a name.

    python -m benchmarks.many_steps [--quick]

Simulated workers, which only talk to the server, send segments of 50 steps to a real server: workers of one environment
and of 16. First they send as fast as they can. Then they keep to iterations of 50 steps of each environment: a worker
waits for the policy, takes it, and sends its share, while a trainer takes minibatches and 5 ms for each. The server's
speed is told by its own CPU time, because in a real run the workers have other CPUs.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import time
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from typing import Any

import numpy as np
import psutil

from benchmarks.outcome import Outcome, parse_args
from benchmarks.replay import make_segment, replay_server
from tfagents_system.machine.cpus import allowed_cpus, format_cpu_list

_DEADLINE_SECS = 120.0
_SEGMENT_STEPS = 50
_RING_STEPS = 100_000
_UPDATE_SECS = 0.005
_UPDATES = 20  # An iteration's: 0.1 s of the trainer's time.
_BUNDLE_ROWS = 1000  # As `Layout.max_segment_steps` has it for these columns.
_MOST_BYTES_A_WORKER = 0.5 * 2**20


def simulate(pipe: Pipe, port: int, worker_ids: range) -> None:
    """Workers without simulators; follows the pipe's orders until `stop`."""
    from tfagents_system.transport import tables
    from tfagents_system.transport.connection import Connection, Waiting
    from tfagents_system.worker.newest_policy import ProgressReader
    from tfagents_system.worker.sender import SegmentSender

    connections = [Connection(f"localhost:{port}", lambda: False) for _ in worker_ids]
    progress = [
        ProgressReader(c.news(tables.news(worker_id)), c.newest(tables.PROGRESS))
        for c, worker_id in zip(connections, worker_ids, strict=True)
    ]
    policies = [c.newest(tables.WEIGHTS) for c in connections]
    senders = [
        SegmentSender(c, w, time.time_ns(), max_bundle_rows=_BUNDLE_ROWS)
        for c, w in zip(connections, worker_ids, strict=True)
    ]
    segment = make_segment(_SEGMENT_STEPS)

    def send(sender: SegmentSender, lanes: int, iteration: int) -> None:
        for lane in range(lanes):
            is_last = lane == lanes - 1
            sender.send(dataclasses.replace(segment, iteration=iteration, end_of_iteration=is_last))
        sender.confirm()

    pipe.send("ready")
    while True:
        order, argument = pipe.recv()
        if order == "stop":
            os._exit(0)
        lanes, amount = argument
        started, cpu, done = time.monotonic(), time.process_time(), 0
        if order == "send":
            while time.monotonic() - started < amount or done < len(senders):
                send(senders[done % len(senders)], lanes, 0)
                done += 1
        else:
            for iteration in range(amount):
                for reader, policy, sender in zip(progress, policies, senders, strict=True):
                    wait_for_policy(reader, iteration - 1)
                    assert policy.get(_DEADLINE_SECS) is not None
                    send(sender, lanes, iteration)
        for sender in senders:
            sender.flush(Waiting("the segments", _DEADLINE_SECS, lambda: False))
        pipe.send((done, time.monotonic() - started, time.process_time() - cpu))


def wait_for_policy(reader: Any, version: int) -> None:
    deadline = time.monotonic() + _DEADLINE_SECS
    progress = reader.get()
    while progress is None or progress.iteration < version:
        assert time.monotonic() < deadline, f"no policy {version}"
        progress = reader.get(wait_secs=0.2)


class Clients:
    """`count` simulated workers in a few processes."""

    def __init__(self, port: int, count: int, most_processes: int = 4) -> None:
        context = multiprocessing.get_context("spawn")
        self._processes: list[Any] = []
        self._pipes: list[Pipe] = []
        num_processes = min(most_processes, count)
        for k in range(num_processes):
            ours, theirs = multiprocessing.Pipe()
            share = range(k * count // num_processes, (k + 1) * count // num_processes)
            process = context.Process(target=simulate, args=(theirs, port, share), daemon=True)
            process.start()
            self._processes.append(process)
            self._pipes.append(ours)
        self.answers()

    def ask(self, order: str, details: Any) -> list[Any]:
        """The answers of all processes."""
        self.begin(order, details)
        return self.answers()

    def begin(self, order: str, details: Any) -> None:
        """Gives an order."""
        for pipe in self._pipes:
            pipe.send((order, details))

    def answers(self) -> list[Any]:
        """Those of all processes to the last order."""
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


def ingest(outcome: Outcome, count: int, lanes: int, cpu: int, secs: float) -> float:
    """Workers send as fast as they can. Returns the steps/s that one CPU of the server takes."""
    with replay_server(_RING_STEPS, cpu, count) as (port, told):
        clients = Clients(port, count)
        server = psutil.Process(told["pid"])
        try:
            clients.ask("send", (lanes, 0.0))  # Each worker's first one opens its streams.
            before = sum(server.cpu_times()[:2])
            answers = clients.ask("send", (lanes, secs))
            used = sum(server.cpu_times()[:2]) - before
        finally:
            clients.close()
    steps = sum(done for done, _, _ in answers) * lanes * _SEGMENT_STEPS
    elapsed = max(duration for _, duration, _ in answers)
    name = f"{count} workers of {lanes} environments"
    outcome.row(f"{name}: stored, workers on the same CPUs", steps / elapsed, "steps/s")
    outcome.row(f"{name}: stored, of one CPU of the server", steps / used, "steps/s")
    outcome.row(
        f"{name}: server's CPU, an item of {min(lanes * 50, 950)} steps", 1e6 * used * 50 / steps, "us a segment"
    )
    outcome.row(f"{name}: workers' CPU", 1e6 * sum(c for _, _, c in answers) * 50 / steps, "us a segment")
    return steps / used


def iterate(outcome: Outcome, count: int, lanes: int, cpu: int, iterations: int) -> float:
    """Iterations in lock-step. Returns the bytes of the server beside its ring."""
    from tfagents_system.trainer.publisher import Publisher
    from tfagents_system.transport import tables
    from tfagents_system.transport.connection import Connection

    with replay_server(_RING_STEPS, cpu, count, is_lockstep=True) as (port, told):
        connection = Connection(f"localhost:{port}", lambda: False)
        publisher, variables = Publisher(connection, count), policy_variables()
        publish(publisher, variables, 0)
        publisher.wait()
        clients = Clients(port, count)
        server = psutil.Process(told["pid"])
        try:
            blocks = connection.reader(tables.BLOCKS)
            before = sum(server.cpu_times()[:2])
            started = time.monotonic()
            clients.begin("iterate", (lanes, iterations))
            busy = train(connection, blocks, publisher, variables, iterations)
            elapsed = time.monotonic() - started
            used = sum(server.cpu_times()[:2]) - before
            publisher.wait()
            answers = clients.answers()
        finally:
            clients.close()
    name = f"{count} workers of {lanes} environments"
    shares = {
        "the trainer": busy / elapsed,
        "the server's CPU": used / elapsed,
        "memory": told["pss"] / psutil.virtual_memory().total,
    }
    outcome.row(f"{name}: iterations", iterations / elapsed, "1/s")
    outcome.row(f"{name}: steps", iterations / elapsed * count * lanes * _SEGMENT_STEPS, "steps/s")
    for resource, share in shares.items():
        outcome.row(f"{name}: used of {resource}", 100 * share, "%")
    outcome.row(
        f"{name}: (the workers' CPUs)", 100 * sum(c for _, _, c in answers) / elapsed / len(allowed_cpus()), "%"
    )
    outcome.row(f"{name}: server's CPU an iteration", 1000 * used / iterations, "ms")
    outcome.note(f"{name}: fullest is {max(shares, key=lambda resource: shares[resource])}")
    return float(told["pss"] - told["ring_bytes"])


def train(connection: Any, blocks: Any, publisher: Any, variables: dict[str, Any], iterations: int) -> float:
    """Takes minibatches, 5 ms for each, and publishes; returns the seconds of updates."""
    from tfagents_system.transport import tables

    def ask(iteration: int) -> None:
        updates = iteration * _UPDATES
        connection.put(tables.REQUESTS, tables.Request(1, iteration, 0, _UPDATES, updates).to_wire())

    busy = 0.0
    ask(0)
    for iteration in range(iterations):
        done = 0
        while done < _UPDATES:
            arrays = blocks.get(_DEADLINE_SECS)
            assert arrays is not None, f"no minibatches of iteration {iteration}"
            if done == 0 and iteration + 1 < iterations:
                ask(iteration + 1)
            count = tables.Block.from_wire(arrays).count
            began = time.monotonic()
            time.sleep(count * _UPDATE_SECS)
            busy += time.monotonic() - began
            done += count
        publish(publisher, variables, iteration + 1)
    return busy


def publish(publisher: Any, variables: dict[str, Any], version: int) -> None:
    from tfagents_system.policies import weights
    from tfagents_system.transport import tables

    arrays = weights.to_arrays(weights.read_weights(variables))
    progress = tables.Progress(1, version, version, -1)
    publisher.publish([np.array([1, version, version], np.int64), *arrays], None, progress)


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
    for lanes in (1, 16):
        reached = ingest(outcome, 8 if args.quick else 256, lanes, cpus[0], 1.0 if args.quick else 6.0)
        if lanes == 16:
            outcome.ratio("steps/s of one CPU of the server over 500,000", reached / 500_000, 1.0)
    counts = (1, 8) if args.quick else (1, 16, 64, 256, 1000)
    memory = {n: iterate(outcome, n, 1, cpus[0], 5 if args.quick else 15) for n in counts}
    if not args.quick:
        iterate(outcome, 256, 16, cpus[0], 15)
    fewest, most = min(counts), max(counts)
    a_worker = max(1.0, (memory[most] - memory[fewest]) / (most - fewest))
    outcome.row(f"server's memory a worker, of {most}", a_worker / 2**20, "MiB")
    outcome.ratio("0.5 MiB over that", _MOST_BYTES_A_WORKER / a_worker, 1.0)
    outcome.note(f"the server on CPU {cpus[0]}, the simulated workers on {format_cpu_list(others)}")
    outcome.print()


if __name__ == "__main__":
    main()
