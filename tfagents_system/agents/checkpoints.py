"""The trainer's checkpoints: agent, optimizers and counters of one moment, complete or absent."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import tensorflow as tf

_KEEP = 2


@dataclasses.dataclass
class TrainerState:
    """What the trainer knows beside the agent's variables.

    Attributes:
      iteration: Iterations completed.
      env_steps: Environment steps stored when the newest block was drawn.
      best_eval_return: Highest mean return of an evaluation; None before the first.
      best_checkpoint: Name of the policy checkpoint that reached it.
    """

    iteration: int = 0
    env_steps: int = 0
    best_eval_return: float | None = None
    best_checkpoint: str | None = None


class _SavedState(tf.train.experimental.PythonState):
    def __init__(self, state: TrainerState) -> None:
        super().__init__()
        self.state = state

    def serialize(self) -> str:
        return json.dumps(dataclasses.asdict(self.state))

    def deserialize(self, string_value: bytes) -> None:
        for name, value in json.loads(string_value).items():
            setattr(self.state, name, value)


class TrainerCheckpoints:
    """Saves and restores; keeps the last two.

    Args:
      folder: Where they are.
      agent: A TFAgent; its optimizers are saved with it.
      state: Saved with it, and filled in by `restore`.
      train_step: The agent's counter of updates.
    """

    def __init__(self, folder: Path, agent: Any, state: TrainerState, train_step: tf.Variable) -> None:
        checkpoint = tf.train.Checkpoint(agent=agent, train_step=train_step, state=_SavedState(state))
        self._manager = tf.train.CheckpointManager(checkpoint, str(folder), max_to_keep=_KEEP)
        self._train_step = train_step

    def restore(self) -> bool:
        """Loads the newest checkpoint; False where there is none."""
        path = self._manager.latest_checkpoint
        if path is None:
            return False
        # Slot variables of the optimizers come into being with the first update and are restored then.
        self._manager.checkpoint.restore(path).assert_existing_objects_matched()
        return True

    def save(self) -> None:
        """Writes a checkpoint named after the train step."""
        self._manager.save(checkpoint_number=int(self._train_step.numpy()))
