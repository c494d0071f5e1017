"""Videos of an environment's episodes: one, or several side by side with a caption above each."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfagents_system.report.long_work import followed

_MAX_FRAMES_PER_SECOND = 30  # Simulators with finer steps are drawn less often, because drawing is slow.
_MIN_WIDTH = 240  # Pixels of a part of a montage; smaller pictures are enlarged, so that captions fit.
_GAP = 4
_BACKGROUND = (24, 24, 27)
_FOREGROUND = (244, 244, 245)


@contextlib.contextmanager
def recording(env: Any, path: Path) -> Iterator[Callable[[int], None]]:
    """Writes a video of one episode of a TrainingEnvironment that can be drawn, just after its reset.

    Yields:
      What is called after each step, with the number of steps so far.
    """
    frame = env.render_frame()  # Before the file is created: an environment that can't be drawn leaves none.
    stride = max(1, round(env.frames_per_second / _MAX_FRAMES_PER_SECOND))
    with writing(path, env.frames_per_second / stride) as add:
        add(frame)

        def draw(steps: int) -> None:
            if steps % stride == 0:
                add(env.render_frame())

        yield draw


@contextlib.contextmanager
def writing(path: Path, frames_per_second: float) -> Iterator[Callable[[np.ndarray], None]]:
    """Writes an MP4 (H.264, yuv420p), which gets its name when it is complete.

    Yields:
      What is called with each frame, `[H, W, 3]` uint8.
    """
    import imageio.v2 as imageio

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.mp4")

    def add(frame: np.ndarray) -> None:
        height, width = frame.shape[:2]
        if height % 2 or width % 2:  # yuv420p needs even sides.
            frame = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        writer.append_data(frame)

    writer: Any = imageio.get_writer(
        temporary,
        format="FFMPEG",
        fps=frames_per_second,
        codec="libx264",
        pixelformat="yuv420p",
        macro_block_size=1,  # imageio would stretch frames to multiples of 16.
        ffmpeg_log_level="error",
    )
    try:
        with writer:
            yield add
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


class Part(NamedTuple):
    """A video of a montage, and the two lines above it."""

    video: Path
    title: str
    text: str


def join(parts: Sequence[Part], path: Path) -> Path:
    """Writes a montage of parts of one size and rate, from left to right.

    All begin together, and a shorter one keeps its last picture.
    """
    import imageio.v2 as imageio

    with contextlib.ExitStack() as stack:
        readers: list[Any] = [stack.enter_context(imageio.get_reader(part.video, format="FFMPEG")) for part in parts]
        add = stack.enter_context(writing(path, float(readers[0].get_meta_data()["fps"])))
        pictures: list[Any] = [None] * len(parts)
        captions: list[np.ndarray] = []
        for newest in followed(itertools.zip_longest(*readers), "joining the videos", "pictures"):
            pictures = [old if new is None else _enlarged(new) for old, new in zip(pictures, newest, strict=True)]
            captions = captions or [
                _caption(part, picture.shape[1]) for part, picture in zip(parts, pictures, strict=True)
            ]
            columns = [np.concatenate(pair) for pair in zip(captions, pictures, strict=True)]
            apart = [np.pad(column, ((0, 0), (0, _GAP), (0, 0))) for column in columns[:-1]]
            add(np.concatenate([*apart, columns[-1]], axis=1))
    return path


def _enlarged(picture: Any) -> np.ndarray:
    """By a whole number, to at least `_MIN_WIDTH`."""
    factor = max(1, -(-_MIN_WIDTH // np.asarray(picture).shape[1]))
    return np.asarray(picture).repeat(factor, axis=0).repeat(factor, axis=1)


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
