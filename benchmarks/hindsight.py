"""Draws with hindsight reach half of the speed of plain ones, with a reward of 1 us a goal.

    python -m benchmarks.hindsight [--quick]

Minibatches of 256 from a replay server with 1,000,000 steps to another process, plain ones and such with four of five
goals replaced in turns: episodes of 50 steps of eight workers, mixed, whole and in segments of 10 steps. 28 numbers an
observation, the goals among them, and 8 an action. Speeds are by the CPU time of the server's process.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import numpy as np

from benchmarks.outcome import Outcome, parse_args
from benchmarks.replay import BlockClient, no_pacing
from tfagents_system.envs.goals import GoalFunctions
from tfagents_system.machine.topology import allowed_cpus
from tfagents_system.replay.draw_settings import DrawSettings
from tfagents_system.replay.hindsight import Hindsight
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.sample_forms import TransitionForm
from tfagents_system.transport.layout import Layout
from tfagents_system.transport.segments import Segment

WORKERS, EPISODE, BATCH, MINIBATCHES, SHARE = 8, 50, 256, 100, 0.8
FORMS = {
    f"n_step={n_step}{' with hindsight' if hindsight else ''}": TransitionForm(n_step, hindsight=hindsight)
    for n_step in (1, 3)
    for hindsight in (None, Hindsight(SHARE))
}
_REWARD_SECS = 1e-6 * SHARE * BATCH  # Of a minibatch of single steps.
FREE = "n_step=1 with hindsight, free reward"
FORMS[FREE] = FORMS["n_step=1 with hindsight"]
LAYOUT = Layout.from_specs(
    {
        name: np.zeros(size, np.float32)
        for name, size in (("observation", 22), ("achieved_goal", 3), ("desired_goal", 3))
    },
    np.zeros(8, np.float32),
    has_episode=True,
)


class Goals:
    """Whether a goal is near, in 1 us of CPU time for each."""

    def compute_reward(self, achieved: np.ndarray, desired: np.ndarray, info: object) -> np.ndarray:
        end = time.thread_time() + 1e-6 * len(achieved)
        reward = -(np.linalg.norm(achieved - desired, axis=-1) > 0.05).astype(np.float32)
        while time.thread_time() < end:
            pass
        return reward


class FreeGoals:
    """The same in no more time than it takes: what is left is the toolkit's."""

    def compute_reward(self, achieved: np.ndarray, desired: np.ndarray, info: object) -> np.ndarray:
        return -(np.linalg.norm(achieved - desired, axis=-1) > 0.05).astype(np.float32)


def segments(segment_steps: int) -> Iterator[Segment]:
    """Of episodes without end, the workers' in turns."""
    rng = np.random.default_rng(0)
    sizes = [column.shape[0] for column in LAYOUT.observation]
    observation = [rng.standard_normal((segment_steps + 1, size), np.float32) for size in sizes]
    action = [rng.standard_normal((segment_steps, 8), np.float32)]
    for k in itertools.count():
        number, worker = divmod(k, WORKERS)
        episode, first = divmod(number * segment_steps, EPISODE)
        yield Segment(
            worker_id=worker,
            incarnation=1,
            number=number,
            iteration=0,
            end_of_iteration=False,
            starts_episode=first == 0,
            ends_episode=first + segment_steps == EPISODE,
            observation=observation,
            action=action,
            reward=np.zeros(segment_steps, np.float32),
            discount=np.ones(segment_steps, np.float32),
            episode=np.array([[episode, first]], np.int64),
        )


