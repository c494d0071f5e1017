"""Runs a worker's episodes: under the watchdog, with environments that fail or grow replaced, and its time counted."""

from __future__ import annotations

import collections
import contextlib
import gc
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tfagents_system.envs.curriculum import Place
from tfagents_system.envs.episode_seeds import seed_episode
from tfagents_system.envs.faults import EnvironmentFault
from tfagents_system.envs.loading import AnyEnvironment
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.machine.signals import StopFlag
from tfagents_system.role import COLLECT_STREAM, EPISODE_STREAM, EVAL_STREAM, Role
from tfagents_system.transport.connection import StoppedError
from tfagents_system.transport.episode_reports import Episode
from tfagents_system.worker.activity import COLLECTING, EVALUATING, Activity
from tfagents_system.worker.actors import Actor
from tfagents_system.worker.environment_guard import EnvironmentGuard
from tfagents_system.worker.newest_policy import NewestPolicy
from tfagents_system.worker.recording import EpisodeRecord, Observer
from tfagents_system.worker.rollout import Rollout
from tfagents_system.worker.segment_builder import SegmentBuilder
from tfagents_system.workers import WorkerEnvironments

_REST_AGAIN_SECS = 5.0


class EpisodeRunner:
    """Runs episodes in a worker's environments.

    Args:
      environments: The worker's, for collecting and for evaluation.
      guard: Ends the worker if it hangs in one of them.
      activity: Counts steps and time.
      seeds: Of the environments, where the run is deterministic.
      stop: Ends all episodes early when it is set.
    """

    def __init__(
        self,
        environments: WorkerEnvironments,
        guard: EnvironmentGuard,
        activity: Activity,
        seeds: RepeatableSeeds,
        stop: StopFlag,
    ) -> None:
        self._environments = environments
        self._guard = guard
        self._activity = activity
        self._seeds = seeds
        self._stop = stop
        self._rests, self._rest_at = False, 0.0  # When to tell it again, where that has failed.

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
        state, step_times = (EVALUATING, None) if is_eval else (COLLECTING, self._activity.step_times)

        def on_step(steps: int) -> None:
            self._activity.stepped(state, steps)
            self._check_stop()

        waiting = _EpisodeNumbers(numbers)

        def begin_episode(env: int) -> None:
            self._begin_episode(Place(is_eval, env))
            if isinstance(begun := self._envs(is_eval)[env], TrainingEnvironment):
                begun.evaluation_episode = waiting.take(env)
            on_start(env)

        def answer(env: int, fault: EnvironmentFault) -> None:
            if fault.step == 0:  # Otherwise its episode counts.
                waiting.put_back(env)
            self._replace(Place(is_eval, env), fault)

        return Rollout(
            self._envs(is_eval),
            actor,
            must_restart=lambda: self._environments.has_due(Place(is_eval, 0)),
            new_builder=new_builder,
            observers=observers,
            on_step=on_step,
            on_episode=on_episode,
            on_start=begin_episode,
            on_fault=answer,
            counts_faults=is_eval,
            times=step_times,
            new_record=new_record,
        )

    @contextlib.contextmanager
    def stepping(self, *, is_eval: bool) -> Iterator[None]:
        """The watchdog is armed for these environments."""
        self._rests, self._rest_at = False, 0.0
        self._guard.stepping(self._envs(is_eval))
        yield
        self._guard.stopped_stepping()

    @contextlib.contextmanager
    def unwatched(self) -> Iterator[None]:
        """Within `stepping` of the collect environments: nothing of the user's runs, however long it takes."""
        self._guard.stopped_stepping()
        yield
        self._guard.stepping(self._envs(False))

    def env_id(self, env: int) -> int:
        """`id`, as hooks get it, of an environment; of a lane that of its vector environment, which is the only one."""
        environments = self._environments
        return environments.first_env_id + min(env, len(environments.collect or environments.evaluation) - 1)

    def rest(self) -> None:
        """An environment that acts in real time is told to wait: nobody steps it for a while."""
        if self._environments.device is None or self._rests or time.monotonic() < self._rest_at:
            return
        self._rest_at = time.monotonic() + _REST_AGAIN_SECS
        with self._guard.building("wait() of the environment"):
            self._rests = self._environments.rest()

    def repeat(self, stream: int, iteration: int) -> None:
        """From here on a deterministic run's random numbers follow from its seed, the worker and the iteration."""
        self._seeds.begin(stream, iteration, self._envs(stream == EVAL_STREAM))

    def repeat_steps(self, iteration: int) -> None:
        """The same for an iteration of steps, whose episodes have seeds of their own: see `repeat_episode`."""
        self._seeds.begin(COLLECT_STREAM, iteration, ())

    def repeat_episode(self, env: int, number: int, start: int = 0) -> int:
        """The episode that begins in a collect environment follows from the seed, the worker and its number.

        Args:
          env: The environment.
          number: Of the worker's episodes.
          start: Tells apart those of the worker's starts; 0 where they are to have the same episodes.

        Returns:
          The episode's own seed; see `seed_episode`.
        """
        return self._seeds.begin_episode(self._envs(False)[env], number, start)

    def set_due(self, iteration: int) -> None:
        """From their next episode on the collect environments have the curriculum's values of this iteration."""
        self._environments.set_due(iteration)

    def set_evaluated(self, iteration: int) -> None:
        """Sets what the curriculum has for evaluating a policy of this iteration: the same in all workers."""
        with self._guard.building(f"set_state() for the evaluation of iteration {iteration}"):
            self._environments.set_evaluated(iteration)

    def check_own_memory(self) -> None:
        """To be called between two episodes.

        Raises:
          TooLargeError: The worker itself has grown too large.
        """
        self._environments.memory.check()

    def _envs(self, is_eval: bool) -> list[AnyEnvironment]:
        return self._environments.evaluation if is_eval else self._environments.collect

    def _begin_episode(self, place: Place) -> None:
        if self._environments.device is not None:
            gc.collect()  # No step waits for it now.
        if not self._environments.has_due(place):
            self._environments.begin_episode(place)
            return
        with self._guard.building(f"set_state() of {place.name}"):
            self._environments.begin_episode(place)
        self._guard.stepping(self._envs(place.is_eval))

    def _replace(self, place: Place, fault: EnvironmentFault) -> None:
        self._check_stop()  # Waiting for an environment's process ends with a fault when the worker is to stop.
        with self._guard.building(f"building {place.name} again"):
            self._environments.replace(place, fault)
        envs = self._envs(place.is_eval)
        self._seeds.reseed(envs[place.index])
        self._guard.stepping(envs)

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise StoppedError


