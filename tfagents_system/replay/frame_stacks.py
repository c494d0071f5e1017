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
    frame_rows = _frame_rows(ring, rows, max(frames))
    return [
        column[rows] if count == 1 else _stacked(column, frame_rows[-count:])
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


def _stacked(column: np.ndarray, frame_rows: np.ndarray) -> np.ndarray:
    """`[n, ..., frames * size]` from a column `[rows, ..., size]`."""
    if column.ndim == 2:
        return column[frame_rows.T].reshape(frame_rows.shape[1], -1)
    return _stacked_images(column, frame_rows)


def _stacked_images(column: np.ndarray, frame_rows: np.ndarray) -> np.ndarray:
    """The same for columns with several axes; a pixel of a frame is copied as one item: more than twice as fast."""
    num_frames, count = frame_rows.shape
    *others, size = column.shape[1:]
    pixels = int(np.prod(others))
    pixel = np.dtype((np.void, size * column.itemsize))
    stacked = np.empty((count, pixels, num_frames), pixel)
    for k, rows in enumerate(frame_rows):
        stacked[:, :, k] = column[rows].reshape(count, pixels, size).view(pixel)[..., 0]
    return stacked.view(column.dtype).reshape(count, *others, num_frames * size)
