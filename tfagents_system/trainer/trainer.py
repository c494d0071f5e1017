"""Trainer: takes blocks of minibatches, updates the agent, publishes the policy, saves.

It holds no experience: it can be killed at any moment. From top to bottom: it starts, asks for minibatches, updates,
publishes, has policies evaluated, and saves; `run` is the order in which it does.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from absl import logging

from tfagents_system.agents.block_update import DivergedError
from tfagents_system.agents.iteration_counts import offline_updates, updates_of_iteration
from tfagents_system.envs import specs
from tfagents_system.machine.files import read_json, write_json
from tfagents_system.role import Role
from tfagents_system.run_files.heartbeat import TimeShares
from tfagents_system.run_files.taken import taken_by
from tfagents_system.trainer.evaluations import EvaluatedCheckpoints, WorkerReports
from tfagents_system.trainer.iteration_plan import IterationPlan, Minibatches, parts_of
from tfagents_system.trainer.learner import Learner
from tfagents_system.trainer.policy_export import PolicyExport
from tfagents_system.trainer.publisher import Publisher
from tfagents_system.trainer.trainer_checkpoints import SaveError, TrainerSaves
from tfagents_system.trainer.training_log import TrainingLog
from tfagents_system.transport import tables
from tfagents_system.transport.connection import StoppedError

_START_DEADLINE_SECS = 600.0
_EVALUATION_POLL_SECS = 0.02


class Trainer:
    """Trains one run from its current state to its end."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._params = params = role.params
        self._connection = role.connect(role.is_stopped)
        learner = self._learner = Learner(role, self._connection)
        self._state = learner.state
        self._plan = IterationPlan(
            self._state,
            lambda: learner.train_step,
            params.num_iter,
            updates_of_iteration(params),
            offline_updates(params),
        )
        actions = specs.load_actions(role.paths.specs)
        self._export = PolicyExport(role.paths, learner.agent, actions, learner.step_variable, params.frame_stack)
        self._shares, self._session = TimeShares(), 0
        self._saves = TrainerSaves(role, learner, self._plan, self._export, self._shares)
        self._log = TrainingLog(role, learner, self._plan, self._saves, self._shares)
        taken = taken_by(role.paths)
        begins_trained = offline_updates(params) > 0 or (taken is not None and taken.checkpoint is not None)
        self._evaluated_checkpoints = EvaluatedCheckpoints(
            params, self._state, self._export, self._saves, begins_trained
        )
        self._reports = WorkerReports(role, self._log, self._evaluated_checkpoints, self._shares)
        self._follow(-1 if learner.resumed_at is None else learner.resumed_at)
        # Between policies that are published within an iteration; None: there are none.
        self._publish_period = params.publish_period_updates if params.asynchronous else None
        self._publisher = Publisher(self._connection, role.variables.slots.most)

    def run(self) -> None:
        """Trains until the last iteration is done.

        Raises:
          StoppedError: The role was told to stop; `stop` is to be called.
          DivergedError: Training has diverged again after it went back to a checkpoint.
          SaveError: The result can't be written.
        """
        self._connect()
        self._begin()
        if not self._export.has_model():
            # Now, while the first experience is collected: tracing it takes a second.
            self._saves.try_to_write(lambda: self._export.save_model(self._state.iteration))
        while not self._log.is_over():
            try:
                self._train_iteration()
            except DivergedError as error:
                self._go_back(error)
        self.save_finally()  # Whatever happens during the last evaluation, the training is done.
        self._wait_for_evaluation()
        if self._reports.is_due(self._state.iteration, self._state.end_env_steps, is_last=True):
            self._publish()  # It had to wait for the one before.
            self._wait_for_evaluation()
        if self._log.training_row.has_losses:
            self._log.write_training_row()
        self.save_finally()
        self._publisher.wait()
        self._log.beat("done")

    def save_finally(self) -> None:
        """Writes all that is kept of this moment.

        Raises:
          SaveError: It can't be written; the last checkpoint is as it was.
        """
        self._log.beat("saving")
        self._saves.save_finally()

    def stop(self) -> None:
        """`save_finally`, and its last words: how far it came."""
        self.save_finally()
        self._log.beat("stopped")

    def close(self) -> None:
        self._publisher.close()
        self._log.close()

    # Starting.

    def _connect(self) -> None:
        self._role.wait_until_up(self._connection, _START_DEADLINE_SECS)
        self._minibatches = Minibatches(self._connection, self._plan, self._role.is_stopped)
        self._publisher.watch(self._learner.checkpoints.status)
        self._reports.connect(self._connection)

    def _begin(self) -> None:
        """Publishes the policy and asks for the first minibatches, at the start and after going back."""
        # What was asked for or published before is no longer meant.
        self._session = self._reports.session = next_session(self._role.paths.trainer_session, self._session)
        self._minibatches.begin(self._session)
        if not self._plan.is_offline:  # Workers wait for the policy after it.
            self._publish()
        self._learner.compile()
        self._log.newest["update"] = self._learner.block_update.kind
        self._minibatches.request(self._state.iteration)
        self._saves.begin(restored=self._learner.resumed_at is not None or self._state.recoveries > 0)

    def _go_back(self, error: DivergedError) -> None:
        """Continues from the newest checkpoint with other random numbers, once in a run.

        Raises:
          DivergedError: It has been there before.
        """
        learner, state = self._learner, self._state
        where = f"training diverged at train step {learner.train_step}: {error}"
        if state.recoveries:
            raise DivergedError(
                f"{where}, the second time in this run: lower the learning rates, set gradient_clipping, "
                "or scale the environment's rewards down"
            )
        with contextlib.suppress(SaveError):
            learner.checkpoints.wait()
        if not learner.go_back():
            raise DivergedError(f"{where}, before the first checkpoint: lower the learning rates")
        self._follow(learner.train_step)
        logging.error("%s. Going back to train step %d, once, with other random numbers", where, learner.train_step)
        self._begin()

    def _follow(self, train_step: int) -> None:
        """A start, or going back: what metrics have up to this train step counts, and decides what is best."""
        self._evaluated_checkpoints.begin(self._log.begin(train_step), train_step)
        self._reports.begin()

    def _train_iteration(self) -> None:
        """The updates of one iteration that are not done yet, block by block; then what is due after it."""
        self._do_updates()
        self._plan.end()
        self._publish()
        if self._role.deterministic and self._log.looks_at_evaluations:
            self._wait_for_evaluation()  # When it is over must not depend on how long it takes.
        self._reports.take()
        if self._state.iteration % self._params.log_period_iters == 0:
            self._log.write_training_row()
        self._save_if_due()

    def _do_updates(self) -> None:
        plan, iteration = self._plan, self._state.iteration
        self._minibatches.request(iteration + 1)
        while not plan.is_complete:
            block = self._next_block(iteration, plan.done)
            is_news, count = plan.total is None, plan.take(block)
            self._log.training_row.begin(self._learner.train_step, self._state.env_steps)
            self._learner.follow_schedules(self._state.env_steps)
            if is_news:
                self._minibatches.request(iteration + 1)
            self._train_on(block, count)
            if not plan.is_complete:
                self._save_if_due()

    def _train_on(self, block: tables.Block, count: int) -> None:
        """The updates of the first `count` minibatches; then what is held out is measured."""
        self._log.beat("updating")
        for part in parts_of(self._learner.train_step, count, self._publish_period):
            with self._shares.spend("updates"):
                losses = self._learner.update([array[part] for array in block.arrays])
            self._log.training_row.add_losses(losses, part.stop - part.start)
            self._log.tell_callbacks("updates", losses)
            is_due = self._publish_period and self._learner.train_step % self._publish_period == 0
            if is_due and not (self._plan.is_complete or self._plan.is_offline):
                with self._shares.spend("publishing"):
                    self._learner.follow_schedules(self._state.env_steps)
                    policy = self._learner.read_policy(self._session)
                    self._publisher.publish(policy, None, self._progress(), is_within=True)
                self._reports.take()  # Of the policies before: how old they were is known now, not later.
        if block.held_out:
            with self._shares.spend("validation"):
                measured = self._learner.block_update.measure([array[block.count :] for array in block.arrays])
            self._log.training_row.add_losses(measured, block.held_out, "validation/")

    def _next_block(self, iteration: int, first: int) -> tables.Block:
        def while_waiting() -> None:
            self._tend(f"experience of iteration {iteration}")
            self._save_if_due()

        self._publisher.check()
        with self._shares.spend("waiting"):
            return self._minibatches.next(iteration, first, while_waiting)

    def _tend(self, waiting_for: str) -> None:
        """What happens while the trainer waits."""
        self._publisher.check()
        self._log.beat("waiting", waiting_for=waiting_for)
        self._reports.take()
        self._publisher.repeat_if_restarted(self._reports.arrays)

    # Publishing.

    def _publish(self) -> None:
        """Publishes policy and progress; once in an evaluation's period also a policy to evaluate.

        An evaluation begins when the one before is over. The trainer waits for that or continues, and has a later
        policy evaluated (`WorkerReports.is_awaited`).
        """
        version, reports = self._state.iteration, self._reports
        is_due = reports.is_due(version, self._state.end_env_steps, self._log.is_last(version))
        if is_due and reports.is_awaited:
            self._wait_for_evaluation()
        elif not (reports.is_awaited or reports.is_over):
            reports.leave_out_gone()
        is_evaluated = is_due and reports.is_over
        with self._shares.spend("publishing"):
            self._learner.follow_schedules()
            arrays = self._learner.read_policy(self._session)
            if is_evaluated:
                reports.start(version, arrays, self._state.end_env_steps)
            self._publisher.publish(arrays, arrays if is_evaluated else None, self._progress())

    def _progress(self) -> tables.Progress:
        iteration, train_step = self._state.iteration, self._learner.train_step
        to_evaluate = self._reports.version if self._reports.arrays else -1
        return tables.Progress(self._session, iteration, train_step, to_evaluate, *self._plan.paced, self._role.run_id)

    # Evaluations.

    def _wait_for_evaluation(self) -> None:
        """Waits until the policy that was published for it is evaluated."""
        reports = self._reports
        with self._shares.spend("waiting"):
            while not reports.is_over:
                if self._role.is_stopped():
                    raise StoppedError
                reports.leave_out_gone()
                self._tend(f"the evaluation of iteration {reports.version} by workers {reports.missing()}")
                time.sleep(_EVALUATION_POLL_SECS)

    # Saving.

    def _save_if_due(self) -> None:
        if self._saves.is_due():
            self._log.beat("saving")
            if self._saves.save():
                self._log.tell_callbacks("checkpoint", {})


def next_session(path: Path, last: int) -> int:
    """The number of a trainer's session, by which workers and the replay server tell an earlier one from a later one.

    It is above those of all sessions of the run, also where the clock was set back since.

    Args:
      path: Remembers the newest one; in the run directory.
      last: The newest one of this process, 0 before the first.
    """
    remembered = (read_json(path) or {}).get("session")
    session = max(time.time_ns(), last + 1, remembered + 1 if isinstance(remembered, int) else 0)
    try:
        write_json(path, {"session": session})
    except OSError as error:  # A full disk must not end the run; the clock alone has to do.
        logging.warning("%s can't be written: %s", path, error.strerror)
    return session
