"""Worker: its environments, the newest policy, and the way to the replay server.

What kinds there are (SAC_WORKER_ROLE):

collect   collects experience with the newest policy; planned workers also evaluate
eval      evaluates only
expert    collects experience with a policy that no update changes
test      plays the newest policy, and stores nothing
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import threading
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from absl import logging

from tfagents_system.agents import algorithms
from tfagents_system.agents.agent import make_worker_agent
from tfagents_system.agents.iteration_counts import offline_updates, random_count
from tfagents_system.envs import specs
from tfagents_system.envs.curriculum import Curriculum
from tfagents_system.envs.env_process import ProcessSettings
from tfagents_system.envs.history import policy_time_step_spec
from tfagents_system.errors import UserError
from tfagents_system.machine import claims
from tfagents_system.policies.files import load_policy
from tfagents_system.policies.worker_policy import FixedPolicy, WorkerPolicy, make_worker_policy
from tfagents_system.replay.ring import INIT_ITERATION
from tfagents_system.role import NOISE_STREAM, Role
from tfagents_system.transport import tables
from tfagents_system.transport.connection import Connection, StoppedError, Waiting
from tfagents_system.transport.episode_reports import EVAL, Episode, Report, eval_episodes, extra_episodes
from tfagents_system.transport.segments import Layout, run_layout
from tfagents_system.worker.actors import Actor, PolicyActor, RandomActor
from tfagents_system.worker.collector import Collector, JournaledCollector
from tfagents_system.worker.episode_runner import (
    COLLECTING,
    EVALUATING,
    Activity,
    EnvironmentGuard,
    EpisodeRunner,
)
from tfagents_system.worker.evaluator import Evaluator
from tfagents_system.worker.newest_policy import BackPressure, NewestItem, NewestPolicy, ProgressReader
from tfagents_system.worker.sender import (
    BackgroundHeartbeat,
    BackgroundReader,
    BackgroundSender,
    SegmentSender,
    leave_python_to_steps,
)
from tfagents_system.workers import WorkerEnvironments

_POLL_SECS = 0.01
_NEWS_SECS = 0.2  # How soon a stop is noticed.
_START_DEADLINE_SECS = 600.0
_POLICY_DEADLINE_SECS = 24 * 3600.0  # An iteration of a large network may take long; the trainer is supervised.
_FLUSH_SECS = 20.0


class Worker:
    """Collects and evaluates for one run. What other kinds of workers do differently, their subclasses say.

    Args:
      role: The process it runs in. Planned workers are numbered below `num_collect_workers`; those beyond have no share
        of the first random episodes, nor of evaluations unless they are the run's evaluators.
    """

    collects: ClassVar[bool] = True  # Whether it needs environments to collect in.
    _alone_secs = 30.0  # An asynchronous run without a trainer: how long it waits for one before it acts at random.
    _progress: ProgressReader | None = None  # From when on it is read.

    def __init__(self, role: Role) -> None:
        self._role = role
        self._params = role.params
        self._id = role.worker_id
        self._guard = EnvironmentGuard(role.paths.hang(role.name), self._id, role.variables.step_timeout_secs)
        self._connection = role.connect(self._is_stopped)
        role.wait_until_up(self._connection, _START_DEADLINE_SECS)
        self._back_pressure = BackPressure(self._params)
        stored = self._first_status()
        self._record = stored.worker(self._id)
        self._init_is_complete = stored.init_episodes >= random_count(self._params)
        self._iteration_done = self._record.iteration_done
        incarnation = max(time.time_ns(), self._record.incarnation + 1)
        # A restarted worker must not live through the episodes of its first start again.
        start = incarnation if self._record.incarnation else 0
        self._environments = self._build_environments(start)
        self._is_real_time = self._guard.is_real_time = self._environments.device is not None and not role.deterministic
        try:
            self._connect_and_build(start, incarnation)
        except BaseException:
            self._environments.close()  # A device must not be left as it is.
            raise
        self._activity.begin()

    def _first_status(self) -> tables.Stored:
        reader = self._connection.newest(tables.STATUS)
        waiting = Waiting("the replay server's first word", _START_DEADLINE_SECS, self._role.stop.is_set)
        while (arrays := reader.get()) is None:
            waiting.check()
            time.sleep(_POLL_SECS)
        return tables.Stored.from_wire(arrays)

    def _build_environments(self, start: int) -> WorkerEnvironments:
        role, variables = self._role, self._role.variables
        process = ProcessSettings.of(vars(variables))
        if process is not None:
            process = dataclasses.replace(process, on_wait=self._is_told_to_stop)
        return WorkerEnvironments(
            role.params,
            self._id,
            variables.envs_per_worker,
            min(variables.envs_per_worker, len(self._eval_episodes())),
            lambda stream, *further: role.derived_seed(stream, self._id, start, *further),
            Curriculum.from_config(role.params.env_config),
            process=process,
            memory_mb=variables.worker_memory_mb,
            collects=self.collects,
            busy=self._guard.busy,
        )

    def _connect_and_build(self, start: int, incarnation: int) -> None:
        """What runs the episodes, in environments that are there, and what sends and reads."""
        role, params, worker_id = self._role, self._params, self._id
        observation_spec, action_spec = specs.load_specs(role.paths.specs)
        layout = run_layout(params, observation_spec, action_spec)
        self._sender = self._make_sender(incarnation, layout)
        news, progress = self._connection.news(tables.news(worker_id)), self._newest(tables.PROGRESS)
        self._progress = ProgressReader(news, progress, role.variables.straggler_secs)
        self._activity = Activity(
            BackgroundHeartbeat(role.heartbeat) if self._is_real_time else role.heartbeat, worker_id, self._look_around
        )
        rng = np.random.default_rng(role.derived_seed(NOISE_STREAM, worker_id, start))
        self._random = RandomActor(action_spec, rng)
        time_step_spec = policy_time_step_spec(params, observation_spec)
        seed = role.derived_seed(NOISE_STREAM, worker_id, start, 1)
        policy = self._make_policy(time_step_spec, action_spec, seed, max(1, self._environments.lanes))
        self._policy = NewestPolicy(self._newest(tables.WEIGHTS), policy, self._hear)
        self._runner = EpisodeRunner(role, self._environments, self._guard, self._activity, rng, self._policy)
        is_journaled = role.deterministic and params.env_steps_per_iter is not None
        make_collector: type[Collector] = JournaledCollector if is_journaled else Collector
        self._collector = make_collector(role, start, incarnation, self._runner, self._sender, layout, self._policy)
        period = params.policy_refresh_steps if params.asynchronous else None
        self._actor = PolicyActor(policy, self._collector.greedy, self._policy.refresh, period)
        self._evaluator = Evaluator(
            params,
            worker_id,
            self._eval_episodes(),
            self._connection,
            self._sender,
            self._newest(tables.EVAL_WEIGHTS),
            self._runner,
            self._policy,
            self._collector.give_up_episodes if self._environments.device is not None else lambda: None,
        )

    def _make_sender(self, incarnation: int, layout: Layout) -> SegmentSender:
        params, own, rows = self._params, (self._connection, self._id, incarnation), 0
        if params.env_steps_per_iter is not None:  # Short segments go together: as many rows as the longest one has.
            rows = layout.max_segment_steps(params.sample_form_ctor().sequence_length)
        if not self._is_real_time:
            return SegmentSender(*own, is_patient=self._role.deterministic, max_bundle_rows=rows)
        is_lockstep = not params.asynchronous
        return BackgroundSender(*own, params.max_unsent_mb, is_lockstep=is_lockstep, max_bundle_rows=rows)

    def _newest(self, table: str) -> NewestItem:
        """Reads the newest item of a table; does not wait for it in real time."""
        reader = self._connection.newest(table)
        if self._is_real_time:
            return BackgroundReader(reader, table)
        return reader

    def run(self) -> None:
        """Works until the role is told to stop, or the run that it has joined is over.

        Raises:
          EnvironmentFault: An environment has failed three times in a row.
          TooLargeError: The process has grown too large.
        """
        # The modules are here to stay: searching them for garbage again and again takes time.
        (leave_python_to_steps if self._is_real_time else gc.freeze)()
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
        try:
            self._sender.flush(Waiting("segments to be stored", _FLUSH_SECS, lambda: time.monotonic() > deadline))
        except StoppedError:
            logging.warning("%d segments are not known to be stored", self._sender.unconfirmed_segments)
        finally:  # Also where the replay server refuses them.
            self._activity.beat("stopped")
            self._environments.close()

    # What other kinds of workers do differently.

    def _begin(self) -> None:
        """Collects its share of the first random experience, without what is stored of it since before a restart."""
        total, workers = random_count(self._params), self._role.variables.num_collect_workers
        share = total // workers + (self._id < total % workers)
        missing = share - self._record.init_episodes
        is_done = self._init_is_complete or self._iteration_done >= INIT_ITERATION or missing <= 0
        if is_done or self._id >= workers:
            return
        self._collector.collect_random(missing, self._random)
        self._iteration_done = INIT_ITERATION

    def _go_on(self) -> None:
        """Again and again: an iteration."""
        iteration = self._next_iteration()
        if iteration >= self._params.num_iter:
            self._wait_for_news()  # All is collected. What the trainer still publishes is evaluated.
            self._evaluate_if_due()
            return
        is_guess = self._progress is not None and self._progress.newest is None  # Before the trainer's first word.
        self._wait_for_policy(iteration)
        if is_guess and self._next_iteration() > iteration:
            return  # The run counts on from another one.
        report = self._collector.collect(iteration, self._exploring())
        self._iteration_done = iteration
        self._report_collected(report)
        self._evaluate_if_due()

    def _make_policy(self, time_step_spec: Any, action_spec: Any, seed: int, num_lanes: int) -> WorkerPolicy:
        agent = make_worker_agent(self._params, time_step_spec, action_spec)
        params, hold_steps = self._params, algorithms.value(self._params, "noise_hold_steps")
        seen = params.frame_stack, params.actor_observations
        must_hold = params.noise_hold_steps is not None
        return make_worker_policy(agent, seed, num_lanes, *seen, hold_steps, must_hold)

    def _eval_episodes(self) -> range:
        """Numbers of an evaluation's episodes that are this worker's."""
        return eval_episodes(self._params.num_eval_episodes, self._role.variables.slots.sharing_evaluations, self._id)

    def _exploring(self) -> Actor:
        if self._policy.version < 0:
            return self._random
        return self._actor

    def _report_collected(self, report: Report) -> None:
        """Sends what an iteration's episodes were like. Kept ones have large files: the sender makes the messages."""
        for part in report.parts():
            self._sender.call(functools.partial(_put, self._connection, part))

    # What to do next.

    def _hear(self, wait_secs: float = 0.0) -> tables.Progress | None:
        """How far the trainer is; waits for news of it up to so long."""
        assert self._progress is not None
        return self._progress.get(wait_secs)

    def _wait_for_news(self) -> None:
        """There is nothing to do until the trainer publishes something: waits for that, a moment.

        Raises:
          StoppedError: The run that this worker has joined is over.
        """
        self._runner.rest()
        state, waits_for = ("waiting", "the trainer") if self.collects else ("idle", None)
        with self._activity.spend("waiting for the trainer" if self.collects else "idle"):
            self._activity.beat(state, waits_for)
            self._collector.confirm()
            self._hear(_NEWS_SECS)
        if self._is_over():
            raise StoppedError

    def _next_iteration(self) -> int:
        """The first iteration that this worker has not completed and the trainer has not passed."""
        progress = self._hear()
        trained = progress.iteration if progress is not None else 0
        return trained if self._params.asynchronous else max(self._iteration_done + 1, trained, 0)

    def _wait_for_policy(self, iteration: int) -> None:
        """Takes the newest policy; in lock-step one that is at most `max_policy_lag` iterations behind.

        Where asynchronous it waits for updates, if `min_updates_per_env_step` asks for more of them.
        """
        lag = 0 if self._role.deterministic else self._params.max_policy_lag
        lock_step = not self._params.asynchronous
        oldest = max(0, iteration - lag) if lock_step else 0
        what = f"the policy of iteration {oldest} from the trainer at {self._connection.address}"
        waiting = Waiting(what, _POLICY_DEADLINE_SECS, self._is_stopped)
        began = time.monotonic()
        progress = self._hear()
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
                progress = self._hear(_NEWS_SECS)
            self._evaluate_if_due()  # The trainer may wait for it.

    def _evaluate_if_due(self) -> None:
        self._evaluator.evaluate_if_due(self._hear())

    def _acts_alone(self, waited_secs: float) -> bool:
        """Whether it collects though no trainer has published a policy: at random, where a run begins so anyway."""
        begins = self._iteration_done <= 0  # Else a trained policy is to come.
        begins_at_random = begins and random_count(self._params) > 0 and not offline_updates(self._params)
        if waited_secs < self._alone_secs or not (begins_at_random or self._alone_secs == 0.0):
            return False
        self._alone_secs = 0.0  # From now on at once.
        return True

    # Whether to end.

    def _is_stopped(self) -> bool:
        """Asked by whatever waits for the replay server: the worker itself, or a thread beside its steps."""
        if threading.current_thread() is threading.main_thread():
            self._guard.waiting()
        return self._role.stop.is_set() or self._is_over()

    def _is_told_to_stop(self) -> bool:
        """Asked while an environment's own process is waited for: that one has deadlines of its own."""
        self._guard.waiting()
        return self._role.stop.is_set()

    def _is_over(self) -> bool:
        """Whether the run that this worker has joined is: it says so, or all is trained and its server is gone.

        The run's own workers are stopped by their supervisor.
        """
        if self._role.joined is None:
            return False
        if self._role.joined.ended() is not None:
            return True
        progress = self._progress.newest if self._progress is not None else None
        is_trained = progress is not None and progress.iteration >= self._params.num_iter
        return is_trained and self._connection.size(tables.PROGRESS) is None

    def _look_around(self, state: str) -> Mapping[str, Any]:
        """Looks after the environments; returns what the heartbeat reports of them and of the policy."""
        environments = self._environments
        if state in (COLLECTING, EVALUATING):
            if self._is_real_time:
                self._sender.confirm()
            self._guard.still_stepping(environments.collect if state == COLLECTING else environments.evaluation)
        environments.memory.look()
        return {
            "inference": self._policy.policy.inference,
            "curriculum": environments.curriculum.values,
            "env_faults": environments.faults,
            "eval_env_faults": environments.eval_faults,
            "last_env_fault": environments.last_fault,
            "last_env_fault_at": environments.last_fault_at,
        }


