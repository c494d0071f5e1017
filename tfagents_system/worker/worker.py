"""Worker: its environments, the newest policy, and the way to the replay server."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging

from tfagents_system.agents.acting import make_worker_agent
from tfagents_system.agents.sequence_lengths import sequence_length
from tfagents_system.envs import specs
from tfagents_system.envs.curriculum import Curriculum
from tfagents_system.envs.env_process import ProcessSettings, build_timeout_secs, step_timeout_secs
from tfagents_system.envs.faults import EnvironmentFault
from tfagents_system.envs.history import policy_time_step_spec
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.machine.watchdog import Watchdog
from tfagents_system.policies import weights
from tfagents_system.policies.worker_policy import WorkerPolicy, make_worker_policy
from tfagents_system.replay.ring import INIT_ITERATION
from tfagents_system.report.episodes import Episode, Report, eval_share
from tfagents_system.role import COLLECT_STREAM, EVAL_STREAM, HELD_OUT_STREAM, NOISE_STREAM, Role
from tfagents_system.run_files.time_shares import TimeShares
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.transport import tables
from tfagents_system.transport.connection import StoppedError, Waiting
from tfagents_system.transport.segments import Layout, Segment
from tfagents_system.worker.actors import PolicyActor, RandomActor
from tfagents_system.worker.held_out import HeldOutEpisodes
from tfagents_system.worker.progress import ProgressReader
from tfagents_system.worker.rollout import Actor, Observer, SegmentBuilder, StepTimes, run_episodes
from tfagents_system.worker.sender import SegmentSender
from tfagents_system.worker.worker_environments import Place, WorkerEnvironments

_POLL_SECS = 0.01
_NEWS_SECS = 0.2  # How soon a stop is noticed.
_START_DEADLINE_SECS = 600.0
_POLICY_DEADLINE_SECS = 24 * 3600.0  # An iteration of a large network may take long; the trainer is supervised.
_FLUSH_SECS = 20.0
_BEAT_SECS = 1.0
_TELL_AGAIN_SECS = 5.0  # What an evaluation was like, to a trainer that may wait for it.
_TELL_RARELY_SECS = 60.0  # The same, where asynchronous and therefore never waiting.


@dataclasses.dataclass(frozen=True)
class WorkerSettings:
    """How a worker deals with its environments.

    Attributes:
      envs_per_worker: SAC_ENVS_PER_WORKER: environments that it steps together.
      step_timeout_secs: SAC_STEP_TIMEOUT_SECS: what they may take for a step or reset.
      memory_mb: SAC_WORKER_MEMORY_MB; None: no limit.
      env_python: SAC_ENV_PYTHON; None: they run in the worker itself.
      straggler_secs: SAC_STRAGGLER_SECS: what the others wait for it.
    """

    envs_per_worker: int = 1
    step_timeout_secs: float = 300.0
    memory_mb: int | None = None
    env_python: Path | None = None
    straggler_secs: float = 120.0

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> WorkerSettings:
        """The variables, as the supervisor sets them."""
        memory_mb, python = environ.get("SAC_WORKER_MEMORY_MB"), environ.get("SAC_ENV_PYTHON")
        return cls(
            int(environ.get("SAC_ENVS_PER_WORKER") or 1),
            step_timeout_secs(environ),
            int(memory_mb) if memory_mb else None,
            Path(python) if python else None,
            float(environ.get("SAC_STRAGGLER_SECS") or 120),
        )


class Worker:
    """Collects and evaluates for one run. What other kinds of workers do differently, their subclasses say.

    Args:
      role: The process it runs in.
      worker_id: SLURM_PROCID: from 0. Planned workers are numbered below `role.num_workers`; those beyond have no share
        of the first random episodes and of evaluations.
      settings: How it deals with its environments.
    """

    def __init__(self, role: Role, worker_id: int, settings: WorkerSettings) -> None:
        self._role = role
        self._params = role.params
        self._id = worker_id
        self._settings = settings
        envs_per_worker = settings.envs_per_worker
        self._watchdog = Watchdog(role.paths.hang(role.name), settings.step_timeout_secs)
        self._connection = role.connect(self._is_stopped)
        self._connection.wait_until_up(_START_DEADLINE_SECS)
        self._progress = ProgressReader(self._connection, worker_id, settings.straggler_secs)
        self._weights_reader = self._connection.newest(tables.WEIGHTS)
        self._eval_weights_reader = self._connection.newest(tables.EVAL_WEIGHTS)
        stored = self._first_status()
        record = stored.worker(worker_id)
        self._init_episodes_done = record.init_episodes
        self._init_is_complete = stored.init_episodes >= self._params.n_buffer_init_episodes
        self._iteration_done = record.iteration_done
        incarnation = max(time.time_ns(), record.incarnation + 1)
        self._sender = SegmentSender(self._connection, worker_id, incarnation, is_patient=role.deterministic)
        # A restarted worker must not live through the episodes of its first start again.
        start = incarnation if record.incarnation else 0
        self._rng = np.random.default_rng(role.derived_seed(NOISE_STREAM, worker_id, start))
        self._curriculum = Curriculum.from_config(self._params.env_config)
        self._environments = self._build_environments(envs_per_worker, start)
        observation_spec, action_spec = specs.load_specs(role.paths.specs)
        self._layout = Layout.from_specs(observation_spec, action_spec, has_returns=self._params.normalize_rewards)
        # Where deterministic an episode's number decides, whichever start of the worker collects it.
        seed = role.derived_seed(HELD_OUT_STREAM, worker_id, 0 if role.deterministic else start)
        self._held_out = HeldOutEpisodes(self._params.validation_share, seed)
        self._random = RandomActor(action_spec, self._rng)
        time_step_spec = policy_time_step_spec(self._params, observation_spec)
        seed = role.derived_seed(NOISE_STREAM, worker_id, start, 1)
        self._policy = self._make_policy(time_step_spec, action_spec, seed, envs_per_worker)
        self._train_observers = list(self._params.train_observers_ctor())
        self._eval_observers = list(self._params.eval_observers_ctor())
        self._seeds: Iterator[int] = iter(())  # where deterministic: of what is left of an iteration
        self._session = 0  # of the trainer that published the policy: it may have gone back to an earlier one
        self._version = -1  # of the policy: iterations that it was trained for
        self._train_step = 0
        self._weights: dict[str, np.ndarray] = {}
        self._is_policy_checked = False  # with weights that were trained
        self._evaluated = (0, -1)  # (trainer's session, version) of the last evaluation
        self._evaluation: Report | None = None  # the last that was told
        self._told_evaluation_at = -math.inf
        self._steps = self._episodes = 0
        self._told: dict[str, Any] = {}
        self._beat_due = 0.0
        self._started = time.monotonic()
        self._shares = TimeShares(after_first=None)
        self._step_times = StepTimes()

    def run(self) -> None:
        """Works until the role is told to stop, or the run that it has joined is over.

        Raises:
          EnvironmentFault: An environment has failed three times in a row.
          TooLargeError: The process has grown too large.
        """
        gc.freeze()  # The modules are here to stay: searching them for garbage again and again takes time.
        try:
            self._begin()
            while True:
                self._check_stop()
                self._go_on()
        except StoppedError:
            logging.info("stopped after %d steps", self._steps)

    def close(self) -> None:
        """Waits until all experience is stored, then closes the environments."""
        self._watchdog.cancel()
        # In a deterministic run what is not stored belongs to an iteration that is collected again.
        deadline = time.monotonic() + (0.0 if self._role.deterministic else _FLUSH_SECS)
        try:
            self._sender.flush(Waiting("segments to be stored", _FLUSH_SECS, stop=lambda: time.monotonic() > deadline))
        except StoppedError:
            logging.warning("%d segments are not known to be stored", self._sender.unconfirmed_segments)
        joined = self._role.joined
        self._beat("stopped", run_is=joined.ended() if joined is not None else None)
        self._watchdog.arm(f"worker {self._id}: close() of its environments")
        self._environments.close()
        self._watchdog.cancel()

    # What this kind of worker does.

    def _begin(self) -> None:
        """Once, before all else."""
        self._collect_init_episodes()

    def _go_on(self) -> None:
        """Again and again: an iteration."""
        iteration = self._next_iteration()
        if iteration >= self._params.num_iter:
            self._wait_for_the_end()
            return
        self._wait_for_policy(iteration)
        self._apply_curriculum(iteration)
        self._collect(iteration)
        self._evaluate_if_due()
        if self._params.asynchronous:
            self._tell_evaluation_again(_TELL_RARELY_SECS)

    def _make_policy(self, time_step_spec: Any, action_spec: Any, seed: int, num_envs: int) -> WorkerPolicy:
        agent = make_worker_agent(self._params, time_step_spec, action_spec)
        return make_worker_policy(agent, seed, num_envs, self._params.frame_stack)

    def _eval_share(self) -> int:
        """Episodes of an evaluation that are this worker's."""
        return eval_share(self._params.n_eval_episodes, self._role.num_workers, self._id)

    def _report_collected(self, report: Report) -> None:
        """Called with what an iteration's episodes were like."""
        self._report(report)

    # Starting.

    def _build_environments(self, count: int, start: int) -> WorkerEnvironments:
        python = self._settings.env_python
        process = ProcessSettings(python, self._settings.step_timeout_secs, self._wait_for_env) if python else None
        self._guard_building(f"worker {self._id}: building its environments")
        environments = WorkerEnvironments(
            self._params,
            self._id,
            count,
            max(1, min(count, self._eval_share())),
            lambda stream, *further: self._role.derived_seed(stream, self._id, start, *further),
            self._curriculum,
            process=process,
            memory_mb=self._settings.memory_mb,
        )
        self._watchdog.cancel()
        return environments

    # What to do next.

    def _first_status(self) -> tables.Stored:
        reader = self._connection.newest(tables.STATUS)
        waiting = Waiting("the replay server's first word", _START_DEADLINE_SECS, self._role.stop.is_set)
        while (arrays := reader.get()) is None:
            waiting.check()
            time.sleep(_POLL_SECS)
        return tables.Stored.from_wire(arrays)

    def _newest_progress(self, wait_secs: float = 0.0) -> tables.Progress | None:
        """How far the trainer is; waits up to `wait_secs` for news of it."""
        return self._progress.get(wait_secs)

    def _idle(self) -> None:
        """There is nothing to do until the trainer publishes something."""
        with self._shares.spend("idle"):
            self._beat("idle")
            self._wait_for_news()

    def _wait_for_news(self) -> None:
        """Of the trainer, for a moment.

        Raises:
          StoppedError: The run that this worker has joined is over.
        """
        self._newest_progress(wait_secs=_NEWS_SECS)
        self._tell_evaluation_again()
        self._end_with_the_run()

    def _end_with_the_run(self) -> None:
        if self._is_over():
            raise StoppedError

    def _next_iteration(self) -> int:
        """The first iteration that this worker has not completed and the trainer has not passed."""
        progress = self._newest_progress()
        trained = progress.iteration if progress is not None else 0
        if self._params.asynchronous:
            return trained
        return max(self._iteration_done + 1, trained, 0)

    def _wait_for_the_end(self) -> None:
        """All is collected: evaluates what the trainer still publishes."""
        with self._shares.spend("waiting for the trainer"):
            self._beat("waiting", waiting_for="the trainer to finish")
            self._confirm()
            self._wait_for_news()
        self._evaluate_if_due()

    def _wait_for_policy(self, iteration: int) -> None:
        """Takes the newest policy; in lock-step one that is at most `max_policy_lag` iterations behind."""
        lag = 0 if self._role.deterministic else self._params.max_policy_lag
        oldest = 0 if self._params.asynchronous else max(0, iteration - lag)
        what = f"the policy of iteration {oldest} from the trainer at {self._connection.address}"
        waiting = Waiting(what, _POLICY_DEADLINE_SECS, self._role.stop.is_set)
        progress = self._newest_progress()
        while True:
            with self._shares.spend("waiting for the policy"):
                if progress is not None and (progress.session, progress.iteration) > (self._session, self._version):
                    self._take_weights()
                if self._version >= oldest:
                    return
                self._beat("waiting", waiting_for=what)
                self._confirm()
                waiting.check()
                progress = self._newest_progress(wait_secs=_NEWS_SECS)
            self._evaluate_if_due()  # The trainer may wait for it.
            self._tell_evaluation_again()

    def _take_weights(self) -> None:
        arrays = self._weights_reader.get()
        if arrays is not None:
            self._session, self._version, self._train_step = (int(value) for value in arrays[0])
            self._weights = weights.from_arrays(arrays[1:])
            self._assign(self._weights, self._train_step)

    def _assign(self, policy_weights: dict[str, np.ndarray], train_step: int) -> None:
        """Gives the policy its weights, and compares it with its network when they are the first that were trained."""
        self._policy.assign(policy_weights)
        if train_step > 0 and not self._is_policy_checked:
            self._policy, self._is_policy_checked = self._policy.checked(policy_weights), True

    def _apply_curriculum(self, iteration: int) -> None:
        self._guard_building(f"worker {self._id}: set_state() in iteration {iteration}")
        self._environments.set_due(iteration)
        self._watchdog.cancel()

    def _apply_curriculum_to_evaluation(self, version: int) -> None:
        """All workers evaluate a policy with the same values, however far they have collected."""
        self._guard_building(f"worker {self._id}: set_state() for the evaluation of iteration {version}")
        self._environments.set_evaluated(min(version, self._params.num_iter - 1))
        self._watchdog.cancel()

    # Collecting.

    def _collect_init_episodes(self) -> None:
        """The worker's share of the first random episodes, those that it completed before a restart not again."""
        total, workers = self._params.n_buffer_init_episodes, self._role.num_workers
        share = total // workers + (self._id < total % workers)
        missing = share - self._init_episodes_done
        if self._id >= workers or missing <= 0 or self._iteration_done >= INIT_ITERATION or self._init_is_complete:
            return
        self._apply_curriculum(0)
        self._collect_episodes(INIT_ITERATION, missing, self._random)

    def _collect(self, iteration: int) -> None:
        episodes = self._collect_episodes(
            iteration, self._params.n_train_episodes_per_iter, PolicyActor(self._policy, greedy=False)
        )
        observed = _results(self._train_observers)
        curriculum = self._curriculum.values
        self._report_collected(
            Report("train", 0, self._id, iteration, self._train_step, self._version, episodes, observed, curriculum)
        )

    def _collect_episodes(self, iteration: int, count: int, actor: Actor) -> list[Episode]:
        def on_episode(episode: Episode) -> None:
            self._episodes += 1
            self._beat("collecting", iteration=iteration, last_return=episode.episode_return)
            self._environments.check_own_memory()

        if self._role.deterministic:
            self._repeat(COLLECT_STREAM, iteration, self._environments.collect)
            self._held_out.number = (iteration - INIT_ITERATION) * self._params.n_train_episodes_per_iter
        with self._shares.spend("collecting"):
            try:
                self._guard(self._environments.collect)
                episodes = run_episodes(
                    self._environments.collect,
                    actor,
                    count,
                    new_builder=lambda: self._new_builder(iteration),
                    observers=self._train_observers,
                    on_step=self._on_step,
                    on_episode=on_episode,
                    on_start=lambda env: self._environments.renew_if_too_large(Place(False, env)),
                    on_fault=lambda env, fault: self._replace(Place(False, env), fault),
                    times=self._step_times,
                )
                self._watchdog.cancel()
                self._iteration_done = iteration
                self._confirm()
            finally:
                self._count_step_times()
        return episodes

    def _new_builder(self, iteration: int) -> SegmentBuilder:
        """Takes the steps of an episode that begins."""
        return segment_builder(self._params, self._layout, iteration, self._send, self._held_out.is_next())

    def _repeat(self, stream: int, iteration: int, envs: Sequence[TrainingEnvironment]) -> None:
        """From here on all that is random depends on seed, worker and iteration, and on nothing before."""
        self._seeds = (self._role.derived_seed(stream, self._id, 1 + iteration, number) for number in itertools.count())
        self._rng.bit_generator.state = np.random.default_rng(next(self._seeds)).bit_generator.state
        self._policy.reseed(next(self._seeds))
        random.seed(next(self._seeds))  # A user's environment may take numbers from these two.
        np.random.seed(next(self._seeds))
        for env in envs:
            env.reseed(next(self._seeds) % 2**31)

    def _send(self, segment: Segment) -> None:
        with self._server_time():
            self._sender.send(segment)

    def _confirm(self) -> None:
        with self._server_time():
            self._sender.confirm()

    @contextlib.contextmanager
    def _server_time(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self._shares.take_out("waiting for the replay server", time.monotonic() - began)

    def _count_step_times(self) -> None:
        policy, simulator = self._step_times.take()
        if policy or simulator:
            self._shares.take_out("policy", policy)
            self._shares.take_out("simulator", simulator)

    def _on_step(self, steps: int) -> None:
        self._steps += steps
        if time.monotonic() >= self._beat_due:
            self._beat("collecting")
        self._check_stop()

    # Evaluating.

    def _evaluate_if_due(self) -> None:
        """Runs this worker's share of the newest evaluation, with the policy that it is of."""
        progress = self._newest_progress()
        if progress is None or progress.eval_iteration < 0:
            return  # None to evaluate since the trainer has begun: the server is not asked while waiting for one.
        if (progress.session, progress.eval_iteration) <= self._evaluated:
            return
        arrays = self._eval_weights_reader.get()
        if arrays is None or int(arrays[0][0]) != progress.session:
            return
        session, version, train_step = (int(value) for value in arrays[0])
        share = self._eval_share()
        if share:
            with self._shares.spend("evaluating"):
                self._evaluate(session, version, train_step, share, weights.from_arrays(arrays[1:]))
        self._evaluated = (session, version)

    def _evaluate(
        self, session: int, version: int, train_step: int, share: int, policy_weights: dict[str, np.ndarray]
    ) -> None:
        episodes: list[Episode] = []

        def on_episode(episode: Episode) -> None:
            episodes.append(episode)
            observed = _results(self._eval_observers)
            self._tell_evaluation(Report("eval", session, self._id, version, train_step, version, episodes, observed))

        self._beat("evaluating", iteration=version)
        self._apply_curriculum_to_evaluation(version)
        if self._role.deterministic:
            self._repeat(EVAL_STREAM, version, self._environments.evaluation)
        self._assign(policy_weights, train_step)
        self._play(share, on_episode)
        if self._weights:
            self._policy.assign(self._weights)

    def _play(self, count: int, on_episode: Callable[[Episode], None]) -> None:
        """So many episodes of the policy, greedily, in the evaluation environments."""
        self._guard(self._environments.evaluation)
        run_episodes(
            self._environments.evaluation,
            PolicyActor(self._policy, greedy=True),
            count,
            observers=self._eval_observers,
            on_step=self._on_eval_step,
            on_episode=on_episode,
            on_start=lambda env: self._environments.renew_if_too_large(Place(True, env)),
            on_fault=lambda env, fault: self._replace(Place(True, env), fault),
        )
        self._watchdog.cancel()

    def _on_eval_step(self, steps: int) -> None:
        del steps
        if time.monotonic() >= self._beat_due:
            self._beat("evaluating")
        self._check_stop()

    # Environments that fail, hang or grow.

    def _replace(self, place: Place, fault: EnvironmentFault) -> None:
        self._check_stop()  # Waiting for an environment's process ends with a fault when the worker is to stop.
        self._guard_building(f"worker {self._id}: building {place.name} again")
        self._environments.replace(place, fault)
        envs = self._environments.evaluation if place.is_eval else self._environments.collect
        if self._role.deterministic:
            envs[place.index].reseed(next(self._seeds) % 2**31)
        self._guard(envs)

    def _guard(self, envs: Sequence[TrainingEnvironment]) -> None:
        """Gives these environments their time from now on; done once a second while they run."""
        where = ", ".join(env.position for env in envs)
        self._watchdog.arm(f"worker {self._id}: {where}")

    def _guard_building(self, what: str) -> None:
        self._watchdog.arm(what, build_timeout_secs(self._settings.step_timeout_secs))

    def _wait_for_env(self) -> bool:
        """Called while an environment's own process is waited for: that one has deadlines of its own."""
        self._watchdog.keep()
        return self._role.stop.is_set()

    def _is_stopped(self) -> bool:
        """Asked by whatever waits for the replay server."""
        self._watchdog.keep()
        return self._role.stop.is_set() or self._is_over()

    def _is_over(self) -> bool:
        """Whether the run that this worker has joined is: it says so, or all is trained and its server is gone.

        The run's own workers are told by their supervisor.
        """
        if self._role.joined is None:
            return False
        if self._role.joined.ended() is not None:
            return True
        progress = self._progress.newest
        is_trained = progress is not None and progress.iteration >= self._params.num_iter
        return is_trained and self._connection.size(tables.PROGRESS) is None

    def _check_stop(self) -> None:
        if self._role.stop.is_set():
            raise StoppedError

    # Telling.

    def _report(self, report: Report) -> None:
        self._connection.put(tables.REPORTS, report.to_wire())

    def _tell_evaluation(self, evaluation: Report) -> None:
        self._report(evaluation)
        self._evaluation, self._told_evaluation_at = evaluation, time.monotonic()

    def _tell_evaluation_again(self, after_secs: float = _TELL_AGAIN_SECS) -> None:
        """Now and then, between two iterations or while waiting: the trainer may wait for a report that was lost.

        The streams of a trainer that was killed live on in the server until each has taken one more, and a server that
        is killed takes with it those that were not read.
        """
        if self._evaluation is not None and time.monotonic() >= self._told_evaluation_at + after_secs:
            self._connection.try_put(tables.REPORTS, self._evaluation.to_wire(), _NEWS_SECS)
            self._told_evaluation_at = time.monotonic()

    def _beat(self, state: str, **fields: Any) -> None:
        self._beat_due = time.monotonic() + _BEAT_SECS
        self._told.update(fields)
        self._count_step_times()
        self._environments.look_at_memory()
        if state in ("collecting", "evaluating") and self._watchdog.is_due():
            self._guard(self._environments.collect if state == "collecting" else self._environments.evaluation)
        shares = self._shares.shares()
        self._role.heartbeat.beat(
            state,
            worker_id=self._id,
            episodes=self._episodes,
            steps=self._steps,
            steps_per_s=self._steps / max(1e-9, time.monotonic() - self._started),
            inference=self._policy.inference,
            curriculum=self._curriculum.values,
            env_faults=self._environments.faults,
            eval_env_faults=self._environments.eval_faults,
            last_env_fault=self._environments.last_fault,
            time_shares={**shares, "other": max(0.0, 1.0 - sum(shares.values()))},
            **{**self._told, "waiting_for": fields.get("waiting_for")},
        )


def segment_builder(
    params: TrainParamsBase, layout: Layout, iteration: int, send: Callable[[Segment], None], held_out: bool
) -> SegmentBuilder:
    """Cuts an episode so that whatever the parameters ask for can be drawn from its segments."""
    return SegmentBuilder(
        layout,
        iteration,
        layout.max_segment_steps(sequence_length(params)),
        send,
        held_out=held_out,
        history=layout.history_rows(params.frame_stack),
        gamma=params.discount,
    )


def _results(observers: list[Observer]) -> dict[str, float]:
    """`result()` of those observers that have a name and one (PyMetrics)."""
    named = [observer for observer in observers if hasattr(observer, "name") and hasattr(observer, "result")]
    results = {str(observer.name): float(observer.result()) for observer in named}
    return {name: value for name, value in results.items() if math.isfinite(value)}
