"""The default actor, critics and networks of values: a body of layers, and a head; and policies over values.

All three have the same body; they differ in the head and in initial weights. Images are encoded in front of it
(encoder.py). `policies/description.py` reads these classes, so that NumPy computes them in workers and exports.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.agents.sac.sac_agent import std_clip_transform
from tf_agents.agents.sac.tanh_normal_projection_network import TanhNormalProjectionNetwork
from tf_agents.keras_layers.dynamic_unroll_layer import DynamicUnroll
from tf_agents.networks import network, utils
from tf_agents.policies import tf_policy
from tf_agents.policies.actor_policy import ActorPolicy
from tf_agents.trajectories import policy_step
from tf_agents.trajectories import time_step as ts
from tf_agents.utils import nest_utils

from tfagents_system.agents import algorithms
from tfagents_system.agents.agent import Acting
from tfagents_system.agents.encoder import (
    EncodedActor,
    ImageEncoder,
    build_encoder,
    convolutions,
    is_plain_vector,
    make_encoder,
)
from tfagents_system.agents.layers import (
    VALUE_LAYER,
    BatchRenormalization,
    Dropout,
    Layers,
    as_vector,
    flash_layers,
    layer_norm,
    simba_layers,
    xqc_layers,
)
from tfagents_system.agents.minibatch import UnsupportedActorError, mean_and_std
from tfagents_system.agents.normalization import ObservationNormalization, set_sources
from tfagents_system.checks.schedules import initial_value
from tfagents_system.envs.gym_driver import mask_of
from tfagents_system.envs.history import leaves_seen_by_actor, seen_by_actor, without_mask
from tfagents_system.errors import UserError, shown
from tfagents_system.train_params_base import TrainParamsBase

Activation = Callable[[tf.Tensor], tf.Tensor]
LEAKY_SLOPE = 0.01
SIMBA = "simba"
_LAYERS_OF_ALGORITHMS = {"xqc": xqc_layers, "flash_sac": flash_layers}
_FAN_IN = {"scale": 1.0 / 3.0, "mode": "fan_in", "distribution": "uniform"}
_HE = {"scale": 2.0, "mode": "fan_in", "distribution": "truncated_normal"}
EPSILON, BOLTZMANN = "exploration_epsilon", "boltzmann_epsilon"
NOISE_SCALE = 0.01  # Of what is added to values before the best of them is chosen, with `boltzmann_epsilon`.


def leaky_relu(values: tf.Tensor) -> tf.Tensor:
    """max(x, 0.01 x)."""
    return tf.nn.leaky_relu(values, LEAKY_SLOPE)


class Body(tf.keras.layers.Layer):
    """From an observation, and for a critic an action, to what a head takes. Its parts are in the order of the data.

    Args:
      normalization: From observations to normalised ones.
      images: Convolutions over images.
      encoder: From there to a tensor `[B, (T,) n]`; None: the observation is a vector, which is joined with the action.
      lstm: Unrolls an LSTM's cell over time.
      hidden_layers: Behind all these.
    """

    def __init__(
        self,
        hidden_layers: Layers,
        normalization: ObservationNormalization | None = None,
        images: ImageEncoder | None = None,
        encoder: network.Network | None = None,
        lstm: DynamicUnroll | None = None,
    ) -> None:
        super().__init__(autocast=False)
        self.normalization, self.images, self.encoder, self.lstm = normalization, images, encoder, lstm
        self.hidden_layers = hidden_layers

    @property
    def state_spec(self) -> Any:
        """Of the LSTM's h and c."""
        return () if self.lstm is None else [tf.TensorSpec(size, tf.float32) for size in self.lstm.cell.state_size]

    def call(
        self,
        inputs: Any,
        outer_rank: int = 1,
        step_type: Any = None,
        state: Any = (),
        training: bool = False,
        half: int | None = None,
    ) -> tuple[tf.Tensor, Any]:
        """What the last layer returns, `[B, (T,) n]`, and the LSTM's next state.

        Args:
          inputs: (observation, action): nests of `[B, (T,) ...]`, the action empty where there is none.
          outer_rank: 1 or, with T, 2.
          half: Of two joined batches, the one that the last layer is for, 0 or 1; None: it is for all rows.
        """
        observation, action = inputs
        squash = utils.BatchSquash(outer_rank)
        if self.normalization is not None:
            observation = self.normalization(observation)
        if self.images is not None:
            observation, _ = self.images(observation)
        if self.encoder is not None:
            if mask_of(self.encoder.input_tensor_spec) is None:
                observation = without_mask(observation)
            observation, _ = self.encoder(observation, step_type=step_type, training=training)
        values = tf.concat([as_vector(squash.flatten(leaf)) for leaf in tf.nest.flatten((observation, action))], -1)
        if self.lstm is not None:
            is_first = tf.equal(step_type, ts.StepType.FIRST)
            values, state = self.lstm(
                squash.unflatten(values),
                initial_state=state,
                reset_mask=tf.reshape(is_first, [tf.shape(is_first)[0], -1]),
                training=training,
            )
            values = squash.flatten(values)
        for layer in self.hidden_layers:
            if half is not None and layer is self.hidden_layers[-1]:
                values = tf.split(values, 2)[half]
            values = layer(values, training=training)
        return squash.unflatten(values), state


