"""Draws minibatches from the ring, all steps that it holds equally likely, or by priority.

What a sample is is decided when it is drawn (sample_forms.py); each step is stored once. Training is never given what
is held out, and validation nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tfagents_system.checks.schedules import Schedule
from tfagents_system.hyperparameters import FrameStack
from tfagents_system.replay.hindsight import GoalFunctions
from tfagents_system.replay.priorities import NO_ROW, Prioritized
from tfagents_system.replay.ring import Ring, is_held_out, is_repeated
from tfagents_system.replay.samples import Samples, Transitions
from tfagents_system.transport import tables

if TYPE_CHECKING:
    from tfagents_system.replay.sample_forms import SampleForm

_REJECTION_ROUNDS = 8
# Distinguish the random numbers of drawing from those of other roles.
_DRAW_STREAM, _HELD_OUT_STREAM, _OFFLINE_STREAM = 1, 2, 3


class NothingToDrawError(Exception):
    """The ring holds no sample of the wanted kind yet."""


@dataclasses.dataclass(frozen=True)
class PriorData:
    """The experience of others that minibatches have beside the run's own (RLPD, Ball et al., arXiv 2302.02948).

    Attributes:
      ring: Where it is.
      samples: Of each minibatch, behind those of the run's own: n.
      offline_env_steps: Of the run at its agent's offline updates, for schedules.
    """

    ring: Ring
    samples: int
    offline_env_steps: int = 0


@dataclasses.dataclass(frozen=True)
class DrawSettings:
    """How minibatches are drawn.

    Attributes:
      batch_size: Samples of a minibatch.
      form: What a sample is.
      max_block_minibatches: Minibatches of one block, at most.
      seed: Of the run.
      discount: gamma, for samples of several steps.
      gamma: What `discount` follows, see `at`; None: nothing.
      held_out_minibatches: Minibatches of held-out experience that come with each iteration, once there is any.
      frame_stack: How many frames of which leaves are stacked.
      whole_bootstrap: `discount` of transitions has gamma^m in it: the whole factor of the next value.
      prior: Where a part of each minibatch is drawn from; None: all of it is from the run's own ring.
      goals: The environment's functions of goals, where the form has hindsight.
      goals_at: What `goals` follow: those of an iteration; None: nothing.
      prioritized: How a form with `is_prioritized` draws; None: it is none.
      beta: What `prioritized.beta` follows, see `at`; None: nothing.
    """

    batch_size: int
    form: SampleForm
    max_block_minibatches: int
    seed: int
    discount: float = 1.0
    gamma: Schedule | None = None
    held_out_minibatches: int = 0
    frame_stack: FrameStack = 1
    whole_bootstrap: bool = False
    prior: PriorData | None = None
    goals: GoalFunctions | None = None
    goals_at: Callable[[int], GoalFunctions] | None = None
    prioritized: Prioritized | None = None
    beta: Schedule | None = None

    def at(self, env_steps: int, train_steps: int, iteration: int) -> DrawSettings:
        """Those of an iteration; arguments as of `Schedule.value`, where its draws begin (of OFFLINE without steps)."""
        if iteration == tables.OFFLINE and self.prior is not None:
            env_steps = self.prior.offline_env_steps
        position = env_steps, train_steps, iteration
        settings = self
        if self.gamma is not None:
            settings = dataclasses.replace(settings, discount=self.gamma.value(*position))
        if self.goals_at is not None:
            settings = dataclasses.replace(settings, goals=self.goals_at(iteration))
        if self.beta is not None and self.prioritized is not None:
            followed = dataclasses.replace(self.prioritized, beta=self.beta.value(*position))
            settings = dataclasses.replace(settings, prioritized=followed)
        return settings


def make_block(ring: Ring, settings: DrawSettings, request: tables.Request, done: int, count: int) -> tables.Block:
    """Draws the next minibatches of a request; behind the last ones come those that are held out, to be measured.

    Random numbers depend only on the position in the run, so nothing has to be saved for a restart.

    Args:
      ring: What is drawn from.
      settings: Of the run.
      request: Its `count` is known.
      done: Minibatches of it that are sent already.
      count: Those of this block; 0 where the request has none.

    Raises:
      NothingToDrawError: The ring holds no sample of the kind.
    """
    first, is_offline = request.first + done, request.iteration == tables.OFFLINE
    arrays, measured = list[np.ndarray](), list[np.ndarray]()
    if count:
        where = [_OFFLINE_STREAM] if is_offline else [_DRAW_STREAM, request.iteration]
        rng = _rng(settings.seed, *where, first, request.recoveries)
        arrays = draw(ring, rng, settings, count, is_offline=is_offline)
    if count and done + count == request.count and settings.held_out_minibatches and not is_offline:
        rng = _rng(settings.seed, _HELD_OUT_STREAM, request.iteration, request.recoveries)
        with contextlib.suppress(NothingToDrawError):  # Nothing of the kind is held out yet.
            measured = draw(ring, rng, settings, settings.held_out_minibatches, held_out=True)
            arrays = [np.concatenate(pair) for pair in zip(arrays, measured, strict=True)]
    return tables.Block(
        request.session,
        request.iteration,
        first,
        count,
        0 if is_offline else ring.env_steps,
        total=request.first + request.count,
        held_out=len(measured[0]) if measured else 0,
        arrays=arrays,
    )


def _rng(*position: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(position))


def draw(
    ring: Ring,
    rng: np.random.Generator,
    settings: DrawSettings,
    num_minibatches: int,
    *,
    held_out: bool = False,
    is_offline: bool = False,
) -> list[np.ndarray]:
    """Draws minibatches as a run's settings say: the arrays of its form's samples.

    With prior data there are two of each: those of the run's own samples `[K, B - n, ...]`, then, in the same order,
    those of the n prior ones. One array for both would be another copy of all.

    Args:
      ring: What is drawn from.
      rng: Decides what is drawn.
      settings: Of the run.
      num_minibatches: K.
      held_out: Draw from the held-out episodes of the run's own, instead of all others.
      is_offline: Draw from prior data alone.

    Raises:
      NothingToDrawError: The ring holds no sample of the kind.
    """
    prior, drawn, prioritized = settings.prior, list[Samples](), settings.prioritized
    rings = (ring, ring) if prior is None or held_out else (prior.ring if is_offline else ring, prior.ring)
    sizes = [settings.batch_size] if prior is None else [settings.batch_size - prior.samples, prior.samples]
    for source, size in zip(rings, sizes, strict=False):
        if prioritized is not None and (source is not ring or held_out):
            prioritized = dataclasses.replace(prioritized, priorities=None)
        part = dataclasses.replace(settings, batch_size=size, prioritized=prioritized)
        drawn.append(part.form.draw(source, rng, part, num_minibatches, held_out=held_out))
    if prioritized is not None:
        _scale_weights(drawn)
    return [array for samples in drawn for array in samples.to_arrays()]


def _scale_weights(parts: Sequence[Samples]) -> None:
    """Divides the importance weights of each minibatch by the largest: they only make updates smaller."""
    weights = [part.weight for part in parts if isinstance(part, Transitions) and part.weight is not None]
    largest = np.max([weight.max(axis=1, keepdims=True) for weight in weights], axis=0)
    for weight in weights:
        weight /= largest


def draw_rows(ring: Ring, rng: np.random.Generator, count: int, held_out: bool, first: int) -> np.ndarray:
    """`[count]` rows at which a transition starts, from the first-oldest row on, uniformly, by rejection.

    Nearly every row qualifies, as a rule (one in an episode does not); where few do, they are listed instead.
    """
    accepted: list[np.ndarray] = []
    missing = count
    for _ in range(_REJECTION_ROUNDS):
        size = _round_size(ring, missing, held_out)
        if size is None:
            break
        rows = (ring.oldest_row + rng.integers(first, ring.filled_rows, size=size)) % ring.num_rows
        rows = rows[_are_starts(ring, rows, held_out)][:missing]
        accepted.append(rows)
        missing -= len(rows)
        if missing == 0:
            return np.concatenate(accepted)
    held = ring.held_rows[first:]
    candidates = held[_are_starts(ring, held, held_out)]
    if len(candidates) == 0:
        raise NothingToDrawError(f"the replay ring holds no step of {'a held-out' if held_out else 'an'} episode")
    return np.concatenate([*accepted, candidates[rng.integers(len(candidates), size=missing)]])


def choose_rows(
    ring: Ring,
    rng: np.random.Generator,
    count: int,
    held_out: bool,
    first: int,
    prioritized: Prioritized | None,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """`[count]` rows at which a transition starts, from the first-oldest one on, and `weight` and `row`, if any."""
    if prioritized is None:
        return draw_rows(ring, rng, count, held_out, first), {}
    if prioritized.priorities is None:
        rows = draw_rows(ring, rng, count, held_out, first)
        return rows, {"weight": np.ones(count, np.float32), "row": np.full(count, NO_ROW)}
    rows, likelihood = prioritized.priorities.draw(rng, count, first)
    if len(rows) == 0:
        raise NothingToDrawError("the replay ring holds no step of an episode")
    weight = (likelihood**-prioritized.beta).astype(np.float32)
    return rows, {"weight": weight, "row": prioritized.priorities.numbers(rows)}


def first_row(ring: Ring, frame_stack: FrameStack) -> int:
    """Rows that are never drawn, counted from the oldest: see `first_drawable`."""
    if ring.filled_rows == 0:
        raise NothingToDrawError("the replay ring is empty")
    return first_drawable(ring, frame_stack)


def _round_size(ring: Ring, missing: int, held_out: bool) -> int | None:
    """Rows to draw so that about `missing` of them are of the wanted episodes; None: listing them costs less."""
    expected = missing
    if ring.held_out_steps or ring.repeated_steps:
        of_kind = ring.held_out_steps if held_out else ring.training_steps
        if missing > of_kind:
            return None
        expected = missing * ring.filled_rows // of_kind
    return expected + missing // 16 + 8


def _are_starts(ring: Ring, rows: np.ndarray, held_out: bool) -> np.ndarray:
    """Where a transition starts."""
    starts = ring.steps_left[rows] >= 1
    if ring.repeated_steps:
        starts &= ~is_repeated(ring.step_type[rows])
    if held_out or ring.held_out_steps:
        starts &= is_held_out(ring.step_type[rows]) == held_out
    return starts


def observation_leaves(ring: Ring, rows: np.ndarray, frame_stack: FrameStack) -> list[np.ndarray]:
    """The observations in `rows`; a stacked leaf has its frames on its last axis, oldest first.

    Args:
      ring: Its lock is held.
      rows: Places `[n]`, none of them before `first_drawable` nor of a segment's history.
      frame_stack: The hyperparameter.

    Returns:
      Leaves `[n, ...]`.
    """
    frames = ring.layout.frames(frame_stack)
    if max(frames, default=1) == 1:
        return [column[rows] for column in ring.observation]
    stacks: dict[bool, _VectorStacks | _ImageStacks] = {}

    def stacked(column: np.ndarray, count: int) -> np.ndarray:
        is_vector = column.ndim == 2
        if is_vector not in stacks:
            kind: type[_VectorStacks] | type[_ImageStacks] = _VectorStacks if is_vector else _ImageStacks
            stacks[is_vector] = kind(ring, rows, max(frames))
        return stacks[is_vector].of(column, count)

    return [
        column[rows] if count == 1 else stacked(column, count)
        for column, count in zip(ring.observation, frames, strict=True)
    ]


def first_drawable(ring: Ring, frame_stack: FrameStack) -> int:
    """Rows to leave out, counted from the oldest: frames before them may have been given up."""
    nothing_given_up = ring.total_rows == ring.filled_rows
    return 0 if nothing_given_up else min(ring.layout.history_rows(frame_stack), ring.filled_rows - 1)


def _frame_rows(ring: Ring, rows: np.ndarray, num_frames: int) -> np.ndarray:
    """`[num_frames, n]`: where the frames are, oldest first.

    They are the rows before, within the segment: it begins with its episode, or with its history, which is as long as
    a stack needs. The row before a segment's first one is the last row of another segment: its `steps_left` is 0.
    """
    frames = [rows]
    for _ in range(num_frames - 1):
        before = (frames[0] - 1) % ring.num_rows
        begins = (ring.steps_left[before] == 0) | (frames[0] == ring.oldest_row)
        frames.insert(0, np.where(begins, frames[0], before))
    return np.stack(frames)


class _VectorStacks:
    """Stacks of columns `[rows, size]`.

    The frames of nearly all rows lie one behind the other in the files, and are copied as one piece; not those at a
    segment's beginning or the files' end.

    Args:
      ring: Its lock is held.
      rows: Places `[n]`.
      num_frames: At most.
    """

    def __init__(self, ring: Ring, rows: np.ndarray, num_frames: int) -> None:
        earlier = num_frames - 1
        self._rows = np.maximum(rows, earlier)  # In the places of the others is any row for now.
        # Within a segment `steps_left` counts down. Rows with frames in its history are others, too.
        is_other = ring.steps_left[self._rows - earlier] != ring.steps_left[self._rows] + earlier
        is_other |= (rows < earlier) | ((rows - ring.oldest_row) % ring.num_rows < earlier)
        self._others = np.flatnonzero(is_other)
        self._other_rows = _frame_rows(ring, rows[self._others], num_frames)

    def of(self, column: np.ndarray, count: int) -> np.ndarray:
        """`[n, count * size]`."""
        size = column.shape[1]
        piece = np.dtype((np.void, count * size * column.itemsize))  # Copied as one item, which is much faster.
        pieces: np.ndarray = np.ndarray((len(column) - count + 1,), piece, column, strides=(size * column.itemsize,))
        stacked = pieces[self._rows - (count - 1)].view(column.dtype).reshape(-1, count * size)
        stacked[self._others] = column[self._other_rows[-count:].T].reshape(len(self._others), count * size)
        return stacked


class _ImageStacks:
    """Stacks of columns `[rows, ..., size]` with several axes; the arguments are those of _VectorStacks."""

    def __init__(self, ring: Ring, rows: np.ndarray, num_frames: int) -> None:
        self._frame_rows = _frame_rows(ring, rows, num_frames)

    def of(self, column: np.ndarray, count: int) -> np.ndarray:
        """`[n, ..., count * size]`. A pixel of a frame is copied as one item: more than twice as fast."""
        frame_rows = self._frame_rows[-count:]
        *others, size = column.shape[1:]
        pixels, pixel = int(np.prod(others)), np.dtype((np.void, size * column.itemsize))
        stacked = np.empty((frame_rows.shape[1], pixels, count), pixel)
        for k, rows in enumerate(frame_rows):
            stacked[:, :, k] = column[rows].reshape(len(rows), pixels, size).view(pixel)[..., 0]
        return stacked.view(column.dtype).reshape(-1, *others, count * size)
