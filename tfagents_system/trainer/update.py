"""The update of a run: as its parameters want it and as the machine can do it."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf
from absl import logging

from tfagents_system.agents.block_update import BlockUpdate
from tfagents_system.agents.matmul_precision import choose_precision
from tfagents_system.agents.sequence_lengths import burn_in_steps, sequence_length
from tfagents_system.agents.training_agent import check_sequences
from tfagents_system.errors import UserError
from tfagents_system.train_params_base import TrainParamsBase


def make_update(agent: Any, params: TrainParamsBase, seed: int, deterministic: bool) -> BlockUpdate:
    """Compiles the update of a whole block.

    Args:
      agent: What is trained.
      params: Of the run.
      seed: Of the noise in updates.
      deterministic: SAC_DETERMINISTIC.

    Raises:
      UserError: The agent can't be trained like that.
    """
    precision, reason = choose_precision(params.matmul_precision)
    if reason:
        logging.warning("matmul_precision=%s is not used: %s", params.matmul_precision, reason)
    update = BlockUpdate(
        agent,
        params.train_batch_size,
        sequence_length(params),
        params.share_log_pi,
        precision,
        seed,
        burn_in_steps=burn_in_steps(params),
        measures=params.validation_share > 0,
    )
    check_sequences(params, update)
    if deterministic and update.kind != "fused":
        raise UserError(
            "SAC_DETERMINISTIC=1 needs an agent whose noise follows from the train step: one of the toolkit's own "
            f"algorithms in float32, the update of this one is {update.kind} (the log says why)"
        )
    logging.info("update: %s", update.kind)
    return update


def check_gpu() -> None:
    """The GPU that is wanted must be there.

    Raises:
      UserError: TensorFlow can use none.
    """
    if os.environ.get("SAC_TRAIN_GPUS") == "1" and not tf.config.list_physical_devices("GPU"):
        raise UserError(
            "SAC_TRAIN_GPUS=1, but TensorFlow finds no GPU that it can use; the trainer's log says why. Train in an "
            "environment that has the CUDA libraries of TensorFlow 2.15 as well, or unset SAC_TRAIN_GPUS"
        )
