"""Runs a worker's episodes: under the watchdog, with a heartbeat, and with environments that fail or grow replaced."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import gc
import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfagents_system.envs.env_process import build_timeout_secs
from tfagents_system.envs.faults import EnvironmentFault
from tfagents_system.envs.gym_driver import seed_episode
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.machine.watchdog import Watchdog
from tfagents_system.role import EPISODE_STREAM, EVAL_STREAM, Role
from tfagents_system.run_files.heartbeat import Heartbeat, TimeShares
from tfagents_system.transport.connection import StoppedError
from tfagents_system.transport.episode_reports import Episode
from tfagents_system.worker.actors import Actor
from tfagents_system.worker.newest_policy import NewestPolicy
from tfagents_system.worker.recording import EpisodeRecord, Observer
from tfagents_system.worker.rollout import Rollout, SegmentBuilder, StepTimes
from tfagents_system.worker.sender import BackgroundHeartbeat
from tfagents_system.workers import Place, WorkerEnvironments

COLLECTING, EVALUATING = "collecting", "evaluating"
_BEAT_SECS = 1.0
_REST_AGAIN_SECS = 5.0  # Where a device's wait() has failed.


class EnvironmentGuard:
    """Ends the worker if it hangs in one of its environments, and reports what it was doing.

    machine/watchdog.py ends the process. An environment in a process of its own (SAC_ENV_PYTHON) has the deadlines of
    envs/env_process.py instead.

    Args:
      path: Where a hang is reported.
      worker_id: The worker.
      step_timeout_secs: SAC_STEP_TIMEOUT_SECS: what they may take for a step or reset; more to be built.

    Attributes:
      is_real_time: A device is stepped: the report does not say in which step, as a slow disk would hold up a step.
    """

    is_real_time = False

    def __init__(self, path: Path, worker_id: int, step_timeout_secs: float) -> None:
        self._watchdog = Watchdog(path, step_timeout_secs)
        self._worker_id = worker_id
        self._build_timeout_secs = build_timeout_secs(step_timeout_secs)
        self._stepped: Sequence[TrainingEnvironment] = ()

    def stepping(self, envs: Sequence[TrainingEnvironment]) -> None:
        """They have their time for a step from now on."""
        self._stepped = envs
        where = "its environment" if self.is_real_time else ", ".join(env.position for env in envs)
        self._watchdog.arm(f"worker {self._worker_id}: {where}")

    def still_stepping(self, envs: Sequence[TrainingEnvironment]) -> None:
        """As `stepping`, once a second at most."""
        if self._watchdog.is_due():
            self.stepping(envs)

    def stopped_stepping(self) -> None:
        """Nothing of the user's runs now."""
        self._stepped = ()
        self._watchdog.cancel()

    @contextlib.contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Something that may take as long as building an environment, also between two steps."""
        self._watchdog.arm(f"worker {self._worker_id}: {what}", self._build_timeout_secs)
        try:
            yield
        finally:
            if self._stepped:
                self.stepping(self._stepped)
            else:
                self._watchdog.cancel()

    def waiting(self) -> None:
        """The worker waits for the replay server, or for a process with deadlines of its own: it does not hang."""
        self._watchdog.keep()


class Activity:
    """Counts a worker's steps, episodes and time, and reports them about once a second.

    Args:
      heartbeat: Takes the reports.
      worker_id: The worker.
      look_around: Called with the state before each beat; returns what else is reported.

    Attributes:
      steps, episodes: That were collected (of a worker that only plays: episodes played).
      step_times: Of the policy and the simulator, within what is being spent.
    """

    def __init__(
        self,
        heartbeat: Heartbeat | BackgroundHeartbeat,
        worker_id: int,
        look_around: Callable[[str], Mapping[str, Any]],
    ) -> None:
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


@dataclasses.dataclass(eq=False)
class EpisodeRunner:
    """Runs episodes in a worker's environments.

    Attributes:
      role: The worker's process: ends all episodes early when it is to stop. Its seed decides all random numbers where
        the run is deterministic.
      environments: The worker's, for collecting and for evaluation.
      guard: Ends the worker if it hangs in one of them.
      activity: Counts steps and time.
      rng: Of random actions.
      policy: Acts with noise.
    """

    role: Role
    environments: WorkerEnvironments
    guard: EnvironmentGuard
    activity: Activity
    rng: np.random.Generator
    policy: NewestPolicy

    def __post_init__(self) -> None:
        self._seeds: Iterator[int] = iter(())  # Of what is left of a deterministic run's iteration.
        self._rests, self._rest_at = False, 0.0

    def rollout(
        self,
        actor: Actor,
        *,
        is_eval: bool,
        observers: Sequence[Observer],
        on_episode: Callable[[Episode], None],
        new_builder: Callable[[], SegmentBuilder] | None = None,
        on_start: Callable[[int], None] = lambda env: None,
        new_record: Callable[[int], EpisodeRecord] | None = None,
        numbers: Sequence[int] = (),
    ) -> Rollout:
        """A rollout in the evaluation or the collect environments, to be run within `stepping`.

        Arguments as of Rollout, and `numbers`: which of an evaluation's episodes they are. Raises StoppedError when the
        worker is to stop, and EnvironmentFault when an environment has failed three times in a row.
        """
        state, times = (EVALUATING, StepTimes()) if is_eval else (COLLECTING, self.activity.step_times)
        to_play, begun = collections.deque(numbers), dict[int, int | None]()  # Numbers, and of each environment's own.

        def on_step(steps: int) -> None:
            self.activity.stepped(state, steps)
            self._check_stop()

        def begin_episode(env: int) -> None:
            if self.environments.device is not None:
                gc.collect()  # No step waits for it now.
            self.environments.begin_episode(Place(is_eval, env))
            begun[env] = to_play.popleft() if to_play else None
            self._envs(is_eval)[env].evaluation_episode = begun[env]
            on_start(env)

        def answer(env: int, fault: EnvironmentFault) -> None:
            if fault.step == 0 and (number := begun.pop(env, None)) is not None:
                to_play.appendleft(number)  # It failed in the reset: the episode begins again. Otherwise it counts.
            self._check_stop()  # Waiting for an environment's process ends with a fault when the worker is to stop.
            self.environments.replace(Place(is_eval, env), fault)
            self._reseed(self._envs(is_eval)[env])

        return Rollout(
            self._envs(is_eval),
            actor,
            must_restart=lambda: self.environments.has_due(Place(is_eval, 0)),
            new_builder=new_builder,
            observers=observers,
            on_step=on_step,
            on_episode=on_episode,
            on_start=begin_episode,
            on_fault=answer,
            times=times,
            new_record=new_record,
        )

    @contextlib.contextmanager
    def stepping(self, *, is_eval: bool) -> Iterator[None]:
        """The watchdog is armed for these environments."""
        self._rests, self._rest_at = False, 0.0
        self.guard.stepping(self._envs(is_eval))
        yield
        self.guard.stopped_stepping()

    def env_id(self, env: int) -> int:
        """`id`, as hooks get it, of an environment; of a lane that of its vector environment, which is the only one."""
        environments = self.environments
        return environments.first_env_id + min(env, len(environments.collect or environments.evaluation) - 1)

    def rest(self) -> None:
        """An environment that acts in real time is told to wait: nobody steps it for a while."""
        if self.environments.device is None or self._rests or time.monotonic() < self._rest_at:
            return
        self._rest_at = time.monotonic() + _REST_AGAIN_SECS
        self._rests = self.environments.rest()

    def _envs(self, is_eval: bool) -> list[TrainingEnvironment]:
        return self.environments.evaluation if is_eval else self.environments.collect

    def _check_stop(self) -> None:
        if self.role.stop.is_set():
            raise StoppedError

    # Random numbers.

    def repeat(self, stream: int, iteration: int, *, reseeds_environments: bool = True) -> None:
        """From here on all that is random in a deterministic run follows from its seed, worker, stream and iteration.

        Args:
          stream: Of the seed's streams.
          iteration: The iteration.
          reseeds_environments: False: their episodes have seeds of their own, see `repeat_episode`.
        """
        role = self.role
        if not role.deterministic:
            return
        self._seeds = (role.derived_seed(stream, role.worker_id, 1 + iteration, k) for k in itertools.count())
        self.rng.bit_generator.state = np.random.default_rng(next(self._seeds)).bit_generator.state
        goes_on = stream == EVAL_STREAM or not reseeds_environments
        self.policy.policy.reseed(next(self._seeds), holds_noise=goes_on)
        random.seed(next(self._seeds))  # A user's environment may take numbers from these two.
        np.random.seed(next(self._seeds))
        for env in self._envs(stream == EVAL_STREAM) if reseeds_environments else ():
            self._reseed(env)

    def repeat_episode(self, env: int, number: int, start: int = 0) -> int:
        """In any run: the episode that begins in a collect environment follows from seed, worker and its number.

        Args:
          env: The environment.
          number: Of the worker's episodes.
          start: Tells apart those of the worker's starts; 0 where they are to have the same episodes.

        Returns:
          The episode's own seed; see `seed_episode`.
        """
        further = (start,) if start else ()
        seed = self.role.derived_seed(EPISODE_STREAM, self.role.worker_id, number, *further)
        seed_episode(self._envs(False)[env], seed)
        return seed

    def _reseed(self, env: TrainingEnvironment) -> None:
        """Of an environment that begins again, or replaces one that failed."""
        if self.role.deterministic:
            env.reseed(next(self._seeds) % 2**31)