def _is_simba(params: TrainParamsBase) -> bool:
    return params.network == SIMBA and params.algorithm not in _LAYERS_OF_ALGORITHMS


def _hidden_layers(
    params: TrainParamsBase,
    units: Sequence[int],
    initializer: Callable[[], Any],
    activation: Activation = tf.keras.activations.relu,
    *,
    is_critic: bool,
) -> Layers:
    """Dense, dropout, layer normalisation, activation: the order of DroQ (arXiv 2110.02034, figure 1); or SimBa's.

    Batch renormalisation is in front of the first one, and behind each activation. XQC and FlashSAC have their own.
    """
    if params.algorithm in _LAYERS_OF_ALGORITHMS:
        return _LAYERS_OF_ALGORITHMS[params.algorithm](units)
    if _is_simba(params):
        return simba_layers(units)
    renormalization = algorithms.value(params, "batch_renormalization")
    dropout, has_norm = (is_critic and algorithms.value(params, f"critic_{name}") for name in ("dropout", "layer_norm"))
    layers: Layers = []
    for size in units:
        if renormalization:
            layers.append(BatchRenormalization(renormalization["warmup_steps"]))
        between: Layers = [Dropout(float(dropout))] if dropout else []
        between += [layer_norm()] if has_norm else []
        if between:
            dense = tf.keras.layers.Dense(size, kernel_initializer=initializer())
            layers += [dense, *between, tf.keras.layers.Activation(activation)]
        else:
            layers.append(tf.keras.layers.Dense(size, activation, kernel_initializer=initializer()))
    return [*layers, BatchRenormalization(renormalization["warmup_steps"])] if renormalization else layers


def _normalization(params: TrainParamsBase, observation_spec: Any) -> tuple[ObservationNormalization | None, Any]:
    """The layer that normalises observations, a part of SimBa, and the spec of what it returns."""
    if not params.normalize_observations and not _is_simba(params):
        return None, observation_spec
    normalization = ObservationNormalization(observation_spec, convolutions(params))
    specs = tf.nest.flatten(observation_spec)
    for leaf in (layer.leaf for layer in normalization.leaves):
        specs[leaf] = tf.TensorSpec(specs[leaf].shape, tf.float32, specs[leaf].name)
    return normalization, tf.nest.pack_sequence_as(observation_spec, specs)


def _body(params: TrainParamsBase, observation_spec: Any, hidden_layers: Callable[[], Layers]) -> Body:
    """The body of an actor or a critic."""
    normalization, observation_spec = _normalization(params, observation_spec)
    encoder = lstm = None
    if params.preprocessing_combiner is not None or not is_plain_vector(observation_spec):
        encoder = build_encoder(params, observation_spec)
    if recurrent := algorithms.value(params, "recurrent"):
        lstm = DynamicUnroll(tf.keras.layers.LSTMCell(recurrent["lstm_units"]))
    return Body(hidden_layers(), normalization, None, encoder, lstm)


# TF-Agents' default exponentiates without a bound.
_STD: dict[algorithms.LogStd, Callable[[tf.Tensor], tf.Tensor]] = {
    "clip_20": std_clip_transform,
    "clip_10": lambda raw: tf.exp(tf.clip_by_value(raw, -10.0, 2.0)),
    "tanh": lambda raw: tf.exp(6.0 * tf.tanh(raw) - 4.0),
}


