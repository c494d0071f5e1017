"""The same car learns to race from pictures: the last four, of 64 x 64 pixels, seen from above, and its own motion."""

from __future__ import annotations

from tfagents_system.examples.racing.params import TrainParams as Racing


class TrainParams(Racing):
    """400 iterations of 1000 steps, with an update of 128 samples for every fourth step; JSON names the camera.

    A pixel is 0.75 m wide, so a shift of DrQ-v2's four would move the car from the middle of the road to its edge.
    """

    frame_stack = 4
    image_encoder_layers = ((16, 8, 4), (32, 4, 2), (32, 3, 1))
    image_augmentation_pixels = 1
    batch_size = 128

    buffer_size = 200_000
