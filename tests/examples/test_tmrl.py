"""The params of TMRL's config.json with a stand-in for the package `tmrl`: what its interface of the game is given."""

from __future__ import annotations

import sys
import types
from typing import Any

import gymnasium
import numpy as np
import pytest

from tfagents_system.errors import UserError
from tfagents_system.examples.tmrl.params import TrainParams
from tfagents_system.settings.tmrl_keys import default_config, merged, read_keys
from tfagents_system.settings.tmrl_translation import translate

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
    config = merged(default_config(), {"ENV": environment})
    return TrainParams(translate(read_keys(config, "config.json"), has_game=True).env_config)


def test_the_game_is_built_with_the_settings_of_the_run(package: types.ModuleType) -> None:
    run = {"time_step_duration": 0.1, "start_obs_capture": 0.08, "act_buf_len": 3}
    env = params(RTGYM_INTERFACE="TM20LIDAR", IMG_HIST_LEN=2, RTGYM_CONFIG=run).env_ctor()
    assert isinstance(env, real_time_env.RealTimeEnv) and isinstance(env.interface, Interface)
    assert (env.time_step_duration, env.start_obs_capture, env.act_buf_len) == (0.1, 0.08, 3)
    assert Interface.given == [{"gamepad": True, "img_hist_len": 2, "save_replays": False}]
    package.RTGYM_INTERFACE = "TM20FULL"  # type: ignore[attr-defined]
    params(IMG_WIDTH=32).env_ctor()
    assert Interface.given[1]["resize_to"] == (32, 64) and Interface.given[1]["grayscale"] is True


def test_another_interface_than_that_of_the_file_is_refused(package: types.ModuleType) -> None:
    """CONFIG_DICT has the one of the file, which takes other arguments and sees other things."""
    with pytest.raises(UserError, match="RTGYM_INTERFACE=TM20FULL, .* config.json, TM20LIDAR: set it there, --config"):
        params(RTGYM_INTERFACE="TM20FULL").env_ctor()
    assert Interface.given == []


def test_a_machine_without_the_package_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tmrl", None)
    with pytest.raises(UserError, match="the package tmrl can't be imported here .*: install it, or have all machines"):
        params().env_ctor()