class Actor(network.DistributionNetwork):
    """A tanh-squashed Gaussian whose mean and log standard deviation depend on the observation.

    Source: Haarnoja et al., arXiv 1812.05905, appendix C.

    Args:
      make_body: Called once for each copy of this network.
      log_std: From the network's output x to log(std): clipped to [-20, 2], to [-10, 2], or -10 + 6 (1 + tanh(x)).
    """

    def __init__(
        self,
        input_tensor_spec: Any,
        output_tensor_spec: Any,
        make_body: Callable[[], Body],
        name: str = "Actor",
        log_std: algorithms.LogStd = "clip_20",
    ) -> None:
        body = make_body()
        project = functools.partial(TanhNormalProjectionNetwork, std_transform=_STD[log_std])
        projections = tf.nest.map_structure(project, output_tensor_spec)
        super().__init__(
            input_tensor_spec=input_tensor_spec,
            state_spec=body.state_spec,
            output_spec=tf.nest.map_structure(lambda projection: projection.output_spec, projections),
            name=name,
        )
        self.body, self.projections, self.log_std = body, projections, log_std

    def call(
        self, observation: Any, step_type: Any = None, network_state: Any = (), training: bool = False
    ) -> tuple[Any, Any]:
        """The distributions of the action's leaves, and the next state."""
        outer_rank = nest_utils.get_outer_rank(observation, self.input_tensor_spec)
        values, state = self.body((observation, ()), outer_rank, step_type, network_state, training)
        distributions = tf.nest.map_structure(
            lambda projection: projection(values, outer_rank, training=training)[0], self.projections
        )
        return distributions, state


def build_actor(params: TrainParamsBase, observation_spec: Any, action_spec: Any) -> Actor:
    """The default actor."""
    initializer: Callable[[], Any] = tf.compat.v1.keras.initializers.glorot_uniform
    if params.recurrent:  # Initialised like TF-Agents' actors.
        initializer = functools.partial(tf.compat.v1.variance_scaling_initializer, **_HE)
    elif algorithms.value(params, "batch_renormalization"):
        initializer = tf.keras.initializers.GlorotUniform
    layers = functools.partial(_hidden_layers, params, params.actor_fc_layer_params, initializer, is_critic=False)
    make_body = functools.partial(_body, params, observation_spec, layers)
    return Actor(observation_spec, action_spec, make_body, log_std=algorithms.ALGORITHMS[params.algorithm].log_std)


def build_acting(params: TrainParamsBase, time_step_spec: ts.TimeStep, action_spec: Any) -> Acting:
    """An actor of continuous actions, built with the user's hook; arguments as of `TrainParamsBase.agent_ctor`.

    Where the actor sees a part of the observation (`actor_observations`), an encoder of images belongs to it and learns
    from its loss, as in Pinto et al. (arXiv 1710.06542): one that learnt from critics that see the state of a simulator
    would have no need of what is in the images.

    Raises:
      UserError: Its distributions are not tanh-squashed Gaussians.
    """
    spec, names = time_step_spec.observation, params.actor_observations
    if names is not None:
        spec = seen_by_actor(spec, names)
        time_step_spec, whole_spec = ts.time_step_spec(spec), time_step_spec.observation
    encoder = make_encoder(params, spec)
    encoded_spec = spec if encoder is None else encoder.encoded_spec
    actor = acts = params.actor_ctor(encoded_spec, action_spec)
    if encoder is not None:
        actor.create_variables(encoded_spec)  # By itself, because a seed's results depend on the order.
        acts = EncodedActor(encoder, actor)
    if names is not None:
        encoder, encoded_spec, actor = None, spec, acts
        set_sources(actor, leaves_seen_by_actor(whole_spec, names))
    policy = ActorPolicy(time_step_spec, action_spec, acts, training=False)
    observation = tf.nest.map_structure(lambda leaf: tf.zeros((1, *leaf.shape), leaf.dtype), spec)
    try:  # The first actions, which create all variables.
        for distribution in tf.nest.flatten(
            policy.distribution(ts.restart(observation, 1), policy.get_initial_state(1)).action
        ):
            mean_and_std(distribution)
    except UnsupportedActorError as error:
        raise UserError(
            f"{error}: let actor_ctor return one, or let agent_ctor return a TFAgent that can train it"
        ) from None
    return Acting(actor, policy, policy, encoder, encoded_spec)


