"""Draws minibatches from the ring: transitions, or sequences, uniformly over all that it holds.

What a sample is is decided here, when it is drawn; each step is stored once.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tfagents_system.replay.frame_stacks import first_drawable, observation_leaves
from tfagents_system.replay.ring import Ring

_REJECTION_ROUNDS = 8


class NothingToDrawError(Exception):
    """The ring holds no sample of the wanted kind yet."""


@dataclasses.dataclass
class Transitions:
    """K minibatches of B transitions.

    Attributes:
      observation: Leaves `[K, B, ...]`.
      action: Leaves `[K, B, ...]`, in [-1, 1].
      reward: `[K, B]` float32.
      discount: `[K, B]` float32: 0 where the episode terminated in this transition.
      next_observation: Leaves `[K, B, ...]`.
    """

    observation: list[np.ndarray]
    action: list[np.ndarray]
    reward: np.ndarray
    discount: np.ndarray
    next_observation: list[np.ndarray]

    def to_arrays(self) -> list[np.ndarray]:
        return [*self.observation, *self.action, self.reward, self.discount, *self.next_observation]


@dataclasses.dataclass
class Sequences:
    """K minibatches of B sequences of L transitions, as L + 1 time steps.

    Attributes:
      step_type: `[K, B, L + 1]` int32.
      observation: Leaves `[K, B, L + 1, ...]`.
      action: Leaves `[K, B, L + 1, ...]`; the last time step's is not part of a transition.
      reward: `[K, B, L + 1]` float32, of the transition that starts at the time step.
      discount: `[K, B, L + 1]` float32, likewise.
    """

    step_type: np.ndarray
    observation: list[np.ndarray]
    action: list[np.ndarray]
    reward: np.ndarray
    discount: np.ndarray

    def to_arrays(self) -> list[np.ndarray]:
        return [self.step_type, *self.observation, *self.action, self.reward, self.discount]


def draw_transitions(
    ring: Ring, rng: np.random.Generator, num_minibatches: int, batch_size: int, frame_stack: int = 1
) -> Transitions:
    """Draws with replacement, every transition in the ring equally likely, images as stacks of `frame_stack` frames.

    Raises:
      NothingToDrawError: The ring is empty.
    """
    with ring.lock:
        rows = _draw_rows(ring, rng, num_minibatches * batch_size, 1, frame_stack)
        shape = (num_minibatches, batch_size)
        next_rows = (rows + 1) % ring.num_rows
        return Transitions(
            observation=_take_observation(ring, rows, shape, frame_stack),
            action=[_take(column, rows, shape) for column in ring.action],
            reward=_take(ring.reward, rows, shape),
            discount=_take(ring.discount, rows, shape),
            next_observation=_take_observation(ring, next_rows, shape, frame_stack),
        )


def draw_sequences(
    ring: Ring, rng: np.random.Generator, num_minibatches: int, batch_size: int, length: int, frame_stack: int = 1
) -> Sequences:
    """Draws sequences of `length` transitions within one segment, every start equally likely.

    Raises:
      NothingToDrawError: No episode in the ring has `length` transitions.
    """
    with ring.lock:
        starts = _draw_rows(ring, rng, num_minibatches * batch_size, length, frame_stack)
        rows = (starts[:, None] + np.arange(length + 1)) % ring.num_rows
        shape = (num_minibatches, batch_size, length + 1)
        return Sequences(
            step_type=_take(ring.step_type, rows, shape).astype(np.int32),
            observation=_take_observation(ring, rows, shape, frame_stack),
            action=[_take(column, rows, shape) for column in ring.action],
            reward=_take(ring.reward, rows, shape),
            discount=_take(ring.discount, rows, shape),
        )


def _take(column: np.ndarray, rows: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return column[rows].reshape(shape + column.shape[1:])


def _take_observation(ring: Ring, rows: np.ndarray, shape: tuple[int, ...], frame_stack: int) -> list[np.ndarray]:
    leaves = observation_leaves(ring, rows.reshape(-1), frame_stack)
    return [leaf.reshape(shape + leaf.shape[1:]) for leaf in leaves]


def _draw_rows(ring: Ring, rng: np.random.Generator, count: int, length: int, frame_stack: int) -> np.ndarray:
    """`[count]` rows with at least `length` transitions ahead of them, uniformly, by rejection.

    Nearly every row qualifies, as a rule (one in an episode does not); where few do, they are listed instead.
    """
    if ring.filled_rows == 0:
        raise NothingToDrawError("the replay ring is empty")
    first, steps_left = first_drawable(ring, frame_stack), ring.steps_left
    accepted: list[np.ndarray] = []
    missing = count
    for _ in range(_REJECTION_ROUNDS):
        draw = rng.integers(first, ring.filled_rows, size=missing + missing // 16 + 8)
        rows = (ring.oldest_row + draw) % ring.num_rows
        rows = rows[steps_left[rows] >= length][:missing]
        accepted.append(rows)
        missing -= len(rows)
        if missing == 0:
            return np.concatenate(accepted)
    held = ring.held_rows[first:]
    candidates = held[steps_left[held] >= length]
    if len(candidates) == 0:
        raise NothingToDrawError(f"no episode in the replay ring has {length} steps")
    return np.concatenate([*accepted, candidates[rng.integers(len(candidates), size=missing)]])
