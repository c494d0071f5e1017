"""Worker: its environments, the newest policy, and the way to the replay server."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from absl import logging

from tfagents_system.agents.agent import make_worker_agent
from tfagents_system.agents.iteration_counts import offline_updates, random_count, steps_of_worker
from tfagents_system.envs import specs
from tfagents_system.envs.curriculum import Curriculum
from tfagents_system.envs.env_process import ProcessSettings
from tfagents_system.envs.history import policy_time_step_spec
from tfagents_system.machine.signals import StopFlag
from tfagents_system.policies.worker_policy import WorkerPolicy, make_worker_policy
from tfagents_system.replay.ring import INIT_ITERATION
from tfagents_system.role import NOISE_STREAM, Role
from tfagents_system.transport import tables
from tfagents_system.transport.connection import Connection, StoppedError, Waiting
from tfagents_system.transport.episode_reports import TRAIN, Report, eval_episodes
from tfagents_system.transport.run_layout import run_layout
from tfagents_system.worker.activity import COLLECTING, EVALUATING, Activity
from tfagents_system.worker.actors import Actor, RandomActor
from tfagents_system.worker.background import leave_python_to_steps
from tfagents_system.worker.collector import Collector
from tfagents_system.worker.environment_guard import EnvironmentGuard
from tfagents_system.worker.episode_runner import EpisodeRunner, RepeatableSeeds
from tfagents_system.worker.evaluator import Evaluator
from tfagents_system.worker.links import make_links
from tfagents_system.worker.newest_policy import NewestPolicy
from tfagents_system.worker.progress import BackPressure
from tfagents_system.worker.run_end import RunEnd
from tfagents_system.workers import WorkerEnvironments

_POLL_SECS = 0.01
_NEWS_SECS = 0.2  # How soon a stop is noticed.
_START_DEADLINE_SECS = 600.0
_POLICY_DEADLINE_SECS = 24 * 3600.0  # An iteration of a large network may take long; the trainer is supervised.
_FLUSH_SECS = 20.0


class Worker:
    """Collects and evaluates for one run. What other kinds of workers do differently, their subclasses say.

    Args:
      role: The process it runs in. Planned workers are numbered below `role.num_workers`; those beyond have no share of
        the first random episodes, nor of evaluations unless they are the run's evaluators.
    """

    collects: ClassVar[bool] = True  # Whether it needs environments to collect in.
    _alone_secs = 30.0  # An asynchronous run without a trainer: how long it waits for one before it acts at random.

    def __init__(self, role: Role) -> None:
        self._role = role
        self._params = role.params
        self._id = worker_id = role.worker_id
        self._guard = EnvironmentGuard(role.paths.hang(role.name), worker_id, role.variables.step_timeout_secs)
        self._end = RunEnd(role, self._guard)
        connection = self._end.connection = role.connect(self._end.is_stopped)
        role.wait_until_up(connection, _START_DEADLINE_SECS)
        self._back_pressure = BackPressure(self._params)
        stored = _first_status(connection, role.stop)
        self._record = stored.worker(worker_id)
        self._init_is_complete = stored.init_episodes >= random_count(self._params)
        self._iteration_done = self._record.iteration_done
        incarnation = max(time.time_ns(), self._record.incarnation + 1)
        # A restarted worker must not live through the episodes of its first start again.
        start = incarnation if self._record.incarnation else 0
        self._curriculum = Curriculum.from_config(self._params.env_config)
        with self._guard.building("building its environments"):
            self._environments = _build_environments(self, start)
        try:
            device = self._environments.device
            self._links = make_links(role, worker_id, connection, incarnation, role.variables.straggler_secs, device)
            self._connection, self._progress = self._links.connection, self._links.progress
            self._guard.call, self._end.progress = self._links.look, self._progress
            self._activity = Activity(self._links.heartbeat, worker_id, self._look_around)
            self._build_runners(start, incarnation)
        except BaseException:
            self._environments.close()  # A device must not be left as it is.
            raise
        self._activity.begin()

    def _build_runners(self, start: int, incarnation: int) -> None:
        """What runs the episodes, in environments that are there."""
        role, worker_id = self._role, self._id
        observation_spec, action_spec = specs.load_specs(role.paths.specs)
        rng = np.random.default_rng(role.derived_seed(NOISE_STREAM, worker_id, start))
        self._random = RandomActor(action_spec, rng)
        time_step_spec = policy_time_step_spec(self._params, observation_spec)
        seed = role.derived_seed(NOISE_STREAM, worker_id, start, 1)
        policy = self._make_policy(time_step_spec, action_spec, seed, max(1, self._environments.lanes))
        self._policy = NewestPolicy(self._connection, policy, self._progress.get)
        seeds = RepeatableSeeds(role, worker_id, rng, self._policy)
        self._runner = EpisodeRunner(self._environments, self._guard, self._activity, seeds, role.stop)
        layout = run_layout(self._params, observation_spec, action_spec)
        self._collector = Collector(
            role, worker_id, start, incarnation, self._runner, self._links.sender, layout, self._activity, self._policy
        )
        self._evaluator = Evaluator(
            self._params,
            worker_id,
            self._eval_episodes(),
            self._connection,
            self._runner,
            self._policy,
            self._activity,
            self._environments.eval_lanes,
            self._collector.give_up_episodes if self._environments.device is not None else lambda: None,
        )

    def run(self) -> None:
        """Works until the role is told to stop, or the run that it has joined is over.

        Raises:
          EnvironmentFault: An environment has failed three times in a row.
          TooLargeError: The process has grown too large.
        """
        # The modules are here to stay: searching them for garbage again and again takes time.
        (leave_python_to_steps if self._links.is_real_time else gc.freeze)()
        with contextlib.suppress(StoppedError):
            self._begin()
            while not self._role.stop.is_set():
                self._go_on()
        logging.info("stopped after %d steps", self._activity.steps)

    def close(self) -> None:
        """Lets a device wait, waits until all experience is stored, then closes the environments."""
        self._runner.rest()
        self._guard.stopped_stepping()
        # In a deterministic run what is not stored belongs to an iteration that is collected again.
        deadline = time.monotonic() + (0.0 if self._role.deterministic else _FLUSH_SECS)
        sender = self._links.sender
        try:
            sender.flush(Waiting("segments to be stored", _FLUSH_SECS, stop=lambda: time.monotonic() > deadline))
        except StoppedError:
            logging.warning("%d segments are not known to be stored", sender.unconfirmed_segments)
        finally:  # Also where the replay server refuses them.
            self._activity.beat("stopped")
            with self._guard.closing():
                self._environments.close()

    def _begin(self) -> None:
        """Collects its share of the first random experience, without what is stored of it since before a restart."""
        total, workers = random_count(self._params), self._role.num_workers
        share = total // workers + (self._id < total % workers)
        missing = share - self._record.init_episodes
        if self._id >= workers or missing <= 0 or self._iteration_done >= INIT_ITERATION or self._init_is_complete:
            return
        self._runner.set_due(0)
        self._collector.collect_random(missing, self._random)
        self._iteration_done = INIT_ITERATION

    def _go_on(self) -> None:
        """Again and again: an iteration."""
        iteration = self._next_iteration()
        if iteration >= self._params.num_iter:
            self._wait_for_the_end()
            return
        is_guess = self._progress.newest is None  # Before the trainer's first word.
        self._wait_for_policy(iteration)
        if is_guess and self._next_iteration() > iteration:
            return  # The run counts on from another one.
        self._collector.follow(iteration, self._exploring())
        self._runner.set_due(iteration)
        self._collect(iteration)
        self._evaluate_if_due()
        if self._params.asynchronous:
            self._evaluator.tell_again(rarely=True)

    def _make_policy(self, time_step_spec: Any, action_spec: Any, seed: int, num_lanes: int) -> WorkerPolicy:
        agent = make_worker_agent(self._params, time_step_spec, action_spec)
        return make_worker_policy(agent, seed, num_lanes, self._params.frame_stack, self._params.actor_observations)

    def _eval_episodes(self) -> range:
        """Numbers of an evaluation's episodes that are this worker's."""
        return eval_episodes(self._params.num_eval_episodes, self._role.slots.sharing_evaluations, self._id)

    def _report_collected(self, report: Report) -> None:
        """Called with what an iteration's episodes were like."""
        for part in report.parts():
            self._links.call(functools.partial(_put, part))

    # What to do next.

    def _idle(self) -> None:
        """There is nothing to do until the trainer publishes something."""
        self._runner.rest()
        with self._activity.spend("idle"):
            self._activity.beat("idle")
            self._wait_for_news()

    def _wait_for_news(self) -> None:
        """Of the trainer, for a moment.

        Raises:
          StoppedError: The run that this worker has joined is over.
        """
        self._progress.get(wait_secs=_NEWS_SECS)
        self._evaluator.tell_again()
        self._end.check()

    def _next_iteration(self) -> int:
        """The first iteration that this worker has not completed and the trainer has not passed."""
        progress = self._progress.get()
        trained = progress.iteration if progress is not None else 0
        if self._params.asynchronous:
            return trained
        return max(self._iteration_done + 1, trained, 0)

    def _wait_for_the_end(self) -> None:
        """All is collected: evaluates what the trainer still publishes."""
        self._runner.rest()
        with self._activity.spend("waiting for the trainer"):
            self._activity.beat("waiting", waiting_for="the trainer to finish")
            self._collector.confirm()
            self._wait_for_news()
        self._evaluate_if_due()

    def _wait_for_policy(self, iteration: int) -> None:
        """Takes the newest policy; in lock-step one that is at most `max_policy_lag` iterations behind.

        Where asynchronous it waits for updates, if `min_updates_per_env_step` asks for more of them.
        """
        lag = 0 if self._role.deterministic else self._params.max_policy_lag
        lock_step = not self._params.asynchronous
        oldest = max(0, iteration - lag) if lock_step else 0
        what = f"the policy of iteration {oldest} from the trainer at {self._connection.address}"
        waiting = Waiting(what, _POLICY_DEADLINE_SECS, self._end.is_stopped)
        began = time.monotonic()
        progress = self._progress.get()
        while True:
            if progress is None and not lock_step and self._acts_alone(time.monotonic() - began):
                return
            with self._activity.spend("waiting for the policy"):
                self._policy.follow(progress)
                if progress is not None and self._policy.may_collect(oldest, progress, lock_step=lock_step):
                    if not self._back_pressure.holds(progress, self._activity.steps):
                        return
                    what = "updates (min_updates_per_env_step)"
                self._runner.rest()
                self._activity.beat("waiting", waiting_for=what)
                self._collector.confirm()
                waiting.check()
                progress = self._progress.get(wait_secs=_NEWS_SECS)
            self._evaluate_if_due()  # The trainer may wait for it.
            self._evaluator.tell_again()

    def _evaluate_if_due(self) -> None:
        self._evaluator.evaluate_if_due(self._progress.get())

    def _acts_alone(self, waited_secs: float) -> bool:
        """Whether it collects though no trainer has published a policy: at random, where a run begins so anyway."""
        begins = self._iteration_done <= 0  # Else a trained policy is to come.
        begins_at_random = begins and random_count(self._params) > 0 and not offline_updates(self._params)
        if waited_secs < self._alone_secs or not (begins_at_random or self._alone_secs == 0.0):
            return False
        self._alone_secs = 0.0  # From now on at once.
        return True

    # Collecting.

    def _exploring(self) -> Actor:
        if self._policy.version < 0:
            return self._random
        period = self._params.policy_refresh_steps if self._params.asynchronous else None
        return self._policy.actor(period, self._collector.greedy)

    def _collect(self, iteration: int) -> None:
        actor = self._exploring()
        self._device_metrics()  # Those of an evaluation.
        if self._params.env_steps_per_iter is None:
            episodes = self._collector.collect_episodes(iteration, self._params.num_train_episodes_per_iter, actor)
        else:
            steps, workers = self._params.env_steps_per_iter, self._role.num_workers
            share = steps_of_worker(self._id, iteration, steps, workers)
            episodes = self._collector.collect_steps(iteration, share, actor)
        self._iteration_done = iteration
        where = self._id, iteration, self._policy.train_step, self._policy.version
        observed, device, best = self._collector.observed, self._device_metrics(), self._collector.take_best()
        self._report_collected(Report(TRAIN, 0, *where, episodes, observed, self._curriculum.values, device, best))

    def _device_metrics(self) -> dict[str, float]:
        return self._environments.take_metrics() | self._links.sender.take_metrics()

    def _look_around(self, state: str) -> Mapping[str, Any]:
        """Looks after the environments; returns what the heartbeat reports of them and of the policy."""
        environments = self._environments
        if state in (COLLECTING, EVALUATING):
            self._guard.still_stepping(environments.collect if state == COLLECTING else environments.evaluation)
        self._links.look(lambda: _look_slowly(self._guard, environments))
        return {
            "inference": self._policy.policy.inference,
            "curriculum": self._curriculum.values,
            "env_faults": environments.faults,
            "eval_env_faults": environments.eval_faults,
            "last_env_fault": environments.last_fault,
        }


