"""Observations out of the ring as policies see them: images with the frames before them, which are stored once."""

from __future__ import annotations

import numpy as np

from tfagents_system.replay.ring import Ring


def observation_leaves(ring: Ring, rows: np.ndarray, frame_stack: int) -> list[np.ndarray]:
    """The observations in `rows`; the channels of an image are those of its frames, oldest first.

    Args:
      ring: Its lock is held.
      rows: Places `[n]`, none of them before `first_drawable` nor of a segment's history.
      frame_stack: Frames of an image.

    Returns:
      Leaves `[n, ...]`.
    """
    if frame_stack == 1:
        return [column[rows] for column in ring.observation]
    frame_rows = _frame_rows(ring, rows, frame_stack)
    return [
        _stacked(array, frame_rows) if column.is_image else array[rows]
        for column, array in zip(ring.layout.observation, ring.observation, strict=True)
    ]


def first_drawable(ring: Ring, frame_stack: int) -> int:
    """Rows to leave out, counted from the oldest: frames before them may have been given up."""
    nothing_given_up = ring.total_rows == ring.filled_rows
    return 0 if nothing_given_up else min(ring.layout.history_rows(frame_stack), ring.filled_rows - 1)


def _frame_rows(ring: Ring, rows: np.ndarray, frame_stack: int) -> np.ndarray:
    """`[frame_stack, n]`: where the frames are, oldest first.

    They are the rows before, within the segment: it begins with its episode, or with its history, which is as long as
    a stack needs. The row before a segment's first one is the last row of another segment: its `steps_left` is 0.
    """
    frames = [rows]
    for _ in range(frame_stack - 1):
        before = (frames[0] - 1) % ring.num_rows
        begins = (ring.steps_left[before] == 0) | (frames[0] == ring.oldest_row)
        frames.insert(0, np.where(begins, frames[0], before))
    return np.stack(frames)


def _stacked(column: np.ndarray, frame_rows: np.ndarray) -> np.ndarray:
    """`[n, height, width, frames * channels]`. A pixel of a frame is copied as one item: more than twice as fast."""
    num_frames, count = frame_rows.shape
    height, width, channels = column.shape[1:]
    pixel = np.dtype((np.void, channels))
    stacked = np.empty((count, height * width, num_frames), pixel)
    for k, rows in enumerate(frame_rows):
        stacked[:, :, k] = column[rows].reshape(count, height * width, channels).view(pixel)[..., 0]
    return stacked.view(np.uint8).reshape(count, height, width, num_frames * channels)
