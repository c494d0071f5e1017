"""bfloat16 is used in hidden layers' products only, and only where it is faster."""

import numpy as np
import tensorflow as tf

from tests.support.agent_for_tests import B, block, build
from tfagents_system.agents import block_update
from tfagents_system.agents.block_update import BlockUpdate, bfloat16_matmuls, choose_precision
from tfagents_system.replay.sampling import TransitionForm


def layers():
    tf.keras.utils.set_random_seed(0)
    hidden = tf.keras.layers.Dense(64, activation="relu", bias_initializer="normal")
    head = tf.keras.layers.Dense(1, bias_initializer="normal")
    network = tf.keras.Sequential([hidden, head])
    network.build((None, 20))
    return network, hidden, head


def test_hidden_layers_round_their_operands_and_heads_do_not():
    network, hidden, head = layers()
    inputs = tf.random.stateless_normal((256, 20), (1, 2))

    def gradients():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(network(inputs))
        return tape.gradient(loss, [hidden.kernel, hidden.bias])

    exact = gradients()
    with bfloat16_matmuls([network]):
        outputs, values, close = hidden(inputs), network(inputs), gradients()
    product = tf.cast(tf.matmul(tf.cast(inputs, tf.bfloat16), tf.cast(hidden.kernel, tf.bfloat16)), tf.float32)
    np.testing.assert_array_equal(outputs, tf.nn.relu(product + hidden.bias))
    np.testing.assert_allclose(values, outputs @ head.kernel + head.bias, atol=1e-6)
    for a, b in zip(exact, close, strict=True):
        assert b.dtype == tf.float32
        assert 0 < np.linalg.norm(a - b) / np.linalg.norm(a) < 0.02


def test_the_precision_is_chosen_by_what_is_measured(monkeypatch):
    monkeypatch.setattr(block_update, "bfloat16_speedup", lambda: 2.0)
    assert choose_precision("float32") == ("float32", "")
    assert choose_precision("bfloat16") == choose_precision("auto") == ("bfloat16", "")
    monkeypatch.setattr(block_update, "bfloat16_speedup", lambda: 0.31)
    precision, reason = choose_precision("bfloat16")
    assert choose_precision("auto") == (precision, reason)
    assert precision == "float32"
    assert "0.31 times as fast" in reason


def test_an_agent_trained_in_bfloat16_keeps_float32_weights_and_has_bfloat16_products():
    agent = build(actor_fc_layer_params=(64, 64), critic_joint_fc_layer_params=(64, 64))
    start = [variable.numpy() for variable in agent.critics[0].variables]
    update = BlockUpdate(agent, B, TransitionForm(), matmul_precision="bfloat16")
    assert update.kind == "fused bfloat16"
    assert all(np.isfinite(value) for value in update(block(3)).values())
    assert all(variable.dtype == tf.float32 for variable in agent.variables if variable.dtype.is_floating)
    moved = [np.abs(old - new.numpy()).max() for old, new in zip(start, agent.critics[0].variables, strict=True)]
    assert min(moved) > 0
    graph = update._train_block.graph
    functions = [graph.as_graph_def(), *graph.as_graph_def().library.function]
    nodes = [node for f in functions for node in (f.node_def if hasattr(f, "node_def") else f.node)]
    products = [node for node in nodes if node.op == "MatMul"]
    in_bfloat16 = [node for node in products if node.attr["T"].type == tf.bfloat16.as_datatype_enum]
    # Forward: 2 hidden layers of the actor twice, of 2 critics twice, of 2 targets. Backward: at least as many again.
    assert len(in_bfloat16) >= 2 * 12
    assert len(products) > len(in_bfloat16)  # The heads.