class EvalWorker(Worker):
    """Evaluates every policy that the trainer publishes for it, and collects nothing.

    The run's own (SAC_EVAL_WORKERS) divide each evaluation among them, and the planned workers have no share of it;
    where these are more than an evaluation has episodes, the last ones have nothing to do. One that has joined takes
    nothing of the others' shares: it adds one of its own, as large as the largest of theirs, to each evaluation that
    begins after it has joined. From then on an evaluation is complete when its share is, too.
    """

    collects = False
    _announced_to = 0  # Session of the trainer that knows of it.

    def _go_on(self) -> None:
        progress = self._hear()
        if progress is not None:
            if progress.session != self._announced_to:
                self._announced_to = progress.session
                # At once, whatever its first episodes are like: those with short ones must not count more.
                self._evaluator.tell(Report(EVAL, progress.session, self._id, -1, 0, -1, []))
            self._evaluator.evaluate_if_due(progress)
        self._wait_for_news()

    def _eval_episodes(self) -> range:
        sharing = self._role.variables.slots.sharing_evaluations
        if self._id in sharing:
            return super()._eval_episodes()
        return extra_episodes(self._params.num_eval_episodes, sharing)


class TestingWorker(Worker):
    """Plays episode after episode of the newest policy, greedily, in its evaluation environment.

    Their returns are in its own log. The run learns nothing of them.
    """

    collects = False
    _played = 0

    def _go_on(self) -> None:
        policy = self._policy
        policy.follow(self._hear())
        if policy.version < 0:
            self._wait_for_news()
            return
        self._evaluator.play(policy.version, policy.train_step, [self._played], self._log)
        self._played += 1
        if self._is_over():
            raise StoppedError

    def _eval_episodes(self) -> range:
        return range(1)

    def _log(self, episode: Episode) -> None:
        self._activity.ended_episode(episode.episode_return)
        success = "" if episode.success is None else f", {'success' if episode.success else 'no success'}"
        logging.info(
            "policy of iteration %d (train step %d): return %.5g, %d steps%s%s",
            *(self._policy.version, self._policy.train_step, episode.episode_return, episode.length, success),
            ", ended by a fault" * episode.has_failed,
        )


