"""Actions of an exported policy with NumPy alone.

    import numpy_policy

    policy = numpy_policy.load("policy.npz")
    policy.reset()  # An episode begins.
    action = policy(observation)  # In the environment's own units; the same as policy.action(observation).

This file and `policy.npz` are all that is needed, with Python 3.8 or newer. An observation is an array, or a nest of
dictionaries and tuples as the environment gives it: `policy.observation` says what each array is like. With one more
dimension in front, observations and actions are several at once, each with its own memory where the policy has one.

In the toolkit, workers compute their actions with `Network`, too.
"""

from __future__ import annotations

import functools
import json
import threading
import zipfile
from typing import Any, Callable, Iterator, Mapping, Sequence

import numpy as np

_LOCK = threading.Lock()  # Networks have buffers of their own, and a policy may be used by several threads.
# From outputs to log(std), see agents/networks.py: functions, with a constant each. The lower limit of clip_20 is left
# out: noise times e^-20 = 2e-9 is below float32's precision of an action.
_LOG_STD: dict[str, list[tuple[Any, ...]]] = {
    "clip_20": [(np.minimum, 2.0)],
    "clip_10": [(np.minimum, 2.0), (np.maximum, -10.0)],
    "tanh": [(np.tanh,), (np.multiply, 6.0), (np.subtract, 4.0)],
}
_AFFINE: dict[str, Callable[..., Any]] = {"mean": np.subtract, "scale": np.multiply, "shift": np.add}
_MAX_PIXEL = np.float32(255.0)
_LEAKY_SLOPE = 0.01

ILLEGAL = np.finfo(np.float32).min  # Score of an action that a mask rules out.

Arrays = Mapping[str, np.ndarray]


