"""Pendulum-v1 of Gymnasium from its pictures alone: three frames of 50 x 50 pixels, as DrQ-v2 learns from them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from tfagents_system.train_params_base import TrainParamsBase

_SIDE = 50
_BLOCK = 5  # Pixels of the simulator's picture that make one of ours, on each side.


class CameraView(gymnasium.ObservationWrapper):
    """Observes the middle of the simulator's own picture, `[50, 50, 3]` uint8: as far as the pendulum reaches.

    Args:
      env: Returns pictures (`render_mode="rgb_array"`).
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(0, 255, (_SIDE, _SIDE, 3), np.uint8)

    def observation(self, observation: Any) -> np.ndarray:
        """The mean of each block of pixels; the simulator's angle is left out."""
        picture: Any = self.env.render()
        top, left = ((size - _SIDE * _BLOCK) // 2 for size in picture.shape[:2])
        middle = picture[top : top + _SIDE * _BLOCK, left : left + _SIDE * _BLOCK]
        blocks = middle.reshape(_SIDE, _BLOCK, _SIDE, _BLOCK, 3)
        total = np.zeros((_SIDE, _SIDE, 3), np.uint16)
        for y, x in np.ndindex(_BLOCK, _BLOCK):  # Five times as fast as one sum over two axes.
            total += blocks[:, y, :, x]
        return (total // _BLOCK**2).astype(np.uint8)


class TrainParams(TrainParamsBase):
    """25 iterations of 400 steps (2 workers, an episode of 200 steps each), one update for each step."""

    frame_stack = 3
    image_encoder_layers = (16, 16, 16, 16)  # Half of the paper's: a third of the time, and enough for one pendulum.

    batch_size = 128

    num_iter = 25
    updates_per_iter = 400
    num_train_episodes_per_iter = 1
    num_initial_episodes = 5
    buffer_size = 40_000

    num_eval_episodes = 10
    eval_period_iters = 5
    checkpoint_period_iters = 10

    def env_ctor(self, *args: Any, seed: int | None = None, **kwargs: Any) -> gymnasium.Env:
        # TrainingEnvironment passes the seed to reset(), as Gymnasium requires.
        del seed
        return CameraView(gymnasium.make("Pendulum-v1", *args, **{**kwargs, "render_mode": "rgb_array"}))
