"""Observations out of the ring as policies see them: with the frames before them, which are stored once."""

from __future__ import annotations

import numpy as np

from tfagents_system.checks.frame_stacks import FrameStack
from tfagents_system.replay.ring import Ring


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
