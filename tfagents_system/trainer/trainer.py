"""Trainer: takes blocks of minibatches, updates the agent, publishes the policy, saves.

It holds no experience: it can be killed at any moment.
"""

from __future__ import annotations

import collections
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
from tfagents_system.agents.matmul_precision import choose_precision
from tfagents_system.agents.sequences import burn_in_steps, sequence_length
from tfagents_system.agents.training_agent import check_sequences, make_agent
from tfagents_system.envs import specs
from tfagents_system.envs.curriculum import Curriculum
from tfagents_system.errors import EXIT_DONE, EXIT_HOPELESS, EXIT_RESUMABLE, UserError, print_findings
from tfagents_system.policies import weights
from tfagents_system.policies.checkpoint_names import checkpoint_name
from tfagents_system.report.episodes import Evaluations, Report, summarize
from tfagents_system.role import TRAIN_STREAM, Role
from tfagents_system.run_files.metrics import MetricsLog, read_metrics
from tfagents_system.run_files.run_paths import RunPaths, worker_role
from tfagents_system.run_files.time_shares import TimeShares
from tfagents_system.settings.early_end import CallbackError, Callbacks, EarlyEnd
from tfagents_system.trainer.best_policy import BestPolicies
from tfagents_system.trainer.checkpoints import SaveError, TrainerCheckpoints, TrainerState
from tfagents_system.trainer.iteration_plan import IterationPlan
from tfagents_system.trainer.policy_export import PolicyExport
from tfagents_system.trainer.publisher import Publisher
from tfagents_system.trainer.saves import TrainerSaves
from tfagents_system.trainer.session import next_session
from tfagents_system.transport import tables
from tfagents_system.transport.connection import StoppedError, Waiting

_START_DEADLINE_SECS = 600.0
_BLOCK_DEADLINE_SECS = 24 * 3600.0  # A slow simulator may take hours for an iteration; the workers are supervised.
_EVALUATION_POLL_SECS = 0.02
_BEATS_WAIT_SECS = 1.0  # For heartbeats, once an iteration while a worker is late; reading them takes milliseconds.
_POLL_SECS = 0.2
_ASK_AGAIN_SECS = 3.0


