"""Whole updates of XQC and FlashSAC against formulas in float64, on small networks and given noise."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.fakes import FakeParams, agent_of
from tests.support.tiny_agents import (
    ACT,
    ACTION,
    ACTOR_RATE,
    CRITIC_RATE,
    OBS,
    OBSERVATION,
    SGD,
    B,
    Minibatch,
    project,
    softmax,
    with_sgd,
)
from tests.support.updates import noise_of, update_once
from tfagents_system.agents import minibatch
from tfagents_system.agents.block_update import BlockUpdate
from tfagents_system.agents.layers import FlashBlock
from tfagents_system.replay.sampling import TransitionForm

GAMMA, TAU, ALPHA_RATE, ATOMS = 0.9, 0.25, 0.05, np.linspace(-3.0, 3.0, 11)
PERIODS = {"xqc": 3, "flash_sac": 2}
TARGET_ENTROPY = {"xqc": -0.5 * ACT, "flash_sac": 0.5 * ACT * np.log(2.0 * np.pi * np.e * 0.15**2)}
EPSILON, CORRECTION = {"xqc": 1e-3, "flash_sac": 1e-5}, {"xqc": 0, "flash_sac": 1}
CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}
both = pytest.mark.parametrize("algorithm", PERIODS)

# Networks in float64: a list of layers, each a dictionary of variables. TensorFlow differentiates the formulas.


def weighted_layers(network: Any) -> list[Any]:
    """Layers with variables, in the order of the data."""
    layers = list(network.body.hidden_layers)
    layers = [part for layer in layers for part in (layer.layers if isinstance(layer, FlashBlock) else [layer])]
    layers += [network.projections._projection_layer] if hasattr(network, "projections") else []
    return [layer for layer in layers if layer.variables]


def arrays_of(network: Any) -> list[dict[str, np.ndarray]]:
    return [
        {variable.name.split("/")[-1][:-2]: np.array(variable, np.float64) for variable in layer.variables}
        for layer in weighted_layers(network)
    ]


def concat(*rows: Any, axis: int) -> Any:
    return tf.concat([tf.cast(each, tf.float64) for each in rows], axis)


class Network:
    """Its variables; `seen` are the batch statistics of the last pass in training, by layer."""

    def __init__(self, algorithm: str, network: Any) -> None:
        self.algorithm, layers = algorithm, arrays_of(network)
        self.layers = [{name: tf.Variable(array) for name, array in layer.items()} for layer in layers]
        self.seen: dict[int, tuple[Any, Any]] = {}

    def norm(self, k: int, x: Any, training: bool) -> Any:
        layer = self.layers[k]
        mean, variance = layer["moving_mean"], layer["moving_variance"]
        if training:
            mean, variance = tf.reduce_mean(x, 0), tf.math.reduce_variance(x, 0)
            self.seen[k] = mean, variance * len(x) / (len(x) - CORRECTION[self.algorithm])
        return layer["gamma"] * (x - mean) / tf.sqrt(variance + EPSILON[self.algorithm]) + layer["beta"]

    def __call__(self, x: Any, training: bool) -> Any:
        layers, last = self.layers, len(self.layers) - 1

        def unit(k: int, x: Any) -> Any:
            return tf.nn.relu(self.norm(k + 1, x @ layers[k]["kernel"], training), 0.0)

        x = self.norm(0, x, training)
        if self.algorithm == "xqc":
            for k in range(1, last, 2):
                x = unit(k, x)
        else:
            x = x @ layers[1]["kernel"]
            for k in range(2, last - 1, 4):
                x = x + unit(k + 2, unit(k, x))
            x = layers[last - 1]["gamma"] * x / tf.sqrt(tf.reduce_mean(x**2, -1, True) + 1e-6)
        return x @ layers[last]["kernel"] + layers[last]["bias"]

    def step(self, loss: Any, rate: float) -> None:
        """One gradient step on all that is trained, moved statistics, and weights of their norm."""
        trained = [layer[name] for layer in self.layers for name in layer if "moving" not in name]
        with tf.GradientTape() as tape:
            value = loss()
        for variable, gradient in zip(trained, tape.gradient(value, trained), strict=True):
            variable.assign_sub(rate * gradient)
        for k, (mean, variance) in self.seen.items():
            layer = self.layers[k]
            layer["moving_mean"].assign(0.99 * layer["moving_mean"] + 0.01 * mean)
            layer["moving_variance"].assign(0.99 * layer["moving_variance"] + 0.01 * variance)
        for layer in self.layers:
            if "kernel" in layer:
                layer["kernel"].assign(layer["kernel"] / np.linalg.norm(layer["kernel"], axis=0))
            elif self.algorithm == "flash_sac":
                scales = [layer[name] for name in ("gamma", "beta") if name in layer]
                norm = np.linalg.norm(np.concatenate(scales)) / np.sqrt(layer["gamma"].shape[0])
                for variable in scales:
                    variable.assign(variable / norm)


class Reference:
    """An agent in float64; `update` is one update in which the actor is due."""

    def __init__(self, algorithm: str, agent: Any) -> None:
        copy = functools.partial(Network, algorithm)
        self.algorithm, self.actor = algorithm, copy(agent.actor)
        self.critics, self.targets = [[copy(network) for network in group] for group in (agent.critics, agent.targets)]
        self.log_alpha, self.numbers = float(agent.log_alpha), dict[str, Any]()

    def sample(self, observation: Any, noise: np.ndarray, training: bool) -> tuple[Any, Any]:
        mean, raw = tf.split(self.actor(tf.cast(observation, tf.float64), training), 2, axis=-1)
        std = tf.exp(
            tf.clip_by_value(raw, -10.0, 2.0) if self.algorithm == "xqc" else -10.0 + 6.0 * (1.0 + tf.tanh(raw))
        )
        u = mean + std * noise
        gaussian = -0.5 * noise**2 - tf.math.log(std) - 0.5 * np.log(2.0 * np.pi)
        return tf.tanh(u), tf.reduce_sum(gaussian - tf.math.log(1.0 - tf.tanh(u) ** 2), -1)

    def update(self, batch: Minibatch, actor_noise: np.ndarray) -> None:
        parts = [self.step_critics, self.step_actor]
        for part in parts if self.algorithm == "xqc" else reversed(parts):
            part(batch, actor_noise)
        for critic, target in zip(self.critics, self.targets, strict=True):
            for layer, of_target in zip(critic.layers, target.layers, strict=True):
                for name in (name for name in layer if "moving" not in name):
                    of_target[name].assign((1.0 - TAU) * of_target[name] + TAU * layer[name])

    def step_critics(self, batch: Minibatch, actor_noise: np.ndarray) -> None:
        del actor_noise
        next_action, next_log_pi = self.sample(batch.next_observation, batch.next_noise, training=False)
        x, next_x = (batch.observation, batch.action), (batch.next_observation, next_action)
        x = concat(concat(*x, axis=-1), concat(*next_x, axis=-1), axis=0)
        following = [softmax(target(x, training=True)[B:].numpy()) for target in self.targets]
        is_first = (following[0] @ ATOMS <= following[1] @ ATOMS)[:, None]
        values = ATOMS - np.exp(self.log_alpha) * next_log_pi.numpy()[:, None]
        values = batch.reward[:, None] + GAMMA * batch.discount[:, None] * values
        y = project(np.where(is_first, *following), values, ATOMS)
        weight = 1.0 if self.algorithm == "xqc" else 0.5

        def loss(critic: Network) -> Any:
            log_q = tf.nn.log_softmax(critic(x, training=True)[:B])
            return -weight * tf.reduce_mean(tf.reduce_sum(y * log_q, -1))

        self.numbers["critic_loss"] = sum(map(loss, self.critics))
        for critic in self.critics:
            critic.step(functools.partial(loss, critic), CRITIC_RATE)

    def step_actor(self, batch: Minibatch, actor_noise: np.ndarray) -> None:
        seen = batch.observation
        if self.algorithm == "flash_sac":
            seen = np.concatenate([seen, batch.next_observation])
        alpha = np.exp(self.log_alpha)

        def loss() -> Any:
            action, log_pi = (rows[:B] for rows in self.sample(seen, actor_noise, training=True))
            x = concat(batch.observation, action, axis=-1)
            values = [tf.linalg.matvec(tf.nn.softmax(critic(x, training=False)), ATOMS) for critic in self.critics]
            return tf.reduce_mean(alpha * log_pi - tf.minimum(*values))

        self.numbers["actor_loss"] = loss()
        entropy = -np.mean(self.sample(seen, actor_noise, training=True)[1][:B])
        self.actor.step(loss, ACTOR_RATE)
        gradient = entropy - TARGET_ENTROPY[self.algorithm]
        self.numbers["alpha_loss"] = self.log_alpha * gradient
        self.log_alpha -= ALPHA_RATE * gradient


def build(algorithm: str, seed: int = 4, units: tuple[int, ...] = (8, 8)) -> Any:
    tf.keras.utils.set_random_seed(seed)
    return agent_of(
        FakeParams,
        OBSERVATION,
        ACTION,
        algorithm=algorithm,
        actor_fc_layer_params=units,
        critic_joint_fc_layer_params=units,
        categorical={"num_atoms": 11, "value_range": (-3, 3)},
        discount=GAMMA,
        target_update_tau=TAU,
        sac_log_alpha=-3.0,
        learning_rate=3e-3,
    )


def scrambled(agent: Any) -> Any:
    """As after some training: scales, shifts, biases and statistics differ, and targets from critics."""
    rng = np.random.default_rng(3)
    for network in (agent.actor, *agent.critics, *agent.targets):
        for variable in network.variables:
            change = 0.3 * rng.standard_normal(variable.shape)
            if "kernel" not in variable.name or network in agent.targets:
                variable.assign(variable + (np.abs(change) if "variance" in variable.name else change))
    return agent


def assert_same(algorithm: str, ours: Any, expected: Network, what: str) -> None:
    for k, (layer, reference) in enumerate(zip(arrays_of(ours), expected.layers, strict=True)):
        assert layer.keys() == reference.keys()
        for name in layer:
            np.testing.assert_allclose(
                layer[name], reference[name].numpy(), **CLOSE, err_msg=f"{algorithm} {what} {k} {name}"
            )


@both
def test_an_update_with_the_actors_step(algorithm: str) -> None:
    agent, batch = with_sgd(scrambled(build(algorithm))), Minibatch()
    agent.alpha_optimizer = SGD(ALPHA_RATE)
    agent.train_step_counter.assign(PERIODS[algorithm] - 1)
    reference = Reference(algorithm, agent)
    noise = np.random.default_rng(9).standard_normal((B if algorithm == "xqc" else 2 * B, ACT)).astype(np.float32)
    reference.update(batch, noise)
    measured = update_once(agent, batch.transition(), [[batch.next_noise], [noise]])
    assert float(measured["clipped_mass"][0]) < 0.2, "else targets do not depend on distributions"
    for name, value in reference.numbers.items():
        np.testing.assert_allclose(measured[name][0], value, **CLOSE, err_msg=name)
    for name in ("critics", "targets"):
        for ours, expected in zip(getattr(agent, name), getattr(reference, name), strict=True):
            assert_same(algorithm, ours, expected, name)
    assert_same(algorithm, agent.actor, reference.actor, "actor")
    np.testing.assert_allclose(agent.log_alpha, reference.log_alpha, **CLOSE)


@both
def test_actor_and_alpha_step_in_every_third_or_second_update(algorithm: str) -> None:
    agent, batch = build(algorithm), Minibatch()
    changes = []
    for _ in range(4):
        before = [variable.numpy() for variable in (*agent.actor.variables, agent.log_alpha)]
        measured = update_once(agent, batch.transition())
        after = [variable.numpy() for variable in (*agent.actor.variables, agent.log_alpha)]
        changes.append(any(np.any(old != new) for old, new in zip(before, after, strict=True)))
        assert changes[-1] == bool(measured["actor_loss"][1])
    assert changes == [(k + 1) % PERIODS[algorithm] == 0 for k in range(4)]


@both
def test_the_loss_of_states_flows_through_the_batchs_statistics_into_next_states(algorithm: str) -> None:
    agent, batch = build(algorithm), Minibatch()
    experience = batch.transition()
    steps, next_steps = agent.split(minibatch.Minibatch(experience))
    with tf.GradientTape() as tape:
        next_actions = tf.Variable(batch.action[::-1])
        predictions, next_values = agent.evaluate(steps, next_steps, next_actions, noise_of(agent), training=True)
        loss = tf.reduce_sum(predictions[0][:, 0])
    assert np.abs(tape.gradient(loss, next_actions)).max() > 1e-3
    assert predictions[0].shape == next_values.shape == (B, 11)


def test_a_column_of_zeros_stays() -> None:
    """A network of one's own may begin with a head of zeros."""
    layer = tf.keras.layers.Dense(2)
    layer.build((None, 2))
    layer.kernel.assign([[0.0, 3.0], [0.0, 4.0]])
    build("xqc", units=()).project(layer)
    np.testing.assert_allclose(layer.kernel, [[0.0, 0.6], [0.0, 0.8]], rtol=1e-6)


