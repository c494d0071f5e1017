"""Pictures for people: the whole track, the car's trail, and its rays over the view from above.

Runs under SAC_ENV_PYTHON as well: NumPy and Gymnasium are needed, Python 3.9.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tfagents_system.envs.racing import sensors
from tfagents_system.envs.racing.car import CAR_WIDTH, LENGTH, CarState
from tfagents_system.envs.racing.track_map import CELL_METRES, PALETTE, TrackMap

_SIDE = 512
_VIEW_METRES, _BEHIND_METRES = 48.0, 6.0
_CAR_COLOUR, _RAY_COLOUR, _TRAIL_COLOUR, _END_COLOUR = (40, 80, 220), (40, 90, 250), (250, 210, 40), (250, 40, 40)
_MARK_METRES = 2.0  # Half the size of the car's mark on the whole track.


def frame(track_map: TrackMap, car: CarState, trail: Sequence[tuple[float, float]]) -> np.ndarray:
    """The whole track with the trail, and the view from above with the rays, side by side, `[512, 1024, 3]` uint8."""
    return np.concatenate([overview(track_map, car, trail), view(track_map, car)], axis=1)


def overview(track_map: TrackMap, car: CarState, trail: Sequence[tuple[float, float]]) -> np.ndarray:
    """The whole track, north upwards, with where the car has been and a square where it is, `[512, 512, 3]` uint8."""
    columns, rows = track_map.looks.shape
    metres_per_pixel = max(columns, rows) * CELL_METRES / _SIDE
    left = track_map.origin[0] + (columns * CELL_METRES - _SIDE * metres_per_pixel) / 2.0
    top = track_map.origin[1] + (rows * CELL_METRES + _SIDE * metres_per_pixel) / 2.0
    places = (np.arange(_SIDE) + 0.5) * metres_per_pixel
    x, y = np.meshgrid(left + places, top - places)
    picture = PALETTE[track_map.looks.take(track_map.cells(x, y))]

    def mark(points: np.ndarray, colour: tuple[int, int, int], pixels: int) -> None:
        _dots(picture, (points - (left, top)) * (1.0, -1.0) / metres_per_pixel, colour, pixels)

    if trail:
        mark(np.array(trail), _TRAIL_COLOUR, 1)
    mark(np.array([(car.x, car.y)]), _CAR_COLOUR, max(3, round(_MARK_METRES / metres_per_pixel)))
    return picture


def view(track_map: TrackMap, car: CarState) -> np.ndarray:
    """The view from above, the car pointing upwards, with its 19 rays and where they end, `[512, 512, 3]` uint8."""
    scale = _VIEW_METRES / _SIDE
    places = (np.arange(_SIDE) + 0.5) * scale
    lefts, aheads = np.meshgrid(_VIEW_METRES / 2.0 - places, _VIEW_METRES - _BEHIND_METRES - places)
    cos, sin = math.cos(car.heading), math.sin(car.heading)
    x, y = car.x + cos * aheads - sin * lefts, car.y + sin * aheads + cos * lefts
    picture = PALETTE[track_map.looks.take(track_map.cells(x, y))]
    metres = sensors.lidar(track_map, car).astype(np.float64)
    angles = np.radians(sensors.RAY_DEGREES)
    towards = np.stack([-np.sin(angles), -np.cos(angles)], axis=1)  # Columns and rows of the picture.
    middle = np.array((_VIEW_METRES / 2.0, _VIEW_METRES - _BEHIND_METRES)) / scale
    along = np.arange(0.0, 1.0, 0.5 * scale / sensors.RAY_METRES * 4.0)
    rays = middle + (along[:, None, None] * metres[None, :, None] * towards / scale)
    _dots(picture, rays.reshape(-1, 2), _RAY_COLOUR, 0)
    _dots(picture, middle + metres[:, None] * towards / scale, _END_COLOUR, 3)
    is_car = (np.abs(aheads) <= LENGTH / 2.0) & (np.abs(lefts) <= CAR_WIDTH / 2.0)
    picture[is_car] = _CAR_COLOUR
    return picture


def _dots(picture: np.ndarray, points: np.ndarray, colour: tuple[int, int, int], pixels: int) -> None:
    """Squares of `2 * pixels + 1` around points (column, row); those beyond the picture are left out."""
    offsets = np.arange(-pixels, pixels + 1)
    places = np.floor(points).astype(int)
    columns = (places[:, 0, None, None] + offsets[None, :, None]) + np.zeros_like(offsets)[None, None, :]
    rows = (places[:, 1, None, None] + offsets[None, None, :]) + np.zeros_like(offsets)[None, :, None]
    is_inside = (columns >= 0) & (columns < picture.shape[1]) & (rows >= 0) & (rows < picture.shape[0])
    picture[rows[is_inside], columns[is_inside]] = colour
