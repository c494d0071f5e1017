"""Worker: one collect and one evaluation environment, the newest policy, and the way to the replay server."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import tensorflow as tf
import tree
from absl import logging
from tf_agents.trajectories import time_step as ts

from tfagents_system.curriculum import Curriculum
from tfagents_system.envs import loading, specs
from tfagents_system.policies import weights
from tfagents_system.policies.worker_policy import make_worker_policy
from tfagents_system.replay import tables
from tfagents_system.replay.connection import Connection, StoppedError, Waiting
from tfagents_system.replay.ring import INIT_ITERATION
from tfagents_system.replay.segments import Layout
from tfagents_system.replay.sender import SegmentSender
from tfagents_system.report.episodes import Episode, Report
from tfagents_system.role import COLLECT_STREAM, EVAL_STREAM, NOISE_STREAM, Role, sequence_length
from tfagents_system.rollout import Observer, SegmentBuilder, run_episode

_POLL_SECS = 0.01
_START_DEADLINE_SECS = 600.0
_POLICY_DEADLINE_SECS = 24 * 3600.0  # An iteration of a large network may take long; the trainer is supervised.
_FLUSH_SECS = 20.0
_BEAT_SECS = 1.0


class Worker:
    """Collects and evaluates for one run.

    Args:
      role: The process it runs in.
      worker_id: SLURM_PROCID: from 0.
    """

    def __init__(self, role: Role, worker_id: int) -> None:
        self._role = role
        self._params = role.params
        self._id = worker_id
        self._connection = Connection(role.server_address, role.stop.is_set)
        self._connection.wait_until_up(_START_DEADLINE_SECS)
        self._progress_reader = self._connection.newest(tables.PROGRESS)
        self._weights_reader = self._connection.newest(tables.WEIGHTS)
        self._eval_weights_reader = self._connection.newest(tables.EVAL_WEIGHTS)
        stored = self._first_status()
        record = stored.workers[worker_id]
        self._init_episodes_done = record.init_episodes
        collected = sum(other.init_episodes for other in stored.workers)
        self._init_is_complete = collected >= self._params.n_buffer_init_episodes
        self._iteration_done = record.iteration_done
        incarnation = max(time.time_ns(), record.incarnation + 1)
        self._sender = SegmentSender(self._connection, worker_id, incarnation)
        # A restarted worker must not live through the episodes of its first start again.
        start = incarnation if record.incarnation else 0
        self._rng = np.random.default_rng(role.derived_seed(NOISE_STREAM, worker_id, start))
        seeds = [role.derived_seed(stream, worker_id, start) for stream in (COLLECT_STREAM, EVAL_STREAM)]
        self._env = loading.make_collect_env(self._params, worker_id, seeds[0])
        self._eval_env = loading.make_eval_env(self._params, worker_id, self._env, seeds[1])
        observation_spec, action_spec = specs.load_specs(role.paths.specs)
        self._layout = Layout.from_specs(observation_spec, action_spec)
        self._segment_steps = self._layout.max_segment_steps(sequence_length(self._params))
        self._action_spec = action_spec
        agent = self._params.agent_ctor(
            ts.time_step_spec(observation_spec), action_spec, tf.Variable(0, dtype=tf.int64, name="train_step")
        )
        self._policy = make_worker_policy(agent, role.derived_seed(NOISE_STREAM, worker_id, start, 1))
        self._train_observers = list(self._params.train_observers_ctor())
        self._eval_observers = list(self._params.eval_observers_ctor())
        self._curriculum = Curriculum.from_config(self._params.env_config)
        self._version = -1  # of the policy: iterations that it was trained for
        self._train_step = 0
        self._weights: dict[str, np.ndarray] = {}
        self._evaluated = (0, -1)  # (trainer's session, version) of the last evaluation
        self._steps = self._episodes = 0
        self._told: dict[str, Any] = {}
        self._beat_due = 0.0
        self._started = time.monotonic()

    def run(self) -> None:
        """Collects and evaluates until the role is told to stop, which is when the trainer has finished."""
        try:
            self._collect_init_episodes()
            while True:
                self._check_stop()
                iteration = self._next_iteration()
                if iteration >= self._params.num_iter:
                    self._wait_for_the_end()
                    continue
                self._wait_for_policy(iteration)
                self._apply_curriculum(iteration)
                self._collect(iteration)
                self._evaluate_if_due()
        except StoppedError:
            logging.info("stopped after %d steps", self._steps)

    def close(self) -> None:
        """Waits until all experience is stored, then closes the environments."""
        deadline = time.monotonic() + _FLUSH_SECS
        try:
            self._sender.flush(Waiting("segments to be stored", _FLUSH_SECS, stop=lambda: time.monotonic() > deadline))
        except StoppedError:
            logging.warning("%d segments are not known to be stored", self._sender.unconfirmed_segments)
        self._beat("stopped")
        self._env.close()
        self._eval_env.close()

    # What to do next.

    def _first_status(self) -> tables.Stored:
        reader = self._connection.newest(tables.STATUS)
        waiting = Waiting("the replay server's first word", _START_DEADLINE_SECS, self._role.stop.is_set)
        while (arrays := reader.get()) is None:
            waiting.check()
            time.sleep(_POLL_SECS)
        return tables.Stored.from_wire(arrays)

    def _progress(self) -> tables.Progress | None:
        arrays = self._progress_reader.get()
        return tables.Progress.from_wire(arrays) if arrays is not None else None

    def _next_iteration(self) -> int:
        """The first iteration that this worker has not completed and the trainer has not passed."""
        progress = self._progress()
        trained = progress.iteration if progress is not None else 0
        if self._params.asynchronous:
            return trained
        return max(self._iteration_done + 1, trained, 0)

    def _wait_for_the_end(self) -> None:
        """All is collected: evaluates what the trainer still publishes."""
        self._beat("waiting", waiting_for="the trainer to finish")
        self._sender.confirm()
        self._apply_curriculum(self._params.num_iter - 1)
        self._evaluate_if_due()
        time.sleep(10 * _POLL_SECS)

    def _wait_for_policy(self, iteration: int) -> None:
        """Takes the newest policy; in lock-step one that is at most an iteration behind."""
        oldest = 0 if self._params.asynchronous else max(0, iteration - 1)
        what = f"the policy of iteration {oldest} from the trainer at {self._connection.address}"
        waiting = Waiting(what, _POLICY_DEADLINE_SECS, self._role.stop.is_set)
        while True:
            progress = self._progress()
            if progress is not None and progress.iteration > self._version:
                self._take_weights()
            if self._version >= oldest:
                return
            self._beat("waiting", waiting_for=what)
            self._sender.confirm()
            self._evaluate_if_due()  # The trainer may wait for it.
            waiting.check()
            time.sleep(_POLL_SECS)

    def _take_weights(self) -> None:
        arrays = self._weights_reader.get()
        if arrays is not None:
            _, self._version, self._train_step = (int(value) for value in arrays[0])
            self._weights = weights.from_arrays(arrays[1:])
            self._policy.assign(self._weights)

    def _apply_curriculum(self, iteration: int) -> None:
        for name, value in self._curriculum.due(iteration):
            logging.info("iteration %d: %s = %s", iteration, name, value)
            self._env.set_state({name: value})
            if self._curriculum.apply_to_eval(name):
                self._eval_env.set_state({name: value})

    # Collecting.

    def _collect_init_episodes(self) -> None:
        """The worker's share of the first random episodes, those that it completed before a restart not again."""
        total, workers = self._params.n_buffer_init_episodes, self._role.num_workers
        share = total // workers + (self._id < total % workers)
        missing = share - self._init_episodes_done
        if missing <= 0 or self._iteration_done >= INIT_ITERATION or self._init_is_complete:
            return
        self._apply_curriculum(0)
        self._collect_episodes(INIT_ITERATION, missing, self._random_action)

    def _collect(self, iteration: int) -> None:
        episodes = self._collect_episodes(iteration, self._params.n_train_episodes_per_iter, self._policy_action)
        observed = _results(self._train_observers)
        curriculum = self._curriculum.values
        self._report(
            Report("train", 0, self._id, iteration, self._train_step, self._version, episodes, observed, curriculum)
        )

    def _collect_episodes(self, iteration: int, count: int, action_fn: Any) -> list[Episode]:
        episodes = []
        for k in range(count):
            self._policy.reset()
            builder = SegmentBuilder(self._layout, iteration, self._segment_steps, self._sender.send)
            try:
                episode = run_episode(
                    self._env, action_fn, builder=builder, observers=self._train_observers, on_step=self._on_step
                )
            except BaseException:
                # Stopped, or a fault of the environment: the steps before it are true all the same.
                builder.finish(ends_episode=False, end_of_iteration=False)
                raise
            builder.finish(ends_episode=True, end_of_iteration=k == count - 1)
            episodes.append(episode)
            self._episodes += 1
            self._beat("collecting", iteration=iteration, last_return=episode.episode_return)
        self._iteration_done = iteration
        self._sender.confirm()
        return episodes

    def _policy_action(self, time_step: ts.TimeStep) -> Any:
        return self._policy.action(time_step, greedy=False)

    def _random_action(self, time_step: ts.TimeStep) -> Any:
        del time_step
        return tree.map_structure(
            lambda spec: self._rng.uniform(-1.0, 1.0, tuple(spec.shape)).astype(np.float32), self._action_spec
        )

    def _on_step(self) -> None:
        self._steps += 1
        if time.monotonic() >= self._beat_due:
            self._beat("collecting")
        self._check_stop()

    # Evaluating.

    def _evaluate_if_due(self) -> None:
        """Runs this worker's share of the newest evaluation, with the policy that it is of."""
        progress = self._progress()
        if progress is None or (progress.session, progress.eval_iteration) <= self._evaluated:
            return
        arrays = self._eval_weights_reader.get()
        if arrays is None or int(arrays[0][0]) != progress.session:
            return
        session, version, train_step = (int(value) for value in arrays[0])
        share = len(range(self._id, self._params.n_eval_episodes, self._role.num_workers))
        self._policy.assign(weights.from_arrays(arrays[1:]))
        episodes: list[Episode] = []
        for _ in range(share):
            episodes.append(self._evaluate_episode(version))
            observed = _results(self._eval_observers)
            self._report(Report("eval", session, self._id, version, train_step, version, episodes, observed))
        self._evaluated = (session, version)
        if self._weights:
            self._policy.assign(self._weights)

    def _evaluate_episode(self, version: int) -> Episode:
        self._beat("evaluating", iteration=version)
        self._policy.reset()
        return run_episode(
            self._eval_env,
            lambda time_step: self._policy.action(time_step, greedy=True),
            observers=self._eval_observers,
            on_step=self._on_eval_step,
        )

    def _on_eval_step(self) -> None:
        if time.monotonic() >= self._beat_due:
            self._beat("evaluating")
        self._check_stop()

    def _check_stop(self) -> None:
        if self._role.stop.is_set():
            raise StoppedError

    # Telling.

    def _report(self, report: Report) -> None:
        self._connection.put(tables.REPORTS, report.to_wire())

    def _beat(self, state: str, **fields: Any) -> None:
        self._beat_due = time.monotonic() + _BEAT_SECS
        self._told.update(fields)
        self._role.heartbeat.beat(
            state,
            episodes=self._episodes,
            steps=self._steps,
            steps_per_s=self._steps / max(1e-9, time.monotonic() - self._started),
            inference=self._policy.inference,
            curriculum=self._curriculum.values,
            **{**self._told, "waiting_for": fields.get("waiting_for")},
        )


def _results(observers: list[Observer]) -> dict[str, float]:
    """`result()` of those observers that have a name and one (PyMetrics)."""
    named = [observer for observer in observers if hasattr(observer, "name") and hasattr(observer, "result")]
    results = {str(observer.name): float(observer.result()) for observer in named}
    return {name: value for name, value in results.items() if math.isfinite(value)}
