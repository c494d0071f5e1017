"""What a worker does, where its time goes, and the heartbeat that reports both."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from tfagents_system.run_files.heartbeat import TimeShares
from tfagents_system.worker.rollout import StepTimes

_BEAT_SECS = 1.0


class Beats(Protocol):
    """Takes heartbeats."""

    def beat(self, state: str, **fields: Any) -> None: ...


COLLECTING, EVALUATING = "collecting", "evaluating"


class Activity:
    """Counts a worker's steps, episodes and time, and reports them about once a second.

    Args:
      heartbeat: Takes the reports.
      worker_id: The worker.
      look_around: Called with the state before each beat; returns what else is reported.

    Attributes:
      steps, episodes: That were collected (of a worker that only plays: episodes played).
      last_return: Return of the last of these episodes.
      step_times: Of the policy and the simulator, within what is being spent.
    """

    def __init__(self, heartbeat: Beats, worker_id: int, look_around: Callable[[str], Mapping[str, Any]]) -> None:
        self._heartbeat = heartbeat
        self._worker_id = worker_id
        self._look_around = look_around
        self._told: dict[str, Any] = {}
        self._due = 0.0
        self.steps = self.episodes = 0
        self.step_times = StepTimes()
        self.begin()

    def begin(self) -> None:
        """The work begins: what came before is start-up, and counts for nothing."""
        self._started = time.monotonic()
        self._shares = TimeShares(after_first=None)

    @contextlib.contextmanager
    def spend(self, what: str) -> Iterator[None]:
        """Counts the time inside the `with` block; a block within another counts for the outer one."""
        with self._shares.spend(what):
            try:
                yield
            finally:
                self._count_step_times()

    @contextlib.contextmanager
    def server_time(self) -> Iterator[None]:
        """Counts the time inside the `with` block as waiting for the replay server, within any other block."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._shares.take_out("waiting for the replay server", time.monotonic() - began)

    def ended_episode(self, episode_return: float) -> None:
        """Counts an episode."""
        self.episodes += 1
        self.tell(last_return=episode_return)

    def stepped(self, state: str, steps: int) -> None:
        """Counts steps of so many environments, where they are collected; beats when it is time to."""
        if state == COLLECTING:
            self.steps += steps
        if time.monotonic() >= self._due:
            self.beat(state)

    def tell(self, **fields: Any) -> None:
        """Reports further fields, from the next beat on."""
        self._told.update(fields)

    def beat(self, state: str, waiting_for: str | None = None, **fields: Any) -> None:
        """Reports the state, the further fields from now on, and (this once) what is waited for."""
        self._due = time.monotonic() + _BEAT_SECS
        self.tell(**fields)
        self._count_step_times()
        seen = self._look_around(state)
        shares = self._shares.shares()
        self._heartbeat.beat(
            state,
            worker_id=self._worker_id,
            episodes=self.episodes,
            steps=self.steps,
            steps_per_s=self.steps / max(1e-9, time.monotonic() - self._started),
            **seen,
            time_shares={**shares, "other": max(0.0, 1.0 - sum(shares.values()))},
            counted_secs=self._shares.counted_secs,
            **self._told,
            waiting_for=waiting_for,
        )

    def _count_step_times(self) -> None:
        policy, simulator = self.step_times.take()
        if policy or simulator:
            self._shares.take_out("policy", policy)
            self._shares.take_out("simulator", simulator)