class Critic(network.Network):
    """Q-values, or quantiles of them, of an observation and an action.

    Args:
      input_tensor_spec: (observation spec, action spec), any nests; their leaves are flattened and joined.
      make_body: Its last layer returns the values. Called once for each copy of this network.
      num_outputs: Values of each observation and action.
    """

    def __init__(
        self, input_tensor_spec: Any, make_body: Callable[[], Body], num_outputs: int = 1, name: str = "Critic"
    ) -> None:
        body = make_body()
        if body.encoder is not None:
            body.encoder.create_variables()  # Created here because a seed's results depend on the order.
        super().__init__(input_tensor_spec=input_tensor_spec, state_spec=body.state_spec, name=name)
        self.body, self._num_outputs = body, num_outputs

    def call(
        self,
        inputs: Any,
        step_type: Any = None,
        network_state: Any = (),
        training: bool = False,
        half: int | None = None,
    ) -> tuple[tf.Tensor, Any]:
        """Q-values `[B]` or `[B, T]`, with an axis of `num_outputs` behind these where there are several; the state."""
        outer_rank = nest_utils.get_outer_rank(inputs, self.input_tensor_spec)
        values, state = self.body(inputs, outer_rank, step_type, network_state, training, half)
        return (tf.squeeze(values, -1) if self._num_outputs == 1 else values), state


def build_critic(params: TrainParamsBase, observation_spec: Any, action_spec: Any, num_outputs: int = 1) -> Critic:
    """The default critic: a Q-network over the concatenation of observation and action."""
    initializer: Callable[[], Any] = functools.partial(tf.keras.initializers.VarianceScaling, **_FAN_IN)
    is_plain = not _is_simba(params) and not any(
        algorithms.value(params, name) for name in ("critic_layer_norm", "critic_dropout", "batch_renormalization")
    )
    if num_outputs == 1 and is_plain:
        # Initialised like TF-Agents' critics, whose weights behind an LSTM are larger.
        initializer = functools.partial(
            tf.compat.v1.variance_scaling_initializer, **(_HE if params.recurrent else _FAN_IN)
        )

    def layers() -> Layers:
        # Like TF-Agents' critics close to 0.
        of_values = "orthogonal" if _is_simba(params) else tf.keras.initializers.RandomUniform(-0.003, 0.003)
        return [
            *_hidden_layers(params, params.critic_joint_fc_layer_params, initializer, is_critic=True),
            tf.keras.layers.Dense(num_outputs, kernel_initializer=of_values, name=VALUE_LAYER),
        ]

    make_body = functools.partial(_body, params, observation_spec, layers)
    return Critic((observation_spec, action_spec), make_body, num_outputs)


def build_critics(params: TrainParamsBase, observation_spec: Any, action_spec: Any) -> list[Any]:
    """Those of an agent, which the user's hook builds; a wrong shape would broadcast to wrong losses.

    Raises:
      UserError: Their outputs have another shape than the algorithm needs.
    """
    count, num_outputs = algorithms.value(params, "num_critics"), algorithms.num_critic_outputs(params)
    critics = [params.critic_ctor(observation_spec, action_spec) for _ in range(count)]
    wanted = () if num_outputs == 1 else (num_outputs,)
    for critic in critics:
        shape = tuple(critic.create_variables((observation_spec, action_spec)).shape)
        if shape != wanted:
            raise UserError(
                f"critic_ctor must return a network with outputs {list(('B', *wanted))} for "
                f"algorithm='{params.algorithm}', found {list(('B', *shape))}: correct critic_ctor"
            )
    return critics


