"""Draws minibatches from the ring: transitions, or sequences, uniformly over all that it holds.

What a sample is is decided here, when it is drawn; each step is stored once. Training is never given what is held out,
and validation nothing else.
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
    """K minibatches of B transitions, each of one step or of up to n.

    Attributes:
      observation: Leaves `[K, B, ...]`.
      action: Leaves `[K, B, ...]`, in [-1, 1].
      reward: `[K, B]` float32.
      discount: `[K, B]` float32: 0 where the episode terminated in this transition. An agent multiplies it with gamma
        once; a transition of m steps has gamma^(m - 1) in it.
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
    ring: Ring,
    rng: np.random.Generator,
    num_minibatches: int,
    batch_size: int,
    *,
    n_step: int = 1,
    gamma: float = 1.0,
    held_out: bool = False,
    frame_stack: int = 1,
) -> Transitions:
    """Draws with replacement, every transition in the ring equally likely.

    Args:
      ring: What is drawn from.
      rng: Decides what is drawn.
      num_minibatches: K.
      batch_size: B.
      n_step: Steps of a transition, at most; see `_returns`.
      gamma: The agent's discount, which the rewards of later steps are weighted with.
      held_out: Draw from the held-out episodes, instead of all others.
      frame_stack: Frames of an image.

    Raises:
      NothingToDrawError: The ring holds no such transition.
    """
    with ring.lock:
        rows = _draw_rows(ring, rng, num_minibatches * batch_size, 1, held_out, frame_stack)
        shape = (num_minibatches, batch_size)
        reward, discount, steps = _returns(ring, rows, n_step, gamma)
        next_rows = (rows + steps) % ring.num_rows
        return Transitions(
            observation=_take_observation(ring, rows, shape, frame_stack),
            action=[_take(column, rows, shape) for column in ring.action],
            reward=reward.reshape(shape),
            discount=discount.reshape(shape),
            next_observation=_take_observation(ring, next_rows, shape, frame_stack),
        )


def draw_sequences(
    ring: Ring,
    rng: np.random.Generator,
    num_minibatches: int,
    batch_size: int,
    length: int,
    *,
    held_out: bool = False,
    frame_stack: int = 1,
) -> Sequences:
    """Draws sequences of `length` transitions within one segment, every start equally likely.

    Of the held-out episodes where `held_out`, else of all others; images are stacks of `frame_stack` frames.

    Raises:
      NothingToDrawError: No such episode in the ring has `length` transitions.
    """
    with ring.lock:
        starts = _draw_rows(ring, rng, num_minibatches * batch_size, length, held_out, frame_stack)
        rows = (starts[:, None] + np.arange(length + 1)) % ring.num_rows
        shape = (num_minibatches, batch_size, length + 1)
        return Sequences(
            step_type=ring.step_types(rows).reshape(shape),
            observation=_take_observation(ring, rows, shape, frame_stack),
            action=[_take(column, rows, shape) for column in ring.action],
            reward=_take(ring.reward, rows, shape),
            discount=_take(ring.discount, rows, shape),
        )


def _returns(
    ring: Ring, rows: np.ndarray, n_step: int, gamma: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray | int]:
    """The n-step returns of transitions that start at these rows (Sutton and Barto, section 7.1).

    With m = min(n, steps to the end of the segment), r and d the rewards and discounts of the m steps:

        reward   = sum_{k<m} gamma^k (prod_{j<k} d_j) r_k
        discount = gamma^(m-1) prod_{k<m} d_k

    A segment ends with its episode at the latest. Where that terminated, the discount is 0; where a time limit, a
    stop or the bound of a segment's length cut it, the value of the observation after the last step counts.

    Args:
      ring: Holds the steps.
      rows: `[N]`.
      n_step: n.
      gamma: The agent's discount.

    Returns:
      Reward `[N]` float32, discount `[N]` float32, m `[N]`, or 1 for all.
    """
    reward, discount = ring.reward[rows], ring.discount[rows]
    if n_step == 1:
        return reward, discount, 1
    steps = np.minimum(n_step, ring.steps_left[rows])
    for k in range(1, n_step):
        is_inside = k < steps
        later = (rows + k) % ring.num_rows
        discount = np.where(is_inside, np.float32(gamma) * discount, discount)
        # Not a product with is_inside: rows behind a segment hold any number, NaN too.
        reward = reward + np.where(is_inside, discount * ring.reward[later], np.float32(0))
        discount = np.where(is_inside, discount * ring.discount[later], discount)
    return reward, discount, steps


def _take(column: np.ndarray, rows: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return column[rows].reshape(shape + column.shape[1:])


def _take_observation(ring: Ring, rows: np.ndarray, shape: tuple[int, ...], frame_stack: int) -> list[np.ndarray]:
    leaves = observation_leaves(ring, rows.reshape(-1), frame_stack)
    return [leaf.reshape(shape + leaf.shape[1:]) for leaf in leaves]


def _draw_rows(
    ring: Ring, rng: np.random.Generator, count: int, length: int, held_out: bool, frame_stack: int
) -> np.ndarray:
    """`[count]` rows with at least `length` transitions ahead of them, uniformly, by rejection.

    Nearly every row qualifies, as a rule (one in an episode does not); where few do, they are listed instead.
    """
    if ring.filled_rows == 0:
        raise NothingToDrawError("the replay ring is empty")
    first = first_drawable(ring, frame_stack)
    accepted: list[np.ndarray] = []
    missing = count
    for _ in range(_REJECTION_ROUNDS):
        size = _round_size(ring, missing, held_out)
        if size is None:
            break
        rows = (ring.oldest_row + rng.integers(first, ring.filled_rows, size=size)) % ring.num_rows
        rows = rows[_are_starts(ring, rows, length, held_out)][:missing]
        accepted.append(rows)
        missing -= len(rows)
        if missing == 0:
            return np.concatenate(accepted)
    held = ring.held_rows[first:]
    candidates = held[_are_starts(ring, held, length, held_out)]
    if len(candidates) == 0:
        kind = "held-out episode" if held_out else "episode"
        raise NothingToDrawError(f"no {kind} in the replay ring has {length} steps")
    return np.concatenate([*accepted, candidates[rng.integers(len(candidates), size=missing)]])


def _round_size(ring: Ring, missing: int, held_out: bool) -> int | None:
    """Rows to draw so that about `missing` of them are of the wanted episodes; None: listing them costs less."""
    expected = missing
    if ring.held_out_steps:
        of_kind = ring.held_out_steps if held_out else ring.training_steps
        if missing > of_kind:
            return None
        expected = missing * ring.filled_rows // of_kind
    return expected + missing // 16 + 8


def _are_starts(ring: Ring, rows: np.ndarray, length: int, held_out: bool) -> np.ndarray:
    """Where a sample of `length` transitions may start."""
    starts = ring.steps_left[rows] >= length
    if held_out or ring.held_out_steps:
        starts &= ring.is_held_out(rows) == held_out
    return starts
