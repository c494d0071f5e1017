"""What a worker acts with equals the agent's network, in every lane, however it is computed."""

from __future__ import annotations

import functools
import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.agents.sac.tanh_normal_projection_network import TanhNormalProjectionNetwork
from tf_agents.keras_layers.dynamic_unroll_layer import DynamicUnroll
from tf_agents.networks.actor_distribution_rnn_network import ActorDistributionRnnNetwork
from tf_agents.policies import greedy_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tests.support.acting import action, steps_of
from tests.support.fakes import FakeParams, agent_of
from tests.support.numpy_actors import ACTION, VECTOR, as_after_training
from tfagents_system.agents.layers import flash_layers, xqc_layers
from tfagents_system.agents.networks import Actor, Body
from tfagents_system.envs.history import policy_time_step_spec
from tfagents_system.errors import UserError
from tfagents_system.launch.environment_checks import check_actions
from tfagents_system.playing.export_files import regret
from tfagents_system.policies import weights
from tfagents_system.policies.description import NetworkLayers
from tfagents_system.policies.tensorflow_policy import GraphSession, of_single_frames
from tfagents_system.policies.worker_policy import make_worker_policy

N = 5
CHOICE = tensor_spec.BoundedTensorSpec((), tf.int32, 0, N - 1, "action")
NEST = {"camera": tf.TensorSpec((2, 3, 1), tf.uint8), "x": tf.TensorSpec((), tf.float32), "y": tf.TensorSpec((3,))}
IMAGES = {"camera": tf.TensorSpec((17, 17, 1), tf.uint8), "speed": tf.TensorSpec((2,), tf.float32)}
SMALL = {"actor_fc_layer_params": (16, 16), "critic_joint_fc_layer_params": (16,), "value_head_units": 8}
NORMALISED = {"normalize_observations": True}
LSTM = {"recurrent": {"lstm_units": 4}}
RACES = {"mini_race": {"steps": 50}, "n_step": 3, "discount": 1.0}  # Agents see `horizon_time`, environments lack it.
SESSION = "tensorflow session"


class Loop(tf.keras.layers.Layer):
    """Control flow that TensorFlow can't run in one thread."""

    def call(self, inputs):
        return tf.while_loop(lambda k, x: k < 3, lambda k, x: (k + 1, tf.tanh(2.0 * x)), [0, inputs])[1]


def gru(params, observation_spec, action_spec):
    return ActorDistributionRnnNetwork(
        observation_spec,
        action_spec,
        input_fc_layer_params=None,
        rnn_construction_fn=lambda: DynamicUnroll(tf.keras.layers.GRUCell(4)),
        rnn_construction_kwargs={},
        continuous_projection_net=TanhNormalProjectionNetwork,
    )


def normalised(layers, log_std, params, observation_spec, action_spec):
    return Actor(observation_spec, action_spec, lambda: Body(layers((16, 16))), log_std=log_std)


XQC, FLASH = (functools.partial(normalised, *parts) for parts in ((xqc_layers, "clip_10"), (flash_layers, "tanh")))
KINDS = {
    "xqc": (VECTOR, ACTION, {"actor_ctor": lambda *args: XQC(*args)}, "numpy"),
    "flash": (VECTOR, ACTION, {"actor_ctor": lambda *args: FLASH(*args)}, "numpy"),
    "vector": (VECTOR, ACTION, {}, "numpy"),
    "nest": (NEST, ACTION, {**NORMALISED, "batch_renormalization": True}, "numpy"),
    "recurrent": (VECTOR, ACTION, {**NORMALISED, **LSTM}, "numpy"),
    "simba": (NEST, ACTION, {"network": "simba", "actor_fc_layer_params": (16,)}, "numpy"),
    "stacked, recurrent": (VECTOR, ACTION, {"frame_stack": {"observation": 3}, **NORMALISED, **LSTM}, "numpy"),
    "timed, stacked, flattened picture": (
        NEST,
        ACTION,
        {**RACES, **NORMALISED, "image_encoder_layers": (), "frame_stack": {"y": 3, "camera": 2}},
        "numpy",
    ),
    "dqn": (VECTOR, CHOICE, {"algorithm": "dqn"}, "numpy"),
    "dueling": (NEST, CHOICE, {"algorithm": "dqn", "dueling": True}, "numpy"),
    "iqn": (NEST, CHOICE, {"algorithm": "iqn", **NORMALISED, **RACES}, "numpy"),
    "plain iqn": (VECTOR, CHOICE, {"algorithm": "iqn", "dueling": False, "critic_layer_norm": True}, "numpy"),
    "sac_discrete": (NEST, CHOICE, {"algorithm": "sac_discrete", "frame_stack": {"y": 2}}, "numpy"),
    "values of images": (IMAGES, CHOICE, {"algorithm": "dqn", "frame_stack": {"speed": 3}}, SESSION),
    "gru": (VECTOR, ACTION, {**LSTM, "actor_ctor": gru}, SESSION),
    "loop": (VECTOR, ACTION, {"preprocessing_combiner": staticmethod(Loop)}, SESSION),
}


