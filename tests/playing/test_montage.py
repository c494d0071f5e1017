"""Videos side by side: which is where, and what stays when one is over."""

from pathlib import Path
from typing import Any

import imageio.v2 as imageio
import numpy as np

from tfagents_system.playing import montage
from tfagents_system.playing.video import VideoWriter


def video_of(path: Path, grey: int, frames: int) -> Path:
    with VideoWriter(path, 10.0) as writer:
        for _ in range(frames):
            writer.add(np.full((240, 240, 3), grey, np.uint8))
    return path


def test_each_video_is_in_its_place_and_the_last_picture_of_the_shorter_one_stays(tmp_path: Path) -> None:
    parts = [
        montage.Part(video_of(tmp_path / "dark.mp4", 50, 3), "train step 1", "return 1.0"),
        montage.Part(video_of(tmp_path / "bright.mp4", 200, 6), "train step 200", "return -7.5"),
    ]
    reader: Any = imageio.get_reader(montage.join(parts, tmp_path / "montage.mp4"))
    frames = [np.asarray(frame).astype(int) for frame in reader]
    assert len(frames) == 6 and frames[0].shape == (240 + 42, 2 * 240 + 4, 3)
    for frame in (frames[0], frames[5]):
        assert abs(frame[60:, :230].mean() - 50) < 5 and abs(frame[60:, 254:].mean() - 200) < 5


def test_captions_are_those_of_their_part() -> None:
    one, other = (montage._caption(montage.Part(Path(), title, "return 1.0"), 240) for title in ("step 1", "step 22"))
    assert one.shape == other.shape == (42, 240, 3)
    lines = np.abs(one.astype(int) - other.astype(int)).reshape(42, -1).max(1)
    assert lines[:20].max() > 100 and lines[25:].max() == 0, "the titles differ, the second lines are the same"
