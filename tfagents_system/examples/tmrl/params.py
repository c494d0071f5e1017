"""What TMRL's config.json trains (docs/how_to/tmrl.md): the game by TMRL's own interface, or the car of envs/racing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from tfagents_system.checks.frame_stacks import FrameStack
from tfagents_system.envs.pictures import SmallPictures
from tfagents_system.envs.racing import sensors
from tfagents_system.envs.racing.environment import RacingEnvironment
from tfagents_system.envs.racing.expert import Expert
from tfagents_system.envs.racing.real_time import make_real_time_race
from tfagents_system.envs.racing.settings import CAMERA, RacingSettings
from tfagents_system.envs.trajectory_reward import with_trajectory_reward
from tfagents_system.errors import UserError
from tfagents_system.train_params_base import TrainParamsBase


class TrainParams(TrainParamsBase):
    """What config.json does not say; what it says comes as settings of the run and as the JSON."""

    # TMRL's workers do not wait for a policy; one in ten of their episodes has no exploration.
    asynchronous = True
    greedy_episode_share = 0.1
    num_eval_episodes = 0
    normalize_observations = True  # TMRL's interface scales them by constants of the game.
    frame_stack: FrameStack = {}  # Of `camera` or `lidar`: IMG_HIST_LEN.

    _environments: tuple[RacingEnvironment, ...] = ()

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
            race = RacingEnvironment(RacingSettings.of(self.env_config["racing"]), render_mode=render_mode)
            self._environments += (race,)
        race = with_trajectory_reward(race, self.env_config)
        size = tuple(ours.get("picture", ()))
        if not size or size == (sensors.CAMERA_PIXELS, sensors.CAMERA_PIXELS):
            return race
        return SmallPictures(race, size, key=CAMERA)

    def expert_policy_ctor(self) -> Callable[[Any], np.ndarray] | None:
        """The driver, in simulated time; in wall time the car is in another process, and he does not see it."""
        is_simulated = not self.env_config["tmrl"]["game"] and "real_time" not in self.env_config
        return Expert(lambda: self._environments) if is_simulated else None


def _game(ours: dict[str, Any]) -> gymnasium.Env:
    """TMRL's rtgym environment of the game, as its own configuration builds it, with the run's settings of rtgym.

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
    own = ours["interface_kwargs"]
    if "resize_to" in own:
        own = {**own, "resize_to": tuple(own["resize_to"])}
    return RealTimeEnv({**CONFIG_DICT, **ours["rtgym"], "interface_kwargs": own})