def load(path: Any) -> NumpyPolicy:
    """The policy of a `policy.npz`.

    Raises:
      ValueError: It is another file.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return NumpyPolicy(json.loads(str(arrays.pop("description"))), arrays)
    except (EOFError, TypeError, AttributeError, KeyError, json.JSONDecodeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is no exported policy ({type(error).__name__}: {error}): export it again") from error


class NumpyPolicy:
    """The greedy policy of one checkpoint.

    Args:
      description: What the file tells of itself: observation, action, state, layers, train step.
      arrays: The weights, by the names that the layers have for them, and the bounds of the action, `low` and `high`.

    Attributes:
      observation: Name, path in the nest, shape and dtype of each array of an observation, and `frames`, how many of
        them the network sees at once; an episode's first stands in for those before it.
    """

    def __init__(self, description: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.description = description
        self.observation = description["observation"]
        self._arrays = arrays
        self._inputs = description["inputs"]
        self._network = Network(self._inputs, description["layers"], arrays)
        self._rows = arrays.get("rows")  # The actions that it chooses from.
        self._bounds = arrays["low"], arrays["high"]
        self._low, self._high = (bound.astype(np.float32) for bound in self._bounds)
        self._dtype = np.dtype(description["action"]["dtype"])
        self.reset()

    def reset(self) -> None:
        """Forgets what it remembers: an episode begins."""
        self._state: list[np.ndarray] | None = None

    def action(self, observation: Any) -> np.ndarray:
        """The action `[action_dim]` for an observation, or `[n, action_dim]` for n of them.

        Raises:
          ValueError: The observation is not as the policy expects it, or not finite.
        """
        leaves, is_batch = observation_leaves(observation, self.observation)
        state = initial_state(self.description, len(leaves[0])) if self._state is None else self._state
        if state and len(state[0]) != len(leaves[0]):
            raise ValueError(f"{len(leaves[0])} observations after {len(state[0])}: call reset() in between")
        actions, self._state = self.step(leaves, state)
        return actions if is_batch else actions[0]

    __call__ = action

    def step(self, leaves: list[np.ndarray], state: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
        """Actions `[n, action_dim]` and the next state, from the arrays of n observations and the state before."""
        with _LOCK:
            if self._network.columns != len(leaves[0]):
                self._network = Network(self._inputs, self.description["layers"], self._arrays, len(leaves[0]))
            network = self._network
            for own, given in zip(network.state, state):
                own[:] = given.T
            network.load(leaves)
            is_choice = self._rows is not None
            chosen = network.scores().argmax(axis=0) if is_choice else network.act(greedy=True).T.copy()
            state = [own.T.copy() for own in network.state]
        if self._rows is not None:
            return self._rows[chosen], state
        scaled = self._low + (chosen + np.float32(1.0)) * np.float32(0.5) * (self._high - self._low)
        return np.clip(scaled.astype(self._dtype), *self._bounds), state


class OtherPartsError(ValueError):
    """An observation has other arrays than the policy takes."""


def observation_leaves(observation: Any, specs: list[dict[str, Any]]) -> tuple[list[np.ndarray], bool]:
    """The arrays of an observation, `[n, ...]` each, and whether it had that first dimension; else n is 1.

    Raises:
      OtherPartsError: One is missing, or has another shape than `specs` say.
      ValueError: One is not finite, or changes as an integer.
    """
    leaves, counts = [], set()
    for spec in specs:
        leaf = observation
        for key in spec["path"]:
            try:
                leaf = getattr(leaf, key) if hasattr(leaf, "_fields") else leaf[key]
            except (KeyError, IndexError, TypeError, AttributeError):
                parts = [f"{'/'.join(map(str, part['path']))} {tuple(part['shape'])}" for part in specs]
                found = f"{type(observation).__name__} {getattr(observation, 'shape', '')}".rstrip()
                words = f"the observation has no {'/'.join(map(str, spec['path']))}: it must be a nest with "
                raise OtherPartsError(f"{words}{', '.join(parts)}, found {found}") from None
        if isinstance(leaf, Mapping):
            raise OtherPartsError(f"{spec['name']}: expected shape {tuple(spec['shape'])}, but found a dict")
        given, shape = np.asarray(leaf), tuple(spec["shape"])
        with np.errstate(invalid="ignore"):
            leaf = given.astype(spec["dtype"])
        if leaf.shape != shape and leaf.shape[1:] != shape:
            raise OtherPartsError(f"{spec['name']}: expected shape {shape}, or n of them, but found {leaf.shape}")
        if not np.isfinite(leaf).all():
            raise ValueError(f"{spec['name']} is not finite: {leaf}")
        if leaf.dtype.kind in "iu" and (leaf != given).any():
            raise ValueError(f"{spec['name']}: expected {leaf.dtype}, but found {given[leaf != given][0]}")
        is_one = leaf.ndim == len(shape)
        leaves.append(leaf[None] if is_one else leaf)
        counts.add(None if is_one else len(leaf))
    if len(counts) > 1:
        raise OtherPartsError(f"the arrays of an observation differ in their first dimension: {counts}")
    return leaves, None not in counts


def initial_state(description: dict[str, Any], n: int) -> list[np.ndarray]:
    """The state of n episodes that begin; empty for a policy without memory."""
    return [np.zeros((n, *spec["shape"]), spec["dtype"]) for spec in description["state"]]


class Network:
    """A tanh-squashed Gaussian actor, or the scores of n actions, for several observations at once.

    A pass allocates nothing but the actions. Values of a layer are `[n + 1, columns]`: an observation in each column,
    and a row of 1, which the last row of the next matrix multiplies: a bias costs no addition of its own. With one
    column a product is one with a vector.

    Args:
      observation: Shape and dtype of each array of an observation, and `frames` where it is stacked; their numbers in a
        row, each array's oldest frame first on its last axis, are the first layer's input. Nobody gives what `is_zero`.
        No layer sees what `is_mask`: actions where it is 0 have the score ILLEGAL.
      layers: From there to mean and log(std), or to the scores, a dictionary each: its `kind` is `dense`, `activation`,
        `lstm`, `residual`, `quantiles`, `layer_norm`, `rms_norm`, `affine` or `normalization`, its `arrays` are the
        names of its weights.
      arrays: The weights by these names.
      columns: Number of observations.
      like: A network of the same layers; weights that one of the two takes are those of both.

    Attributes:
      state: What it remembers, `[size, columns]` each; zeros when an episode begins. The frames of stacked arrays and
        whether there are any yet, then h and c of an LSTM; empty without them.
      noise: Gives what samples are made of, `[action_dim, columns]` float32 each.
    """

    def __init__(
        self,
        observation: list[dict[str, Any]],
        layers: list[dict[str, Any]],
        arrays: Arrays,
        columns: int = 1,
        like: Network | None = None,
    ) -> None:
        self.columns = columns
        self.state: list[np.ndarray] = []
        self.noise: Iterator[np.ndarray] = iter(())
        self._like = like
        self._weights: list[np.ndarray] = []
        self._fills: list[Callable[[Arrays], None]] = []
        self._steps: list[Callable[[], Any]] = []
        sizes = [int(np.prod(spec["shape"])) * spec.get("frames", 1) for spec in observation]
        ends = np.cumsum([0 if spec.get("is_mask") else size for spec, size in zip(observation, sizes)])
        values = self._values(ends[-1])
        parts = np.split(values[:-1], ends[:-1])
        masks = {k: np.ones((sizes[k], columns), bool) for k, spec in enumerate(observation) if spec.get("is_mask")}
        parts = [masks.get(k, part) for k, part in enumerate(parts)]
        self._places = [_place(part.T, spec) for part, spec in zip(parts, observation) if not spec.get("is_zero")]
        # What is stacked stays in the input: the next observation moves it by one frame.
        self.state += [part for part, spec in zip(parts, observation) if spec.get("frames", 1) > 1]
        self._is_under_way = np.zeros((1, columns), np.float32) if self.state else None
        if self._is_under_way is not None:
            self.state.append(self._is_under_way)
        self._outputs = self._add(layers, values, arrays)[:-1]
        for mask in masks.values():
            illegal = np.zeros_like(mask)
            self._do(np.logical_not, mask, illegal)
            self._steps.append(functools.partial(np.copyto, self._outputs, ILLEGAL, where=illegal))
        self._mean, self._log_std = np.array_split(self._outputs, 2)
        log_std = self._log_std
        self._deviation = [
            functools.partial(function, log_std, *(np.full_like(log_std, constant) for constant in constants), log_std)
            for function, *constants in [*_LOG_STD[layers[-1].get("log_std", "clip_20")], (np.exp,)]
        ]
        if like is None:
            self.assign(arrays)

    def assign(self, arrays: Arrays) -> None:
        """Takes new weights."""
        for fill in self._fills:
            fill(arrays)

    def load(self, leaves: Sequence[Any]) -> None:
        """Takes the arrays of all columns' observations, `[columns, ...]` each."""
        begins = None
        if self._is_under_way is not None:
            begins = self._is_under_way[0] == 0.0
            self._is_under_way[:] = 1.0
        for leaf, (newest, is_pixels, frames) in zip(leaves, self._places):
            if frames is not None:
                frames[..., :-1, :] = frames[..., 1:, :]
            newest[...] = leaf
            if is_pixels:
                np.divide(newest, _MAX_PIXEL, newest)
            if frames is not None:
                frames[begins, ..., :-1, :] = newest[begins][..., None, :]

    def scores(self) -> np.ndarray:
        """Of all actions, `[num_actions, columns]`, for the loaded observations; overwritten by the next pass."""
        for step in self._steps:
            step()
        return self._outputs

    def act(self, greedy: Any) -> np.ndarray:
        """Actions of the loaded observations in (-1, 1), `[action_dim, columns]`, and the state after them.

        Args:
          greedy: tanh(mean) rather than tanh(mean + std * noise): True or False for all columns, or `[columns]` bool.
        """
        self.scores()
        if greedy is True:
            return np.tanh(self._mean)
        for step in self._deviation:
            step()
        spread = self._log_std
        np.multiply(spread, next(self.noise), spread)
        if greedy is not False:
            spread[:, greedy] = 0.0
        np.add(spread, self._mean, spread)
        return np.tanh(spread)

    def _do(self, function: Callable[..., Any], *arrays: np.ndarray) -> None:
        """A step of each pass. Scalars have to be arrays: they would be converted anew each time."""
        self._steps.append(functools.partial(function, *arrays))

    def _values(self, size: int) -> np.ndarray:
        values = np.zeros((size + 1, self.columns), np.float32)
        values[-1] = 1.0
        return values

    def _shared(self, rows: int, columns: int) -> np.ndarray:
        known = None if self._like is None else self._like._weights[len(self._weights)]
        self._weights.append(np.zeros((rows, columns), np.float32) if known is None else known)
        return self._weights[-1]

    def _add(self, layers: list[dict[str, Any]], values: np.ndarray, arrays: Arrays) -> np.ndarray:
        """What layers make of values."""
        for layer in layers:
            kind = layer["kind"]
            if kind == "dense":
                values = self._dense(layer, values, arrays)
            elif kind == "lstm":
                values = self._lstm(layer, values, arrays)
            elif kind == "residual":
                added, before = self._add(layer["layers"], values, arrays), values
                values = self._values(len(before) - 1)
                self._do(np.add, before[:-1], added[:-1], values[:-1])
            elif kind == "quantiles":
                values = self._quantiles(layer, values, arrays)
            elif kind == "activation":
                self._activate(layer["activation"], values[:-1])
            else:
                if kind in ("layer_norm", "rms_norm"):
                    values = self._standardized(layer, values)
                values = self._normalized(layer, values)
        return values

    def _dense(self, layer: dict[str, Any], values: np.ndarray, arrays: Arrays) -> np.ndarray:
        """activation(kernel^T x + bias)."""
        names, units = layer["arrays"], arrays[layer["arrays"]["kernel"]].shape[1]
        matrix, given = self._shared(len(values), units), self._values(units)
        for part, rows in (("kernel", matrix[:-1]), ("bias", matrix[-1])):
            self._fills.append(functools.partial(_fill, rows, names[part]))
        self._do(np.dot, matrix.T, values, given[:-1])
        self._activate(layer["activation"], given[:-1])
        return given

    def _activate(self, name: str, values: np.ndarray) -> None:
        if name == "relu":
            self._do(np.maximum, values, np.zeros_like(values), values)
        elif name == "leaky_relu":
            scaled = np.zeros_like(values)
            self._do(np.multiply, values, np.full_like(values, _LEAKY_SLOPE), scaled)
            self._do(np.maximum, values, scaled, values)
        elif name == "tanh":
            self._do(np.tanh, values, values)

    def _quantiles(self, layer: dict[str, Any], values: np.ndarray, arrays: Arrays) -> np.ndarray:
        """The mean over K fractions tau of what layers make of psi * phi(tau); K columns for each observation."""
        name, columns = layer["arrays"]["phi"], self.columns
        size, count = arrays[name].shape
        phi = self._shared(size, count)
        self._fills.append(functools.partial(_fill, phi, name))
        self.columns = columns * count
        product = self._values(size)
        self._do(np.multiply, values[:-1, :, None], phi[:, None], product[:-1].reshape(size, columns, count))
        hidden = self._add(layer["layers"], product, arrays)
        self.columns = columns
        given = self._values(len(hidden) - 1)
        self._steps.append(functools.partial(np.mean, hidden[:-1].reshape(-1, columns, count), 2, out=given[:-1]))
        return given

    def _normalized(self, layer: dict[str, Any], values: np.ndarray) -> np.ndarray:
        """clip((x - mean) * scale + shift, -limit, limit), of which a layer may lack parts."""
        names, size = layer.get("arrays", {}), len(values) - 1
        given = self._values(size) if names else values
        for part, function in _AFFINE.items():
            if part in names:
                column = self._shared(size, 1)
                self._fills.append(functools.partial(_fill, column[:, 0], names[part]))
                self._do(function, values[:-1], column, given[:-1])
                values = given
        if layer.get("limit") is not None:
            high = np.full_like(given[:-1], layer["limit"])
            self._do(np.minimum, given[:-1], high, given[:-1])
            self._do(np.maximum, given[:-1], -high, given[:-1])
        return given

    def _standardized(self, layer: dict[str, Any], values: np.ndarray) -> np.ndarray:
        """(x - mean) / sqrt(variance + epsilon), of the values of one observation; `rms_norm` takes 0 for the mean."""
        size = len(values) - 1
        given, squares = self._values(size), np.zeros_like(values[:-1])
        averaging, moment = np.full((1, size), 1.0 / size, np.float32), np.zeros((1, self.columns), np.float32)
        if layer["kind"] == "layer_norm":
            self._do(np.dot, averaging, values[:-1], moment)
            self._do(np.subtract, values[:-1], moment, given[:-1])
            values = given
        self._do(np.multiply, values[:-1], values[:-1], squares)
        self._do(np.dot, averaging, squares, moment)
        self._do(np.add, moment, np.full_like(moment, layer["epsilon"]), moment)
        self._do(np.sqrt, moment, moment)
        self._do(np.divide, values[:-1], moment, given[:-1])
        return given

    def _lstm(self, layer: dict[str, Any], values: np.ndarray, arrays: Arrays) -> np.ndarray:
        """Keras' LSTM cell: c <- forget * c + input * candidate; h <- output * tanh(c)."""
        size, units = len(values) - 1, len(arrays[layer["arrays"]["recurrent_kernel"]])
        matrix = self._shared(size + units + 1, 4 * units)
        self._fills.append(functools.partial(_fill_lstm, matrix, layer["arrays"]))
        source = self._values(size + units)  # x, h and 1.
        gates = np.zeros((4 * units, self.columns), np.float32)
        entry, forget, output, candidate = np.split(gates, 4)
        sigmoids = gates[: 3 * units]
        half = np.full_like(sigmoids, 0.5)
        h, c = source[size:-1], np.zeros_like(entry)
        self.state += [h, c]
        self._do(np.copyto, source[:size], values[:-1])
        self._do(np.dot, matrix.T, source, gates)
        self._do(np.tanh, gates, gates)  # sigmoid(x) = (1 + tanh(x / 2)) / 2: one tanh does for all gates.
        self._do(np.multiply, sigmoids, half, sigmoids)
        self._do(np.add, sigmoids, half, sigmoids)
        self._do(np.multiply, c, forget, c)
        self._do(np.multiply, candidate, entry, candidate)
        self._do(np.add, c, candidate, c)
        self._do(np.tanh, c, h)
        self._do(np.multiply, h, output, h)
        return source[size:]


