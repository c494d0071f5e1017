"""A worker's collect_env and eval_env: built by the hooks of TrainParams, set to the curriculum's values, replaced.

Environments that fail are built again. Their `set_state` is called before the first episode with another value.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from absl import logging

from tfagents_system.envs import loading
from tfagents_system.envs.curriculum import Curriculum, Values
from tfagents_system.envs.env_process import ProcessSettings
from tfagents_system.envs.faults import EnvironmentFault, describe_error
from tfagents_system.envs.hooks import COLLECT, EVAL
from tfagents_system.envs.real_time import Device
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError
from tfagents_system.machine import processes
from tfagents_system.role import COLLECT_STREAM, EVAL_STREAM
from tfagents_system.train_params_base import TrainParamsBase

MAX_FAULTS_IN_A_ROW = 3
_LOOK_SECS = 1.0  # Between two measurements of the worker's memory.


class Place(NamedTuple):
    """A place for an environment in a worker: for evaluation or for collecting, and which, from 0."""

    is_eval: bool
    number: int

    @property
    def name(self) -> str:
        """`environment 0`, `evaluation environment 0`."""
        return f"{'evaluation ' if self.is_eval else ''}environment {self.number}"


@dataclasses.dataclass(eq=False)
class WorkerEnvironments:
    """All environments of one worker.

    A fault costs the episode that it happens in: the environment is closed, built again with another seed, and gets
    the curriculum's values. Three in a row in one place, without an episode that counts, are the caller's.

    An environment that acts in real time is the only one: it is evaluated in, too, and `evaluation` is `collect`. What
    an evaluation sets there is set back before the next episode that is collected; what only training sets stays.

    Attributes:
      params: The user's TrainParams.
      worker_id: The worker.
      count: Collect environments; 1 if that is a vector environment. Their `id` for the hooks is
        worker_id * count + index.
      eval_count: Evaluation environments, from 0 to `count`: each has the collect environment of the same index.
      derived_seed: From a stream and further numbers to a seed.
      curriculum: Of the run. Each of its values is set before an environment's next episode.
      process: Where they run; None: as SAC_ENV_PYTHON says.
      memory_mb: SAC_WORKER_MEMORY_MB; None: no limit.
      collects: False: it only evaluates, and builds no collect environments.
      busy: Around what may take long, which it is told.

      collect, evaluation: The environments; the hooks' `id` of the first of them: `first_env_id`.
      memory: Whether the worker has grown too large.
      faults, eval_faults: How many there were; those of evaluation alone.
      last_fault, last_fault_at: The last one's text, and when it was (Unix seconds).

    Raises:
      UserError: There are several vector environments, or several that act in real time.
    """

    params: TrainParamsBase
    worker_id: int
    count: int
    eval_count: int
    derived_seed: Callable[..., int]
    curriculum: Curriculum
    _: dataclasses.KW_ONLY
    process: ProcessSettings | None = None
    memory_mb: int | None = None
    collects: bool = True
    busy: Callable[[str], AbstractContextManager[Any]] = contextlib.nullcontext

    def __post_init__(self) -> None:
        self.first_env_id = self.worker_id * self.count
        self._of_evaluation: Values = {}  # What the policy that is evaluated is evaluated with.
        self._are_set: dict[Place, Values] = {}
        self._is_shared = False  # `evaluation` is `collect`.
        self.memory = MemoryLimit(self.worker_id, self.memory_mb)
        self._built: collections.Counter[Place] = collections.Counter()
        self._in_a_row: collections.Counter[Place] = collections.Counter()
        self.faults = self.eval_faults = 0
        self.last_fault, self.last_fault_at = "", 0.0
        self.collect, self.evaluation = list[TrainingEnvironment](), list[TrainingEnvironment]()
        for index in range(self.count if self.collects else self.eval_count):
            if self.collects:
                self.collect.append(self._build(Place(False, index)))
            if self.collect and self.device is not None:
                self.evaluation, self._is_shared = self.collect, True
            elif index < self.eval_count:
                self.evaluation.append(self._build(Place(True, index)))
            if self.device is not None and self.count > 1:
                self.close()
                raise UserError(several_devices(self.count))
        envs = self.collect or self.evaluation
        if self.count > 1 and any(env.is_vector for env in envs):
            raise UserError(several_vectors(self.count, envs[0].num_lanes))

    @property
    def device(self) -> Device | None:
        """Of the environment that acts in real time; None: no environment does."""
        return getattr(next(iter(self.collect or self.evaluation), None), "device", None)

    @property
    def lanes(self) -> int:
        """Episodes that it collects at the same time: one in each environment or lane."""
        return sum(env.num_lanes for env in self.collect)

    @property
    def eval_lanes(self) -> int:
        """The same for evaluation."""
        return sum(env.num_lanes for env in self.evaluation)

    def close(self) -> None:
        """Closes all of them, and logs what they raise."""
        with self.busy("close() of its environments"):
            for env in dict.fromkeys([*self.collect, *self.evaluation]):
                _logged("close", env.close)

    def rest(self) -> bool:
        """Lets a device wait until the next reset or step; returns whether it waits."""
        with self.busy("wait() of the environment"):
            return self.device is not None and _logged("wait", self.device.wait)[1] is None

    def take_metrics(self) -> dict[str, float]:
        """What a device's steps since the last call were like; empty where it can't say."""
        return {} if self.device is None else _logged("take_metrics", self.device.take_metrics)[0] or {}

    # The curriculum.

    def set_due(self, iteration: int) -> None:
        """Collect environments are to have the curriculum's values of this iteration from their next episode on."""
        before = self.curriculum.values
        self.curriculum.iteration = iteration
        for name, value in self.curriculum.values.items():
            if before.get(name) != value:
                logging.info("iteration %d: %s = %s", iteration, name, value)

    def has_due(self, place: Place) -> bool:
        """Whether values of the curriculum wait for the next episode there."""
        return bool(self._due(place))

    def begin_episode(self, place: Place) -> None:
        """To be called before an episode begins: sets what is due.

        Raises:
          UserError: An environment has no such parameter.
          EnvironmentFault: See `replace`.
        """
        try:
            self._set(place, self._due(place))
        except EnvironmentFault as fault:
            self.replace(place, fault)  # Which sets the others, too.

    def set_evaluated(self, iteration: int) -> None:
        """Sets what the curriculum has for evaluating a policy of this iteration, whatever is collected meanwhile.

        Raises:
          UserError, EnvironmentFault: See `begin_episode`.
        """
        self._of_evaluation = self.curriculum.values_at(iteration, is_eval=True)
        for name, value in self._due(Place(True, 0)).items():
            logging.info("evaluation of iteration %d: %s = %s", iteration, name, value)
        for index in range(len(self.evaluation)):
            self.begin_episode(Place(True, index))

    def _due(self, place: Place) -> Values:
        values = self._of_evaluation if place.is_eval else self.curriculum.values
        now = self._are_set.get(self._own(place), {})
        return {name: value for name, value in values.items() if now.get(name) != value}

    def _set(self, place: Place, values: Values) -> None:
        """Calls `set_state({name: value})` of the environment there; of one without this method attributes are set."""
        env = (self.evaluation if place.is_eval else self.collect)[place.number]
        now = self._are_set.setdefault(self._own(place), {})
        for name, value in values.items():
            try:
                with self.busy(f"set_state() of {place.name}"):
                    env.set_state({name: value})
            except (UserError, EnvironmentFault):
                raise
            except Exception as error:
                where = f"set_state({{{name!r}: {value}}})"
                raise EnvironmentFault(self.worker_id, 0, 0, error, place.name, where) from error
            now[name] = value

    # Faults.

    def replace(self, place: Place, fault: EnvironmentFault) -> None:
        """Closes the environment that has failed and replaces it.

        Raises:
          EnvironmentFault: It was the third in a row.
        """
        own, envs = self._own(place), self.evaluation if place.is_eval else self.collect
        if envs[place.number].episodes_ended or fault.counts:
            self._in_a_row[own] = 0
        while True:
            self._note(place, fault)
            try:
                with self.busy(f"close() of {place.name}"):
                    _logged("close", envs[place.number].close)
                self._are_set.pop(own, None)
                envs[place.number] = self._build(own)
                self._set(place, (self.curriculum.values if self._is_shared else {}) | self._due(place))
                return
            except EnvironmentFault as another:
                fault = another
            except Exception as error:
                # Not bad input, whatever it is: it has worked before.
                fault = EnvironmentFault(self.worker_id, 0, 0, error, place.name, "its construction")

    def _note(self, place: Place, fault: EnvironmentFault) -> None:
        own = self._own(place)
        self._in_a_row[own] += 1
        self.faults += 1
        self.eval_faults += place.is_eval
        self.last_fault, self.last_fault_at = str(fault), time.time()
        if self._in_a_row[own] >= MAX_FAULTS_IN_A_ROW:
            raise fault
        count = f"fault {self._in_a_row[own]} of at most {MAX_FAULTS_IN_A_ROW - 1} in a row"
        logging.error("%s; %s: the environment is built again", fault, count)

    def _own(self, place: Place) -> Place:
        """The place whose environment is used there."""
        return Place(False, place.number) if self._is_shared else place

    def _build(self, place: Place) -> TrainingEnvironment:
        kind, stream = (EVAL, EVAL_STREAM) if place.is_eval else (COLLECT, COLLECT_STREAM)
        times = self._built[place]
        # The first one's seeds are the same for any number of environments.
        further = [place.number, times] if times else [place.number] if place.number else []
        self._built[place] += 1
        with self.busy(f"building {place.name}"):
            return loading.make_env(
                self.params,
                kind,
                self.derived_seed(stream, *further),
                self.first_env_id + place.number,
                worker_id=self.worker_id,
                name=place.name,
                process=self.process,
                collect_env=self.collect[place.number] if place.is_eval and self.collect else None,
            )


