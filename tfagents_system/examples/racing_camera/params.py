"""The same car learns to race from pictures: four frames of 64 x 64 pixels, seen from above."""

from __future__ import annotations

from tfagents_system.examples.racing.params import TrainParams as Racing


class TrainParams(Racing):
    """600 iterations of 1000 steps, with an update for each step; JSON names the camera."""

    frame_stack = 4
    normalize_observations = False
    image_encoder_filters = (16, 16, 16, 16)

    num_iter = 600
    n_episodes_in_buffer = 200
