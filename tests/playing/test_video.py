"""Videos that any player shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import imageio.v2 as imageio
import numpy as np
import pytest

from tests.support.fakes import CounterEnv, FakeParams
from tfagents_system.envs import loading
from tfagents_system.playing.video import VideoWriter


class PlayParams(FakeParams):
    def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> CounterEnv:
        return CounterEnv()


def test_video_is_h264_yuv420p_with_even_sides_and_the_environments_rate(tmp_path: Path) -> None:
    env = loading.make_play_env(PlayParams({"horizon": 5}), 1, render=True)
    env.reset()
    with VideoWriter(tmp_path / "a" / "video.mp4", env.frames_per_second) as writer:
        for _ in range(5):
            env.step([0.0, 0.0])
            writer.add(env.render_frame())  # 33 x 41
    reader: Any = imageio.get_reader(tmp_path / "a" / "video.mp4")
    meta = reader.get_meta_data()
    assert (meta["codec"], meta["pix_fmt"].partition("(")[0]) == ("h264", "yuv420p")
    assert (meta["fps"], meta["size"], reader.count_frames()) == (25.0, (42, 34), 5)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["video.mp4"]


def test_video_that_fails_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(KeyError), VideoWriter(tmp_path / "video.mp4", 25) as writer:
        writer.add(np.zeros((16, 16, 3), np.uint8))
        raise KeyError
    assert list(tmp_path.iterdir()) == []