class ExpertWorker(Worker):
    """Collects with the policy of SAC_EXPERT_POLICY, or the one that `TrainParams.expert_policy_ctor` returns.

    Its steps are stored like any other's, and at the same pace: in lock-step so many episodes in each iteration. What
    is published is not for it. Its returns stay out of the run's metrics: its own log and heartbeat have them.
    """

    _alone_secs = 0.0

    def _make_policy(self, time_step_spec: Any, action_spec: Any, seed: int, num_lanes: int) -> WorkerPolicy:
        del time_step_spec, action_spec, seed
        path, function = self._role.variables.expert_policy, self._params.expert_policy_ctor()
        if path is None and function is None:
            raise UserError(
                "a worker of kind expert needs a policy: set SAC_EXPERT_POLICY to a SavedModel, a policy checkpoint or "
                "an exported file, or have TrainParams.expert_policy_ctor return one"
            )
        policy = load_policy(path, "SAC_EXPERT_POLICY") if path is not None else function
        return FixedPolicy(policy, specs.load_actions(self._role.paths.specs), num_lanes)

    def _exploring(self) -> Actor:
        return self._actor

    def _report_collected(self, report: Report) -> None:
        pass


_CLASSES: dict[str, type[Worker]] = {
    claims.COLLECT: Worker,
    claims.EVAL: EvalWorker,
    claims.EXPERT: ExpertWorker,
    claims.TEST: TestingWorker,
}


def make_worker(role: Role) -> Worker:
    """Builds a worker of the role's kind.

    Raises:
      UserError: What the kind needs is missing.
    """
    return _CLASSES[role.kind](role)


def _put(connection: Connection, report: Report) -> None:
    connection.put(tables.REPORTS, report.to_wire())