class _EpisodeNumbers:
    """Deals numbers to episodes: each of them to one that was begun.

    Args:
      numbers: Without any, episodes have none.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        self._waiting = collections.deque(numbers)
        self._taken: dict[int, int] = {}  # By environment.

    def take(self, env: int) -> int | None:
        """That of the episode which begins in an environment."""
        self._taken.pop(env, None)
        if not self._waiting:
            return None
        self._taken[env] = self._waiting.popleft()
        return self._taken[env]

    def put_back(self, env: int) -> None:
        """An environment has failed in a reset: its episode begins again."""
        if env in self._taken:
            self._waiting.appendleft(self._taken.pop(env))


class RepeatableSeeds:
    """Seeds of one worker with SAC_DETERMINISTIC=1; all but `begin_episode` do nothing in any other run.

    Args:
      role: Its seed decides all of them.
      worker_id: The worker.
      rng: Of its random actions.
      policy: Its noise follows from them, too.
    """

    def __init__(self, role: Role, worker_id: int, rng: np.random.Generator, policy: NewestPolicy) -> None:
        self._role = role
        self._worker_id = worker_id
        self._rng = rng
        self._policy = policy
        self._seeds: Iterator[int] = iter(())  # Of what is left of an iteration.

    def begin(self, stream: int, iteration: int, envs: Sequence[AnyEnvironment]) -> None:
        """From here on all that is random depends on seed, worker, stream and iteration, and on nothing before."""
        if not self._role.deterministic:
            return
        self._seeds = (
            self._role.derived_seed(stream, self._worker_id, 1 + iteration, number) for number in itertools.count()
        )
        self._rng.bit_generator.state = np.random.default_rng(next(self._seeds)).bit_generator.state
        self._policy.policy.reseed(next(self._seeds))
        random.seed(next(self._seeds))  # A user's environment may take numbers from these two.
        np.random.seed(next(self._seeds))
        for env in envs:
            self.reseed(env)

    def begin_episode(self, env: AnyEnvironment, number: int, start: int = 0) -> int:
        """An episode may continue in later iterations: what is random in its environment depends on its number.

        In any run; arguments and result as of EpisodeRunner.repeat_episode.
        """
        further = (start,) if start else ()
        seed = self._role.derived_seed(EPISODE_STREAM, self._worker_id, number, *further)
        seed_episode(env, seed)
        return seed

    def reseed(self, env: AnyEnvironment) -> None:
        """An environment that begins again, or replaces one that failed."""
        if self._role.deterministic:
            env.reseed(next(self._seeds) % 2**31)
