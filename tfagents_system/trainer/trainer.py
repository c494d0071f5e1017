"""Trainer: takes blocks of minibatches, updates the agent, publishes the policy, saves.

It holds no experience: it can be killed at any moment.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import tensorflow as tf
from absl import logging

from tfagents_system.agents import entropy
from tfagents_system.agents.block_update import BlockUpdate, DivergedError
from tfagents_system.agents.training_agent import make_agent
from tfagents_system.envs import specs
from tfagents_system.envs.curriculum import Curriculum
from tfagents_system.policies import weights
from tfagents_system.report.episodes import Report, summarize
from tfagents_system.role import TRAIN_STREAM, Role
from tfagents_system.run_files.metrics import MetricsLog
from tfagents_system.run_files.time_shares import TimeShares
from tfagents_system.settings.early_end import Callbacks, EarlyEnd
from tfagents_system.trainer.checkpoints import SaveError, TrainerCheckpoints, TrainerState
from tfagents_system.trainer.evaluated_checkpoints import EvaluatedCheckpoints
from tfagents_system.trainer.evaluations import Evaluated, PolicyEvaluations
from tfagents_system.trainer.iteration_plan import IterationPlan
from tfagents_system.trainer.minibatches import Minibatches
from tfagents_system.trainer.policy_export import PolicyExport
from tfagents_system.trainer.publisher import Publications, Publisher
from tfagents_system.trainer.saves import TrainerSaves
from tfagents_system.trainer.session import next_session
from tfagents_system.trainer.training_row import TrainingRow
from tfagents_system.trainer.update import check_gpu, make_update
from tfagents_system.transport import tables
from tfagents_system.transport.connection import StoppedError

_START_DEADLINE_SECS = 600.0
_EVALUATION_POLL_SECS = 0.02
_BEATS_WAIT_SECS = 1.0  # For heartbeats, once an iteration while a worker is late; reading them takes milliseconds.
_POLL_SECS = 0.2


class Trainer:
    """Trains one run from where it stands to its end.

    Args:
      role: The process it runs in.
    """

    def __init__(self, role: Role) -> None:
        self._role = role
        self._params = params = role.params
        check_gpu()
        if role.deterministic:
            tf.config.experimental.enable_op_determinism()
        self._connection = role.connect(role.stop.is_set)
        observation_spec, action_spec = specs.load_specs(role.paths.specs)
        # Not tf.random.set_seed: Keras draws initial weights from Python's own numbers.
        tf.keras.utils.set_random_seed(role.derived_seed(TRAIN_STREAM))
        self._train_step = tf.Variable(0, dtype=tf.int64, trainable=False, name="train_step")
        self._agent = make_agent(params, observation_spec, action_spec, self._train_step)
        self._variables = weights.named_variables(self._agent.collect_policy)
        self._state = TrainerState()
        self._checkpoints = TrainerCheckpoints(
            role.paths.trainer_checkpoints, self._agent, self._state, self._train_step, self._ask_for_replay
        )
        self._plan = IterationPlan(
            self._state,
            lambda: self.train_step,
            params.num_iter,
            params.num_steps_per_iter if params.updates_per_env_step is None else None,
        )
        self._resumed_at = self._restore()
        environment_action_spec = specs.load_environment_action_spec(role.paths.specs)
        self._export = PolicyExport(
            role.paths, self._agent, environment_action_spec, self._train_step, params.frame_stack
        )
        self._shares = TimeShares()
        self._saves = TrainerSaves(
            params, self._state, self._plan, lambda: self.train_step, self._checkpoints, self._export, self._shares
        )
        self._evaluated_checkpoints = EvaluatedCheckpoints(
            params, self._state, self._export, self._saves, self._is_last
        )
        self._metrics = MetricsLog(role.paths, Curriculum.from_config(params.env_config).names)
        self._metrics.rewind(self.train_step if self._resumed_at is not None else -1)
        self._early_end = EarlyEnd(params)
        self._callbacks = Callbacks(params, self._metrics.rows)
        straggler_secs = float(os.environ.get("SAC_STRAGGLER_SECS") or 120)
        self._evaluations = PolicyEvaluations(params, role, straggler_secs)
        self._begin_evaluations()
        self._training_row = TrainingRow(self._agent)
        self._row: dict[str, Any] = {}  # The newest number of each column, for heartbeats.
        self._session = 0
        self._publisher = Publisher(self._connection, role.max_workers)

    @property
    def train_step(self) -> int:
        """Updates done since the run began."""
        return int(self._train_step.numpy())

    def run(self) -> None:
        """Trains until the last iteration is done.

        Raises:
          StoppedError: The role was told to stop; `stop` is to be called.
          DivergedError: Training has diverged again after it went back to a checkpoint.
          SaveError: The result can't be written.
        """
        self._connect()
        self._begin()
        if not self._export.has_models():
            # Now, while the first experience is collected: tracing them takes seconds.
            self._saves.try_to_write(self._export.save_models)
        while not self._is_over():
            try:
                self._train_iteration()
            except DivergedError as error:
                self._go_back(error)
        self.save_finally()  # Whatever happens during the last evaluation, the training is done.
        self._wait_for_evaluation()
        if self._evaluations.version < self._state.iteration:  # Where asynchronous, it had to wait for the one before.
            self._publish()
            self._wait_for_evaluation()
        if self._training_row.has_losses:
            self._log(self._take_training_row())
        self.save_finally()
        self._publisher.wait()
        self._beat("done")

    def save_finally(self) -> None:
        """Writes all that is kept of this moment.

        Raises:
          SaveError: It can't be written; the last checkpoint is as it was.
        """
        self._saves.save_finally(self._moment(), self._tell_saving)

    def stop(self) -> None:
        """Writes all that is kept of this moment, and its last words: how far it came.

        Raises:
          SaveError: It can't be written; the last checkpoint is as it was.
        """
        self.save_finally()
        self._beat("stopped")

    def close(self) -> None:
        self._publisher.close()
        self._metrics.close()

    # Starting.

    def _restore(self) -> int | None:
        if not self._load_checkpoint():
            return None
        self._seed_noise()
        logging.info("resumed at train step %d, iteration %d", self.train_step, self._state.iteration)
        return self.train_step

    def _load_checkpoint(self) -> bool:
        """Whether there is one."""
        if self._checkpoints.restore() is None:
            return False
        entropy.set_fixed_alpha(self._agent, self._params)
        return True

    def _connect(self) -> None:
        self._connection.wait_until_up(_START_DEADLINE_SECS)
        self._minibatches = Minibatches(self._connection, self._plan, self._role.stop.is_set)
        # Of session 0, so that a reader that is alive passes over it.
        self._connection.feed_dead_reader(tables.REPORTS, Report("eval", 0, 0, 0, 0, 0, [], {}).to_wire())
        self._reports = self._connection.reader(tables.REPORTS, prefetch=100)
        self._status = self._connection.newest(tables.STATUS)
        self._publications = Publications(self._publisher, self._status)

    def _begin(self) -> None:
        """Publishes the policy and asks for the first minibatches, at the start and after going back."""
        # What was asked for or published before is no longer meant.
        self._session = next_session(self._role.paths.trainer_session, self._session)
        self._minibatches.begin(self._session)
        self._publish()
        self._update = self._make_update()
        self._minibatches.request(self._state.iteration)
        self._saves.begin(restored=self._resumed_at is not None or self._state.recoveries > 0)

    def _go_back(self, error: DivergedError) -> None:
        """Goes on from the newest checkpoint with other random numbers, once in a run.

        Raises:
          DivergedError: It has been there before.
        """
        where = f"training diverged at train step {self.train_step}: {error}"
        if self._state.recoveries:
            raise DivergedError(
                f"{where}, the second time in this run: lower the learning rates, set gradient_clipping, "
                "or scale the environment's rewards down"
            )
        with contextlib.suppress(SaveError):
            self._checkpoints.wait()
        if not self._load_checkpoint():
            raise DivergedError(f"{where}, before the first checkpoint: lower the learning rates")
        self._state.recoveries += 1
        self._seed_noise()
        self._training_row.clear()
        self._metrics.rewind(self.train_step)
        self._begin_evaluations()
        logging.error("%s. Going back to train step %d, once, with other random numbers", where, self.train_step)
        self._begin()

    def _begin_evaluations(self) -> None:
        self._early_end.begin(self._metrics.rows())
        self._callbacks.why = None
        self._evaluations.begin()

    def _seed_noise(self) -> None:
        """For agents that draw their own noise. It must not repeat what an earlier start has drawn."""
        tf.random.set_seed(self._role.derived_seed(TRAIN_STREAM, self.train_step, self._state.recoveries))

    def _make_update(self) -> BlockUpdate:
        seed = self._role.derived_seed(TRAIN_STREAM, self._state.recoveries)
        update = make_update(self._agent, self._params, seed, self._role.deterministic)
        self._row["update"] = update.kind
        return update

    # Saving.

    def _save_if_due(self) -> None:
        if self._saves.save_if_due(self._moment(), self._is_checkpoint_wanted, self._tell_saving):
            self._tell_callbacks("checkpoint", {})

    def _tell_saving(self) -> None:
        self._beat("saving")

    def _moment(self) -> dict[str, Any]:
        """For people who read a checkpoint's manifest."""
        return {"env_steps": self._state.env_steps, "curriculum": self._training_row.curriculum}

    def _is_checkpoint_wanted(self) -> bool:
        """Whether the ring is about to overwrite what older checkpoints need."""
        arrays = self._status.get(timeout_secs=1.0)
        return arrays is not None and tables.Stored.from_wire(arrays).checkpoint_wanted

    def _ask_for_replay(self, name: str) -> None:
        self._connection.try_put(tables.SNAPSHOTS, tables.Snapshot(name).to_wire(), _POLL_SECS)

    # The end.

    def _is_over(self) -> bool:
        """Whether all iterations are done, or the run ends before: it then ends in the same way."""
        state = self._state
        if state.ended_for != self._early_end.settings:  # They were changed, so that it goes on.
            state.ended_early = None
        if state.ended_early is None and (why := self._early_end.why or self._callbacks.why):
            state.ended_early, state.ended_for = why, self._early_end.settings
            logging.info("iteration %d is the last: %s", state.iteration, why)
        return state.iteration >= self._params.num_iter or state.ended_early is not None

    def _is_last(self, iteration: int) -> bool:
        """Whether a policy of that iteration is the result of the run, as far as that is decided."""
        ends_here = self._state.ended_early is not None and iteration >= self._state.iteration
        return ends_here or iteration >= self._params.num_iter

    def _tell_callbacks(self, moment: str, further: Mapping[str, Any]) -> None:
        if self._callbacks:
            where = {
                "train_step": self.train_step,
                "iteration": self._state.iteration,
                "env_steps": self._state.env_steps,
            }
            self._callbacks.tell(moment, {**where, **further})

    # An iteration.

    def _train_iteration(self) -> None:
        """The updates of one iteration that are not done yet, block by block; then what is due after it."""
        self._do_updates()
        self._plan.end()
        self._publish()
        if self._role.deterministic and (self._early_end.looks_at_evaluations or self._callbacks):
            self._wait_for_evaluation()  # When it is over must not depend on how long it takes.
        self._take_reports()
        self._log_if_due()
        self._save_if_due()

    def _do_updates(self) -> None:
        plan, iteration = self._plan, self._state.iteration
        self._minibatches.request(iteration + 1)
        while not plan.is_complete:
            block = self._next_block(iteration, plan.done)
            self._state.env_steps = block.env_steps
            self._training_row.begin(self.train_step, block.env_steps)
            is_news = plan.total is None
            count = plan.take(block)
            if is_news:
                self._minibatches.request(iteration + 1)
            self._train_on(block, count)
            if not plan.is_complete:
                self._save_if_due()

    def _train_on(self, block: tables.Block, count: int) -> None:
        """The updates of the first `count` minibatches; then what is held out is measured."""
        self._beat("updating")
        if count:
            with self._shares.spend("updates"):
                losses = self._update([array[:count] for array in block.arrays])
            self._training_row.add_losses(losses)
            self._tell_callbacks("updates", losses)
        if block.held_out:
            with self._shares.spend("validation"):
                measured = self._update.measure([array[block.count :] for array in block.arrays])
            self._training_row.add_losses(measured, "validation/")

    def _next_block(self, iteration: int, first: int) -> tables.Block:
        def while_waiting() -> None:
            self._publisher.check()
            self._beat("waiting", waiting_for=f"experience of iteration {iteration}")
            self._take_reports()
            self._save_if_due()

        self._publisher.check()
        with self._shares.spend("waiting"):
            return self._minibatches.next(iteration, first, while_waiting, self._repeat_if_restarted)

    def _repeat_if_restarted(self) -> None:
        self._publications.repeat_if_restarted(self._evaluations.arrays)

    # Publishing.

    def _publish(self) -> None:
        """Sends a copy of the policy and how far training is; every `eval_period_itrs`, one to evaluate as well.

        An evaluation begins when the one before is over. In lock-step the trainer waits for that: workers that evaluate
        do not collect, so it would have to wait for them anyway. Where asynchronous it goes on, and the evaluation is
        that of a later policy.
        """
        version, evaluations = self._state.iteration, self._evaluations
        is_due = evaluations.is_due(version, self._is_last(version))
        if is_due and self._params.asynchronous:
            self._leave_out_gone(wait_secs=_BEATS_WAIT_SECS)
        elif is_due:
            self._wait_for_evaluation()
        is_evaluated = is_due and evaluations.is_over
        with self._shares.spend("publishing"):
            arrays = [
                np.array([self._session, version, self.train_step], np.int64),
                *weights.to_arrays(weights.read_weights(self._variables)),
            ]
            if is_evaluated:
                evaluations.start(version, arrays, self.train_step, self._state.env_steps)
                self._evaluated_checkpoints.write(version)
            to_evaluate = evaluations.version if evaluations.arrays else -1
            progress = tables.Progress(self._session, version, self.train_step, to_evaluate)
            self._publications.publish(arrays, arrays if is_evaluated else None, progress)

    # Metrics.

    def _take_reports(self) -> None:
        """Takes what workers have told since the last time; writes a row for each evaluation that is complete."""
        with self._shares.spend("logging"):
            while (arrays := self._reports.get(0)) is not None:
                try:
                    report = Report.from_wire(arrays)
                except msgspec.DecodeError as error:
                    logging.error("refused a report: %s", error)
                    continue
                if report.kind == "train":
                    self._training_row.add_report(report)
                elif report.session == self._session:
                    self._evaluations.add(report)
            self._log_evaluations()

    def _log_evaluations(self) -> None:
        for evaluated in self._evaluations.pop_ready():
            self._log_evaluation(evaluated)

    def _log_evaluation(self, evaluated: Evaluated) -> None:
        version, summary = evaluated.version, summarize("eval", evaluated.reports)
        if self._params.asynchronous:
            summary["eval_left_out"] = evaluated.left_out
        train_step = evaluated.reports[0].train_step if evaluated.train_step is None else evaluated.train_step
        env_steps = self._state.env_steps if evaluated.env_steps is None else evaluated.env_steps
        logged = self._log({"train_step": train_step, "iteration": version, "env_steps": env_steps, **summary})
        self._evaluated_checkpoints.take(version, train_step, summary)
        self._tell_callbacks("evaluation", logged)

    def _log_if_due(self) -> None:
        if self._state.iteration % self._params.log_period_itrs == 0:
            self._log(self._take_training_row())

    def _take_training_row(self) -> dict[str, Any]:
        return self._training_row.take(self._state.iteration, self.train_step, self._state.env_steps)

    def _log(self, row: dict[str, Any]) -> dict[str, float]:
        """Writes a row of metrics; returns it as it is written."""
        with self._shares.spend("logging"):
            logged = self._metrics.write(row)
        self._early_end.add(logged)
        self._row.update({name: value for name, value in row.items() if "/" not in name})
        logging.info("%s", "  ".join(f"{name} {value:.5g}" for name, value in row.items()))
        return logged

    def _wait_for_evaluation(self) -> None:
        """Waits until the policy that was published for it is evaluated."""
        evaluations, began = self._evaluations, time.monotonic()
        with self._shares.spend("waiting"):
            while not evaluations.is_over:
                if self._role.stop.is_set():
                    raise StoppedError
                self._leave_out_gone(began)
                self._publisher.check()
                what = f"the evaluation of iteration {evaluations.version} by workers {evaluations.missing()}"
                self._beat("waiting", waiting_for=what)
                self._take_reports()
                self._repeat_if_restarted()
                time.sleep(_EVALUATION_POLL_SECS)

    def _leave_out_gone(self, since: float | None = None, wait_secs: float = 0.0) -> None:
        """Waits no longer for workers that are gone; arguments as of `PolicyEvaluations.leave_out_gone`."""
        self._take_reports()
        if self._evaluations.is_over:
            return
        is_nobody_left = self._evaluations.leave_out_gone(since, wait_secs)
        self._log_evaluations()
        if is_nobody_left and not self._evaluations.is_over:
            self._evaluated_checkpoints.give_up(self._evaluations.version, self._evaluations.give_up())

    def _beat(self, state: str, waiting_for: str | None = None) -> None:
        row = self._row
        self._role.heartbeat.beat(
            state,
            **{
                **row,
                "iteration": self._state.iteration,
                "num_iter": self._params.num_iter,
                "train_step": self.train_step,
                "env_steps": self._state.env_steps,
                "best_eval_return": self._state.best_eval_return,
                "ended_early": self._state.ended_early,
                "ended_for": self._state.ended_for,
                "curriculum": self._training_row.curriculum,
                "time_left_s": self._time_left_secs(),
                "time_shares": self._shares.shares(),
                "resumed_at_step": self._resumed_at,
                "recoveries": self._state.recoveries,
                "save_error": self._saves.error,
                "waiting_for": waiting_for,
            },
        )

    def _time_left_secs(self) -> float | None:
        """At the rate of the last row of metrics, with as many updates in an iteration as there were so far."""
        rate, updates = self._row.get("updates_per_s"), self._plan.mean_updates
        iterations_left = self._params.num_iter - self._state.iteration
        return iterations_left * updates / rate if rate and updates is not None else None
