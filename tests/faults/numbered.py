"""An environment whose observations say who made them, and a witness of what its worker was told is stored.

Both run inside the worker. They write into files that outlive it, one pair for each of its starts:

    worker_<i>_start_<k>.steps    one record (`STEP`) for every step that the environment made while it collected
    worker_<i>_start_<k>.events   one line for every segment that was sent, and for every word of what is stored

A step is in the file before the worker sees it, a segment before it is sent; the word of what is stored after it came.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

STEP = np.dtype([("episode", "<i4"), ("step", "<i4"), ("reward", "<f4"), ("action", "<f4")])
PACE = "pace"  # File with the seconds that a step takes.
LONGEST_EPISODE = 1000
_REWARDS = 1021

_journal: Journal | None = None  # Of this process, once it is a worker that collects.


class Journal:
    """The two files of one start of a worker.

    Attributes:
      start: How many journals the worker had before this one.
    """

    def __init__(self, folder: Path, worker_id: int) -> None:
        self.start = len(list(folder.glob(f"worker_{worker_id}_start_*.steps")))
        name = f"worker_{worker_id}_start_{self.start}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self._steps = os.open(folder / f"{name}.steps", flags, 0o644)
        self._events = os.open(folder / f"{name}.events", flags, 0o644)

    def step(self, *values: float) -> None:
        """Writes one STEP."""
        os.write(self._steps, np.array([values], STEP).tobytes())

    def event(self, **fields: Any) -> None:
        os.write(self._events, (json.dumps(fields) + "\n").encode())


def reward_of(worker: Any, start: Any, episode: Any, step: Any) -> Any:
    """The reward for the step that led to observation [worker, start, episode, step], in [0, 1), exact in float32."""
    return (worker * 7 + start * 131 + episode * 37 + step * 11) % _REWARDS / 1024.0


def length_of(worker: Any, episode: Any, longest: int) -> Any:
    """Steps of an episode: it terminates there; where this is `longest`, the horizon cuts it instead."""
    return longest - (worker + episode) % 5


class Box:
    def __init__(self, low: float, high: float, shape: tuple[int, ...]) -> None:
        self.shape, self.dtype = shape, np.dtype(np.float32)
        self.low, self.high = np.full(shape, low, np.float32), np.full(shape, high, np.float32)


class NumberedEnv:
    """Observation [worker, start of the worker, episode, step].

    Args:
      worker: Number of the worker; -1 for an environment that only evaluates, which leaves no trace.
      horizon: Steps of an episode, at most.
      folder: Where PACE may be.
    """

    observation_space = Box(-1.0, 1e6, (4,))
    action_space = Box(-1.0, 1.0, (1,))

    def __init__(self, worker: int, horizon: int, folder: str) -> None:
        self._worker, self._horizon, self._pace_file = worker, horizon, Path(folder) / PACE
        self._episode, self._steps = -1, 0
        self._pace_secs = 0.0

    def reset(self, seed: int | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        del seed
        self._episode, self._steps = self._episode + 1, 0
        if self._worker >= 0:
            self._pace_secs = float(self._pace_file.read_text()) if self._pace_file.exists() else 0.0
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self._pace_secs > 0.0:
            time.sleep(self._pace_secs)
        self._steps += 1
        reward = reward_of(self._worker, self._start, self._episode, self._steps)
        if self._worker >= 0 and _journal is not None:
            _journal.step(self._episode, self._steps - 1, reward, action[0])
        terminated = self._steps == length_of(self._worker, self._episode, self._horizon) < self._horizon
        return self._observation(), reward, terminated, False, {}

    def close(self) -> None:
        pass

    @property
    def _start(self) -> int:
        return _journal.start if _journal is not None else -1

    def _observation(self) -> np.ndarray:
        return np.array([self._worker, self._start, self._episode, self._steps], np.float32)


def watch_the_sender(folder: str) -> None:
    """Has this process's worker write down what it sends and what it is told. Does nothing in other roles."""
    if os.environ.get("SLURM_PROCID"):
        from tfagents_system.worker import worker

        setattr(worker, "SegmentSender", _witnessed(worker.SegmentSender, Path(folder)))  # noqa: B010


def take_way_round(ways: Mapping[str, int]) -> None:
    """Has this process's worker find the replay server at another port, which leads there. Nothing in other roles."""
    port = ways.get(os.environ.get("SLURM_PROCID", ""))
    if port is not None:
        from tfagents_system.role import Role

        Role.server_address = property(lambda role: f"127.0.0.1:{port}")  # type: ignore[method-assign, assignment]


def _witnessed(sender: type, folder: Path) -> Any:
    class WitnessedSender(sender):
        def __init__(self, connection: Any, worker_id: int, incarnation: int, **options: Any) -> None:
            global _journal
            super().__init__(connection, worker_id, incarnation, **options)
            _journal = self._journal = Journal(folder, worker_id)
            self._own_key = worker_id, incarnation
            self._sent, self._told = 0, -1

        def send(self, segment: Any) -> None:
            _, _, episode, step = (int(value) for value in segment.observation[0][0])
            self._journal.event(sent=self._sent, episode=episode, step=step, steps=segment.num_steps)
            self._sent += 1
            super().send(segment)

        def confirm(self) -> Any:
            stored = super().confirm()
            if stored is not None:
                worker_id, incarnation = self._own_key
                record = stored.worker(worker_id)
                if record.incarnation == incarnation and record.number > self._told:
                    self._told = record.number
                    self._journal.event(told=self._told)
            return stored

    return WitnessedSender