def filled(folder: Path, steps: int, coming: Iterator[Segment]) -> Ring:
    """A ring of so many steps of these segments."""
    first = next(coming)
    ring = Ring.open(folder, LAYOUT, steps + steps // first.num_steps)
    ring.append(first)
    while ring.total_rows < ring.num_rows:
        ring.extend(list(itertools.islice(coming, WORKERS)))
    return ring


def serve(pipe: Pipe, port: int, folder: Path, steps: int, segment_steps: int, cpu: int) -> None:
    """A replay server with a full ring, on one CPU; serves what the pipe names, until it says `stop`."""
    os.sched_setaffinity(0, {cpu})
    import reverb

    from tfagents_system.replay.service import ReplayService
    from tfagents_system.replay.snapshots import SnapshotWriter
    from tfagents_system.transport import tables
    from tfagents_system.transport.connection import Connection

    coming = segments(segment_steps)
    ring = filled(folder, steps, coming)
    all_tables = tables.make_tables(1)
    _server = reverb.Server(list(all_tables.values()), port)
    connection = Connection(f"localhost:{port}", lambda: False)
    plain = DrawSettings(BATCH, TransitionForm(), MINIBATCHES, seed=0, goals=GoalFunctions([Goals()]))
    snapshots = SnapshotWriter(ring, None, folder / "checkpoints")
    service = ReplayService(ring, connection, all_tables[tables.BLOCKS], 1, plain, no_pacing(), snapshots)
    pipe.send((_secs_of_index(ring), _secs_of_segment(ring, coming)))
    while True:
        if pipe.poll():
            wanted = pipe.recv()
            if wanted == "stop":
                os._exit(0)  # Threads that read from Reverb block in C++.
            if wanted in FORMS:
                goals = GoalFunctions([FreeGoals() if wanted == FREE else Goals()])
                service._draw_settings = dataclasses.replace(plain, form=FORMS[wanted], goals=goals)
            pipe.send(time.process_time())
        for _ in range(20):
            service.step()


def _secs_of_index(ring: Ring) -> float:
    """How long it takes to make the index of all that a ring holds, as after a restart."""
    times = []
    for _ in range(5):
        fresh = Ring(ring.files)
        began = time.perf_counter()
        with fresh.lock:
            fresh.episodes.find(fresh.held_rows[:1], fresh.held)
        times.append(time.perf_counter() - began)
    return min(times)


def _secs_of_segment(ring: Ring, coming: Iterator[Segment]) -> float:
    """How long it takes to bring the index up to date after one segment more."""
    times = []
    for segment in itertools.islice(coming, 200):
        ring.append(segment)
        began = time.perf_counter()
        with ring.lock:
            ring.episodes.find(ring.steps_left[:0], ring.held)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _cpu_secs(pipe: Pipe, wanted: str) -> float:
    """Tells the server what to draw from now on; returns its CPU time so far."""
    pipe.send(wanted)
    return float(pipe.recv())


def measure(outcome: Outcome, steps: int, segment_steps: int, rounds: int, blocks: int) -> None:
    cpus = allowed_cpus()
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    ours, theirs = multiprocessing.Pipe()
    with tempfile.TemporaryDirectory(dir=os.environ.get("SAC_REPLAY_DIR")) as folder:
        context = multiprocessing.get_context("spawn")
        process = context.Process(
            target=serve, args=(theirs, port, Path(folder), steps, segment_steps, cpus[0]), daemon=True
        )
        process.start()
        theirs.close()
        try:
            of_index, of_segment = ours.recv()
            outcome.row(f"index of {steps:,} steps in segments of {segment_steps}", 1000 * of_index, "ms")
            outcome.row("the same, one segment more", 1e6 * of_segment, "us")
            client = BlockClient(port)
            speeds: dict[str, list[float]] = {name: [] for name in FORMS}
            for _ in range(rounds):
                for name, found in speeds.items():
                    _cpu_secs(ours, name)
                    for _ in range(4):  # Drawn before.
                        client.next_block()
                    began = _cpu_secs(ours, "the time")
                    for _ in range(blocks):
                        client.next_block()
                    found.append(blocks * MINIBATCHES / (_cpu_secs(ours, "the time") - began))
            ours.send("stop")
        finally:
            process.join(10)
            process.kill()
    what = f"segments of {segment_steps} steps"
    for name, found in speeds.items():
        outcome.row(f"{name}, {what}", statistics.median(found), "minibatches/CPU s")
    for name, found in speeds.items():
        plain = name.partition(" ")[0]
        ratio = statistics.median(ours / theirs for theirs, ours in zip(speeds[plain], found, strict=True))
        if name == "n_step=1 with hindsight":
            outcome.ratio(f"draws with hindsight over plain ones, {what}", ratio, 0.5)
            bound = 1.0 / (1.0 + statistics.median(speeds[plain]) * _REWARD_SECS)
            outcome.row(f"the same, were there nothing but the reward's own time, {what}", bound, "")
        elif name != plain:
            outcome.row(f"{name} over plain ones, {what}", ratio, "")


def main() -> None:
    args = parse_args(argparse.ArgumentParser(description=__doc__))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.sched_setaffinity(0, {allowed_cpus()[-1]})
    outcome = Outcome((__doc__ or "").splitlines()[0])
    steps, rounds, blocks = (100_000, 1, 5) if args.quick else (1_000_000, 9, 20)
    for segment_steps in (EPISODE,) if args.quick else (EPISODE, 10):
        measure(outcome, steps, segment_steps, rounds, blocks)
    outcome.print()


if __name__ == "__main__":
    main()
