"""Balances what environments did against what the ring holds: stored once, in order, whole; and what is lost.

The journals (tests/faults/numbered.py) say what every start of every worker did, sent, and was told is stored. The
ring says what is there. A start's segments are numbered from 0 and stored in that order, so those of its steps that are
stored, evicted ones included, are the ones of its first segments.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from tests.faults import numbered

UNSENT = "in the segment that a killed worker had not sent yet"
NEVER_TOLD = "sent, and neither stored nor told to be"
_NAME = re.compile(r"worker_(\d+)_start_(\d+)\.steps")


@dataclasses.dataclass(frozen=True)
class Start:
    """What one start of a worker did.

    Attributes:
      worker, start: Which.
      steps: `[n]` of numbered.STEP, in order.
      sent: (episode, first step, steps) of each segment that it sent, in order.
      told: Number of the last segment that it was told is stored; -1 for none.
    """

    worker: int
    start: int
    steps: np.ndarray
    sent: list[tuple[int, int, int]]
    told: int

    @property
    def keys(self) -> np.ndarray:
        return keys_of(self.worker, self.start, self.steps["episode"], self.steps["step"])

    def keys_sent(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys of the steps that it sent, in order, and the number of the segment of each."""
        parts = [
            keys_of(self.worker, self.start, episode, np.arange(first, first + steps))
            for episode, first, steps in self.sent
        ]
        numbers = np.repeat(np.arange(len(self.sent)), [steps for _, _, steps in self.sent])
        return np.concatenate([np.zeros(0, np.int64), *parts]), numbers


@dataclasses.dataclass(frozen=True)
class Rows:
    """The transitions in a ring, oldest first.

    Attributes:
      observation, next_observation: `[n, 4]`.
      action, reward, discount: `[n]`.
      env_steps: Transitions stored since the run began.
    """

    observation: np.ndarray
    next_observation: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    discount: np.ndarray
    env_steps: int


@dataclasses.dataclass
class Balance:
    """The result.

    Attributes:
      collected: Steps that environments made.
      stored: Of these, in the ring.
      evicted: Of these, overwritten by newer ones.
      duplicated: Transitions that are in the ring more than once.
      lost: Steps that are neither, by reason; none of them was promised.
      tails: For each start that lost any, how many.
      violations: Promises that were broken, in words.
    """

    collected: int = 0
    stored: int = 0
    evicted: int = 0
    duplicated: int = 0
    lost: dict[str, int] = dataclasses.field(default_factory=dict)
    tails: list[int] = dataclasses.field(default_factory=list)
    violations: list[str] = dataclasses.field(default_factory=list)


def keys_of(worker: ArrayLike, start: ArrayLike, episode: ArrayLike, step: ArrayLike) -> np.ndarray:
    """One number for each step, which grows from step to step of a worker."""
    keys = np.asarray(worker, np.int64)
    for part, most in ((start, 10_000), (episode, 1_000_000), (step, numbered.LONGEST_EPISODE)):
        keys = keys * most + np.asarray(part, np.int64)
    return keys


