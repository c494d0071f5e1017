"""The environments of one worker: built, built again when they fail or grow too large, and closed."""

from __future__ import annotations

import collections
import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from absl import logging

from tfagents_system.envs import loading
from tfagents_system.envs.batched_environment import BatchedEnvironment
from tfagents_system.envs.curriculum import Curriculum
from tfagents_system.envs.env_process import EnvProcess, ProcessSettings
from tfagents_system.envs.faults import EnvironmentFault, describe_error
from tfagents_system.envs.loading import AnyEnvironment
from tfagents_system.errors import UserError
from tfagents_system.machine import memory
from tfagents_system.role import COLLECT_STREAM, EVAL_STREAM
from tfagents_system.train_params_base import TrainParamsBase

MAX_FAULTS_IN_A_ROW = 3
_SOON_SECS = 60.0  # An environment that has grown too large sooner than that is at fault.
_LOOK_SECS = 1.0
_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Place:
    """One of a worker's places for environments.

    Attributes:
      is_eval: For evaluation rather than collecting.
      index: From 0.
    """

    is_eval: bool
    index: int

    @property
    def name(self) -> str:
        """`environment 0`, `evaluation environment 0`."""
        return f"{'evaluation ' if self.is_eval else ''}environment {self.index}"


class TooLargeError(Exception):
    """The worker's process takes more memory than SAC_WORKER_MEMORY_MB: it should be restarted."""