@functools.cache
def trained(kind):
    """An agent as after training, which explores half of the time where actions have values, its params and weights."""
    spec, action_spec, attributes, _ = KINDS[kind]
    params_class = type("TrainParams", (FakeParams,), {**SMALL, **attributes})
    params = params_class({"horizon": 100})
    tf.random.set_seed(1)
    agent = agent_of(params_class, policy_time_step_spec(params, spec).observation, action_spec)
    values = as_after_training(agent, seed=3)
    if kind in ("loop", "sac_discrete"):  # Else no probability and no noise would matter.
        values = {name: np.float32(0.3) * value for name, value in values.items()}
    values |= {name: np.float32(0.5) for name in values if name.startswith("exploration_epsilon")}
    values |= {name: np.float32(0.0) for name in values if name.startswith("boltzmann_epsilon")}
    weights.assign_weights(weights.named_variables(agent.collect_policy), values)
    return params, agent, values


def policy_of(kind, lanes=1, seed=0):
    params, agent, values = trained(kind)
    policy = make_worker_policy(agent, seed, lanes, params.frame_stack)
    assert policy.inference == KINDS[kind][-1]
    policy.assign(values)
    return policy


def observations(spec, count, seed):
    rng = np.random.default_rng(seed)

    def draw(leaf):
        if leaf.dtype == tf.uint8:
            return rng.integers(0, 256, (count, *leaf.shape)).astype(np.uint8)
        return rng.standard_normal((count, *leaf.shape)).astype(np.float32)

    return [draw(leaf) for leaf in tf.nest.flatten(spec)]


class Network:
    """The agent's greedy policy in TensorFlow, one lane after another."""

    def __init__(self, kind, lanes):
        params, agent, _ = trained(kind)
        self._scores = None if KINDS[kind][1] is ACTION else of_single_frames(agent.collect_policy, params.frame_stack)
        self._policy = of_single_frames(greedy_policy.GreedyPolicy(agent.policy), params.frame_stack)
        self._states = [None] * lanes
        self.reset(range(lanes))

    def reset(self, lanes):
        for lane in lanes:
            self._states[lane] = self._policy.get_initial_state(1)

    def check(self, lane, step, chosen):
        batched = tf.nest.map_structure(lambda leaf: tf.constant(np.asarray(leaf)[None]), step)
        if self._scores is not None:
            expected = self._scores.distribution(batched, self._states[lane])
            assert regret(chosen, expected.action.logits_parameter()[0].numpy()) < 1e-5
            self._states[lane] = expected.state
            return
        expected = self._policy.action(batched, self._states[lane])
        self._states[lane] = expected.state
        np.testing.assert_allclose(chosen, expected.action[0], atol=1e-5)


@pytest.mark.parametrize(("kind", "lanes"), [*((kind, 3) for kind in KINDS), ("vector", 1)])
def test_each_lane_has_the_networks_actions_and_a_memory_of_its_own(kind, lanes):
    spec, action_spec, *_ = KINDS[kind]
    policy, network = policy_of(kind, lanes), Network(kind, lanes)
    others = policy.with_lanes(2)  # Which act in between.
    for step in range(5):
        steps = steps_of(observations(spec, lanes, step), spec, is_first=step == 0)
        if step == 3:  # An episode begins in the last one.
            policy.reset([lanes - 1])
            network.reset([lanes - 1])
        (chosen,) = policy.act(steps, True)
        others.act(steps_of(observations(spec, 2, 100 + step), spec), True)
        assert chosen.shape == (lanes, *action_spec.shape) and chosen.dtype == action_spec.dtype.as_numpy_dtype
        for lane in range(lanes):
            network.check(lane, steps.row(lane), chosen[lane])
        assert policy.was_greedy.all() and not policy.explored.any()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("vector", ["dense", "dense", "dense"]),
        ("xqc", ["dense", "activation", "dense", "activation", "dense"]),
        ("flash", ["dense", "residual", "residual", "rms_norm", "dense"]),
        ("simba", ["normalization", "dense", "residual", "layer_norm", "dense"]),
    ],
)
def test_normalisations_with_fixed_statistics_are_folded_into_dense_layers(kind, expected):
    layers = NetworkLayers(trained(kind)[1].policy).layers
    assert [layer["kind"] for layer in layers] == expected
    if kind == "flash":
        assert [part["kind"] for part in layers[1]["layers"]] == ["dense", "activation"] * 2