class Trainer:
    """Trains one run from where it stands to its end.

    Args:
      role: The process it runs in.
    """

    def __init__(self, role: Role) -> None:
        self._role = role
        self._params = params = role.params
        _check_gpu()
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
        self._straggler_secs = float(os.environ.get("SAC_STRAGGLER_SECS") or 120)
        self._resumed_at = self._restore()
        environment_action_spec = specs.load_environment_action_spec(role.paths.specs)
        self._export = PolicyExport(
            role.paths, self._agent, environment_action_spec, self._train_step, params.frame_stack
        )
        self._shares = TimeShares()
        self._saves = TrainerSaves(
            params, self._state, self._plan, lambda: self.train_step, self._checkpoints, self._export, self._shares
        )
        self._best = BestPolicies(params, self._state)
        self._metrics = MetricsLog(role.paths, Curriculum.from_config(params.env_config).names)
        self._metrics.rewind(self.train_step if self._resumed_at is not None else -1)
        self._early_end = EarlyEnd(params)
        self._callbacks = Callbacks(params, self._metrics.rows)
        self._begin_evaluations()
        self._published: tuple[list[np.ndarray], tables.Progress]  # the newest policy, and the word of it
        self._train_reports: list[Report] = []
        self._evaluated_at: dict[int, tuple[int, int]] = {}  # version -> (train step, env steps) when published
        self._losses: dict[str, list[float]] = collections.defaultdict(list)
        self._log_mark: tuple[float, int, int] | None = None  # (time, train step, env steps) of the last row
        self._row: dict[str, Any] = {}
        self._curriculum_values: dict[str, float] = {}
        self._session = 0
        self._has_warned = False
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
        if self._eval_iteration < self._state.iteration:  # Where asynchronous, it had to wait for the one before.
            self._publish()
            self._wait_for_evaluation()
        if self._losses:
            self._log(self._train_row())
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
        # Of session 0, so that a reader that is alive passes over them.
        self._connection.feed_dead_reader(tables.BLOCKS, tables.Block.empty().to_wire())
        self._connection.feed_dead_reader(tables.REPORTS, Report("eval", 0, 0, 0, 0, 0, [], {}).to_wire())
        self._blocks = self._connection.reader(tables.BLOCKS)
        self._reports = self._connection.reader(tables.REPORTS, prefetch=100)
        self._status = self._connection.newest(tables.STATUS)
        self._server = self._server_start()

    def _begin(self) -> None:
        """Publishes the policy and asks for the first minibatches, at the start and after going back."""
        # What was asked for or published before is no longer meant.
        self._session = next_session(self._role.paths.trainer_session, self._session)
        self._plan.begin()
        self._publish()
        self._update = self._make_update()
        self._request(self._state.iteration)
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
        self._losses.clear()
        self._log_mark = None
        self._metrics.rewind(self.train_step)
        self._begin_evaluations()
        logging.error("%s. Going back to train step %d, once, with other random numbers", where, self.train_step)
        self._begin()

    def _begin_evaluations(self) -> None:
        self._early_end.begin(self._metrics.rows())
        self._callbacks.why = None
        self._evaluations = Evaluations(self._params.n_eval_episodes, self._role.num_workers)
        # Versions: in the metrics; whose evaluation is over; published to be evaluated.
        self._logged = self._evaluated = self._eval_iteration = _last_evaluated(self._role.paths)
        self._eval_arrays: list[np.ndarray] = []
        self._eval_began = 0.0

    def _seed_noise(self) -> None:
        """For agents that draw their own noise. It must not repeat what an earlier start has drawn."""
        tf.random.set_seed(self._role.derived_seed(TRAIN_STREAM, self.train_step, self._state.recoveries))

    def _make_update(self) -> BlockUpdate:
        params = self._params
        precision, reason = choose_precision(params.matmul_precision)
        if reason:
            logging.warning("matmul_precision=%s is not used: %s", params.matmul_precision, reason)
        update = BlockUpdate(
            self._agent,
            params.train_batch_size,
            sequence_length(params),
            params.share_log_pi,
            precision,
            self._role.derived_seed(TRAIN_STREAM, self._state.recoveries),
            burn_in_steps=burn_in_steps(params),
            measures=params.validation_share > 0,
        )
        check_sequences(params, update)
        if self._role.deterministic and update.kind != "fused":
            raise UserError(
                "SAC_DETERMINISTIC=1 needs an agent whose noise follows from the train step: one of the toolkit's own "
                f"algorithms in float32, the update of this one is {update.kind} (the log says why)"
            )
        logging.info("update: %s", update.kind)
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
        return {"env_steps": self._state.env_steps, "curriculum": self._curriculum_values}

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
        self._request(iteration + 1)
        while not plan.is_complete:
            block = self._next_block(iteration, plan.done)
            self._state.env_steps = block.env_steps
            self._log_mark = self._log_mark or (time.monotonic(), self.train_step, block.env_steps)
            is_news = plan.total is None
            count = plan.take(block)
            if is_news:
                self._request(iteration + 1)
            self._train_on(block, count)
            if not plan.is_complete:
                self._save_if_due()

    def _train_on(self, block: tables.Block, count: int) -> None:
        """The updates of the first `count` minibatches; then what is held out is measured."""
        self._beat("updating")
        if count:
            with self._shares.spend("updates"):
                losses = self._update([array[:count] for array in block.arrays])
            for name, value in losses.items():
                self._losses[name].append(value)
            self._tell_callbacks("updates", losses)
        if block.held_out:
            with self._shares.spend("validation"):
                measured = self._update.measure([array[block.count :] for array in block.arrays])
            for name, value in measured.items():
                self._losses[f"validation/{name}"].append(value)

    def _request(self, iteration: int) -> None:
        """Asks for an iteration's minibatches ahead of time: they are drawn while the one before it is trained on."""
        request = self._plan.request(self._session, iteration)
        if request is not None:
            self._connection.put(tables.REQUESTS, request.to_wire())

    def _next_block(self, iteration: int, first: int) -> tables.Block:
        """Waits for the block that starts with minibatch `first`; drops those meant for an earlier process.

        Asks again every few seconds: the stream of a killed trainer lives on in the server until it has taken one more
        block, and a restarted server has forgotten what it was asked.
        """
        waiting = Waiting(f"minibatches of iteration {iteration}", _BLOCK_DEADLINE_SECS, self._role.stop.is_set)
        ask_again = time.monotonic() + _ASK_AGAIN_SECS
        with self._shares.spend("waiting"):
            while True:
                waiting.check()
                self._publisher.check()
                arrays = self._blocks.get(_POLL_SECS)
                if arrays is None:
                    self._beat("waiting", waiting_for=f"experience of iteration {iteration}")
                    self._take_reports()
                    self._save_if_due()
                    if time.monotonic() >= ask_again:
                        ask_again = time.monotonic() + _ASK_AGAIN_SECS
                        self._publish_if_restarted()
                        self._request(iteration)
                        self._request(iteration + 1)
                    continue
                block = tables.Block.from_wire(arrays)
                if (block.session, block.iteration, block.first) == (self._session, iteration, first):
                    return block

    def _publish_if_restarted(self) -> None:
        """A restarted replay server has lost the policy and the progress."""
        server = self._server_start()
        if server is not None and server != self._server:
            logging.info("the replay server was restarted")
            self._server = server
            self._hand_over(with_evaluation=bool(self._eval_arrays))

    def _server_start(self) -> int | None:
        arrays = self._status.get(timeout_secs=1.0)
        return tables.Stored.from_wire(arrays).server if arrays is not None else None

    # Publishing.

    def _publish(self) -> None:
        """Sends a copy of the policy and how far training is; every `eval_period_itrs`, one to evaluate as well.

        An evaluation begins when the one before is over. In lock-step the trainer waits for that: workers that evaluate
        do not collect, so it would have to wait for them anyway. Where asynchronous it goes on, and the evaluation is
        that of a later policy.
        """
        version = self._state.iteration
        finished = self._is_last(version)
        period = self._params.eval_period_itrs
        # Not `version % period == 0`: a stop may have lost the evaluation that was under way.
        is_due = version // period > self._eval_iteration // period
        is_due |= finished and version > self._eval_iteration
        if is_due and self._params.asynchronous:
            self._leave_out_gone(self._eval_began, wait_secs=_BEATS_WAIT_SECS)
        elif is_due:
            self._wait_for_evaluation()
        is_evaluated = is_due and self._evaluated >= self._eval_iteration
        with self._shares.spend("publishing"):
            arrays = [
                np.array([self._session, version, self.train_step], np.int64),
                *weights.to_arrays(weights.read_weights(self._variables)),
            ]
            if is_evaluated:
                self._eval_iteration, self._eval_arrays, self._eval_began = version, arrays, time.monotonic()
                self._evaluated_at[version] = (self.train_step, self._state.env_steps)
                if version > 0:
                    self._saves.try_to_write(lambda: self._export.save_checkpoint(version))
            to_evaluate = self._eval_iteration if self._eval_arrays else -1
            progress = tables.Progress(self._session, version, self.train_step, to_evaluate)
            self._published = arrays, progress
            self._hand_over(with_evaluation=is_evaluated)

    def _hand_over(self, with_evaluation: bool) -> None:
        policy, progress = self._published
        self._publisher.publish(policy, self._eval_arrays if with_evaluation else None, progress)

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
                    self._train_reports.append(report)
                elif report.session == self._session:
                    self._evaluations.add(report)
            self._log_evaluations()

    def _log_evaluations(self) -> None:
        for version, reports in self._evaluations.pop_ready():
            self._log_evaluation(version, reports)

    def _log_evaluation(self, version: int, reports: list[Report]) -> None:
        summary = summarize("eval", reports)
        if self._params.asynchronous:
            period = self._params.eval_period_itrs
            summary["eval_left_out"] = max(0, version // period - self._logged // period - 1)
        train_step, env_steps = self._evaluated_at.pop(version, (reports[0].train_step, self._state.env_steps))
        row = {"train_step": train_step, "iteration": version, "env_steps": env_steps, **summary}
        self._warn_without_success(summary)
        logged = self._log(row)
        self._logged, self._evaluated = version, max(self._evaluated, version)
        name = checkpoint_name(train_step)
        if version > 0 and self._export.has_checkpoint(name):
            self._keep_if_best(name, version, summary)
        self._tell_callbacks("evaluation", logged)

    def _warn_without_success(self, summary: Mapping[str, float]) -> None:
        """Once in a start: an environment may tell of a success only where there is one."""
        wants = self._params.best_metric == "success" or "eval_success" in (self._params.stop_when or {})
        if wants and summary and "eval_success" not in summary and not self._has_warned:
            self._has_warned = True
            logging.warning(
                "best_metric='success' or stop_when's eval_success needs an environment that tells of success, and no "
                "episode of this evaluation did: report is_success or success in the info of each episode's last step. "
                "Until then the return decides which policy is best, and eval_success ends no run"
            )

    def _keep_if_best(self, name: str, version: int, summary: dict[str, float]) -> None:
        replaced: tuple[str | None, int] = name, version
        if self._best.is_best(summary, version):
            replaced = self._best.take(summary, version, name)
            self._saves.try_to_write(lambda: self._export.mark_best(self._best.to_json()))
        self._delete_unless_needed(*replaced)

    def _delete_unless_needed(self, name: str | None, iteration: int) -> None:
        """Checkpoints made only to be evaluated go when they are not the best; the first stays, to be compared with."""
        if name == self._state.best_checkpoint:
            return  # Also where there were no updates between two evaluations: both have this name.
        is_periodic = iteration % self._params.checkpoint_period_itrs == 0
        if name is None or is_periodic or self._is_last(iteration) or self._export.is_first(name):
            return
        self._export.delete_checkpoint(name)

    def _log_if_due(self) -> None:
        if self._state.iteration % self._params.log_period_itrs == 0:
            self._log(self._train_row())

    def _train_row(self) -> dict[str, float]:
        """The metrics of the time since the last row of this kind."""
        now, train_step, env_steps = time.monotonic(), self.train_step, self._state.env_steps
        since, last_step, last_env_steps = self._log_mark or (now, train_step, env_steps)
        row: dict[str, Any] = {
            "train_step": train_step,
            "iteration": self._state.iteration,
            "env_steps": env_steps,
            "updates_per_s": (train_step - last_step) / max(1e-9, now - since),
            "env_steps_per_s": (env_steps - last_env_steps) / max(1e-9, now - since),
        }
        row.update({name: float(np.mean(values)) for name, values in self._losses.items() if name != "loss"})
        if (log_alpha := getattr(self._agent, "_log_alpha", None)) is not None:
            row["alpha"] = float(np.exp(log_alpha.numpy()))
        if (scale := getattr(self._agent, "reward_scale", None)) is not None:
            row["reward_scale"] = float(scale.divisor)
        row.update(summarize("train", self._train_reports))
        if self._train_reports:
            self._curriculum_values = self._train_reports[-1].curriculum
        row.update({f"curriculum/{name}": value for name, value in self._curriculum_values.items()})
        self._log_mark = (now, train_step, env_steps)
        self._losses.clear()
        self._train_reports.clear()
        return row

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
        version, began = self._eval_iteration, time.monotonic()
        with self._shares.spend("waiting"):
            while self._evaluated < version:
                if self._role.stop.is_set():
                    raise StoppedError
                self._leave_out_gone(began)
                self._publisher.check()
                missing = self._evaluations.missing(version)
                self._beat("waiting", waiting_for=f"the evaluation of iteration {version} by workers {missing}")
                self._take_reports()
                self._publish_if_restarted()
                time.sleep(_EVALUATION_POLL_SECS)

    def _leave_out_gone(self, began: float, wait_secs: float = 0.0) -> None:
        """The evaluation that is under way goes on without the shares of workers that are gone.

        Those are the ones that joined and have stopped, those without a heartbeat for SAC_STRAGGLER_SECS, and those
        that have waited for so long instead of evaluating: the network or a killed server has lost the policy or the
        report. How long an episode takes does not matter.

        Args:
          began: When it was begun to wait for them.
          wait_secs: For heartbeats of those that are late, at most.
        """
        version = self._eval_iteration
        self._take_reports()
        if self._evaluated >= version:
            return
        missing = self._evaluations.missing(version)
        is_late = time.monotonic() - began > self._straggler_secs
        if is_late and wait_secs:
            self._role.beats.wait(map(worker_role, missing), wait_secs)
        gone = [worker for worker in missing if self._role.has_left(worker) or (is_late and self._is_gone(worker))]
        if gone:
            logging.warning("the evaluation of iteration %d goes on without workers %s", version, gone)
            self._evaluations.leave_out(gone)
            self._log_evaluations()
        if len(gone) == len(missing) and (gone or is_late):
            self._give_up(version)

    def _give_up(self, version: int) -> None:
        """Ends an evaluation of which there is no whole share."""
        if self._evaluated < version:
            self._evaluated = version
            train_step, _ = self._evaluated_at[version]  # It stays: a worker that is back may tell its share yet.
            self._delete_unless_needed(checkpoint_name(train_step), version)

    def _is_gone(self, worker_id: int) -> bool:
        beat = self._role.beats.last(worker_role(worker_id))
        if beat is None:
            return False  # It is being read.
        last = beat.get("since", 0.0) if beat.get("state") == "waiting" else beat.get("time", 0.0)
        return time.time() - last > self._straggler_secs + self._role.beats.lag_secs

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
                "curriculum": self._curriculum_values,
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


def _check_gpu() -> None:
    """The GPU that is wanted must be there.

    Raises:
      UserError: TensorFlow can use none.
    """
    if os.environ.get("SAC_TRAIN_GPUS") == "1" and not tf.config.list_physical_devices("GPU"):
        raise UserError(
            "SAC_TRAIN_GPUS=1, but TensorFlow finds no GPU that it can use; the trainer's log says why. Train in an "
            "environment that has the CUDA libraries of TensorFlow 2.15 as well, or unset SAC_TRAIN_GPUS"
        )


def _last_evaluated(paths: RunPaths) -> int:
    """Version of the newest policy whose evaluation is in the metrics; -1 if there is none."""
    rows = [row for row in read_metrics(paths.metrics_csv) if row.get("eval_return") is not None]
    return int(max((row["iteration"] or 0 for row in rows), default=-1))


def train(role: Role) -> int:
    """Trains a run; returns the exit code: done, or saved and to be resumed."""
    trainer = Trainer(role)
    try:
        trainer.run()
        return EXIT_DONE
    except StoppedError:
        return _save(trainer)
    except CallbackError:
        _save(trainer)  # It goes on from here when the callback is corrected.
        raise
    except (DivergedError, SaveError) as error:
        print_findings([str(error)])
        return EXIT_HOPELESS
    finally:
        trainer.close()


def _save(trainer: Trainer) -> int:
    try:
        trainer.stop()
        return EXIT_RESUMABLE
    except SaveError as error:
        print_findings([str(error)])
        return EXIT_HOPELESS
