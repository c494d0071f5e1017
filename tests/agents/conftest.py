"""Blocks whose updates are not compiled."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tfagents_system.agents import block_update

_SCALAR = tf.TensorSpec((), tf.float32)


@dataclasses.dataclass(frozen=True)
class _Uncompiled:
    """The update of SAC or a variant as Python runs it, with what its compiled function would tell."""

    function: Callable[[list[tf.Tensor]], Any]
    structured_outputs = (
        {name: (_SCALAR, _SCALAR) for name in ("critic_loss", "q_mean", "actor_loss", "alpha_loss")},
        (),
    )

    def __call__(self, arrays: list[tf.Tensor]) -> Any:
        return self.function(arrays)


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """BlockUpdates of SAC and its variants run operation by operation.

    Compiling takes longer than the few updates of a test of checkpoints or of noise, which is not about it.
    """
    monkeypatch.setattr(block_update, "concrete_function", lambda function, signature, by_xla: _Uncompiled(function))
