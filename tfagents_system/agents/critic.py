"""The critic: Q-values of an observation and an action. Builds the default one from TrainParams."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tf_agents.keras_layers.dynamic_unroll_layer import DynamicUnroll
from tf_agents.networks import network, utils
from tf_agents.trajectories import time_step as ts
from tf_agents.utils import nest_utils

from tfagents_system.agents import algorithms
from tfagents_system.agents.algorithms import NetworkOptions, network_options
from tfagents_system.agents.encoder import build_encoder, convolutions, is_plain_vector
from tfagents_system.agents.layers import VALUE_LAYER, Dropout, Layers, layer_norm, renormalization, simba_layers
from tfagents_system.agents.normalization import ObservationNormalization, normalized_spec
from tfagents_system.errors import UserError
from tfagents_system.train_params_base import TrainParamsBase

_FAN_IN = {"scale": 1.0 / 3.0, "mode": "fan_in", "distribution": "uniform"}


class CriticParts(NamedTuple):
    """The parts of a critic, in the order of the data flow; only the layers are required.

    Attributes:
      layers: Over observation and action together, or over the LSTM's outputs. The last one returns the values.
      normalization: Layer from observations to normalised ones.
      encoder: Network from those to a tensor `[B, (T,) n]`.
      lstm: Unrolls an LSTM's cell over time.
    """

    layers: Layers
    normalization: tf.keras.layers.Layer | None = None
    encoder: network.Network | None = None
    lstm: tf.keras.layers.Layer | None = None


class Critic(network.Network):
    """Q-values, or quantiles of them, of an observation and an action.

    Args:
      input_tensor_spec: (observation spec, action spec), any nests; their leaves are flattened and joined.
      make_parts: Builds the parts. Called once for each copy of this network.
      num_outputs: Values of each observation and action.
      name: Name of the network.
    """

    def __init__(
        self, input_tensor_spec: Any, make_parts: Callable[[], CriticParts], num_outputs: int = 1, name: str = "Critic"
    ) -> None:
        parts = make_parts()
        if parts.encoder is not None:
            parts.encoder.create_variables()  # Created here because a seed's results depend on the order.
        state_spec = () if parts.lstm is None else [tf.TensorSpec(size, tf.float32) for size in parts.lstm.state_size]
        super().__init__(input_tensor_spec=input_tensor_spec, state_spec=state_spec, name=name)
        self._num_outputs = num_outputs
        self.normalization = parts.normalization
        self._encoder = parts.encoder
        self._lstm_network = parts.lstm
        self._value_layers = parts.layers

    def call(
        self, inputs: Any, step_type: Any = None, network_state: Any = (), training: bool = False
    ) -> tuple[tf.Tensor, Any]:
        """Q-values `[B]` or `[B, T]`, with an axis of `num_outputs` behind these where there are several; the state."""
        squash = utils.BatchSquash(nest_utils.get_outer_rank(inputs, self.input_tensor_spec))
        observation, action = inputs
        if self.normalization is not None:
            observation = self.normalization(observation)
        if self._encoder is not None:
            observation, _ = self._encoder(observation, step_type=step_type, training=training)
        values = tf.concat([_vector(squash.flatten(leaf)) for leaf in tf.nest.flatten((observation, action))], -1)
        if self._lstm_network is not None:
            is_first = tf.equal(step_type, ts.StepType.FIRST)
            values, network_state = self._lstm_network(
                squash.unflatten(values),
                initial_state=network_state,
                reset_mask=tf.reshape(is_first, [tf.shape(is_first)[0], -1]),
                training=training,
            )
            values = squash.flatten(values)
        for layer in self._value_layers:
            values = layer(values, training=training)
        return squash.unflatten(tf.squeeze(values, -1) if self._num_outputs == 1 else values), network_state


def _vector(leaf: tf.Tensor) -> tf.Tensor:
    """From `[B, ...]` to `[B, n]` float32."""
    return tf.reshape(tf.cast(leaf, tf.float32), [tf.shape(leaf)[0], leaf.shape[1:].num_elements()])


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


def build_critic(
    params: TrainParamsBase, observation_spec: Any, action_spec: Any, num_outputs: int = 1
) -> network.Network:
    """A Q-network over the concatenation of observation and action.

    Args:
      params: Its sizes and parts; None there means the value of the algorithm's paper.
      observation_spec: Of the observation, any nest.
      action_spec: Of the action.
      num_outputs: Values of each observation and action: the network gives `[B]`, or `[B, num_outputs]` if not 1;
        `[B, T]` and `[B, T, num_outputs]` where recurrent.
    """
    make_parts = functools.partial(_critic_parts, params, observation_spec, num_outputs)
    return Critic((observation_spec, action_spec), make_parts, num_outputs)


def _critic_parts(params: TrainParamsBase, observation_spec: Any, num_outputs: int) -> CriticParts:
    options = network_options(params)
    normalization = encoder = lstm = None
    if options.normalizes_observations:
        normalization = ObservationNormalization(observation_spec, convolutions(params))
        observation_spec = normalized_spec(observation_spec, convolutions(params))
    if params.preprocessing_combiner is not None or not is_plain_vector(observation_spec):
        encoder = build_encoder(params, observation_spec)
    if recurrent := algorithms.value(params, "recurrent"):
        lstm = DynamicUnroll(tf.keras.layers.LSTMCell(recurrent["lstm_units"]))
    layers = critic_layers(options, tuple(params.critic_joint_fc_layer_params), num_outputs, bool(recurrent))
    return CriticParts(layers, normalization, encoder, lstm)


def critic_layers(options: NetworkOptions, units: Sequence[int], num_outputs: int, is_recurrent: bool) -> Layers:
    """All layers of a critic, the last one linear."""
    if options.is_simba:
        return [
            *simba_layers(units),
            tf.keras.layers.Dense(num_outputs, kernel_initializer="orthogonal", name=VALUE_LAYER),
        ]
    if num_outputs == 1 and options.has_plain_critic:
        # Initialised like TF-Agents' critics, whose weights behind an LSTM are larger.
        initializer = None if is_recurrent else tf.compat.v1.keras.initializers.VarianceScaling(**_FAN_IN)
        layers = utils.mlp_layers(fc_layer_params=units, kernel_initializer=initializer)
    else:
        layers = renormalization(options)
        for size in units:
            layers += _hidden_critic_layer(options, size)
            layers += renormalization(options)
    # Initialised like TF-Agents' critics: close to 0.
    initializer = tf.keras.initializers.RandomUniform(-0.003, 0.003)
    return [*layers, tf.keras.layers.Dense(num_outputs, kernel_initializer=initializer, name=VALUE_LAYER)]


def _hidden_critic_layer(options: NetworkOptions, size: int) -> Layers:
    """Dense, dropout, layer normalisation, ReLU: the order of DroQ (arXiv 2110.02034, figure 1)."""
    between = [
        *([Dropout(options.critic_dropout)] if options.critic_dropout else []),
        *([layer_norm()] if options.critic_layer_norm else []),
    ]
    initializer = tf.keras.initializers.VarianceScaling(**_FAN_IN)
    if not between:
        return [tf.keras.layers.Dense(size, "relu", kernel_initializer=initializer)]
    return [tf.keras.layers.Dense(size, kernel_initializer=initializer), *between, tf.keras.layers.ReLU()]
