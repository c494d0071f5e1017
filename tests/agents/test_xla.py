"""XLA compiles updates on a GPU, and the loop over those of small networks on CPUs.

Its noise is another than TensorFlow's: the agents have none.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.agent_for_tests import ACTION, OBS, B, Params, block, build_quiet
from tests.support.fakes import agent_of
from tfagents_system.agents import block_update
from tfagents_system.agents.block_update import BlockUpdate
from tfagents_system.replay.sampling import TransitionForm

PRIORITIZED = TransitionForm(is_prioritized=True)


def learned(form: TransitionForm, **options: Any) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Weights after a block of five minibatches, and the TD errors of that."""
    agent, errors = build_quiet(), list[np.ndarray]()
    update = BlockUpdate(agent, B, form, **options)
    update.tell_errors = lambda rows, values: errors.append(values)
    weights_and_rows = [np.ones((5, B), kind) for kind in ("float32", "int64") if form.is_prioritized]
    update([*block(5), *weights_and_rows])
    return [variable.numpy() for variable in agent.trainable_variables], errors


def test_without_a_gpu_an_update_is_not_compiled() -> None:
    before = os.environ.get("XLA_FLAGS")
    assert not block_update.xla_is_usable.__wrapped__()
    assert os.environ.get("XLA_FLAGS") == before


@pytest.mark.parametrize("form", [TransitionForm(), PRIORITIZED], ids=["uniform", "priorities"])
@pytest.mark.parametrize("place", ["update", "loop"])
def test_it_learns_the_same(form: TransitionForm, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, plain_errors = learned(form)
    monkeypatch.setattr(block_update, "xla_is_usable", lambda: place == "update")
    monkeypatch.setattr(block_update, "_warn", lambda error: pytest.fail(str(error)))
    compiled, errors = learned(form, is_one_program=place == "loop")
    for ours, theirs in zip(compiled, plain, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    assert any((ours != theirs).any() for ours, theirs in zip(compiled, plain, strict=True)), "it was not used"
    assert [values.shape for values in errors] == ([(5, B)] if form.is_prioritized else [])
    for ours, theirs in zip(errors, plain_errors, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


VECTOR = tf.TensorSpec((OBS,), tf.float32, "observation")
SMALL = {"actor_fc_layer_params": (64, 64), "critic_joint_fc_layer_params": (64, 64), "batch_size": 100}


@pytest.mark.parametrize(
    ("attributes", "is_compiled"),
    [
        ({}, True),
        ({"num_iter": 399}, False),  # 19,950 updates are over before it pays.
        ({"num_iter": 399, "updates_per_env_step": 2}, True),
        ({"env_steps_per_iter": None, "updates_per_iter": 50}, True),
        ({"env_steps_per_iter": 29, "num_iter": 4000}, False),
        ({"asynchronous": True}, False),
        ({"batch_size": 256, "critic_joint_fc_layer_params": (256, 256)}, False),
        ({"recurrent": {"lstm_units": 8}}, False),
        ({"observation": tf.TensorSpec((4, 4, 1), tf.float32, "observation")}, False),
    ],
)
def test_the_loop_is_compiled_where_it_pays(attributes: dict[str, Any], is_compiled: bool, monkeypatch: Any) -> None:
    params = Params({"horizon": 10})
    for name, value in (attributes := SMALL | {"env_steps_per_iter": 50, "num_iter": 400} | attributes).items():
        setattr(params, name, value)
    agent = agent_of(Params, attributes.pop("observation", VECTOR), ACTION, **attributes)
    monkeypatch.setattr(block_update, "BlockUpdate", lambda *_, **options: options["is_one_program"])
    make: Any = block_update.make_block_update
    assert make(params, agent) == is_compiled
    assert not make(params, agent, deterministic=True) and not make(params, agent, "bfloat16")


def test_what_it_can_not_compile_runs_without_it(caplog: pytest.LogCaptureFixture) -> None:
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
