"""Videos that any player shows, alone and side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import imageio.v2 as imageio
import numpy as np
import pytest

from tests.support.fakes import CounterEnv, FakeParams
from tfagents_system.envs import loading
from tfagents_system.playing import video


class PlayParams(FakeParams):
    def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> CounterEnv:
        return CounterEnv()


def test_video_is_h264_yuv420p_with_even_sides_and_the_environments_rate(tmp_path: Path) -> None:
    env = loading.make_play_env(PlayParams({"horizon": 5}), 1, render=True)
    env.reset()
    with video.recording(env, tmp_path / "a" / "video.mp4") as draw:
        for steps in range(1, 5):
            env.step([0.0, 0.0])
            draw(steps)  # 33 x 41
    reader: Any = imageio.get_reader(tmp_path / "a" / "video.mp4")
    meta = reader.get_meta_data()
    assert (meta["codec"], meta["pix_fmt"].partition("(")[0]) == ("h264", "yuv420p")
    assert (meta["fps"], meta["size"], reader.count_frames()) == (25.0, (42, 34), 5)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["video.mp4"]


def test_video_that_fails_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(KeyError), video.writing(tmp_path / "video.mp4", 25) as add:
        add(np.zeros((16, 16, 3), np.uint8))
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_each_video_is_in_its_place_and_the_last_picture_of_the_shorter_one_stays(tmp_path: Path) -> None:
    for name, grey, count in (("dark", 50, 3), ("bright", 200, 6)):
        with video.writing(tmp_path / f"{name}.mp4", 10.0) as add:
            for _ in range(count):
                add(np.full((240, 240, 3), grey, np.uint8))
    parts = [
        video.Part(tmp_path / "dark.mp4", "train step 1", "return 1.0"),
        video.Part(tmp_path / "bright.mp4", "train step 200", "return -7.5"),
    ]
    reader: Any = imageio.get_reader(video.join(parts, tmp_path / "montage.mp4"))
    frames = [np.asarray(frame).astype(int) for frame in reader]
    assert len(frames) == 6 and frames[0].shape == (240 + 42, 2 * 240 + 4, 3)
    for frame in (frames[0], frames[5]):
        assert abs(frame[60:, :230].mean() - 50) < 5 and abs(frame[60:, 254:].mean() - 200) < 5
    titles = [frames[0][:20, :240], frames[0][:20, 244:]]
    assert abs(titles[0] - titles[1]).max() > 100, "captions are those of their part"
