"""Videos of an environment's episodes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

_MAX_FRAMES_PER_SECOND = 30  # Simulators with finer steps are drawn less often, because drawing is slow.


@contextlib.contextmanager
def recording(env: Any, path: Path) -> Iterator[Callable[[int], None]]:
    """Writes a video of one episode.

    Args:
      env: A TrainingEnvironment that can be drawn, just after its reset.
      path: The MP4, replaced if there is one.

    Yields:
      What is called after each step, with the number of steps so far.
    """
    frame = env.render_frame()  # Before the file is created: an environment that can't be drawn leaves none.
    stride = max(1, round(env.frames_per_second / _MAX_FRAMES_PER_SECOND))
    with VideoWriter(path, env.frames_per_second / stride) as writer:
        writer.add(frame)

        def draw(steps: int) -> None:
            if steps % stride == 0:
                writer.add(env.render_frame())

        yield draw


class VideoWriter:
    """Writes an MP4 (H.264, yuv420p), which gets its final name when it is complete.

    Args:
      path: The file, replaced if there is one.
      fps: Frames per second.
    """

    def __init__(self, path: Path, fps: float) -> None:
        import imageio.v2 as imageio

        self._path = path
        self._temporary = path.with_name(f".{path.stem}.{os.getpid()}.mp4")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._writer = imageio.get_writer(
            self._temporary,
            format="FFMPEG",
            fps=fps,
            codec="libx264",
            pixelformat="yuv420p",
            macro_block_size=1,  # imageio would stretch frames to multiples of 16.
            ffmpeg_log_level="error",
        )

    def add(self, frame: np.ndarray) -> None:
        """Appends a frame `[H, W, 3]` uint8; yuv420p needs even sides, so odd ones repeat their last line."""
        height, width = frame.shape[:2]
        if height % 2 or width % 2:
            frame = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        self._writer.append_data(frame)

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()
        if kind is None:
            os.replace(self._temporary, self._path)
        else:
            self._temporary.unlink(missing_ok=True)
