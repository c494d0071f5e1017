"""Pictures without a screen."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from tf_agents.environments import suite_gym

from tests.support.fakes import CounterEnv, FakeParams, NumberedEnv, OldGymEnv
from tfagents_system.envs import loading, rendering
from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError


def params_for(env: Any) -> Any:
    return type("TrainParams", (FakeParams,), {"env_ctor": lambda self, seed=None: env})({"horizon": 5})


@pytest.mark.parametrize(
    "env",
    [
        CounterEnv(),
        gymnasium.wrappers.TimeLimit(CounterEnv(), 9),
        OldGymEnv(),
        suite_gym.wrap_env(OldGymEnv()),
    ],
    ids=["gymnasium", "wrapped", "gym", "TF-Agents"],
)
def test_frames_of_every_kind_of_environment(env: Any) -> None:
    play_env = loading.make_play_env(params_for(env), 1, render=True)
    play_env.reset()
    play_env.step(np.zeros(play_env.action_spec().shape))
    frame = play_env.render_frame()
    assert frame.dtype == np.uint8 and frame.shape[-1] == 3 and frame.min() == frame.max() == 1


def test_environment_that_can_not_be_drawn_names_the_fix() -> None:
    env = TrainingEnvironment(NumberedEnv(), 5)
    env.reset()
    with pytest.raises(
        UserError, match="NumberedEnv can't be drawn .*: SAC_REPORT=0 for a run, --no-video for `sac play`"
    ):
        env.render_frame()


def test_mujoco_without_a_library_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rendering.sys.modules, "mujoco", rendering)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    text = str(rendering._no_frame(RuntimeError("no context"), CounterEnv()))
    assert "apt-get install libegl1" in text and "libosmesa6" in text


@pytest.mark.parametrize(
    ("drawable", "wanted", "chosen"),
    [
        ({"egl", "osmesa"}, None, "egl"),
        ({"osmesa"}, None, "osmesa"),
        (set(), None, None),
        ({"egl"}, "osmesa", "osmesa"),
    ],
)
def test_egl_comes_before_osmesa_unless_the_user_has_set_one(
    monkeypatch: pytest.MonkeyPatch, drawable: set[str], wanted: str | None, chosen: str | None
) -> None:
    monkeypatch.setattr(rendering, "_can_draw", lambda backend: backend in drawable)
    monkeypatch.setenv("MUJOCO_GL", wanted or "to be restored afterwards")
    if wanted is None:
        monkeypatch.delenv("MUJOCO_GL")
    rendering.prepare_headless()
    assert rendering.os.environ.get("MUJOCO_GL") == chosen


@pytest.mark.parametrize(
    ("picture", "expected"),
    [
        (np.full((2, 2), 7, np.uint8), 7),
        (np.full((2, 2, 4), 9, np.int64), 9),
        (np.full((2, 2, 3), 1.0), 255),
        ([np.zeros((2, 2, 3)), np.full((2, 2, 3), 5, np.uint8)], 5),
        *((picture, None) for picture in [None, "text", list[Any](), np.zeros((0, 0, 3)), np.zeros(5)]),
    ],
)
def test_pictures_become_rgb_bytes(picture: Any, expected: int | None) -> None:
    if expected is None:
        with pytest.raises(UserError, match="can't be drawn"):
            rendering.frame_of(lambda: picture, None)
        return
    frame = rendering.frame_of(lambda: picture, None)
    assert frame.shape == (2, 2, 3) and frame.dtype == np.uint8 and frame.min() == frame.max() == expected


def test_rate_of_an_environment() -> None:
    class Timed:
        dt = 0.05

    class Old:
        metadata = {"video.frames_per_second": 50}

    assert rendering.frames_per_second([Timed()]) == 20.0
    assert rendering.frames_per_second([CounterEnv()]) == 25.0
    assert rendering.frames_per_second([object(), Old()]) == 50.0
    assert rendering.frames_per_second([object()]) == 30.0