class ValueNetwork(network.Network):
    """Q-values of all actions of an observation, or quantiles of each action's return.

    With heads V and A: Q(s, a) = V(s) + A(s, a) - mean_a A(s, a) (Wang et al., arXiv 1511.06581, equation 9). With an
    embedding they are over psi(s) * phi(tau), phi(tau) = f(W [cos(pi i tau), i = 1..n] + b) (Dabney et al., arXiv
    1806.06923, equation 4).

    Args:
      input_tensor_spec: Of the observation, any nest.
      body: From there to psi(s), `[B, units]`.
      heads: (hidden layer or None, last layer): one for the values of all actions, or two for V(s) and A(s, a).
      embedding: Layer from cosines of a quantile's fraction to phi(tau), `[B * N, units]`; None without quantiles.
      num_cosines: n.
      num_acting_quantiles: K, the fixed fractions (k + 1/2) / K of `acting_values`.
    """

    def __init__(
        self,
        input_tensor_spec: Any,
        body: Body,
        heads: Sequence[tuple[Any, tf.keras.layers.Layer]],
        embedding: tf.keras.layers.Layer | None = None,
        num_cosines: int = 0,
        num_acting_quantiles: int = 0,
        name: str = "ValueNetwork",
    ) -> None:
        super().__init__(input_tensor_spec=input_tensor_spec, state_spec=(), name=name)
        self.body, self.embedding = body, embedding
        self.head_layers = [hidden for hidden, _ in heads if hidden is not None]
        self.last_layers = [last for _, last in heads]
        self.num_cosines, self.num_acting_quantiles = num_cosines, num_acting_quantiles

    def call(
        self,
        observation: Any,
        step_type: Any = None,
        network_state: Any = (),
        training: bool = False,
        tau: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, Any]:
        """Values `[B, num_actions]`; where there is an embedding, of fractions tau `[B, N]`: `[B, N, num_actions]`."""
        del step_type
        features, _ = self.body((observation, ()), training=training)
        if self.embedding is None:
            return self._last(self._heads(features)), network_state
        if tau is None:
            tau = self._acting_tau(features)
        values = self._last(self._heads(self._embedded(features, tau)))
        return tf.reshape(values, [-1, tau.shape[1], values.shape[-1]]), network_state

    def acting_values(self, observation: Any) -> tf.Tensor:
        """What actions are chosen by, see `of_legal`, `[B, num_actions]`: with quantiles the mean of the fixed ones."""
        values, _ = self(observation)
        return of_legal(values if self.embedding is None else tf.reduce_mean(values, axis=1), observation)

    def acting_fractions(self) -> np.ndarray:
        """(k + 1/2) / K, `[K]` float32."""
        count = self.num_acting_quantiles
        return ((np.arange(count) + 0.5) / count).astype(np.float32)

    def _acting_tau(self, features: tf.Tensor) -> tf.Tensor:
        return tf.repeat(self.acting_fractions()[None], tf.shape(features)[0], axis=0)

    def _embedded(self, features: tf.Tensor, tau: tf.Tensor) -> tf.Tensor:
        """psi(s) * phi(tau), `[B * N, units]`."""
        assert self.embedding is not None
        multiples = math.pi * np.arange(1, self.num_cosines + 1, dtype=np.float32)
        cosines = tf.cos(tf.reshape(tau, [-1, 1]) * multiples)
        units = features.shape[-1]
        phi = tf.reshape(self.embedding(cosines), [-1, tau.shape[1], units])
        return tf.reshape(features[:, None, :] * phi, [-1, units])

    def _heads(self, values: tf.Tensor) -> list[tf.Tensor]:
        """The hidden layer of each head."""
        return [layer(values) for layer in self.head_layers] if self.head_layers else [values]

    def _last(self, hidden: list[tf.Tensor]) -> tf.Tensor:
        outputs = [layer(values) for layer, values in zip(self.last_layers, hidden, strict=True)]
        if len(outputs) == 1:
            return outputs[0]
        value, advantage = outputs
        return value + advantage - tf.reduce_mean(advantage, axis=-1, keepdims=True)