def read_journals(folder: Path) -> list[Start]:
    """All starts, by worker and start."""
    found = [(match, path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    starts = [_read_start(int(match[1]), int(match[2]), path) for match, path in found]
    return sorted(starts, key=lambda start: (start.worker, start.start))


def _read_start(worker: int, start: int, path: Path) -> Start:
    events = [json.loads(line) for line in path.with_suffix(".events").read_text().splitlines()]
    sent = [(event["episode"], event["step"], event["steps"]) for event in events if "sent" in event]
    told = max((event["told"] for event in events if "told" in event), default=-1)
    return Start(worker, start, np.fromfile(path, numbered.STEP), sent, told)


def read_ring(exp_dir: Path, capacity_rows: int) -> Rows:
    """What the ring of a run that has ended holds."""
    from tfagents_system.envs.specs import load_specs
    from tfagents_system.replay.ring import Ring
    from tfagents_system.transport.segments import Layout

    ring = Ring.open(exp_dir / "replay", Layout.from_specs(*load_specs(exp_dir / "specs.pbtxt")), capacity_rows)
    rows = ring.held_rows
    rows = rows[ring.steps_left[rows] > 0]
    return Rows(
        observation=np.array(ring.observation[0][rows]),
        next_observation=np.array(ring.observation[0][(rows + 1) % ring.num_rows]),
        action=np.array(ring.action[0][rows, 0]),
        reward=np.array(ring.reward[rows]),
        discount=np.array(ring.discount[rows]),
        env_steps=ring.env_steps,
    )


def balance(starts: list[Start], rows: Rows, horizon: int) -> Balance:
    """Checks every promise about experience.

    Args:
      starts: From `read_journals`.
      rows: From `read_ring`.
      horizon: Steps of an episode, at most.
    """
    result = Balance(collected=sum(len(start.steps) for start in starts))
    worker, start, episode, step = rows.observation.astype(np.int64).T
    keys = keys_of(worker, start, episode, step)
    held = np.unique(keys)
    result.stored, result.duplicated = len(held), len(keys) - len(held)
    result.evicted = rows.env_steps - len(keys)
    if result.duplicated:
        result.violations.append(f"{result.duplicated} transitions are in the ring twice")
    if result.evicted < 0:
        result.violations.append(f"the ring holds {len(keys)} transitions, but counts {rows.env_steps}")
    _check_transitions(result, starts, rows, keys, horizon)
    for number in np.unique(worker):
        if (np.diff(keys[worker == number]) <= 0).any():
            result.violations.append(f"steps of worker {number} are out of order")
    by_worker: dict[int, list[Start]] = collections.defaultdict(list)
    for one in starts:
        by_worker[one.worker].append(one)
    gone = sum(_check_worker(result, ours, held) for ours in by_worker.values())
    if gone != max(0, result.evicted):
        result.violations.append(f"{result.evicted} steps were evicted, but {gone} are missing before the oldest ones")
    return result


def _check_transitions(result: Balance, starts: list[Start], rows: Rows, keys: np.ndarray, horizon: int) -> None:
    """Observation, action, reward, discount and next observation of each transition are those of one real step."""
    done = np.concatenate([np.zeros(0, np.int64), *(start.keys for start in starts)])
    actions = np.concatenate([np.zeros(0, np.float32), *(start.steps["action"] for start in starts)])
    order = np.argsort(done)
    place = np.minimum(np.searchsorted(done, keys, sorter=order), max(0, len(done) - 1))
    found = order[place] if len(done) else place
    worker, start, episode, step = rows.observation.astype(np.int64).T
    following = np.stack([worker, start, episode, step + 1], axis=1)
    lengths = numbered.length_of(worker, episode, horizon)
    terminal = (step + 1 == lengths) & (lengths < horizon)
    wrong: Mapping[str, np.ndarray] = {
        "was never made by an environment": done[found] != keys if len(done) else np.ones(len(keys), bool),
        "has another step's next observation": (rows.next_observation != following).any(axis=1),
        "has another step's reward": rows.reward != numbered.reward_of(worker, start, episode, step + 1),
        "has another step's action": np.abs(rows.action - actions[found]) > 1e-6 if len(done) else np.zeros(0, bool),
        "has the wrong discount": rows.discount != np.where(terminal, 0.0, 1.0),
    }
    for what, where in wrong.items():
        if where.any():
            example = rows.observation[np.flatnonzero(where)[0]].astype(int).tolist()
            result.violations.append(f"{int(where.sum())} transitions: {what}, such as {example}")


def _check_worker(result: Balance, starts: list[Start], held: np.ndarray) -> int:
    """What was stored of a worker, and what was lost; returns how many of its oldest stored steps are gone."""
    evicted, has_older = 0, False
    for start in starts:
        keys, numbers = start.keys_sent()
        is_held = np.isin(keys, held)
        segments = 1 + max(start.told, int(numbers[is_held].max(initial=-1)))
        is_missing = ~is_held[numbers < segments]
        oldest_held = 0 if has_older else int(np.argmin(np.append(is_missing, False)))
        # The ring gives up its oldest rows: what is missing must lie before all that is there.
        if is_missing[oldest_held:].any():
            result.violations.append(
                f"worker {start.worker}, start {start.start}: steps are missing among its segments up to "
                f"{segments - 1}; up to {start.told} it was told that they are stored"
            )
        evicted += int(is_missing.sum())
        has_older = has_older or not is_missing.all()
        _count_lost(result, start, never_told=int((numbers >= segments).sum()), unsent=len(start.steps) - len(keys))
    return evicted


def _count_lost(result: Balance, start: Start, *, never_told: int, unsent: int) -> None:
    for reason, steps in ((NEVER_TOLD, never_told), (UNSENT, unsent)):
        if steps:
            result.lost[reason] = result.lost.get(reason, 0) + steps
    if never_told + unsent:
        result.tails.append(never_told + unsent)