def several_devices(envs_per_worker: int) -> str:
    """The error where SAC_ENVS_PER_WORKER is set and the environment acts in real time."""
    return (
        f"SAC_ENVS_PER_WORKER={envs_per_worker}, but the environment acts in real time, and a worker steps one of "
        "these: unset SAC_ENVS_PER_WORKER, and raise SAC_NUM_COLLECT_WORKERS where there are more devices"
    )


def several_vectors(envs_per_worker: int, lanes: int) -> str:
    """The error where SAC_ENVS_PER_WORKER is set and the environment has lanes of its own."""
    return (
        f"SAC_ENVS_PER_WORKER={envs_per_worker}, but env_ctor returns a vector environment of {lanes} lanes, and a "
        "worker steps one of these: unset SAC_ENVS_PER_WORKER, and let env_ctor build as many lanes as it should have"
    )


def _logged(name: str, method: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """What a method of an environment returns, and what it raises, which is logged."""
    try:
        return method(), None
    except Exception as error:
        logging.warning("%s() of the environment raised %s", name, describe_error(error))
        return None, error


class TooLargeError(Exception):
    """The worker takes more memory than SAC_WORKER_MEMORY_MB: it should be restarted."""


class MemoryLimit:
    """Notes that the worker, with the processes of its environments, has grown too large.

    Args:
      worker_id: Named in the error.
      limit_mb: Of all processes together; None: no limit, and nothing is measured.
    """

    def __init__(self, worker_id: int, limit_mb: int | None) -> None:
        self._worker_id, self._limit_mb = worker_id, limit_mb
        self._resident_mb = self._look_due = 0.0

    def look(self) -> None:
        """Measures once a second at most, in less than a millisecond."""
        if self._limit_mb is not None and time.monotonic() >= self._look_due:
            self._look_due = time.monotonic() + _LOOK_SECS
            self._resident_mb = processes.tree_resident_bytes(os.getpid()) / 2**20

    def check(self) -> None:
        """Raises:
        TooLargeError: The worker has grown too large.
        """
        if self._limit_mb is not None and self._resident_mb > self._limit_mb:
            raise TooLargeError(
                f"worker {self._worker_id}: its processes take {self._resident_mb:,.0f} MiB, more than "
                f"SAC_WORKER_MEMORY_MB={self._limit_mb}"
            )