def _look_slowly(guard: EnvironmentGuard, environments: WorkerEnvironments) -> None:
    """What may have to wait for the machine or its disk."""
    guard.write()
    environments.memory.look()


def _put(report: Report, connection: Connection) -> None:
    connection.put(tables.REPORTS, report.to_wire())


def _first_status(connection: Connection, stop: StopFlag) -> tables.Stored:
    reader = connection.newest(tables.STATUS)
    waiting = Waiting("the replay server's first word", _START_DEADLINE_SECS, stop.is_set)
    while (arrays := reader.get()) is None:
        waiting.check()
        time.sleep(_POLL_SECS)
    return tables.Stored.from_wire(arrays)


def _build_environments(worker: Worker, start: int) -> WorkerEnvironments:
    role, variables = worker._role, worker._role.variables
    count, process = variables.envs_per_worker, ProcessSettings.of(vars(variables))
    if process is not None:
        process = dataclasses.replace(process, on_wait=worker._end.is_told_to_stop)
    return WorkerEnvironments(
        role.params,
        worker._id,
        count,
        min(count, len(worker._eval_episodes())),
        lambda stream, *further: role.derived_seed(stream, worker._id, start, *further),
        worker._curriculum,
        process=process,
        memory_mb=variables.worker_memory_mb,
        collects=worker.collects,
    )
