"""Draws with hindsight reach half of the speed of plain ones, with a reward of 1 us a goal.

    python -m benchmarks.hindsight [--quick]

100 minibatches of 256 from a ring of 1,000,000 steps, in turns: episodes of 50 steps of eight workers, mixed, whole and
in segments of 10 steps. 28 numbers an observation, the goals among them, and 8 an action.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.outcome import Outcome, parse_args
from tfagents_system.envs.goals import GoalFunctions
from tfagents_system.replay import sampling
from tfagents_system.replay.hindsight import Hindsight
from tfagents_system.replay.ring import Ring
from tfagents_system.replay.sample_forms import TransitionForm
from tfagents_system.replay.sampling import DrawSettings
from tfagents_system.transport.layout import Layout
from tfagents_system.transport.segments import Segment

WORKERS, EPISODE, BATCH, MINIBATCHES, GOAL = 8, 50, 256, 100, 3
LAYOUT = Layout.from_specs(
    {
        name: np.zeros(size, np.float32)
        for name, size in (("observation", 22), ("achieved_goal", 3), ("desired_goal", 3))
    },
    np.zeros(8, np.float32),
    has_episode=True,
)


class Goals:
    """Distances, in 1 us for each goal."""

    def compute_reward(self, achieved: np.ndarray, desired: np.ndarray, info: object) -> np.ndarray:
        end = time.perf_counter() + 1e-6 * len(achieved)
        reward = -(np.linalg.norm(achieved - desired, axis=-1) > 0.05).astype(np.float32)
        while time.perf_counter() < end:
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


def secs_of(ring: Ring, settings: DrawSettings, seed: int) -> float:
    began = time.perf_counter()
    sampling.draw(ring, np.random.default_rng(seed), settings, MINIBATCHES)
    return time.perf_counter() - began


def main() -> None:
    args = parse_args(argparse.ArgumentParser(description=__doc__))
    steps, rounds = (100_000, 10) if args.quick else (1_000_000, 60)
    outcome = Outcome((__doc__ or "").splitlines()[0])
    plain = DrawSettings(BATCH, TransitionForm(), MINIBATCHES, seed=0, goals=GoalFunctions([Goals()]))
    forms = {1: TransitionForm(hindsight=Hindsight(0.8)), 3: TransitionForm(3, hindsight=Hindsight(0.8))}
    for segment_steps in (EPISODE, 10):
        with tempfile.TemporaryDirectory() as folder:
            ring = filled(Path(folder), steps, segment_steps)
            for n_step, form in forms.items():
                kinds = [dataclasses.replace(plain, form=TransitionForm(n_step)), dataclasses.replace(plain, form=form)]
                pairs = [[secs_of(ring, kind, seed) for kind in kinds] for seed in range(rounds)]
                theirs, ours = (statistics.median(times) for times in zip(*pairs[1:], strict=True))
                what = f"segments of {segment_steps} steps, n_step={n_step}"
                outcome.row(f"plain draws, {what}", MINIBATCHES / theirs, "minibatches/s")
                outcome.row(f"draws with hindsight, {what}", MINIBATCHES / ours, "minibatches/s")
                ratio = statistics.median(pair[0] / pair[1] for pair in pairs[1:])
                if n_step == 1:
                    outcome.ratio(f"of plain draws, {what}", ratio, 0.5)
            rebuilt = []
            for _ in range(5):
                fresh = Ring(ring.files)
                began = time.perf_counter()
                with fresh.lock:
                    assert fresh.episodes is not None
                rebuilt.append(time.perf_counter() - began)
            outcome.row(f"the index of {steps:,} steps made anew, {segment_steps} a segment", 1000 * min(rebuilt), "ms")
    outcome.print()


if __name__ == "__main__":
    main()
