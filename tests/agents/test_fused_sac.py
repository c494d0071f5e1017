"""The fused update is TF-Agents' SacAgent: same weights, minibatches and noise give the same weights."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.agents.ddpg.critic_network import CriticNetwork
from tf_agents.agents.sac.sac_agent import SacAgent, std_clip_transform
from tf_agents.agents.sac.tanh_normal_projection_network import TanhNormalProjectionNetwork
from tf_agents.networks.actor_distribution_network import ActorDistributionNetwork
from tf_agents.networks.network import Network
from tf_agents.networks.normal_projection_network import NormalProjectionNetwork
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step, trajectory
from tf_agents.trajectories import time_step as ts
from tf_agents.utils import common

from tfagents_system.agents import block_update
from tfagents_system.agents.agent_interface import make_update
from tfagents_system.agents.block_update import BlockUpdate
from tfagents_system.agents.noise import UnsupportedAgentError
from tfagents_system.replay.sample_forms import TransitionForm
from tfagents_system.train_params_base import TrainParamsBase

B, OBS, ACT, T = 32, 5, 2, 3
OBSERVATION = tf.TensorSpec((OBS,), tf.float32, "observation")
ACTION = tensor_spec.BoundedTensorSpec((ACT,), tf.float32, -1.0, 1.0, "action")
WIDE_ACTION = tensor_spec.BoundedTensorSpec((ACT,), tf.float32, [-2.0, 0.0], [2.0, 0.5], "action")
Adam = tf.keras.optimizers.legacy.Adam


class ReferenceAgent(SacAgent):
    """SacAgent whose only change is where the noise comes from; its distributions compute log pi themselves."""

    noise: list = []

    def _actions_and_log_probs(self, time_steps, training=False):
        batch_size = tf.nest.flatten(time_steps)[0].shape[0]
        policy = self._train_policy if training else self._policy
        nest = policy.distribution(time_steps, policy_state=policy.get_initial_state(batch_size)).action
        noise = self.noise.pop(0)
        flat = []
        for k, distribution in enumerate(tf.nest.flatten(nest)):
            gaussian = distribution.input_distribution
            bijector = distribution._squashed_distribution.bijector
            # Through the bijector, which remembers its input: log_prob would otherwise lose digits in atanh.
            flat.append(bijector.forward(gaussian.mean() + gaussian.stddev() * noise[k]))
        actions = tf.nest.pack_sequence_as(nest, flat)
        return actions, common.log_probability(nest, actions, self.action_spec)


class SharedLogPiAgent(ReferenceAgent):
    """The same with alpha's loss made from the actor loss's log pi."""

    def actor_loss(self, time_steps, weights=None, training=True):
        actions, self._log_pi = self._actions_and_log_probs(time_steps, training=True)
        self._actions_and_log_probs, restore = lambda *_, **__: (actions, self._log_pi), self._actions_and_log_probs
        try:
            return super().actor_loss(time_steps, weights, training)
        finally:
            self._actions_and_log_probs = restore

    def alpha_loss(self, time_steps, weights=None, training=False):
        self._actions_and_log_probs, restore = lambda *_, **__: (None, self._log_pi), self._actions_and_log_probs
        try:
            return super().alpha_loss(time_steps, weights, training)
        finally:
            self._actions_and_log_probs = restore


class Params(TrainParamsBase):
    actor_fc_layer_params = (16, 16)
    critic_joint_fc_layer_params = (16, 16)

    def env_ctor(self, *args, seed=None, **kwargs):
        raise AssertionError("not needed")


def make_agent(
    cls=SacAgent, observation_spec=OBSERVATION, action_spec=ACTION, networks=None, recurrent=False, **options
):
    params = Params({"horizon": 10})
    params.recurrent = {"lstm_units": 4, "sequence_length": T} if recurrent else False
    make_actor, make_critic = networks or (params.actor_ctor, params.critic_ctor)
    options = {"gamma": 0.97, "target_update_tau": 0.02, "target_entropy": -2.0} | options
    for part in ("actor", "critic", "alpha"):
        options[f"{part}_optimizer"] = options.pop(f"make_{part}_optimizer", lambda: Adam(3e-3))()
    agent = cls(
        ts.time_step_spec(observation_spec),
        action_spec,
        actor_network=make_actor(observation_spec, action_spec),
        critic_network=make_critic(observation_spec, action_spec),
        critic_network_2=make_critic(observation_spec, action_spec),
        train_step_counter=tf.Variable(0, dtype=tf.int64),
        **options,
    )
    agent.initialize()
    return agent


def parts(agent):
    return {
        "actor": agent._actor_network,
        "critic 1": agent._critic_network_1,
        "critic 2": agent._critic_network_2,
        "target 1": agent._target_critic_network_1,
        "target 2": agent._target_critic_network_2,
    }


def copy_weights(source, target):
    for name, network in parts(source).items():
        for a, b in zip(network.variables, parts(target)[name].variables, strict=True):
            b.assign(a)
    target._log_alpha.assign(source._log_alpha)


def make_slots(agent):
    """Makes the optimizers' variables: a tf.function that makes some is traced twice."""
    optimized = {
        "critic": parts(agent)["critic 1"].trainable_weights + parts(agent)["critic 2"].trainable_weights,
        "actor": parts(agent)["actor"].trainable_weights,
        "alpha": [agent._log_alpha],
    }
    for part, variables in optimized.items():
        optimizer = getattr(agent, f"_{part}_optimizer")
        with tf.name_scope(optimizer._name):
            optimizer._create_all_weights(variables)