@pytest.mark.parametrize("kind", ["vector", "xqc", "flash", "loop"])
def test_exploration_noise_has_the_networks_distribution(kind):
    _, agent, _ = trained(kind)
    policy, leaves = policy_of(kind, 200), [np.repeat(observations(VECTOR, 1, 0)[0], 200, axis=0)]
    steps = steps_of(leaves, VECTOR)
    samples = np.concatenate([policy.act(steps, False)[0] for _ in range(100)])
    assert len(np.unique(samples[:, 0])) > 10_000, "noise of its own for each lane and step"
    batched = ts.TimeStep(tf.ones(1, tf.int32), tf.zeros(1), tf.ones(1), tf.constant(leaves[0][:1]))
    distribution = agent.collect_policy.distribution(batched).action.input_distribution
    mean, std = distribution.mean().numpy()[0], distribution.stddev().numpy()[0]
    drawn = np.arctanh(np.clip(samples, -0.9999999, 0.9999999))
    kept = std < 2.0  # Beyond, tanh saturates in float32 and cannot be inverted.
    assert kept.any()
    np.testing.assert_allclose(drawn.mean(0)[kept], mean[kept], atol=5 * std.max() / np.sqrt(20_000))
    np.testing.assert_allclose(drawn.std(0)[kept], std[kept], rtol=0.03)


@pytest.mark.parametrize("kind", ["vector", "recurrent", "dqn", "loop"])
def test_a_mask_says_which_lanes_are_greedy(kind):
    spec = KINDS[kind][0]
    policy = policy_of(kind, 4)
    greedy_alone, mask = policy.with_lanes(4), np.array([True, False, True, False])
    for step in range(10):
        steps = steps_of(observations(spec, 4, step), spec)
        mixed, expected = policy.act(steps, mask)[0], greedy_alone.act(steps, True)[0]
        np.testing.assert_allclose(mixed[mask], expected[mask], atol=1e-6)
        assert policy.was_greedy[mask].all()
        if kind != "dqn":
            assert not policy.was_greedy[~mask].any() and np.abs(mixed - expected)[~mask].max(axis=1).min() > 0.0


@pytest.mark.parametrize("kind", ["vector", "recurrent", "dqn", "sac_discrete"])
@pytest.mark.parametrize("lanes", [1, 16])
def test_noise_follows_from_the_seed_that_was_given_last(kind, lanes):
    spec = KINDS[kind][0]
    policy = policy_of(kind, lanes)
    steps = steps_of(observations(spec, lanes, 0), spec)

    def actions(seed):
        policy.reseed(seed)
        policy.reset(range(lanes))
        return np.stack([policy.act(steps, False)[0] for _ in range(20)])

    first = actions(7)
    np.testing.assert_array_equal(actions(7), first)
    assert (actions(8) != first).any()


def holding(lanes=1, seed=0, kind="vector"):
    params, agent, values = trained(kind)
    policy = make_worker_policy(agent, seed, lanes, params.frame_stack, noise_hold_steps=16)
    policy.assign(values)
    return policy


def test_noise_is_held_k_steps_with_a_probability_proportional_to_1_over_k_squared():
    noise, drawn = holding().network.noise, []
    for _ in range(40_000):
        drawn.append(tuple(next(noise)[:, 0]))
    lengths = np.array([len(list(same)) for _, same in itertools.groupby(drawn)][:-1])
    shares = np.bincount(lengths, minlength=18) / len(lengths)  # Of about 19,000: +- 0.0035.
    np.testing.assert_allclose(shares[[1, 2, 3]], [0.631, 0.158, 0.070], atol=0.011)
    assert shares[16] > 0.0 == shares[17] and lengths.mean() == pytest.approx(2.13, abs=0.06)
    values = np.array([each for each, _ in itertools.groupby(drawn)])
    np.testing.assert_allclose([values.mean(), values.std()], [0.0, 1.0], atol=0.03)


