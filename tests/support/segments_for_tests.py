"""Segments whose every number says where it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tfagents_system.replay.ring import Ring
from tfagents_system.transport.segments import Column, Layout, Segment

LAYOUT = Layout(
    observation=(Column("observation/id", (3,), "float32"), Column("observation/image", (2, 2), "uint8")),
    action=(Column("action", (2,), "float32"),),
)


def numbered_segment(
    worker_id: int = 0,
    number: int = 0,
    steps: int = 5,
    *,
    episode: int | None = None,
    first_step: int = 0,
    incarnation: int = 1,
    iteration: int = 0,
    end_of_iteration: bool = False,
    ends_episode: bool = True,
    terminates: bool = False,
    held_out: bool = False,
) -> Segment:
    """Observation `[worker, episode, step]`, action `[episode, step] / 1e4`, reward `1000 * episode + step`."""
    episode = number if episode is None else episode
    step = np.arange(first_step, first_step + steps + 1)
    ids = np.stack([np.full(steps + 1, worker_id), np.full(steps + 1, episode), step], axis=1)
    discount = np.ones(steps, np.float32)
    if terminates:
        discount[-1] = 0.0
    return Segment(
        worker_id=worker_id,
        incarnation=incarnation,
        number=number,
        iteration=iteration,
        end_of_iteration=end_of_iteration,
        starts_episode=first_step == 0,
        ends_episode=ends_episode,
        observation=[
            ids.astype(np.float32),
            np.broadcast_to(step[:, None, None] % 256, (steps + 1, 2, 2)).astype(np.uint8),
        ],
        action=[np.stack([np.full(steps, episode), step[:-1]], axis=1).astype(np.float32) / 1e4],
        reward=(1000.0 * episode + step[:-1]).astype(np.float32),
        discount=discount,
        held_out=held_out,
    )


def filled_ring(folder: Path, segments: int = 10, capacity: int = 60, slack: int = 24, steps: int = 5) -> Ring:
    """Segments of `steps + 1` rows, of worker 0."""
    ring = Ring.open(folder, LAYOUT, capacity, slack)
    append_more(ring, segments, steps)
    return ring


def append_more(ring: Ring, count: int, steps: int = 5) -> None:
    """The next segments of worker 0, one an iteration."""
    for number in range(ring.worker(0).number + 1, ring.worker(0).number + 1 + count):
        assert ring.append(numbered_segment(number=number, steps=steps, iteration=number))


def content(ring: Ring) -> dict[str, Any]:
    """All that a run can see of a ring."""
    rows = ring.held_rows
    columns = [*ring.observation, *ring.action, ring.reward, ring.discount]
    is_start = ring.steps_left[rows] > 0
    return {
        "counters": (
            ring.env_steps,
            ring.init_steps,
            ring.ring_steps,
            ring.segments,
            ring.total_rows,
            ring.filled_rows,
        ),
        "workers": [ring.worker(worker_id) for worker_id in range(3)],
        "steps_left": ring.steps_left[rows].tolist(),
        "transitions": [column[rows][is_start].tolist() for column in columns],
        "step_type": ring.step_type[rows].tolist(),
    }
