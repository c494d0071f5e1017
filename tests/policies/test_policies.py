"""The policy that workers use, and the one on disk, equal the trainer's."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.agents.sac.tanh_normal_projection_network import TanhNormalProjectionNetwork
from tf_agents.networks.actor_distribution_rnn_network import ActorDistributionRnnNetwork
from tf_agents.policies import greedy_policy, policy_loader
from tf_agents.policies.policy_saver import PolicySaver
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tests.support.fakes import agent_of
from tfagents_system.envs.actions import actions_of
from tfagents_system.policies import weights
from tfagents_system.policies.checkpoint_names import checkpoint_name, iteration_of
from tfagents_system.policies.environment_units import EnvironmentUnitsPolicy
from tfagents_system.policies.graph_session import GraphSession
from tfagents_system.policies.network_layers import NetworkLayers, UnsupportedNetworkError
from tfagents_system.policies.numpy_worker_policy import NumpyWorkerPolicy
from tfagents_system.policies.worker_policy import make_worker_policy
from tfagents_system.run_files.run_paths import RunPaths
from tfagents_system.train_params_base import TrainParamsBase
from tfagents_system.trainer.policy_export import PolicyExport

VECTOR = tf.TensorSpec((3,), tf.float32, "observation")
ACTION = tensor_spec.BoundedTensorSpec((2,), tf.float32, -1.0, 1.0, "action")


class Params(TrainParamsBase):
    actor_fc_layer_params = (32, 16)
    critic_joint_fc_layer_params = (8,)

    def env_ctor(self, *args, seed=None, **kwargs):
        raise AssertionError("not needed")


def build(spec=VECTOR, seed=0, recurrent=False):
    tf.random.set_seed(seed)
    return agent_of(Params, spec, ACTION, recurrent={"lstm_units": 4} if recurrent else False)


def scramble(agent, seed=1):
    """Weights as after training: not small and symmetric as at the start."""
    rng = np.random.default_rng(seed)
    for variable in agent.collect_policy.variables():
        variable.assign(rng.standard_normal(variable.shape) * 0.5)


def time_step(spec, seed=0):
    rng = np.random.default_rng(seed)
    observation = tf.nest.map_structure(lambda s: rng.standard_normal(s.shape).astype(s.dtype.as_numpy_dtype), spec)
    return ts.TimeStep(np.int32(1), np.float32(0), np.float32(1), observation)


def batched(step):
    return tf.nest.map_structure(lambda value: tf.constant(np.asarray(value)[None]), step)


def test_the_default_actor_runs_in_numpy_and_equals_the_network():
    agent = build()
    scramble(agent)
    policy = make_worker_policy(agent, seed=0)
    assert policy.inference == "numpy"
    greedy = greedy_policy.GreedyPolicy(agent.policy)
    for seed in range(20):
        step = time_step(VECTOR, seed)
        np.testing.assert_allclose(policy.action(step, greedy=True), greedy.action(batched(step)).action[0], atol=2e-6)


def test_exploration_noise_has_the_networks_distribution():
    agent = build()
    scramble(agent)
    step = time_step(VECTOR)
    distribution = agent.collect_policy.distribution(batched(step)).action.input_distribution
    policy = make_worker_policy(agent, seed=0)
    samples = np.arctanh(np.clip([policy.action(step, greedy=False) for _ in range(20_000)], -0.9999999, 0.9999999))
    mean, std = distribution.mean().numpy()[0], distribution.stddev().numpy()[0]
    kept = std < 2.5  # Beyond, tanh saturates in float32 and cannot be inverted.
    assert kept.any()
    np.testing.assert_allclose(samples.mean(0)[kept], mean[kept], atol=5 * std.max() / np.sqrt(20_000))
    np.testing.assert_allclose(samples.std(0)[kept], std[kept], rtol=0.03)


def test_flattened_observations_of_any_kind_run_in_numpy_and_equal_the_network():
    spec = {"pixels": tf.TensorSpec((2, 3), tf.uint8), "x": tf.TensorSpec((), tf.float32), "y": [VECTOR, VECTOR]}
    agent = build(spec)
    scramble(agent)
    policy = make_worker_policy(agent, seed=0)
    assert policy.inference == "numpy"
    step = time_step(spec)
    step.observation["pixels"][:] = [[0, 1, 2], [127, 254, 255]]
    expected = greedy_policy.GreedyPolicy(agent.policy).action(batched(step)).action[0]
    np.testing.assert_allclose(policy.action(step, greedy=True), expected, atol=2e-6)


def combined(observation_layer):
    """An agent whose network has a preprocessing layer that NumpyWorkerPolicy does not know."""
    return agent_of(Params, VECTOR, ACTION, preprocessing_combiner=observation_layer)


def any_network(kind):
    tf.random.set_seed(0)
    if kind == "recurrent":
        return build(recurrent=True)
    if kind == "gru":
        return with_gru()
    return combined(lambda: tf.keras.layers.Dense(4, "elu"))


def with_gru():
    """An agent with a memory that NumpyWorkerPolicy does not know."""
    from tf_agents.keras_layers.dynamic_unroll_layer import DynamicUnroll

    class GruParams(Params):
        def actor_ctor(self, observation_spec, action_spec):
            return ActorDistributionRnnNetwork(
                observation_spec,
                action_spec,
                input_fc_layer_params=None,
                rnn_construction_fn=lambda: DynamicUnroll(tf.keras.layers.GRUCell(4)),
                rnn_construction_kwargs={},
                continuous_projection_net=TanhNormalProjectionNetwork,
            )

    params = GruParams({"horizon": 10})
    params.recurrent = {"lstm_units": 4}
    return params.agent_ctor(ts.time_step_spec(VECTOR), ACTION, tf.Variable(0, dtype=tf.int64))


@pytest.mark.parametrize(
    ("kind", "inference", "num_envs"),
    [
        *(("recurrent", "numpy", num_envs) for num_envs in (1, 3, 9)),  # A batch is computed in one way or the other.
        *(("gru", "tensorflow session", num_envs) for num_envs in (1, 9)),
        ("preprocessing", "tensorflow session", 3),
    ],
)
def test_any_other_network_equals_itself_in_a_worker(kind, inference, num_envs):
    agent = any_network(kind)
    scramble(agent)
    policy = make_worker_policy(agent, seed=0, num_envs=num_envs)
    assert policy.inference == inference
    sent = weights.read_weights(weights.named_variables(agent.collect_policy))
    halved = {name: 0.5 * value for name, value in sent.items()}
    policy.assign(halved)
    weights.assign_weights(weights.named_variables(agent.collect_policy), halved)
    greedy = greedy_policy.GreedyPolicy(agent.policy)
    states = {env: greedy.get_initial_state(1) for env in range(num_envs)}
    for env in range(num_envs):
        policy.reset(env)
    for seed in range(4):
        # The last environment sits out one step: the others go on, and its state waits.
        steps = {env: time_step(VECTOR, 10 * seed + env) for env in range(num_envs if seed != 2 else 1)}
        found = policy.actions(steps, greedy=True)
        assert found.keys() == steps.keys()
        for env, step in steps.items():
            expected = greedy.action(batched(step), states[env])
            states[env] = expected.state
            np.testing.assert_allclose(found[env], expected.action[0], atol=1e-6)


@pytest.mark.parametrize("kind", ["recurrent", "gru"])
def test_an_episode_of_one_environment_leaves_the_memory_of_the_others(kind):
    policy = make_worker_policy(any_network(kind), seed=0, num_envs=2)
    step = time_step(VECTOR)
    for env in range(2):
        policy.reset(env)
    first = policy.actions({0: step, 1: step}, greedy=True)
    np.testing.assert_array_equal(first[0], first[1])
    policy.reset(0)
    second = policy.actions({0: step, 1: step}, greedy=True)
    np.testing.assert_allclose(second[0], first[0], atol=1e-7)
    assert not np.allclose(second[1], first[1], atol=1e-7)


def test_a_session_explores_with_new_noise_in_every_call_and_for_every_seed():
    agents = [any_network("preprocessing") for _ in range(2)]
    policies = [make_worker_policy(agent, seed, num_envs=2) for seed, agent in enumerate(agents)]
    step = time_step(VECTOR)
    drawn = [
        [action for _ in range(200) for action in policy.actions({0: step, 1: step}, False).values()]
        for policy in policies
    ]
    assert len({action.tobytes() for actions in drawn for action in actions}) == 800
    for agent, actions in zip(agents, drawn, strict=True):
        spread = np.arctanh(np.array(actions)).std(axis=0)
        distribution = agent.collect_policy.distribution(batched(step)).action.input_distribution
        # The spread of 400 numbers is known to 3.5 %.
        np.testing.assert_allclose(spread, distribution.stddev().numpy()[0], rtol=0.25)


@pytest.mark.parametrize("batch_size", [2, 16])
def test_a_batch_in_numpy_equals_its_observations_one_by_one(batch_size):
    agent = build()
    scramble(agent)
    single, batch = (make_worker_policy(agent, seed=0, num_envs=num_envs) for num_envs in (1, batch_size))
    steps = {env: time_step(VECTOR, env) for env in range(batch_size)}
    for active in (steps, {1: steps[1]}):
        actions = batch.actions(active, greedy=True)
        assert actions.keys() == active.keys()
        for env, action in actions.items():
            np.testing.assert_allclose(action, single.action(steps[env], greedy=True), atol=2e-6)
    batch = make_worker_policy(build(), seed=0, num_envs=batch_size)
    explored = np.array([list(batch.actions(dict.fromkeys(steps, steps[0]), False).values()) for _ in range(2)])
    assert len(np.unique(explored[:, :, 0])) == 2 * batch_size, "noise of its own for each"


def test_a_fast_path_that_differs_from_the_network_is_not_taken(monkeypatch):
    agent = build()
    monkeypatch.setattr(NumpyWorkerPolicy, "actions", lambda self, time_steps, greedy: {0: np.full(2, 0.9)})
    assert make_worker_policy(agent, seed=0).inference == "tensorflow session"
    monkeypatch.setattr(GraphSession, "__call__", lambda self, name, leaves: [np.full((1, 2), 0.9)])
    closed = []
    monkeypatch.setattr(GraphSession, "close", lambda self: closed.append(self))
    policy = make_worker_policy(agent, seed=0)
    assert policy.inference == "tensorflow function"
    assert len(closed) == 2, "both sessions that were tried"
    step = time_step(VECTOR)
    expected = greedy_policy.GreedyPolicy(agent.policy).action(batched(step)).action[0]
    np.testing.assert_allclose(policy.action(step, greedy=True), expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["recurrent", "preprocessing"])
def test_weights_travel_by_name_and_make_the_worker_act_as_the_trainer(kind):
    trainer, worker = any_network(kind), any_network(kind)
    scramble(trainer)
    scramble(worker, seed=2)
    policy = make_worker_policy(worker, seed=0)
    step = time_step(VECTOR)
    sent = weights.to_arrays(weights.read_weights(weights.named_variables(trainer.collect_policy)))
    order = [0, *(1 + np.random.default_rng(0).permutation(len(sent) - 1))]
    names = json.loads(sent[0].tobytes())
    shuffled = dict(zip([names[i - 1] for i in order[1:]], [sent[i] for i in order[1:]], strict=True))
    policy.assign(weights.from_arrays(weights.to_arrays(shuffled)))
    greedy = greedy_policy.GreedyPolicy(trainer.policy)
    expected = greedy.action(batched(step), greedy.get_initial_state(1)).action[0]
    policy.reset()
    np.testing.assert_allclose(policy.action(step, greedy=True), expected, atol=2e-6)


def test_names_that_occur_twice_stay_apart():
    first, second = (tf.Variable(float(i), name="w") for i in range(2))

    class Policy:
        def variables(self):
            return [first, second]

    named = weights.named_variables(Policy())
    assert list(named) == ["w:0", "w:0#1"]
    weights.assign_weights(named, {"w:0#1": np.float32(7), "w:0": np.float32(3)})
    assert (float(first), float(second)) == (3.0, 7.0)
    with pytest.raises(ValueError, match="differ in"):
        weights.assign_weights(named, {"w:0": np.float32(3)})


def test_networks_that_numpy_can_not_compute_are_told_apart():
    for agent in (any_network("preprocessing"), any_network("gru")):
        policy = agent.collect_policy
        with pytest.raises(UnsupportedNetworkError):
            NetworkLayers(policy._actor_network, weights.named_variables(policy))


@pytest.mark.parametrize("recurrent", [False, True])
def test_actions_in_units_are_drawn_as_the_policy_draws_them(recurrent):
    agent, count = build(recurrent=recurrent), 20_000
    scramble(agent)
    units = tensor_spec.BoundedTensorSpec((2,), tf.float32, [-2.0, 0.0], [2.0, 10.0], "action")
    policy = agent.collect_policy
    for variable in policy.variables():
        variable.assign(0.4 * variable)  # So that no action is at a bound.
    steps = tf.nest.map_structure(lambda leaf: tf.repeat(leaf[None], count, axis=0), time_step(VECTOR))
    state = policy.get_initial_state(count)
    drawn = EnvironmentUnitsPolicy(policy, actions_of(units)).action(steps, state)
    gaussian = policy.distribution(steps, state).action.input_distribution
    u = np.arctanh((drawn.action.numpy() - [0.0, 5.0]) / [2.0, 5.0])
    mean, std = gaussian.mean().numpy()[0], gaussian.stddev().numpy()[0]
    assert np.ptp(mean) > 0.1 and np.ptp(std) > 0.1, "one taken for the other would be seen"
    np.testing.assert_allclose(u.mean(axis=0), mean, atol=4.0 * std.max() / np.sqrt(count))
    np.testing.assert_allclose(u.std(axis=0), std, rtol=0.03)
    assert abs(np.corrcoef(u.T)[0, 1]) < 4.0 / np.sqrt(count)
    tf.nest.map_structure(np.testing.assert_array_equal, drawn.state, policy.action(steps, state).state)


@pytest.mark.parametrize("recurrent", [False, True])
def test_saved_policies_act_in_the_environments_units(tmp_path, monkeypatch, recurrent):
    traced = []
    scale = EnvironmentUnitsPolicy._action_in_units
    monkeypatch.setattr(
        EnvironmentUnitsPolicy, "_action_in_units", lambda self, *args: traced.append(self) or scale(self, *args)
    )
    agent = build(recurrent=recurrent)
    scramble(agent)
    train_step = agent.train_step_counter
    train_step.assign(1234)
    units = tensor_spec.BoundedTensorSpec((2,), tf.float32, [-2.0, 0.0], [2.0, 10.0], "action")
    export = PolicyExport(RunPaths(tmp_path), agent, actions_of(units), train_step)
    assert not export.has_models()
    for iteration in (6, None, 7):
        export.save_models(iteration)
        assert [iteration_of(model) for model in (tmp_path / "policies").glob("*policy")] == [iteration] * 3
    assert export.has_models()
    scramble(agent, seed=2)
    saved = tmp_path / "policies/checkpoints/policy_checkpoint_0000001234"
    for iteration in (None, 7):
        assert export.save_checkpoint(iteration) == saved.name
        assert iteration_of(saved) == iteration
    assert len(traced) == 2, "tracing takes longest: once for each policy, and SAC collects with its policy"
    worker = make_worker_policy(agent, seed=0)
    step = time_step(VECTOR)
    worker.reset()
    action = worker.action(step, greedy=True)
    expected = np.array([2.0, 5.0]) * action + np.array([0.0, 5.0])

    name = checkpoint_name(1234)
    loaded = policy_loader.load(
        str(tmp_path / "policies" / "greedy_policy"), str(tmp_path / "policies/checkpoints" / name)
    )
    played = loaded._policy.action(batched(step), loaded._policy.get_initial_state(1)).action
    np.testing.assert_allclose(played[0], expected, atol=1e-5)
    assert loaded.get_train_step() == 1234
    for name in ("collect_policy", "policy"):
        sampled = tf.saved_model.load(str(tmp_path / "policies" / name))
        state = sampled.get_initial_state(1)
        first, second = (sampled.action(batched(step), state).action.numpy() for _ in range(2))
        assert np.abs(first - second).max() > 1e-3, "noise is drawn anew in each call"

    built = []
    whole = PolicySaver.save
    monkeypatch.setattr(PolicySaver, "save", lambda self, *args: built.append(self) or whole(self, *args))
    (tmp_path / "policies/policy/notes.txt").write_text("of a user")
    scramble(agent, seed=3)
    train_step.assign(2000)
    export.save_models()
    assert not built, "a graph takes longest to build: once for each policy"
    for name in ("collect_policy", "greedy_policy", "policy"):
        export._policies[name].saver.save(str(tmp_path / "whole" / name))
        assert contents(tmp_path / "policies" / name) == contents(tmp_path / "whole" / name), name
    again = tf.saved_model.load(str(tmp_path / "policies/greedy_policy"))
    worker.assign(weights.read_weights(weights.named_variables(agent.collect_policy)))
    worker.reset()
    expected = np.array([2.0, 5.0]) * worker.action(step, greedy=True) + np.array([0.0, 5.0])
    played = again.action(batched(step), again.get_initial_state(1)).action
    np.testing.assert_allclose(played[0], expected, atol=1e-5)
    assert again.get_train_step() == 2000
    shutil.rmtree(tmp_path / "policies/policy")
    export.save_models()
    assert contents(tmp_path / "policies/policy").keys() == contents(tmp_path / "whole/policy").keys()


def contents(model: Path) -> dict[str, bytes]:
    """All that a SavedModel says, without the order of its functions: names of files, and the bytes of its weights."""
    files = {str(path.relative_to(model)): path for path in model.rglob("*") if path.is_file()}
    same = {name for name in files if not name.endswith(("saved_model.pb", "fingerprint.pb"))}
    return {name: path.read_bytes() if name in same else b"" for name, path in files.items()}


@pytest.mark.parametrize("num_envs", [1, 2, 16])
def test_noise_follows_from_the_seed_that_was_given_last(num_envs):
    policy = make_worker_policy(build(), seed=0, num_envs=num_envs)
    steps = {env: time_step(VECTOR, seed=env) for env in range(num_envs)}

    def actions(seed):
        policy.reseed(seed)
        return [np.stack(list(policy.actions(steps, greedy=False).values())) for _ in range(5)]

    first = actions(7)
    np.testing.assert_array_equal(actions(7), first)
    assert np.abs(np.array(actions(8)) - np.array(first)).max() > 0.01