def test_held_noise_is_scaled_and_shifted_anew_in_each_step_and_greedy_actions_leave_it_alone():
    _, agent, _ = trained("flash")
    policy, undisturbed = (holding(3, kind="flash") for _ in range(2))
    noise, one_lane = undisturbed.network.noise, np.array([True, False, True])
    for step in range(60):
        leaves = observations(VECTOR, 3, step)
        steps, greedy = steps_of(leaves, VECTOR), one_lane if step % 3 == 0 else False
        policy.act(steps, True)
        (actions,) = policy.act(steps, greedy)
        batched = ts.TimeStep(tf.ones(3, tf.int32), tf.zeros(3), tf.ones(3), tf.constant(leaves[0]))
        normal = agent.policy.distribution(batched).action.input_distribution
        eps = next(noise).T
        assert len(np.unique(eps)) == 6, "of its own for each lane"
        expected = normal.mean() + normal.stddev() * np.where(np.reshape(greedy, (-1, 1)), 0.0, eps)
        np.testing.assert_allclose(actions, np.tanh(expected), atol=1e-5)
        if step == 30:
            policy.reset([0, 1, 2])


def test_held_noise_is_told_and_remembered_beside_the_episode_or_dropped():
    policy, other = holding(), holding(seed=9)
    for _ in range(10):
        next(policy.network.noise)
    while not policy.memory(0)[-1]:
        next(policy.network.noise)
    (eps, steps_left) = policy.memory(0)
    other.remember(0, policy.memory(0))
    other.reseed(3)
    for _ in range(int(steps_left[0])):
        np.testing.assert_array_equal(next(other.network.noise)[:, 0], eps)
    policy.reseed(3, holds_noise=False)
    np.testing.assert_array_equal(next(policy.network.noise), next(other.network.noise))
    assert policy_of("vector").memory(0) == [], "as long as none is held"


def test_noise_that_tensorflow_draws_is_not_held():
    with pytest.raises(UserError, match=r"^noise_hold_steps=2 needs .* NumPy, and it has a .*: use .* noise_hold_st"):
        make_worker_policy(trained("loop")[1], 0, noise_hold_steps=2)


@pytest.mark.parametrize("kind", ["iqn", "values of images"])
def test_values_are_known_and_explored_means_another_action_than_the_best(kind):
    params, agent, _ = trained(kind)
    spec = KINDS[kind][0]
    policy, explored = policy_of(kind, 2), []
    for step in range(400):
        steps = steps_of(observations(spec, 2, step % 7), spec)
        (chosen,) = policy.act(steps, False)
        best = policy.q_values.argmax(axis=1)
        np.testing.assert_array_equal(policy.explored, chosen != best)
        np.testing.assert_array_equal(policy.was_greedy, chosen == best)
        explored += policy.explored.tolist()
    assert np.mean(explored) == pytest.approx(0.5 * (N - 1) / N, abs=0.08)
    scores = of_single_frames(agent.collect_policy, params.frame_stack)
    policy.reset([0])
    policy.act(steps, False)
    batched = tf.nest.map_structure(lambda leaf: tf.constant(np.asarray(leaf)[None]), steps.row(0))
    expected = scores.distribution(batched, scores.get_initial_state(1)).action.logits_parameter()[0]
    np.testing.assert_allclose(policy.q_values[0], expected, rtol=1e-3, atol=1e-4)


def test_boltzmanns_noise_exchanges_actions_of_nearly_equal_value_alone():
    _, agent, values = trained("dqn")
    values = {name: np.zeros_like(value) if "value/kernel" in name else value for name, value in values.items()}
    (bias,) = (name for name in values if "value/bias" in name)
    rates = {"boltzmann_epsilon:0": np.float32(1.0), "exploration_epsilon:0": np.float32(0.0)}
    policy = make_worker_policy(agent, seed=0)
    policy.assign(values | rates | {bias: np.float32([1.0, 0.0, 1.0, 0.99, -1.0])})
    step = ts.restart(observations(VECTOR, 1, 0)[0][0])
    assert action(policy, step, True) == 0  # Of equal ones the first.
    counts = np.bincount([action(policy, step, False) for _ in range(3000)], minlength=N)
    assert counts[1] == counts[4] == 0 and 0.3 < counts[0] / 3000 < 0.55 and 0.05 < counts[3] / 3000 < 0.25


