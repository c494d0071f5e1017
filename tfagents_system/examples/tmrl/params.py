"""What TMRL's config.json trains (docs/how_to/tmrl.md): the game by TMRL's own interface, or the racing car."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from tfagents_system.envs.pictures import SmallPictures
from tfagents_system.errors import UserError
from tfagents_system.examples.racing.driver import Expert
from tfagents_system.examples.racing.environment import CAMERA, RacingEnvironment, RacingSettings
from tfagents_system.examples.racing.real_time import make_real_time_race
from tfagents_system.examples.racing.sensors import CAMERA_PIXELS
from tfagents_system.examples.racing.trajectory_reward import with_trajectory_reward
from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    """What config.json does not say; what it says comes as settings of the run and as the JSON."""

    # TMRL's workers do not wait for a policy; one in ten of their episodes has no exploration.
    asynchronous = True
    greedy_episode_share = 0.1
    num_eval_episodes = 0
    normalize_observations = True  # TMRL's interface scales them by constants of the game.

    _environments: tuple[RacingEnvironment, ...] = ()

    def __init__(self, env_config: dict[str, Any]) -> None:
        super().__init__(env_config)
        self.frame_stack = env_config["tmrl"].get("frame_stack", 1)  # IMG_HIST_LEN of `camera` or `lidar`.
        self.action_history = env_config["tmrl"].get("action_history", 0)  # The game's interface has its own.

    def env_ctor(
        self, *args: Any, seed: int | None = None, render_mode: str | None = None, **kwargs: Any
    ) -> gymnasium.Env:
        del args, kwargs
        ours = self.env_config["tmrl"]
        if ours["game"]:
            return _game(ours)
        race: gymnasium.Env
        if "real_time" in self.env_config:
            race = make_real_time_race(self.env_config, seed, render_mode=render_mode)
        else:
            race = RacingEnvironment(RacingSettings.of(self.env_config), render_mode=render_mode)
            self._environments += (race,)
        race = with_trajectory_reward(race, self.env_config)
        size = tuple(ours.get("picture", ()))
        if not size or size == (CAMERA_PIXELS, CAMERA_PIXELS):
            return race
        return SmallPictures(race, size, key=CAMERA)

    def expert_policy_ctor(self) -> Callable[[Any], np.ndarray] | None:
        """The driver, in simulated time; in wall time the car is in another process, and he does not see it."""
        is_simulated = not self.env_config["tmrl"]["game"] and "real_time" not in self.env_config
        return Expert(lambda: self._environments) if is_simulated else None


def _game(ours: dict[str, Any]) -> gymnasium.Env:
    """TMRL's rtgym environment of the game, as its own configuration builds it, with the run's RTGYM_CONFIG.

    Raises:
      UserError: The package `tmrl` is not installed here, or can't be imported, or has another interface.
    """
    try:
        from rtgym.envs.real_time_env import RealTimeEnv
        from tmrl.config.config_constants import RTGYM_INTERFACE
        from tmrl.config.config_objects import CONFIG_DICT
    except Exception as error:
        raise UserError(
            f"the run drives the game, but the package tmrl can't be imported here ({type(error).__name__}: {error}): "
            "install it, or have all machines of the run without it"
        ) from error
    if ours["interface"] != RTGYM_INTERFACE:
        raise UserError(
            f"the run has RTGYM_INTERFACE={ours['interface']}, and the game's interface is that of this machine's "
            f"config.json, {RTGYM_INTERFACE}: set it there, --config can't change it"
        )
    arguments = dict(ours["rtgym"]["interface_kwargs"])
    if "resize_to" in arguments:
        arguments["resize_to"] = tuple(arguments["resize_to"])
    return GamePictures(RealTimeEnv({**CONFIG_DICT, **ours["rtgym"], "interface_kwargs": arguments}))


class GamePictures(gymnasium.ObservationWrapper[Any, Any, Any]):
    """The game's histories of pictures `[history, h, w]` or `[history, h, w, 3]` as pictures `[h, w, channels]` uint8.

    The game has them in float32, from 0 to 255. All other parts of its observations stay as they are.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Tuple(map(_space, env.observation_space))  # type: ignore[call-overload]

    def observation(self, observation: Any) -> Any:
        return tuple(_picture(part) if np.ndim(part) > 2 else part for part in observation)


def _space(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    assert space.shape is not None
    shape = _picture(np.zeros(space.shape)).shape if len(space.shape) > 2 else ()
    return gymnasium.spaces.Box(0, 255, shape, np.uint8) if shape else space


def _picture(history: Any) -> np.ndarray:
    frames = np.asarray(history)
    frames = frames if frames.ndim == 4 else frames[..., None]
    return np.moveaxis(frames, 0, 2).reshape(*frames.shape[1:3], -1).astype(np.uint8)