def random_nest(spec, outer, rng, squash=False):
    def leaf(s):
        values = rng.standard_normal((*outer, *s.shape)).astype(np.float32)
        if squash:
            values = np.float32(s.minimum) + (np.tanh(values) + 1) / 2 * np.float32(s.maximum - s.minimum)
        return tf.constant(values.astype(s.dtype.as_numpy_dtype))

    return tf.nest.map_structure(leaf, spec)


def transition(agent, rng):
    observation, next_observation = (random_nest(agent.time_step_spec.observation, (B,), rng) for _ in range(2))
    mid, reward = tf.ones(B, tf.int32), tf.constant(rng.standard_normal(B), tf.float32)
    discount = tf.constant(rng.random(B) > 0.2, tf.float32)
    return trajectory.Transition(
        ts.TimeStep(mid, tf.zeros(B), tf.ones(B), observation),
        policy_step.PolicyStep(random_nest(agent.action_spec, (B,), rng, squash=True)),
        ts.TimeStep(mid, reward, discount, next_observation),
    )


def sequence(agent, rng):
    outer = (B, T + 1)
    step_type = np.ones(outer, np.int32)
    step_type[: B // 2, 0] = 0
    return trajectory.Trajectory(
        tf.constant(step_type),
        random_nest(agent.time_step_spec.observation, outer, rng),
        random_nest(agent.action_spec, outer, rng, squash=True),
        (),
        tf.constant(np.roll(step_type, -1, 1)),
        tf.constant(rng.standard_normal(outer), tf.float32),
        tf.ones(outer),
    )


def greatest_difference(ours, theirs):
    return {
        name: max(
            float(np.max(np.abs(a.numpy() - b.numpy())))
            for a, b in zip(network.variables, parts(theirs)[name].variables, strict=True)
        )
        for name, network in parts(ours).items()
    } | {"log alpha": abs(float(ours._log_alpha - theirs._log_alpha))}


def assert_equal_updates(updates=100, recurrent=False, tolerance=2e-5, **options):
    """Trains both on the same numbers; returns the agents."""
    tf.keras.utils.set_random_seed(3)
    ours = make_agent(recurrent=recurrent, **options)
    theirs = make_agent(SharedLogPiAgent, recurrent=recurrent, **options)
    copy_weights(ours, theirs)
    before = {name: [variable.numpy() for variable in network.variables] for name, network in parts(ours).items()}
    fused = make_update(ours)
    for agent in (ours, theirs):
        make_slots(agent)

    def reference(experience, *noise):
        theirs.noise = list(noise)
        return theirs._train(experience, weights=None)

    our_step = tf.function(lambda experience, *noise: fused(experience, noise), autograph=False)
    their_step = tf.function(reference, autograph=False)
    rng = np.random.default_rng(7)
    outer = (B, T) if recurrent else (B,)
    for _ in range(updates):
        experience = (sequence if recurrent else transition)(ours, rng)
        leaves = tf.nest.flatten(ours.action_spec)
        noise = [
            [tf.constant(rng.standard_normal((*outer, *leaf.shape)), tf.float32) for leaf in leaves] for _ in range(2)
        ]
        our_losses, their_losses = our_step(experience, *noise), their_step(experience, *noise)
    for name, loss in our_losses.extra._asdict().items():
        np.testing.assert_allclose(loss, getattr(their_losses.extra, name), rtol=2e-4, atol=2e-5, err_msg=name)
    np.testing.assert_allclose(our_losses.loss, their_losses.loss, rtol=2e-4, atol=2e-5)
    differences = greatest_difference(ours, theirs)
    assert max(differences.values()) < tolerance, differences
    assert int(ours.train_step_counter) == int(theirs.train_step_counter) == updates
    for name, network in parts(ours).items():
        moved = max(
            float(np.max(np.abs(variable.numpy() - old)))
            for variable, old in zip(network.variables, before[name], strict=True)
        )
        assert moved > 100 * tolerance, f"{name} moved by {moved} only: the comparison says nothing"
    return ours, theirs


def test_100_updates_equal_sac_agent():
    assert_equal_updates()


# Tracing takes longest: options that leave each other visible are compared together.
OPTIONS = [
    {"gradient_clipping": 0.05, "target_update_period": 3, "target_entropy": None},
    {
        "target_update_tau": 1.0,
        "reward_scale_factor": 3.0,
        "gamma": 0.5,
        "use_log_alpha_in_alpha_loss": False,
        "initial_log_alpha": -1.0,
    },
    {
        "actor_loss_weight": 0.5,
        "critic_loss_weight": 2.0,
        "alpha_loss_weight": 3.0,
        "gradient_clipping": 1.0,
        "td_errors_loss_fn": common.element_wise_huber_loss,
    },
    {
        "make_actor_optimizer": lambda: tf.keras.optimizers.Adam(3e-3, beta_1=0.8),
        "action_spec": WIDE_ACTION,
        "observation_spec": {"a": OBSERVATION, "b": tf.TensorSpec((2, 2), tf.float32, "b")},
    },
    {
        "target_update_tau": 1.0,
        "target_update_period": 7,
        "make_critic_optimizer": lambda: tf.keras.optimizers.legacy.SGD(1e-2, momentum=0.9),
        "action_spec": (ACTION, WIDE_ACTION),
    },
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ",".join(options))
def test_every_option_equals_sac_agent(options):
    if isinstance(options.get("action_spec"), tuple):
        options = options | {"networks": (default_actor, nested_critic)}
    # Small differences grow with the learning rates and the scale of the rewards, for TF-Agents' own runs as well.
    assert_equal_updates(updates=40, **options)


def default_actor(observation_spec, action_spec):
    return ActorDistributionNetwork(
        observation_spec,
        action_spec,
        fc_layer_params=(16,),
        continuous_projection_net=functools.partial(TanhNormalProjectionNetwork, std_transform=std_clip_transform),
    )


class NestedCritic(Network):
    """TF-Agents' own critic takes a single action."""

    def __init__(self, input_tensor_spec, name="NestedCritic"):
        super().__init__(input_tensor_spec=input_tensor_spec, state_spec=(), name=name)
        size = sum(leaf.shape.num_elements() for leaf in tf.nest.flatten(input_tensor_spec[1]))
        joined = tf.TensorSpec((size,), tf.float32)
        self._critic = CriticNetwork((input_tensor_spec[0], joined), joint_fc_layer_params=(16,))

    def call(self, inputs, step_type=None, network_state=(), training=False):
        observation, action = inputs
        joined = tf.concat(tf.nest.flatten(action), axis=-1)
        return self._critic((observation, joined), step_type=step_type, training=training)


def nested_critic(observation_spec, action_spec):
    return NestedCritic((observation_spec, action_spec))


def test_recurrent_agents_equal_sac_agent():
    assert_equal_updates(updates=30, recurrent=True)


def random_block(updates):
    rng = np.random.default_rng(0)
    shapes = ((OBS,), (ACT,), (), (), (OBS,))
    return [rng.standard_normal((updates, B, *shape)).astype(np.float32) for shape in shapes]


def test_every_update_draws_its_own_noise_from_a_standard_normal():
    """Nothing learns, so losses differ by their noise alone; alpha's tells the mean of log pi."""
    still = {f"make_{part}_optimizer": lambda: Adam(0.0) for part in ("actor", "critic", "alpha")}
    agent = make_agent(target_entropy=0.0, initial_log_alpha=1.0, **still)
    update, block = BlockUpdate(agent, B, TransitionForm()), random_block(1)
    losses = [update(block) for _ in range(200)]
    for name in ("critic_loss", "actor_loss", "alpha_loss"):
        assert len({values[name] for values in losses}) == len(losses), name
    observation = tf.repeat(tf.constant(block[0][0]), 200, axis=0)
    distribution = agent._policy.distribution(ts.restart(observation, len(observation))).action
    expected = float(tf.reduce_mean(distribution.log_prob(distribution.sample(seed=1))))
    # 6,400 samples each, with a standard deviation of about 1; no noise would be 1 off, half of it 0.75.
    assert -np.mean([values["alpha_loss"] for values in losses]) == pytest.approx(expected, abs=0.06)


class OwnAgent(SacAgent):
    pass


def test_an_unusual_agent_is_trained_by_its_own_train_and_says_so(monkeypatch):
    told = []
    monkeypatch.setattr(block_update.logging, "info", lambda text, *args: told.append(text % args))
    agent = make_agent(OwnAgent)
    with pytest.raises(UnsupportedAgentError, match="OwnAgent"):
        make_update(agent)
    update = BlockUpdate(agent, B, TransitionForm())
    assert update.kind == "generic"
    assert told == ["generic update, not the fused one of SAC: OwnAgent is not TF-Agents' SacAgent itself"]


def test_an_actor_of_another_distribution_is_trained_by_the_agents_own_train():
    def actor(observation_spec, action_spec):
        projection = functools.partial(NormalProjectionNetwork, state_dependent_std=True, scale_distribution=False)
        return ActorDistributionNetwork(
            observation_spec, action_spec, fc_layer_params=(16,), continuous_projection_net=projection
        )

    agent = make_agent(networks=(actor, Params({"horizon": 10}).critic_ctor))
    assert BlockUpdate(agent, B, TransitionForm()).kind == "generic"


def test_a_loss_that_is_not_finite_is_an_error():
    agent = make_agent()
    fused = tf.function(make_update(agent), autograph=False)
    bad = transition(agent, np.random.default_rng(0))
    bad = bad._replace(next_time_step=bad.next_time_step._replace(reward=tf.fill([B], float("nan"))))
    with pytest.raises(tf.errors.InvalidArgumentError, match="Critic loss is inf or nan"):
        fused(bad)
