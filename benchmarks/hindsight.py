"""Draws with hindsight reach half of the speed of plain ones, with a reward of 1 us a goal.

    python -m benchmarks.hindsight [--quick]

Minibatches of 256 from a replay server with 1,000,000 steps to another process, plain ones and such with four of five
goals replaced in turns: episodes of 50 steps of eight workers, mixed, whole and in segments of 10 steps. 28 numbers an
observation, the goals among them, and 8 an action. Speeds are by the CPU time of the server's process.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
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

WORKERS, EPISODE, BATCH, MINIBATCHES = 8, 50, 256, 100
FORMS = {
    f"n_step={n_step}{' with hindsight' if hindsight else ''}": TransitionForm(n_step, hindsight=hindsight)
    for n_step in (1, 3)
    for hindsight in (None, Hindsight(0.8))
}
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


def filled(folder: Path, steps: int, segment_steps: int) -> Ring:
    """A ring of so many steps; the workers' segments come in turns."""
    ring = Ring.open(folder, LAYOUT, steps + steps // segment_steps)
    rng = np.random.default_rng(0)
    sizes = [column.shape[0] for column in LAYOUT.observation]
    observation = [rng.standard_normal((segment_steps + 1, size), np.float32) for size in sizes]
    action = [rng.standard_normal((segment_steps, 8), np.float32)]
    numbers = np.zeros(WORKERS, int)
    while ring.total_rows < ring.num_rows:
        segments = []
        for worker in range(WORKERS):
            number, first = divmod(int(numbers[worker]) * segment_steps, EPISODE)
            segments.append(
                Segment(
                    worker_id=worker,
                    incarnation=1,
                    number=int(numbers[worker]),
                    iteration=0,
                    end_of_iteration=False,
                    starts_episode=first == 0,
                    ends_episode=first + segment_steps == EPISODE,
                    observation=observation,
                    action=action,
                    reward=np.zeros(segment_steps, np.float32),
                    discount=np.ones(segment_steps, np.float32),
                    episode=np.array([[number, first]], np.int64),
                )
            )
            numbers[worker] += 1
        ring.extend(segments)
    return ring


def serve(pipe: Pipe, port: int, folder: Path, steps: int, segment_steps: int, cpu: int) -> None:
    """A replay server with a full ring, on one CPU; serves what the pipe names, until it says `stop`."""
    os.sched_setaffinity(0, {cpu})
    import reverb

    from tfagents_system.replay.service import ReplayService
    from tfagents_system.replay.snapshots import SnapshotWriter
    from tfagents_system.transport import tables
    from tfagents_system.transport.connection import Connection

    ring = filled(folder, steps, segment_steps)
    all_tables = tables.make_tables(1)
    _server = reverb.Server(list(all_tables.values()), port)
    connection = Connection(f"localhost:{port}", lambda: False)
    plain = DrawSettings(BATCH, TransitionForm(), MINIBATCHES, seed=0, goals=GoalFunctions([Goals()]))
    snapshots = SnapshotWriter(ring, None, folder / "checkpoints")
    service = ReplayService(ring, connection, all_tables[tables.BLOCKS], 1, plain, no_pacing(), snapshots)
    pipe.send(_secs_of_index(ring))
    while True:
        if pipe.poll():
            wanted = pipe.recv()
            if wanted == "stop":
                os._exit(0)  # Threads that read from Reverb block in C++.
            if wanted in FORMS:
                service._draw_settings = dataclasses.replace(plain, form=FORMS[wanted])
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
            outcome.row(f"index of {steps:,} steps in segments of {segment_steps}", 1000 * ours.recv(), "ms")
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
    for n_step in (1, 3):
        pairs = zip(speeds[f"n_step={n_step}"], speeds[f"n_step={n_step} with hindsight"], strict=True)
        ratio = statistics.median(ours / theirs for theirs, ours in pairs)
        if n_step == 1:
            outcome.ratio(f"draws with hindsight over plain ones, {what}", ratio, 0.5)
        else:
            outcome.row(f"n_step={n_step} with hindsight over without, {what}", ratio, "")


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
