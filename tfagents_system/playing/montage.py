"""Videos of several episodes side by side, with a caption above each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfagents_system.playing.video import VideoWriter
from tfagents_system.report.long_work import followed

_MIN_WIDTH = 240  # Pixels of a part; smaller pictures are enlarged, so that captions fit.
_GAP = 4
_BACKGROUND = (24, 24, 27)
_FOREGROUND = (244, 244, 245)


@dataclasses.dataclass(frozen=True)
class Part:
    """One of the videos.

    Attributes:
      title, text: Two lines above it.
    """

    video: Path
    title: str
    text: str


def join(parts: Sequence[Part], path: Path) -> Path:
    """Writes one video of all parts, which begin together; a shorter part keeps its last picture.

    Args:
      parts: From left to right, of one size and rate.
      path: The MP4, replaced if there is one.
    """
    import imageio.v2 as imageio

    readers: list[Any] = [imageio.get_reader(part.video, format="FFMPEG") for part in parts]
    try:
        with VideoWriter(path, float(readers[0].get_meta_data()["fps"])) as writer:
            captions: list[np.ndarray] = []
            for pictures in followed(_together(readers), "joining the videos", "pictures"):
                enlarged = [_enlarged(picture) for picture in pictures]
                captions = captions or [
                    _caption(part, each.shape[1]) for part, each in zip(parts, enlarged, strict=True)
                ]
                columns = [np.concatenate(pair) for pair in zip(captions, enlarged, strict=True)]
                writer.add(_side_by_side(columns))
    finally:
        for reader in readers:
            reader.close()
    return path


def _together(readers: Sequence[Any]) -> Iterator[list[np.ndarray]]:
    """One picture of each reader at a time, until the longest ends."""
    streams = [iter(reader) for reader in readers]
    current: list[np.ndarray] = [np.asarray(next(stream)) for stream in streams]
    while True:
        yield current
        following = [next(stream, None) for stream in streams]
        if all(picture is None for picture in following):
            return
        current = [old if new is None else np.asarray(new) for old, new in zip(current, following, strict=True)]


def _enlarged(picture: np.ndarray) -> np.ndarray:
    """By a whole number, to at least `_MIN_WIDTH`."""
    factor = max(1, -(-_MIN_WIDTH // picture.shape[1]))
    return np.repeat(np.repeat(picture, factor, axis=0), factor, axis=1)


def _caption(part: Part, width: int) -> np.ndarray:
    """The two lines as a picture `[H, width, 3]` uint8."""
    from PIL import Image, ImageDraw, ImageFont

    size = max(14, width // 20)
    font = ImageFont.load_default(size)
    picture = Image.new("RGB", (width, 3 * size), _BACKGROUND)
    draw = ImageDraw.Draw(picture)
    for line, text in enumerate((part.title, part.text)):
        draw.text((size // 2, size // 4 + line * size * 5 // 4), text, _FOREGROUND, font)
    return np.asarray(picture)


def _side_by_side(columns: Sequence[np.ndarray]) -> np.ndarray:
    gap = np.empty((len(columns[0]), _GAP, 3), np.uint8)
    gap[:] = _BACKGROUND
    parts = [columns[0]]
    for column in columns[1:]:
        parts += [gap, column]
    return np.concatenate(parts, axis=1)
