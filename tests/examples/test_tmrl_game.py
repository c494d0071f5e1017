"""The params of TMRL's config.json with a stand-in for the package `tmrl`: what its interface of the game is given."""

from __future__ import annotations

import sys
import types
from typing import Any

import gymnasium
import numpy as np
import pytest
import tree

from tfagents_system.envs.training_environment import TrainingEnvironment
from tfagents_system.errors import UserError
from tfagents_system.examples.tmrl.params import TrainParams
from tfagents_system.tmrl.keys import DEFAULT_CONFIG, merged, read_keys, translate

real_time_env = pytest.importorskip("rtgym.envs.real_time_env")


class Interface(real_time_env.RealTimeGymInterface):  # type: ignore[name-defined]
    given: list[dict[str, Any]] = []

    def __init__(self, **kwargs: Any) -> None:
        self.given.append(kwargs)

    def get_observation_space(self) -> gymnasium.Space:
        return gymnasium.spaces.Tuple([gymnasium.spaces.Box(0.0, 1.0, (1,))])

    def get_action_space(self) -> gymnasium.Space:
        return gymnasium.spaces.Box(-1.0, 1.0, (3,))

    def get_default_action(self) -> np.ndarray:
        return np.zeros(3, np.float32)


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """As tmrl.config of 0.7, with TM20LIDAR in its own config.json."""
    parts = {name: types.ModuleType(name) for name in ("tmrl", "tmrl.config", "tmrl.config.config_constants")}
    objects = types.ModuleType("tmrl.config.config_objects")
    own = {"interface": Interface, "time_step_duration": 0.5, "interface_kwargs": {"of_the_file": True}}
    objects.CONFIG_DICT = {**real_time_env.DEFAULT_CONFIG_DICT, **own}  # type: ignore[attr-defined]
    constants = parts["tmrl.config.config_constants"]
    constants.RTGYM_INTERFACE = "TM20LIDAR"  # type: ignore[attr-defined]
    for name, module in {**parts, objects.__name__: objects}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(Interface, "given", [])
    return constants


def params(**environment: Any) -> TrainParams:
    config = merged(DEFAULT_CONFIG, {"ENV": environment})
    return TrainParams(translate(read_keys(config, "config.json"), has_game=True).env_config)


def test_the_game_is_built_with_the_settings_of_the_run(package: types.ModuleType) -> None:
    run = {"time_step_duration": 0.1, "start_obs_capture": 0.08, "act_buf_len": 3}
    env = params(RTGYM_INTERFACE="TM20LIDAR", IMG_HIST_LEN=2, RTGYM_CONFIG=run).env_ctor().unwrapped
    assert isinstance(env, real_time_env.RealTimeEnv) and isinstance(env.interface, Interface)
    assert (env.time_step_duration, env.start_obs_capture, env.act_buf_len) == (0.1, 0.08, 3)
    assert Interface.given == [{"gamepad": True, "img_hist_len": 2, "save_replays": False}]
    package.RTGYM_INTERFACE = "TM20FULL"  # type: ignore[attr-defined]
    params(IMG_WIDTH=32).env_ctor()
    assert Interface.given[1]["resize_to"] == (32, 64) and Interface.given[1]["grayscale"] is True


class FullInterface(Interface):
    """The spaces of TM2020Interface in tmrl 0.7.1, and observations of their kinds."""

    pictures = np.arange(4 * 6 * 5).reshape(4, 6, 5)

    def get_observation_space(self) -> gymnasium.Space:
        boxes = [gymnasium.spaces.Box(0.0, high, (1,)) for high in (1000.0, 6.0, np.inf)]
        return gymnasium.spaces.Tuple([*boxes, gymnasium.spaces.Box(0.0, 255.0, self.pictures.shape)])

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return [np.array([speed], np.float32) for speed in (1.0, 2.0, 3.0)] + [self.pictures.astype(np.uint8)], {}

    def get_obs_rew_terminated_info(self) -> tuple[Any, float, bool, dict[str, Any]]:
        return self.reset()[0], 0.5, False, {}

    def send_control(self, control: Any) -> None:
        pass

    def wait(self) -> None:
        pass


@pytest.mark.parametrize("channels", [(), (3,)])
def test_the_games_pictures_are_what_encoders_take(
    package: types.ModuleType, channels: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    history = np.arange(4 * 6 * 5 * np.prod(channels, dtype=int)).reshape(4, 6, 5, *channels) % 256
    monkeypatch.setattr(FullInterface, "pictures", history)
    package.RTGYM_INTERFACE = "TM20FULL"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules["tmrl.config.config_objects"].CONFIG_DICT, "interface", FullInterface)
    env = TrainingEnvironment(params().env_ctor(), horizon=5)
    try:
        time_step = env.reset()
        assert env.device is not None, "rtgym's steps are followed through the wrapper"
        picture = next(leaf for leaf in tree.flatten(time_step.observation) if leaf.ndim == 3)
        assert picture.shape == (6, 5, 4 * (channels or (1,))[0]) and picture.dtype == np.uint8
        assert (picture[..., -1] == (history[-1, ..., -1] if channels else history[-1])).all(), "the newest is last"
        assert (picture[..., 0] == (history[0, ..., 0] if channels else history[0])).all()
        assert [leaf.shape for leaf in tree.flatten(time_step.observation)].count((3,)) == 2, "act_buf_len actions"
    finally:
        env.close()


def test_another_interface_than_that_of_the_file_is_refused(package: types.ModuleType) -> None:
    """CONFIG_DICT has the one of the file, which takes other arguments and sees other things."""
    with pytest.raises(UserError, match="RTGYM_INTERFACE=TM20FULL, .* config.json, TM20LIDAR: set it there, --config"):
        params(RTGYM_INTERFACE="TM20FULL").env_ctor()
    assert Interface.given == []


def test_a_machine_without_the_package_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tmrl", None)
    with pytest.raises(UserError, match="the package tmrl can't be imported here .*: install it, or have all machines"):
        params().env_ctor()
