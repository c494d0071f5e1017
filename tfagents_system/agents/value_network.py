"""The values of all actions of an observation, or their quantiles: each network has an image encoder of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.networks import network
from tf_agents.policies import tf_policy
from tf_agents.trajectories import policy_step

from tfagents_system.agents import algorithms
from tfagents_system.agents.algorithms import NetworkOptions, network_options
from tfagents_system.agents.encoder import ImageEncoder, build_encoder, convolutions, make_encoder
from tfagents_system.agents.layers import VALUE_LAYER, Dropout, Layers, layer_norm, simba_layers
from tfagents_system.agents.normalization import ObservationNormalization, normalized_spec
from tfagents_system.checks.schedules import Schedule
from tfagents_system.errors import UserError, shown
from tfagents_system.train_params_base import TrainParamsBase

Activation = Callable[[tf.Tensor], tf.Tensor]
LEAKY_SLOPE = 0.01


def leaky_relu(values: tf.Tensor) -> tf.Tensor:
    """max(x, 0.01 x)."""
    return tf.nn.leaky_relu(values, LEAKY_SLOPE)


class ValueParts(NamedTuple):
    """The parts of a network of values, in the order of the data flow.

    Attributes:
      normalization: Layer from observations to normalised ones, or None.
      images: Convolutions over images, or None.
      encoder: Network from there to a tensor `[B, n]`.
      layers: From there to psi(s), `[B, units]`.
      embedding: Layer from cosines of a quantile's fraction to phi(tau), `[B * N, units]`; None without quantiles.
      heads: (hidden layer or None, last layer): one for the values of all actions, or two for V(s) and A(s, a).
    """

    normalization: tf.keras.layers.Layer | None
    images: ImageEncoder | None
    encoder: network.Network
    layers: Layers
    embedding: tf.keras.layers.Layer | None
    heads: list[tuple[Any, tf.keras.layers.Layer]]


class ValueNetwork(network.Network):
    """Q-values of all actions of an observation, or quantiles of each action's return.

    With heads V and A: Q(s, a) = V(s) + A(s, a) - mean_a A(s, a) (Wang et al., arXiv 1511.06581, equation 9). With an
    embedding they are over psi(s) * phi(tau), phi(tau) = f(W [cos(pi i tau), i = 1..n] + b) (Dabney et al., arXiv
    1806.06923, equation 4).

    Args:
      input_tensor_spec: Of the observation, any nest.
      make_parts: Builds the parts. Called once for each copy of this network.
      num_cosines: n.
      num_acting_quantiles: K, the fixed fractions (k + 1/2) / K of `acting_values`.
      name: Name of the network.
    """

    def __init__(
        self,
        input_tensor_spec: Any,
        make_parts: Callable[[], ValueParts],
        num_cosines: int = 0,
        num_acting_quantiles: int = 0,
        name: str = "ValueNetwork",
    ) -> None:
        super().__init__(input_tensor_spec=input_tensor_spec, state_spec=(), name=name)
        parts = make_parts()
        self.normalization, self.images, self.encoder = parts.normalization, parts.images, parts.encoder
        self.hidden_layers, self.embedding = parts.layers, parts.embedding
        self.head_layers = [hidden for hidden, _ in parts.heads if hidden is not None]
        self.last_layers = [last for _, last in parts.heads]
        self.num_cosines = num_cosines
        self.num_acting_quantiles = num_acting_quantiles

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
        features = self.features(observation, training)
        if self.embedding is None:
            return self._last(self._heads(features)), network_state
        if tau is None:
            tau = tf.repeat(self.acting_fractions()[None], tf.shape(features)[0], axis=0)
        return self.quantiles(features, tau), network_state

    @property
    def acting_layers(self) -> Layers:
        """The layers of psi(s) while acting: dropout is for updates, and would make greedy actions random."""
        return [layer for layer in self.hidden_layers if not isinstance(layer, Dropout)]

    def features(self, observation: Any, training: bool = False, acts: bool = False) -> tf.Tensor:
        """psi(s), `[B, units]`; `acts`: of `acting_layers`."""
        if self.normalization is not None:
            observation = self.normalization(observation)
        if self.images is not None:
            observation, _ = self.images(observation)
        values, _ = self.encoder(observation, training=training)
        for layer in self.acting_layers if acts else self.hidden_layers:
            values = layer(values, training=training)
        return values

    def quantiles(self, features: tf.Tensor, tau: tf.Tensor) -> tf.Tensor:
        """Quantiles `[B, N, num_actions]` at fractions tau `[B, N]`, from psi(s)."""
        values = self._last(self._heads(self._embedded(features, tau)))
        return tf.reshape(values, [-1, tau.shape[1], values.shape[-1]])

    def acting_values(self, observation: Any) -> tf.Tensor:
        """What actions are chosen by, `[B, num_actions]`: with quantiles the mean of those at the fixed fractions.

        The last layers are linear: the mean is taken in front of them, which spares most of their work.
        """
        features = self.features(observation, acts=True)
        if self.embedding is None:
            return self._last(self._heads(features))
        fixed = self.acting_fractions()
        hidden = self._heads(self._embedded(features, tf.repeat(fixed[None], tf.shape(features)[0], axis=0)))
        means = [tf.reduce_mean(tf.reshape(h, [-1, len(fixed), h.shape[-1]]), axis=1) for h in hidden]
        return self._last(means)

    def acting_fractions(self) -> np.ndarray:
        """(k + 1/2) / K, `[K]` float32."""
        count = self.num_acting_quantiles
        return ((np.arange(count) + 0.5) / count).astype(np.float32)

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
    params: TrainParamsBase,
    observation_spec: Any,
    num_outputs: int,
    units: tuple[int, ...],
    name: str,
    is_actor: bool = False,
) -> ValueNetwork:
    """A network of values of TrainParams, with its variables created.

    Args:
      params: Its parts and what they consist of.
      observation_spec: Any nest of TensorSpecs.
      num_outputs: Number of actions.
      units: Of the hidden layers behind the observation.
      name: Of the network.
      is_actor: Its outputs are logits of an actor, which has no layer normalisation and no dropout of critics.
    """
    has_quantiles, options = params.algorithm == "iqn", network_options(params)
    options = options.of_actor() if is_actor else options

    def make_parts() -> ValueParts:
        return _parts(params, options, observation_spec, num_outputs, units, has_quantiles)

    iqn = algorithms.value(params, "iqn")
    counts = (iqn["num_cosines"], iqn["num_acting_quantiles"]) if has_quantiles else (0, 0)
    created = ValueNetwork(observation_spec, make_parts, *counts, name=name)
    created.create_variables()
    return created


def _parts(
    params: TrainParamsBase,
    options: NetworkOptions,
    observation_spec: Any,
    num_outputs: int,
    units: tuple[int, ...],
    has_quantiles: bool,
) -> ValueParts:
    activation = leaky_relu if has_quantiles else tf.keras.activations.relu
    normalization = None
    if options.normalizes_observations:
        normalization = ObservationNormalization(observation_spec, convolutions(params))
        observation_spec = normalized_spec(observation_spec, convolutions(params))
    images = make_encoder(params, observation_spec)
    encoder = build_encoder(params, observation_spec if images is None else images.encoded_spec)
    (num_features,) = encoder.create_variables().shape
    layers = _hidden_layers(options, units, activation)
    is_dueling = params.algorithm in ("dqn", "iqn") and algorithms.value(params, "dueling")
    heads = [
        (
            _dense(params.value_head_units, activation) if is_dueling else None,
            _dense(count, None, name=VALUE_LAYER),
        )
        for count in ((1, num_outputs) if is_dueling else (num_outputs,))
    ]
    embedding = _dense(units[-1] if units else num_features, leaky_relu) if has_quantiles else None
    return ValueParts(normalization, images, encoder, layers, embedding, heads)


def _hidden_layers(options: NetworkOptions, units: tuple[int, ...], activation: Activation) -> Layers:
    """Dense, dropout, layer normalisation, activation; or SimBa's blocks."""
    if options.is_simba:
        return simba_layers(units)
    layers: Layers = []
    for size in units:
        between: Layers = [Dropout(options.critic_dropout)] if options.critic_dropout else []
        between += [layer_norm()] if options.critic_layer_norm else []
        if between:
            layers += [_dense(size, None), *between, tf.keras.layers.Activation(activation)]
        else:
            layers.append(_dense(size, activation))
    return layers