class WorkerEnvironments:
    """All environments of one worker.

    A fault costs the episode that it happens in: the environment is closed, built again with another seed, and gets
    the curriculum's values. Three in a row in one place, without an episode that came to its end, are the caller's.

    Args:
      params: The user's TrainParams.
      worker_id: The worker.
      count: Collect environments; 1 if that is a vector environment. Their `id` for the hooks is
        worker_id * count + index.
      eval_count: Evaluation environments, from 0 to `count`: each has the collect environment of the same index.
      derived_seed: From a stream and further numbers to a seed.
      curriculum: Its values are what environments are set to when they are built again.
      process: Where they run; None: as SAC_ENV_PYTHON says.
      memory_mb: SAC_WORKER_MEMORY_MB; None: no limit.

    Attributes:
      collect, evaluation: The environments; the hooks' `id` of the first of them: `first_env_id`.
      faults, eval_faults: How many there were; those of evaluation alone.
      last_fault: The last one's text.
    """

    def __init__(
        self,
        params: TrainParamsBase,
        worker_id: int,
        count: int,
        eval_count: int,
        derived_seed: Callable[..., int],
        curriculum: Curriculum,
        *,
        process: ProcessSettings | None = None,
        memory_mb: int | None = None,
    ) -> None:
        self._params = params
        self._worker_id = worker_id
        self._count = count
        self.first_env_id = worker_id * count
        self._derived_seed = derived_seed
        self._curriculum = curriculum
        self._due: dict[Place, list[tuple[str, Any]]] = {}  # values of the curriculum that wait for an episode's start
        self._eval_values: dict[str, float] = {}  # of the curriculum, in the evaluation environments
        self._process = process
        self._memory_mb = memory_mb
        self._built: collections.Counter[Place] = collections.Counter()
        self._built_at: dict[Place, float] = {}
        self._in_a_row: collections.Counter[Place] = collections.Counter()
        self._too_large: dict[Place, str] = {}
        self._excess = ""
        self._look_due = 0.0
        self.faults = self.eval_faults = 0
        self.last_fault = ""
        self.collect: list[AnyEnvironment] = []
        self.evaluation: list[AnyEnvironment] = []
        for index in range(count):
            self.collect.append(self._build(Place(False, index)))
            if index < eval_count:
                self.evaluation.append(self._build(Place(True, index)))
        self._check_lanes()

    @property
    def lanes(self) -> int:
        """Episodes that it collects at the same time: one in each environment or lane."""
        return sum(map(_lanes_of, self.collect))

    @property
    def eval_lanes(self) -> int:
        """The same for evaluation."""
        return sum(map(_lanes_of, self.evaluation))

    def _check_lanes(self) -> None:
        """Raises:
        UserError: There are several vector environments.
        """
        if self._count > 1 and self.lanes != self._count:
            raise UserError(several_vectors(self._count, _lanes_of(self.collect[0])))
        idle = self.lanes - self._params.n_train_episodes_per_iter
        if idle > 0 and self._params.env_steps_per_iter is None:
            logging.warning(
                "%s, but a worker collects n_train_episodes_per_iter=%d in an iteration: "
                "%d of its environments have nothing to do",
                f"SAC_ENVS_PER_WORKER={self._count}" if self.lanes == self._count else f"{self.lanes} lanes",
                self._params.n_train_episodes_per_iter,
                idle,
            )

    def close(self) -> None:
        """Closes all of them, and logs what they raise."""
        for env in [*self.collect, *self.evaluation]:
            _close(env)

    def set_due(self, iteration: int) -> None:
        """Collect environments are to have the curriculum's values of this iteration from their next episode on."""
        for name, value in self._curriculum.due(iteration):
            logging.info("iteration %d: %s = %s", iteration, name, value)
            for index in range(len(self.collect)):
                self._due.setdefault(Place(False, index), []).append((name, value))

    def has_due(self, place: Place) -> bool:
        """Whether values of the curriculum wait for the next episode there."""
        return place in self._due

    def begin_episode(self, place: Place) -> None:
        """To be called before an episode begins: sets what is due; rebuilds an environment that has grown too large.

        Raises:
          UserError: An environment has no such parameter.
          EnvironmentFault: See `replace`, or its own process has grown too large again and again.
        """
        self._renew_if_too_large(place)
        try:
            for name, value in self._due.pop(place, []):
                self._set(self._at(place), place, name, value)
        except EnvironmentFault as fault:
            self.replace(place, fault)

    def set_evaluated(self, iteration: int) -> None:
        """Sets what the curriculum has for evaluating a policy of this iteration, whatever is collected meanwhile.

        Raises:
          UserError, EnvironmentFault: See `begin_episode`.
        """
        before, self._eval_values = self._eval_values, self._curriculum.values_at(iteration, is_eval=True)
        for name, value in self._eval_values.items():
            if before.get(name) != value:
                logging.info("evaluation of iteration %d: %s = %s", iteration, name, value)
                self._set_all([Place(True, index) for index in range(len(self.evaluation))], name, value)

    def _set_all(self, places: Sequence[Place], name: str, value: Any) -> None:
        for place in places:
            try:
                self._set(self._at(place), place, name, value)
            except EnvironmentFault as fault:
                self.replace(place, fault)

    # Faults.

    def replace(self, place: Place, fault: EnvironmentFault) -> None:
        """Closes the environment that has failed and replaces it.

        Raises:
          EnvironmentFault: It was the third in a row.
        """
        if self._at(place).episodes_ended:
            self._in_a_row[place] = 0
        self._replace(place, fault)

    def _replace(self, place: Place, fault: EnvironmentFault) -> None:
        while True:
            self._note(place, fault)
            try:
                self._put_new(place)
                return
            except EnvironmentFault as another:
                fault = another
            except Exception as error:
                # Not bad input, whatever it is: it has worked before.
                fault = self._fault(place, error, "its construction")

    def _note(self, place: Place, fault: EnvironmentFault) -> None:
        self._in_a_row[place] += 1
        self.faults += 1
        self.eval_faults += place.is_eval
        self.last_fault = str(fault)
        count = f"fault {self._in_a_row[place]} of at most {MAX_FAULTS_IN_A_ROW - 1} in a row"
        if self._in_a_row[place] >= MAX_FAULTS_IN_A_ROW:
            raise fault
        logging.error("%s; %s: the environment is built again", fault, count)

    def _fault(self, place: Place, error: Exception, where: str) -> EnvironmentFault:
        fault = EnvironmentFault(self._worker_id, 0, 0, error, place.name, where)
        fault.__cause__ = error
        return fault

    def _put_new(self, place: Place) -> None:
        """Closes the environment in a place, builds another one, and sets the curriculum's values."""
        envs = self.evaluation if place.is_eval else self.collect
        _close(envs[place.index])
        env = self._build(place)
        envs[place.index] = env
        self._due.pop(place, None)
        for name, value in (self._eval_values if place.is_eval else self._curriculum.values).items():
            self._set(env, place, name, value)

    def _set(self, env: AnyEnvironment, place: Place, name: str, value: Any) -> None:
        try:
            env.set_state({name: value})
        except (UserError, EnvironmentFault):
            raise
        except Exception as error:
            raise self._fault(place, error, f"set_state({{{name!r}: {value}}})") from error

    def _at(self, place: Place) -> AnyEnvironment:
        return (self.evaluation if place.is_eval else self.collect)[place.index]

    def _build(self, place: Place) -> AnyEnvironment:
        stream = EVAL_STREAM if place.is_eval else COLLECT_STREAM
        times = self._built[place]
        # The first one's seeds are the same for any number of environments.
        further = [place.index, times] if times else [place.index] if place.index else []
        seed = self._derived_seed(stream, *further)
        self._built[place] += 1
        self._built_at[place] = time.monotonic()
        return loading.make_worker_env(
            self._params,
            self._worker_id,
            seed,
            self.first_env_id + place.index,
            name=place.name,
            process=self._process,
            collect_env=self.collect[place.index] if place.is_eval else None,
        )

    # Memory.

    def look_at_memory(self) -> None:
        """Notes what is too large. Looks once a second at most, in less than a millisecond; never without a limit."""
        if self._memory_mb is None or time.monotonic() < self._look_due:
            return
        self._look_due = time.monotonic() + _LOOK_SECS
        places = [Place(False, index) for index in range(len(self.collect))]
        places += [Place(True, index) for index in range(len(self.evaluation))]
        apart = {place: env.pid for place in places if isinstance(env := self._at(place).user_env, EnvProcess)}
        for place, pid in apart.items():
            if text := self._excess_of(f"the process of {place.name}", memory.tree_resident_bytes(pid)):
                self._too_large[place] = text
        own = memory.resident_bytes(os.getpid()) if apart else memory.tree_resident_bytes(os.getpid())
        self._excess = self._excess_of("its process", own)

    def _excess_of(self, what: str, resident_bytes: int) -> str:
        assert self._memory_mb is not None
        if resident_bytes <= self._memory_mb * _MIB:
            return ""
        return (
            f"worker {self._worker_id}: {what} takes {resident_bytes / _MIB:,.0f} MiB, "
            f"more than SAC_WORKER_MEMORY_MB={self._memory_mb}"
        )

    def _renew_if_too_large(self, place: Place) -> None:
        """Builds an environment again whose own process has grown too large."""
        text = self._too_large.pop(place, "")
        if not text:
            return
        error = MemoryError(f"{text}: find the leak, or raise the limit")
        if time.monotonic() - self._built_at[place] < _SOON_SECS:
            self._replace(place, self._fault(place, error, "its first minute"))
            return
        self._in_a_row[place] = 0
        logging.warning("%s: it is built again", text)
        try:
            self._put_new(place)
        except Exception as another:
            self._replace(
                place,
                another if isinstance(another, EnvironmentFault) else self._fault(place, another, "its construction"),
            )

    def check_own_memory(self) -> None:
        """To be called between two episodes.

        Raises:
          TooLargeError: The worker itself has grown too large.
        """
        if self._excess:
            raise TooLargeError(self._excess)


def several_vectors(envs_per_worker: int, lanes: int) -> str:
    """The error where SAC_ENVS_PER_WORKER is set and the environment has lanes of its own."""
    return (
        f"SAC_ENVS_PER_WORKER={envs_per_worker}, but env_ctor returns a vector environment of {lanes} lanes, and a "
        "worker steps one of these: unset SAC_ENVS_PER_WORKER, and let env_ctor build as many lanes as it should have"
    )


def _lanes_of(env: AnyEnvironment) -> int:
    return env.num_lanes if isinstance(env, BatchedEnvironment) else 1


def _close(env: AnyEnvironment) -> None:
    try:
        env.close()
    except Exception as error:
        logging.warning("close() of the environment raised %s", describe_error(error))