def norms_are_kept(algorithm: str, agent: Any) -> None:
    for network in (agent.actor, *agent.critics):
        for layer in arrays_of(network):
            if "kernel" in layer:
                np.testing.assert_allclose(np.linalg.norm(layer["kernel"], axis=0), 1.0, atol=1e-5)
            elif algorithm == "flash_sac":
                scale = np.concatenate([layer[name] for name in ("gamma", "beta") if name in layer])
                assert np.linalg.norm(scale) == pytest.approx(np.sqrt(len(layer["gamma"])), rel=1e-5)
            else:
                assert np.any(layer["gamma"] != 1.0), "learned freely"


def assert_equal(agent: Any, restored: Any) -> None:
    for name, networks in agent.networks().items():
        for ours, theirs in zip(networks, restored.networks()[name], strict=True):
            for one, other in zip(ours.variables, theirs.variables, strict=True):
                np.testing.assert_array_equal(one, other.numpy(), name)


@both
def test_norms_and_statistics_after_100_updates_and_a_restart(algorithm: str, tmp_path: Path) -> None:
    """Of what a run compiles; targets keep the statistics of their beginning, and are no copies of the critics."""
    agent, restored = build(algorithm, units=(8,)), build(algorithm, 5, units=(8,))
    first = [arrays_of(target) for target in agent.targets]
    for critic, target in zip(agent.critics, agent.targets, strict=True):
        for one, other in zip(critic.variables, target.variables, strict=True):
            np.testing.assert_array_equal(one, other.numpy(), "targets begin as the critics, projected")
    rng, outer = np.random.default_rng(0), (100, B)
    seen, following = rng.standard_normal((2, *outer, OBS)).astype(np.float32)
    action = np.tanh(rng.standard_normal((*outer, ACT))).astype(np.float32)
    reward = rng.standard_normal(outer).astype(np.float32)
    update = BlockUpdate(agent, B, TransitionForm(), seed=1)
    update([seen, action, reward, np.ones(outer, np.float32), following])
    assert int(agent.train_step_counter) == 100
    for begun, target, critic in zip(first, agent.targets, agent.critics, strict=True):
        for old, new, of_critic in zip(begun, arrays_of(target), arrays_of(critic), strict=True):
            for name in old:
                if "moving" in name:
                    np.testing.assert_array_equal(old[name], new[name])
                    assert np.any(of_critic[name] != old[name])
                else:
                    assert np.any(new[name] != old[name]) and np.any(new[name] != of_critic[name])
    norms_are_kept(algorithm, agent)
    batch = Minibatch().transition()
    update_once(restored, batch)  # It has all variables of its optimizers.
    saved = tf.train.Checkpoint(agent=agent).write(str(tmp_path / "agent"))
    tf.train.Checkpoint(agent=restored).read(saved).expect_partial()
    norms_are_kept(algorithm, restored)
    assert_equal(agent, restored)
    for each in (agent, restored):
        update_once(each, batch)
    assert_equal(agent, restored)