def test_discrete_sac_samples_its_probabilities():
    policy, spec = policy_of("sac_discrete", 4), KINDS["sac_discrete"][0]
    network = Network("sac_discrete", 1)
    steps = steps_of([np.repeat(leaf, 4, axis=0) for leaf in observations(spec, 1, 0)], spec, is_first=True)
    batched = tf.nest.map_structure(lambda leaf: tf.constant(np.asarray(leaf)[None]), steps.row(0))
    logits = network._scores.distribution(batched, network._states[0]).action.logits_parameter()[0]
    counts = np.bincount(np.concatenate([policy.act(steps, False)[0] for _ in range(1500)]), minlength=N)
    np.testing.assert_allclose(counts / 6000, tf.nn.softmax(logits), atol=0.03)
    assert policy.q_values is None


@pytest.mark.parametrize("kind", ["recurrent", "loop"])
def test_weights_travel_by_name_and_new_ones_count_in_all_lanes(kind):
    spec, (_, _, values) = KINDS[kind][0], trained(kind)
    policy, network = policy_of(kind), Network(kind, 1)
    policy.assign({name: np.zeros_like(value) for name, value in values.items()})
    other = policy.with_lanes(1)
    sent = weights.to_arrays(values)
    order = [0, *(1 + np.random.default_rng(0).permutation(len(sent) - 1))]
    names = json.loads(sent[0].tobytes())
    shuffled = dict(zip([names[i - 1] for i in order[1:]], [sent[i] for i in order[1:]], strict=True))
    policy.assign(weights.from_arrays(weights.to_arrays(shuffled)))
    steps = steps_of(observations(spec, 1, 0), spec)
    for acting in (policy, other):
        network.reset([0])
        network.check(0, steps.row(0), acting.act(steps, True)[0][0])


def test_names_that_occur_twice_stay_apart():
    first, second = (tf.Variable(float(i), name="w") for i in range(2))
    named = weights.named_variables(SimpleNamespace(variables=lambda: [first, second]))
    assert list(named) == ["w:0", "w:0#1"]
    weights.assign_weights(named, {"w:0#1": np.float32(7), "w:0": np.float32(3)})
    assert (float(first), float(second)) == (3.0, 7.0)
    with pytest.raises(ValueError, match="differ in"):
        weights.assign_weights(named, {"w:0": np.float32(3)})


class Looked(tf.keras.layers.Layer):
    """Captures a table, which is no variable."""

    def build(self, shape):
        initializer = tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1], tf.int64), tf.constant([1.0, 2.0]))
        self.table = tf.lookup.StaticHashTable(initializer, 0.0)

    def call(self, inputs):
        return inputs * self.table.lookup(tf.ones([1], tf.int64))


def test_what_a_session_can_not_have_is_refused_in_a_sentence():
    agent = agent_of(FakeParams, VECTOR, ACTION, **SMALL, preprocessing_combiner=Looked)
    with pytest.raises(UserError, match=r"^workers can't run the agent's policy: it captures .* which is no variable"):
        make_worker_policy(agent, 0)


def test_a_sessions_first_call_is_not_an_environments_first_step(monkeypatch):
    whole, called = GraphSession.__call__, []
    monkeypatch.setattr(GraphSession, "__call__", lambda self, *args: called.append(args[0]) or whole(self, *args))
    policy_of("loop", lanes=2)
    assert called == [(False, 2)]


def test_a_start_finds_that_numpy_acts_otherwise_than_the_network(monkeypatch):
    for kind in ("stacked, recurrent", "sac_discrete"):
        params, agent, _ = trained(kind)
        network = of_single_frames(agent.collect_policy, params.frame_stack)
        check_actions(make_worker_policy(agent, 0, 4, params.frame_stack), network)
    params, agent, _ = trained("recurrent")
    monkeypatch.setattr(
        "tfagents_system.policies.numpy_policy._fill",
        lambda own, name, arrays: own.fill(1.0) if "scale" in name else own.__setitem__(..., arrays[name]),
    )
    with pytest.raises(UserError, match=r"differ from the network's by .* let actor_ctor return a subclass"):
        check_actions(make_worker_policy(agent, 0, 4), agent.collect_policy)


def test_a_deterministic_run_needs_numpy():
    with pytest.raises(UserError, match="workers can run in NumPy, and it has a"):
        policy_of("loop").reseed(1)