def _place(part: np.ndarray, spec: dict[str, Any]) -> tuple[np.ndarray, bool, np.ndarray | None]:
    """Where an array of the observation goes in the first layer's input, as views of that `part` `[columns, size]`.

    The newest frame `[columns, ..., size]`, whether it is pixels, and all frames `[columns, ..., frames, size]`, None
    where it is not stacked.
    """
    shape, count, is_pixels = spec["shape"], spec.get("frames", 1), spec.get("is_picture", False)
    if count == 1:
        return part.reshape((len(part), *shape)), is_pixels, None
    frames = part.reshape((len(part), *shape[:-1], count, shape[-1]))
    return frames[..., -1, :], is_pixels, frames


def _fill(own: np.ndarray, name: str, arrays: Arrays) -> None:
    own[:] = arrays[name]


def _fill_lstm(matrix: np.ndarray, names: dict[str, str], arrays: Arrays) -> None:
    """From Keras' order of the gates to one with the candidate last; and half of what becomes a sigmoid."""
    rows = np.concatenate([np.atleast_2d(arrays[names[part]]) for part in ("kernel", "recurrent_kernel", "bias")])
    entry, forget, candidate, output = np.split(rows, 4, axis=1)
    matrix[:] = np.concatenate([0.5 * entry, 0.5 * forget, 0.5 * output, candidate], axis=1)
