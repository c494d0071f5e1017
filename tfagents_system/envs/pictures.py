"""Pictures made smaller for a policy: crop, area resize, grayscale. And distances in them, as TMRL's lidar has."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

_LUMINANCE = np.array((0.299, 0.587, 0.114), np.float32)  # ITU-R BT.601


def crop(picture: np.ndarray, top: int, left: int, height: int, width: int) -> np.ndarray:
    """The part `[height, width, channels]` of a picture `[rows, columns, channels]`.

    Raises:
      ValueError: The part is not within the picture.
    """
    rows, columns = picture.shape[:2]
    if min(top, left) < 0 or min(height, width) < 1 or top + height > rows or left + width > columns:
        raise ValueError(
            f"a part of {height} x {width} at ({top}, {left}) is not within a picture of {rows} x {columns}: "
            "make it smaller"
        )
    return picture[top : top + height, left : left + width]


def resize(picture: np.ndarray, height: int, width: int) -> np.ndarray:
    """A picture `[height, width, channels]` uint8 whose pixels are means over their areas of the given one.

    Args:
      picture: `[rows, columns, channels]` uint8. Where an area ends within a pixel, that counts by its share.
    """
    rows, columns = _shares(picture.shape[0], height), _shares(picture.shape[1], width)
    narrow = np.tensordot(picture.astype(np.float32), columns, (1, 1))  # [rows, channels, width]
    return np.floor(np.tensordot(rows, narrow, 1) + np.float32(0.5)).astype(np.uint8).transpose(0, 2, 1)


def grayscale(picture: np.ndarray) -> np.ndarray:
    """The luminance `[rows, columns, 1]` uint8 of a picture `[rows, columns, 3]` uint8 of red, green and blue."""
    return np.floor(picture @ _LUMINANCE + np.float32(0.5)).astype(np.uint8)[..., None]


def _shares(size: int, wanted: int) -> np.ndarray:
    """`[wanted, size]` float32: the share of each pixel in the mean of each area; rows add up to 1."""
    edges = np.linspace(0.0, size, wanted + 1)
    pixels = np.arange(size)
    covered = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    return (np.clip(covered, 0.0, None) * (wanted / size)).astype(np.float32)


class SmallPictures(gymnasium.ObservationWrapper[Any, Any, Any]):
    """An environment whose picture is cropped, made smaller and perhaps gray, for `env_ctor`.

    Args:
      env: Its observation is a picture `[rows, columns, 3]` uint8, or a dictionary with one.
      size: Height and width of the result; None: as it is.
      part: Top, left, height and width of what is kept, before all else; None: everything.
      gray: One channel instead of three.
      key: Of the picture, where the observation is a dictionary.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        size: tuple[int, int] | None = None,
        part: tuple[int, int, int, int] | None = None,
        gray: bool = False,
        key: str | None = None,
    ) -> None:
        super().__init__(env)
        self._size, self._part, self._gray, self._key = size, part, gray, key
        space: Any = env.observation_space if key is None else env.observation_space[key]  # type: ignore[index]
        shape = self._smaller(np.zeros(space.shape, np.uint8)).shape
        own = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        spaces = env.observation_space
        self.observation_space = (
            own if key is None else gymnasium.spaces.Dict({**spaces.spaces, key: own})  # type: ignore[attr-defined]
        )

    def observation(self, observation: Any) -> Any:
        if self._key is None:
            return self._smaller(observation)
        return {**observation, self._key: self._smaller(observation[self._key])}

    def _smaller(self, picture: np.ndarray) -> np.ndarray:
        if self._part is not None:
            picture = crop(picture, *self._part)
        if self._gray:
            picture = grayscale(picture)
        return picture if self._size is None else resize(picture, *self._size)


class Rangefinder:
    """Distances in pictures of one size: rays from the bottom centre to the first dark pixel, from the left (180
    degrees) over straight ahead to the right. A ray looks at one pixel after the other, one pixel's length apart.

    Args:
      height, width: Of the pictures.
      darkest: A pixel is dark where all of its channels are below this value.
      rays: How many, at equal angles.
    """

    def __init__(self, height: int, width: int, darkest: int = 55, rays: int = 19) -> None:
        if rays < 2 or min(height, width) < 2:
            raise ValueError(f"at least 2 rays in 2 x 2 pixels are needed, found {rays} in {height} x {width}")
        angles = np.linspace(np.pi, 0.0, rays)
        steps = np.arange(1, height + width)
        # Rounded twice: halves go the same way on both sides, whatever the last bit of a cosine is.
        up, right = (
            np.rint(np.round(np.multiply.outer(part, steps), 9)).astype(int)
            for part in (np.sin(angles), np.cos(angles))
        )
        rows, columns = height - 1 - up, width // 2 + right
        self._is_within = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
        self._pixels = np.where(self._is_within, rows * width + columns, 0)
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
        is_end = is_dark.ravel()[self._pixels] & self._is_within
        to_edge = self._is_within.sum(axis=1)  # A ray is straight: what is behind the edge stays behind it.
        return (np.where(is_end.any(axis=1), is_end.argmax(axis=1), to_edge) + 1).astype(np.float32)