def _dense(units: int, activation: Activation | None, **options: Any) -> tf.keras.layers.Layer:
    initializer = tf.keras.initializers.VarianceScaling(1.0 / 3.0, "fan_in", "uniform")
    return tf.keras.layers.Dense(units, activation, kernel_initializer=initializer, **options)


NOISE_SCALE = 0.01  # Of what is added to values before the best of them is chosen, with `boltzmann_epsilon`.
EPSILON, BOLTZMANN = "exploration_epsilon", "boltzmann_epsilon"


class ScorePolicy(tf_policy.TFPolicy):
    """The action with the highest score, of equal ones the first; its distribution has the scores as its logits.

    Args:
      time_step_spec, action_spec: Of the agent; the action is an int32 scalar from 0 to n - 1.
      network: Its `acting_values` are the scores.
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
        scores = self.network.acting_values(time_step.observation)
        return policy_step.PolicyStep(self._choose(scores, seed), policy_state)

    def _choose(self, scores: tf.Tensor, seed: Any) -> tf.Tensor:
        del seed
        return best(scores)


class SamplingPolicy(ScorePolicy):
    """Samples from the softmax of the scores."""

    def _choose(self, scores: tf.Tensor, seed: Any) -> tf.Tensor:
        return tfp.distributions.Categorical(logits=scores, dtype=tf.int32).sample(seed=seed)


class ExploringPolicy(ScorePolicy):
    """With probability epsilon a random action, else with `boltzmann_epsilon` the best of values + 0.01 * noise.

    Args:
      time_step_spec, action_spec, network: As of ScorePolicy.
      rates: The two probabilities, scalar variables, by the names of their attributes of TrainParams.
    """

    def __init__(
        self, time_step_spec: Any, action_spec: Any, network: ValueNetwork, rates: Mapping[str, tf.Variable]
    ) -> None:
        super().__init__(time_step_spec, action_spec, network)
        self.rates = dict(rates)

    def _variables(self) -> list[tf.Variable]:
        return [*self.network.variables, *self.rates.values()]

    def _choose(self, scores: tf.Tensor, seed: Any) -> tf.Tensor:
        batch, count = tf.shape(scores)[0], scores.shape[-1]
        noisy = best(scores + NOISE_SCALE * tf.random.normal(tf.shape(scores), seed=seed))
        is_noisy, is_random = tf.unstack(tf.random.uniform([2, batch], seed=seed))
        chosen = tf.where(is_noisy < self.rates[BOLTZMANN], noisy, best(scores))
        anyone = tf.random.uniform([batch], 0, count, tf.int32, seed=seed)
        return tf.where(is_random < self.rates[EPSILON], anyone, chosen)


def exploration_rates(params: TrainParamsBase) -> dict[str, tf.Variable]:
    """The variables that a run's schedules change."""
    return {
        name: tf.Variable(Schedule.of(getattr(params, name)).value(0, 0, 0), False, name=name, dtype=tf.float32)
        for name in (EPSILON, BOLTZMANN)
    }


def best(scores: tf.Tensor) -> tf.Tensor:
    """The first of the highest, `[B]` int32."""
    return tf.argmax(scores, axis=-1, output_type=tf.int32)


def num_actions(params: TrainParamsBase, action_spec: Any) -> int:
    """N.

    Raises:
      UserError: The actions are others.
    """
    is_index = not tf.nest.is_nested(action_spec) and action_spec.dtype.is_integer and action_spec.shape.rank == 0
    if not is_index:
        raise UserError(
            f"algorithm={params.algorithm!r} chooses one of n actions, found {shown(action_spec)}: choose 'sac', or an "
            "environment with discrete actions"
        )
    return int(action_spec.maximum) + 1
