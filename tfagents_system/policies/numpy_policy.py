"""Actions of an exported policy with NumPy alone.

    import numpy_policy

    policy = numpy_policy.load("policy.npz")
    policy.reset()  # An episode begins.
    action = policy.action(observation)  # In the environment's own units.

This file and `policy.npz` are all that is needed, with Python 3.8 or newer. An observation is an array, or a nest of
dictionaries and tuples as the environment gives it: `policy.observation` says what each array is like. With one more
dimension in front, observations and actions are several at once, each with its own memory where the policy has one.
"""

from __future__ import annotations

import json
import threading
import zipfile
from typing import Any

import numpy as np

from tfagents_system.policies.numpy_network import Network

FORMAT = 1
_MOST_SIZES = 8
_LOCK = threading.Lock()  # Networks have buffers of their own, and a policy may be used by several threads.


def load(path: Any) -> NumpyPolicy:
    """The policy of a `policy.npz`.

    Raises:
      ValueError: It is another file, or of another version.
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
        if description.get("format") != FORMAT:
            raise ValueError("the policy is of another version: take the numpy_policy.py that was written beside it")
        self.description = description
        self.observation = description["observation"]
        self._arrays = arrays
        self._inputs = description.get("inputs", self.observation)
        self._networks = {1: Network(self._inputs, description["layers"], arrays)}  # By number of observations.
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

    def scaled(self, action: Any) -> np.ndarray:
        """Actions `[..., action_dim]` as an `action_history` has them: in [-1, 1], 0 where both bounds are the same.

        Of a policy that chooses from n actions one-hot, `[..., n]` float32: the nearest of them.
        """
        low, high = (bound.astype(np.float64) for bound in self._bounds)
        span = np.where(high > low, high - low, 1.0)
        if self._rows is not None:
            rows = self._rows.reshape(len(self._rows), -1)
            given = np.asarray(action, np.float64)
            vectors = given[..., None] if self._rows.ndim == 1 else given
            nearest = np.square((vectors[..., None, :] - rows) / span).sum(axis=-1).argmin(axis=-1)
            return (nearest[..., None] == np.arange(len(rows))).astype(np.float32)
        units = np.clip(2.0 * (np.asarray(action, np.float64) - low) / span - 1.0, -1.0, 1.0)
        return np.where(high > low, units, 0.0).astype(np.float32)

    def step(self, leaves: list[np.ndarray], state: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
        """Actions `[n, action_dim]` and the next state, from the arrays of n observations and the state before."""
        with _LOCK:
            network = self._network(len(leaves[0]))
            for own, given in zip(network.state, state):
                own[:] = given.T
            network.load_all(leaves)
            is_choice = self._rows is not None
            chosen = network.scores().argmax(axis=0) if is_choice else network.act(greedy=True).T.copy()
            state = [own.T.copy() for own in network.state]
        if self._rows is not None:
            return self._rows[chosen], state
        scaled = self._low + (chosen + np.float32(1.0)) * np.float32(0.5) * (self._high - self._low)
        return np.clip(scaled.astype(self._dtype), *self._bounds), state

    def _network(self, n: int) -> Network:
        """For n observations at once; those of a few sizes are kept."""
        if n not in self._networks:
            if len(self._networks) > _MOST_SIZES:
                self._networks = {1: self._networks[1]}
            layers = self.description["layers"]
            self._networks[n] = Network(self._inputs, layers, self._arrays, n, self._networks[1])
        return self._networks[n]


def observation_leaves(observation: Any, specs: list[dict[str, Any]]) -> tuple[list[np.ndarray], bool]:
    """The arrays of an observation, `[n, ...]` each, and whether it had that first dimension; else n is 1.

    Raises:
      ValueError: One is missing, has another shape than `specs` say, is not finite, or changes as an integer.
    """
    leaves, counts = [], set()
    for spec in specs:
        leaf = observation
        for key in spec["path"]:
            try:
                leaf = getattr(leaf, key) if hasattr(leaf, "_fields") else leaf[key]
            except (KeyError, IndexError, TypeError, AttributeError):
                raise ValueError(f"the observation has no {'/'.join(map(str, spec['path']))}") from None
        given, shape = np.asarray(leaf), tuple(spec["shape"])
        with np.errstate(invalid="ignore"):
            leaf = given.astype(spec["dtype"])
        if leaf.shape != shape and leaf.shape[1:] != shape:
            raise ValueError(f"{spec['name']}: expected shape {shape}, or n of them, but found {leaf.shape}")
        if not np.isfinite(leaf).all():
            raise ValueError(f"{spec['name']} is not finite: {leaf}")
        if leaf.dtype.kind in "iu" and (leaf != given).any():
            raise ValueError(f"{spec['name']}: expected {leaf.dtype}, but found {given[leaf != given][0]}")
        is_one = leaf.ndim == len(shape)
        leaves.append(leaf[None] if is_one else leaf)
        counts.add(None if is_one else len(leaf))
    if len(counts) > 1:
        raise ValueError(f"the arrays of an observation differ in their first dimension: {counts}")
    return leaves, None not in counts


def initial_state(description: dict[str, Any], n: int) -> list[np.ndarray]:
    """The state of n episodes that begin; empty for a policy without memory."""
    return [np.zeros((n, *spec["shape"]), spec["dtype"]) for spec in description["state"]]
