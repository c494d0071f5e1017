"""The default actors' forward pass in NumPy: it is an order of magnitude faster than TensorFlow."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tree

from tfagents_system.agents.normalization import NormalizedActor
from tfagents_system.policies.numpy_layers import ACTIVATIONS, Layer, layers_of, normalization_of, slices_of
from tfagents_system.policies.numpy_maps import InputNormalization, Step, standardization

_LOG_STD_MAX = 2.0  # As std_clip_transform; its minimum is -20.
_NOISE_BLOCK = 1024  # Drawing few numbers takes about as long as drawing a hundred.
# From here on one matrix product for all observations is faster than one product with a vector for each of them.
_MATRIX_BATCH = 8


class NumpyActor:
    """Dense layers, at most one LSTM, and a tanh-squashed Gaussian, read off TF-Agents' actor networks and our own.

    The observation is a float32 vector, or any nest whose leaves are flattened by our own preprocessing, normalised or
    not. Batch renormalisation and residual blocks with layer normalisation are computed, too.

    Args:
      actor: The network, with its variables created.
      variables: Names of its variables, as `named_variables` gives them.
      rng: Source of the exploration noise.
      num_envs: Environments that it acts in, each with a memory of its own.

    Raises:
      UnsupportedNetworkError: The network has anything else in it.
    """

    def __init__(
        self, actor: Any, variables: Mapping[str, tf.Variable], rng: np.random.Generator, num_envs: int = 1
    ) -> None:
        names = {variable.ref(): name for name, variable in variables.items()}
        self._layers = layers_of(actor.actor if type(actor) is NormalizedActor else actor)
        self._names = [[names[variable.ref()] for variable in layer.variables] for layer in self._layers]
        self._matrices = [layer.new_matrix() for layer in self._layers]
        self._action_shape = tuple(actor.output_tensor_spec.shape)
        leaves = tf.nest.flatten(actor.input_tensor_spec)
        self._normalization = normalization_of(actor, leaves)
        if self._normalization is not None:
            self._normalization_names = [names[variable.ref()] for variable in self._normalization.variables]
        spec = actor.input_tensor_spec
        is_nest = tf.nest.is_nested(spec) or spec.shape.rank != 1 or spec.dtype != tf.float32
        is_recurrent = any(layer.memory for layer in self._layers)

        def make_pass(columns: int | None) -> _Pass:
            return _Pass(self._layers, self._matrices, leaves if is_nest else None, self._normalization, rng, columns)

        self._rng = rng
        as_matrix = num_envs >= _MATRIX_BATCH and not is_recurrent
        self._passes = [make_pass(None) for _ in range(1 if as_matrix else num_envs)]
        self._matrix_pass = make_pass(num_envs) if as_matrix else None
        self.assign({name: variable.numpy() for name, variable in variables.items()})

    def assign(self, weights: Mapping[str, np.ndarray]) -> None:
        """Takes new weights, by name."""
        for layer, matrix, names in zip(self._layers, self._matrices, self._names, strict=True):
            layer.fill(matrix, [weights[name] for name in names])
        if self._normalization is not None:
            self._normalization.assign([weights[name] for name in self._normalization_names])

    def reseed(self, seed: int) -> None:
        """The exploration noise from now on follows from this seed."""
        self._rng.bit_generator.state = np.random.default_rng(seed).bit_generator.state
        for forward in (*self._passes, *([self._matrix_pass] if self._matrix_pass else [])):
            forward.drop_noise()

    def set_noise(self, noise: np.ndarray) -> None:
        """The next sample of each environment is made of this, `[num_envs, *action_shape]`, those after it are not."""
        flat = noise.reshape(len(noise), -1)
        if self._matrix_pass is not None:
            self._matrix_pass.set_noise(flat.T)
            return
        for forward, own in zip(self._passes, flat, strict=True):
            forward.set_noise(own)

    def reset(self, env: int) -> None:
        """Forgets what it remembers of an environment."""
        if self._matrix_pass is None:
            self._passes[env].forget()

    def act(self, observation: Any, greedy: bool) -> np.ndarray:
        """The action in environment 0 for one observation, in (-1, 1).

        With mean and log(std) as the network gives them: tanh(mean) where greedy, else tanh(mean + std * noise).
        """
        return self._act_with(self._passes[0], observation, greedy)

    def act_on_all(self, observations: Mapping[int, Any], greedy: bool) -> dict[int, np.ndarray]:
        """Like `act`, for several environments."""
        if self._matrix_pass is None:
            return {env: self._act_with(self._passes[env], each, greedy) for env, each in observations.items()}
        for env, observation in observations.items():
            self._matrix_pass.load(observation, env)
        actions = np.ascontiguousarray(self._matrix_pass.act(greedy).T)
        return {env: actions[env].reshape(self._action_shape) for env in observations}

    def _act_with(self, forward: _Pass, observation: Any, greedy: bool) -> np.ndarray:
        forward.load(observation)
        return forward.act(greedy).reshape(self._action_shape)


class _Pass:
    """Buffers for a forward pass; nothing is allocated in it but the action.

    Vectors `[n]`, or matrices `[n, columns]` with an observation in each column: the products are the same.

    Args:
      layers: The network's, the projection to mean and log(std) last.
      matrices: Theirs; read in every pass.
      leaves: Specs of the observation's leaves; None where it is a float32 vector itself.
      normalization: Of the observation, or None.
      rng: Source of the exploration noise.
      columns: Number of observations; None: vectors.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        matrices: Sequence[np.ndarray],
        leaves: Sequence[tf.TensorSpec] | None,
        normalization: InputNormalization | None,
        rng: np.random.Generator,
        columns: int | None,
    ) -> None:
        batch = () if columns is None else (columns,)
        sources = [np.zeros((len(matrix), *batch), np.float32) for matrix in matrices]
        for source in sources:
            source[-1] = 1.0
        output = np.zeros((matrices[-1].shape[1], *batch), np.float32)
        own = [source[: len(source) - 1 - layer.memory] for layer, source in zip(layers, sources, strict=True)]
        self._inputs = own[0]
        self._memories: list[np.ndarray] = []
        self._steps: list[Step] = [] if normalization is None else [normalization.step(self._inputs)]
        # What residual blocks add to; where there are none, nobody takes it.
        stream = next((np.zeros_like(own[k]) for k, layer in enumerate(layers) if layer.standardizes), output)
        for k, (layer, matrix, source) in enumerate(zip(layers, matrices, sources, strict=True)):
            into = output if k + 1 == len(layers) else stream if layers[k + 1].standardizes else own[k + 1]
            if layer.memory:
                self._add_lstm(layer.memory, matrix, source, into)
                continue
            if layer.before is not None and layer.before.standardizes:
                self._steps.append(standardization(stream, own[k], layer.before.epsilon))
            self._add_product(layer, matrix, source, into)
        half = len(output) // 2
        self._mean, self._log_std = output[:half], output[half:]
        self._log_std_max = np.full_like(self._log_std, _LOG_STD_MAX)
        self._leaves = slices_of(leaves) if leaves is not None else None
        self._rng = rng
        self._noise = np.zeros((0, *self._mean.shape), np.float32)
        self._noise_used = 0

    def _add_product(self, layer: Layer, matrix: np.ndarray, source: np.ndarray, into: np.ndarray) -> None:
        product = np.zeros_like(into) if layer.adds else into
        self._steps.append(functools.partial(np.dot, matrix.T, source, product))
        activation = ACTIVATIONS[layer.activation]
        if activation is not None:
            self._steps.append(activation(product))
        if layer.adds:
            self._steps.append(functools.partial(np.add, into, product, into))

    def _add_lstm(self, units: int, matrix: np.ndarray, source: np.ndarray, into: np.ndarray) -> None:
        """A step: c <- forget * c + input * candidate; h <- output * tanh(c), for the next layer and the next step."""
        gates = np.zeros((4 * units, *source.shape[1:]), np.float32)
        entry, forget, output, candidate = np.split(gates, 4)
        sigmoids = gates[: 3 * units]
        half = np.full_like(sigmoids, 0.5)
        c, h = np.zeros_like(entry), source[-1 - units : -1]
        self._memories += [c, h]
        self._steps += [
            functools.partial(np.dot, matrix.T, source, gates),
            functools.partial(np.tanh, gates, gates),
            functools.partial(np.multiply, sigmoids, half, sigmoids),
            functools.partial(np.add, sigmoids, half, sigmoids),
            functools.partial(np.multiply, c, forget, c),
            functools.partial(np.multiply, candidate, entry, candidate),
            functools.partial(np.add, c, candidate, c),
            functools.partial(np.tanh, c, h),
            functools.partial(np.multiply, h, output, h),
            functools.partial(np.copyto, into, h),
        ]

    def drop_noise(self) -> None:
        """Numbers that were drawn ahead are not used."""
        self._noise_used = len(self._noise)

    def set_noise(self, noise: np.ndarray) -> None:
        """The next sample is made of this noise, of the shape of an action."""
        self._noise, self._noise_used = noise[None], 0

    def forget(self) -> None:
        """An episode begins."""
        for memory in self._memories:
            memory[:] = 0.0

    def load(self, observation: Any, column: int | None = None) -> None:
        """Takes an observation; the column only where there are several."""
        inputs = self._inputs if column is None else self._inputs[:, column]
        if self._leaves is None:
            inputs[:] = observation
            return
        for leaf, (part, is_pixels) in zip(tree.flatten(observation), self._leaves, strict=True):
            values = np.ravel(leaf)
            inputs[part] = values / np.float32(255.0) if is_pixels else values

    def act(self, greedy: bool) -> np.ndarray:
        """Actions of the loaded observations, `[action_dim]` or `[action_dim, columns]`."""
        for step in self._steps:
            step()
        if greedy:
            return np.tanh(self._mean)
        # The lower limit of log(std) is left out: noise times e^-20 = 2e-9 is below float32's precision of an action.
        spread = np.minimum(self._log_std, self._log_std_max, self._log_std)
        np.exp(spread, spread)
        np.multiply(spread, self._next_noise(), spread)
        np.add(spread, self._mean, spread)
        return np.tanh(spread)

    def _next_noise(self) -> np.ndarray:
        if self._noise_used == len(self._noise):
            self._noise = self._rng.standard_normal((_NOISE_BLOCK, *self._mean.shape), np.float32)
            self._noise_used = 0
        self._noise_used += 1
        return self._noise[self._noise_used - 1]