def build_value_network(
    params: TrainParamsBase, time_step_spec: ts.TimeStep, action_spec: Any, name: str, is_actor: bool = False
) -> ValueNetwork:
    """A network of values of TrainParams, with its variables created.

    Args:
      is_actor: Its outputs are logits of an actor, which has no layer normalisation and no dropout of critics.

    Raises:
      UserError: The actions are others.
    """
    if tf.nest.is_nested(action_spec) or not action_spec.dtype.is_integer or action_spec.shape.rank > 0:
        raise UserError(
            f"algorithm={params.algorithm!r} chooses one of n actions, found {shown(action_spec)}: choose 'sac', or an "
            "environment with discrete actions"
        )
    num_actions = int(action_spec.maximum) + 1
    units = tuple(params.actor_fc_layer_params if is_actor else params.critic_joint_fc_layer_params)
    has_quantiles = params.algorithm == "iqn"
    activation = leaky_relu if has_quantiles else tf.keras.activations.relu
    initializer = functools.partial(tf.keras.initializers.VarianceScaling, **_FAN_IN)

    def dense(size: int, activation: Activation | None = None, **named: Any) -> tf.keras.layers.Layer:
        return tf.keras.layers.Dense(size, activation, kernel_initializer=initializer(), **named)

    normalization, spec = _normalization(params, time_step_spec.observation)
    images = make_encoder(params, spec)
    encoder = build_encoder(params, spec if images is None else images.encoded_spec)
    (num_features,) = encoder.create_variables().shape
    layers = _hidden_layers(params, units, initializer, activation, is_critic=not is_actor)
    body = Body(layers, normalization, images, encoder)
    is_dueling = params.algorithm in ("dqn", "iqn") and algorithms.value(params, "dueling")
    heads = [
        (dense(params.value_head_units, activation) if is_dueling else None, dense(count, name=VALUE_LAYER))
        for count in ((1, num_actions) if is_dueling else (num_actions,))
    ]
    quantiles: dict[str, Any] = {}
    if has_quantiles:
        quantiles = {key: algorithms.value(params, "iqn")[key] for key in ("num_cosines", "num_acting_quantiles")}
        quantiles["embedding"] = dense(units[-1] if units else num_features, leaky_relu)
    created = ValueNetwork(time_step_spec.observation, body, heads, **quantiles, name=name)
    created.create_variables()
    return created


# Policies that choose one of n actions by their scores. They act greedily; policies/worker_policy.py explores.


class ScorePolicy(tf_policy.TFPolicy):
    """The action with the highest score, of equal ones the first; its distribution has the scores as its logits.

    Scores are the `acting_values` of the network.
    """

    def __init__(self, time_step_spec: Any, action_spec: Any, network: ValueNetwork) -> None:
        super().__init__(time_step_spec, action_spec, automatic_state_reset=False, validate_args=False)
        self.network = network

    def _variables(self) -> list[tf.Variable]:
        return list(self.network.variables)

    def _distribution(self, time_step: Any, policy_state: Any) -> policy_step.PolicyStep:
        scores = self.network.acting_values(time_step.observation)
        return policy_step.PolicyStep(tfp.distributions.Categorical(logits=scores, dtype=tf.int32), policy_state)

    def _action(self, time_step: Any, policy_state: Any, seed: Any = None) -> policy_step.PolicyStep:
        del seed
        return policy_step.PolicyStep(best(self.network.acting_values(time_step.observation)), policy_state)


class SamplingPolicy(ScorePolicy):
    """Workers sample from the softmax of its scores."""


class ExploringPolicy(ScorePolicy):
    """How workers explore: with probability epsilon a random action, else with `boltzmann_epsilon` a noisy one.

    That is the best of values + 0.01 * noise.

    Attributes:
      rates: The two probabilities, scalar variables that a run's schedules change, by their attributes of TrainParams.
    """

    def __init__(self, time_step_spec: Any, action_spec: Any, network: ValueNetwork, params: TrainParamsBase) -> None:
        super().__init__(time_step_spec, action_spec, network)
        self.rates = {
            name: tf.Variable(initial_value(getattr(params, name)), False, name=name, dtype=tf.float32)
            for name in (EPSILON, BOLTZMANN)
        }

    def _variables(self) -> list[tf.Variable]:
        return [*self.network.variables, *self.rates.values()]


def legal_actions(observation: Any) -> tf.Tensor | None:
    """The mask of actions in an observation, `[B, num_actions]` bool, all where none is legal; None without a mask."""
    mask = mask_of(observation)
    if mask is None:
        return None
    legal = tf.cast(mask, tf.bool)
    return legal | ~tf.reduce_any(legal, axis=-1, keepdims=True)


def of_legal(scores: tf.Tensor, observation: Any) -> tf.Tensor:
    """Scores `[B, num_actions]`, the lowest float for actions that the observation's mask rules out.

    The mask only rules out actions (Huang and Ontanon, arXiv 2006.14171): networks do not see it.
    """
    legal = legal_actions(observation)
    return scores if legal is None else tf.where(legal, scores, scores.dtype.min)


def best(scores: tf.Tensor) -> tf.Tensor:
    """The first of the highest, `[B]` int32."""
    return tf.argmax(scores, axis=-1, output_type=tf.int32)
