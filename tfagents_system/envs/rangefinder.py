"""Distances in a picture, as TMRL's lidar has them: rays from the bottom centre to the first dark pixel."""

from __future__ import annotations

import numpy as np

RAYS = 19


def _pixels(distances: np.ndarray) -> np.ndarray:
    """Rounded to whole pixels; halves alike on both sides, whatever the last bit of a cosine is."""
    return np.rint(np.round(distances, 9)).astype(int)


class Rangefinder:
    """Rays in pictures of one size, from the left (180 degrees) over straight ahead to the right.

    A ray begins in the middle of the lowest row and looks at one pixel after the other, one pixel's length apart.

    Args:
      height, width: Of the pictures.
      darkest: A pixel is dark where all of its channels are below this value.
      rays: How many, at equal angles.
    """

    def __init__(self, height: int, width: int, darkest: int = 55, rays: int = RAYS) -> None:
        if rays < 2 or min(height, width) < 2:
            raise ValueError(f"at least 2 rays in 2 x 2 pixels are needed, found {rays} in {height} x {width}")
        angles = np.linspace(np.pi, 0.0, rays)
        steps = np.arange(1, height + width)
        rows = height - 1 - _pixels(np.multiply.outer(np.sin(angles), steps))
        columns = width // 2 + _pixels(np.multiply.outer(np.cos(angles), steps))
        is_within = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
        self._most = is_within.sum(axis=1)  # A ray is straight: what is behind the edge stays behind it.
        self._places = np.where(is_within, rows * width + columns, 0)
        self._is_within = is_within
        self._shape = height, width
        self._darkest = darkest

    def measure(self, picture: np.ndarray) -> np.ndarray:
        """Pixels from the bottom centre to the first dark one along each ray, `[rays]` float32.

        A ray that meets none ends at the picture's edge.

        Args:
          picture: `[height, width, channels]` or `[height, width]` uint8.

        Raises:
          ValueError: It has another size.
        """
        if picture.shape[:2] != self._shape:
            raise ValueError(f"expected a picture of {self._shape} pixels but found {picture.shape}")
        is_dark = picture < self._darkest
        is_dark = is_dark.all(axis=2) if picture.ndim == 3 else is_dark
        found = is_dark.ravel()[self._places] & self._is_within
        first = found.argmax(axis=1)
        return np.where(found.any(axis=1), first + 1, self._most + 1).astype(np.float32)

    def drawn(self, picture: np.ndarray) -> np.ndarray:
        """A copy of the picture with the pixels of each ray up to its end in white."""
        copy = picture.copy()
        lengths = self.measure(picture)
        on_ray = self._is_within & (np.arange(self._places.shape[1]) < lengths[:, None] - 1)
        copy.reshape(self._shape[0] * self._shape[1], -1)[self._places[on_ray]] = 255
        return copy
