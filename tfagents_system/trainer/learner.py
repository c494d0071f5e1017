"""The agent of a run: made, gone on with from a checkpoint, and its update compiled as parameters and machine allow."""

from __future__ import annotations

import collections
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from tfagents_system.agents.agent import ScheduledValues, make_agent, set_fixed_alpha
from tfagents_system.agents.block_update import choose_precision, make_block_update
from tfagents_system.agents.iteration_counts import offline_updates
from tfagents_system.agents.taken_weights import TakenWeights
from tfagents_system.envs import specs
from tfagents_system.errors import UserError
from tfagents_system.policies import weights
from tfagents_system.role import RESET_STREAM, TRAIN_STREAM, Role
from tfagents_system.run_files.kept_checkpoints import AGENT
from tfagents_system.run_files.taken import Taken, taken_by
from tfagents_system.settings.variables import NETWORKS
from tfagents_system.trainer.iteration_plan import TrainerState, parts_of
from tfagents_system.trainer.trainer_checkpoints import TrainerCheckpoints
from tfagents_system.transport.connection import Connection
from tfagents_system.transport.tables import OFFLINE, PRIORITIES


class Learner:
    """What is trained, as the newest checkpoint has it where there is one.

    Attributes:
      agent: A TFAgent.
      state: What else a checkpoint has.
      checkpoints: Of agent and state.
      scheduled: Sets what schedules change.
      step_variable: The agent's counter of updates.
      resumed_at: Train step of the checkpoint that it began from; None: the run began.
      block_update: The compiled update, once `compile` has made it.
    """

    def __init__(self, role: Role, connection: Connection) -> None:
        self._role = role
        if role.variables.train_gpus:
            claim_gpu()
        if role.deterministic:
            tf.config.experimental.enable_op_determinism()
        # Not tf.random.set_seed: Keras draws initial weights from Python's own numbers.
        tf.keras.utils.set_random_seed(role.derived_seed(TRAIN_STREAM))
        self.step_variable = tf.Variable(0, dtype=tf.int64, trainable=False, name="train_step")
        self.agent = make_agent(role.params, *specs.load_specs(role.paths.specs), self.step_variable)
        self.scheduled = ScheduledValues(role.params, self.agent)
        self._variables = weights.named_variables(self.agent.collect_policy)
        taken = taken_by(role.paths)
        self.state = self._state_at_start(taken)
        self._connection = connection
        folder, saved = role.paths.trainer_checkpoints, role.paths.saved
        self.checkpoints = TrainerCheckpoints(
            folder, self.agent, self.state, self.step_variable, connection, saved, is_far=role.is_far
        )
        self.checkpoints.is_server_gone = role.is_server_gone
        self.resumed_at: int | None = None
        if self.restore():
            self.seed_noise()
            self.resumed_at = self.train_step
            logging.info("resumed at train step %d, iteration %d", self.train_step, self.state.iteration)
        elif taken is not None and taken.checkpoint is not None:
            self._take(taken)

    def _take(self, taken: Taken) -> None:
        """Begins with the weights that fit of another run's agent."""
        weights = TakenWeights(self.agent, self._role.paths.taken / AGENT, networks_alone=taken.take == NETWORKS)
        weights.assign()
        set_fixed_alpha(self.agent, self._role.params)
        self.step_variable.assign(taken.train_step)
        logging.info("begins with %s of %s", weights.in_words, taken.source)

    def _state_at_start(self, taken: Taken | None) -> TrainerState:
        """Of an agent that begins: where the other run was, if the run counts on from there."""
        if taken is not None and taken.iteration:
            return TrainerState(
                iteration=taken.iteration,
                iteration_start=taken.train_step,
                uncounted_updates=taken.train_step,
                env_steps=taken.env_steps,
                end_env_steps=taken.env_steps,
            )
        offline = offline_updates(self._role.params)
        return TrainerState(iteration=OFFLINE if offline else 0, uncounted_updates=offline)

    @property
    def train_step(self) -> int:
        """Updates done since the run began."""
        return int(self.step_variable.numpy())

    def restore(self) -> bool:
        """Goes to the newest checkpoint; whether there is one."""
        if self.checkpoints.restore() is None:
            return False
        set_fixed_alpha(self.agent, self._role.params)
        return True

    def go_back(self) -> bool:
        """Goes to the newest checkpoint for other random numbers; whether there is one."""
        if not self.restore():
            return False
        self.state.recoveries += 1
        self.seed_noise()
        return True

    def seed_noise(self) -> None:
        """For agents that draw their own noise. It must not repeat what an earlier start has drawn."""
        tf.random.set_seed(self._role.derived_seed(TRAIN_STREAM, self.train_step, self.state.recoveries))

    def follow_schedules(self, env_steps: int | None = None) -> None:
        """Schedules reach this position of the current iteration; None is where that began.

        Where asynchronous the updates within it count; in lock-step all have the values of its first one.
        """
        state = self.state
        self.scheduled.assign(
            state.end_env_steps if env_steps is None else env_steps,
            self.train_step if self._role.params.asynchronous else state.iteration_start,
            state.iteration,
        )

    def read_policy(self, session: int) -> list[np.ndarray]:
        """The policy as it is published: session, iterations and updates that it was trained for, then its weights."""
        ids = np.array([session, self.state.iteration, self.train_step], np.int64)
        return [ids, *weights.to_arrays(weights.read_weights(self._variables))]

    def _tell_errors(self, rows: np.ndarray, errors: np.ndarray) -> None:
        """Reports the TD errors `[K, B]` of a block and the rows that they are of, which become priorities."""
        if (rows >= 0).any():  # Else all of them are of prior data.
            self._connection.put(PRIORITIES, [rows, errors])

    def compile(self) -> None:
        """Compiles the update of a whole block.

        Raises:
          UserError: The agent can't be trained as the parameters say.
        """
        params, seed = self._role.params, self._role.derived_seed(TRAIN_STREAM, self.state.recoveries)
        precision, deterministic = self._choose_precision(), self._role.deterministic
        self.block_update = make_block_update(params, self.agent, precision, seed, deterministic=deterministic)
        kind = self.block_update.kind
        if deterministic and kind != "fused":
            raise UserError(
                "SAC_DETERMINISTIC=1 needs an agent whose noise follows from the train step: one of the toolkit's own "
                f"algorithms in float32, the update of this one is {kind} (the log says why)"
            )
        logging.info("update: %s", kind)
        self.block_update.tell_errors = self._tell_errors

    def update(self, arrays: Sequence[np.ndarray]) -> dict[str, float]:
        """Trains on the minibatches of a block; returns the mean losses.

        With `reset_period_updates` networks are drawn anew right before the update that follows a multiple of it: a
        checkpoint of that train step is of the networks before, and a run that is resumed there does the same reset
        again. So the end of a run never has networks that were not trained.
        """
        period = self._role.params.reset_period_updates
        if period is None:
            return self.block_update(arrays)
        losses: dict[str, list[tuple[float, int]]] = collections.defaultdict(list)
        for part in parts_of(self.train_step, len(arrays[0]), period):
            if self.train_step and not self.train_step % period:
                logging.info("networks are drawn anew at train step %d", self.train_step)
                self._redraw()
                self.state.network_resets += 1
            for name, value in self.block_update([array[part] for array in arrays]).items():
                losses[name].append((value, part.stop - part.start))  # Not all parts update the actor.
        return {
            name: sum(value * count for value, count in of_parts) / sum(count for _, count in of_parts)
            for name, of_parts in losses.items()
        }

    def _redraw(self) -> None:
        """Draws the networks anew; the seed follows from the position in the run."""
        params = self._role.params
        tf.keras.utils.set_random_seed(self._role.derived_seed(RESET_STREAM, self.train_step, self.state.recoveries, 0))
        train_step = tf.Variable(0, dtype=tf.int64, trainable=False)
        fresh = make_agent(params, *specs.load_specs(self._role.paths.specs), train_step)
        self.agent.redraw(fresh)
        self.seed_noise()

    def _choose_precision(self) -> str:
        """The precision of matrix products, at each start anew: another machine's CPU may differ."""
        wanted: str = self._role.params.matmul_precision
        precision, reason = choose_precision(wanted)
        if wanted == "auto":
            logging.info("matmul_precision=auto is %s%s", precision, f": {reason}" if reason else "")
        elif reason:
            logging.warning("matmul_precision=%s is not used: %s", wanted, reason)
        return precision


def claim_gpu() -> None:
    """The GPU that is wanted must be there; the trainer takes of its memory what it needs, when it needs it.

    TensorFlow alone would take nearly all of it at once, from others who use the GPU as well. Its own variable
    TF_FORCE_GPU_ALLOW_GROWTH=false goes before this.

    Raises:
      UserError: TensorFlow can use none.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        raise UserError(
            "SAC_TRAIN_GPUS=1, but TensorFlow finds no GPU that it can use; the trainer's log says why. Train in an "
            "environment that has the CUDA libraries of TensorFlow 2.15 as well, or unset SAC_TRAIN_GPUS"
        )
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
