"""XLA compiles the update on a GPU; here it compiles for the CPU, whose own noise is another: the agents have none."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support.agent_for_tests import B, block, build_quiet
from tfagents_system.agents import block_update
from tfagents_system.agents.block_update import BlockUpdate
from tfagents_system.replay.sampling import TransitionForm


def weights_after(k: int) -> list[np.ndarray]:
    agent = build_quiet()
    BlockUpdate(agent, B, TransitionForm())(block(k))
    return [variable.numpy() for variable in agent.trainable_variables]


def test_without_a_gpu_it_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.environ.get("XLA_FLAGS")
    assert not block_update.xla_is_usable.__wrapped__()
    assert os.environ.get("XLA_FLAGS") == before
    monkeypatch.setattr(block_update, "_warn", lambda error: pytest.fail(str(error)))
    function = block_update.concrete_function(lambda x: x + 1.0, [tf.TensorSpec((2,))], by_xla=True)
    assert "_XlaMustCompile" not in function.function_def.attr


def test_it_learns_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = weights_after(5)
    monkeypatch.setattr(block_update, "xla_is_usable", lambda: True)
    monkeypatch.setattr(block_update, "_warn", lambda error: pytest.fail(str(error)))
    compiled = weights_after(5)
    for ours, theirs in zip(compiled, plain, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    assert any((ours != theirs).any() for ours, theirs in zip(compiled, plain, strict=True)), "it was not used"


def test_what_it_can_not_compile_runs_without_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(block_update, "xla_is_usable", lambda: True)

    def own(x: tf.Tensor) -> tf.Tensor:
        return tf.numpy_function(lambda array: array + 1, [x], tf.float32)

    with caplog.at_level("WARNING"):
        function = block_update.concrete_function(own, [tf.TensorSpec((2,), tf.float32)], by_xla=True)
    np.testing.assert_array_equal(function(tf.constant([1.0, 2.0])), [2.0, 3.0])
    assert "XLA does not compile the update" in caplog.text


def test_flags_say_where_the_compiler_is_unless_the_user_s_own_do(tmp_path: Path) -> None:
    environ: dict[str, str] = {}
    block_update.add_flags(environ, tmp_path)
    fallback = "--xla_gpu_unsafe_fallback_to_driver_on_ptxas_not_found=true"
    assert environ["XLA_FLAGS"].split() == [fallback, f"--xla_gpu_cuda_data_dir={tmp_path}"]
    own = {"XLA_FLAGS": "--xla_gpu_cuda_data_dir=/opt/cuda --xla_dump_to=/tmp"}
    block_update.add_flags(own, tmp_path)
    assert own["XLA_FLAGS"].split() == ["--xla_gpu_cuda_data_dir=/opt/cuda", "--xla_dump_to=/tmp", fallback]
