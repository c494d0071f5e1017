"""What a car observes: its own motion, rays to the edge of the road, a picture. And pictures for people."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tfagents_system.examples.racing.car import CAR_WIDTH, LENGTH, CarState
from tfagents_system.examples.racing.track import CELL_METRES, PALETTE, TrackMap

RAYS = 19
RAY_DEGREES = np.linspace(90.0, -90.0, RAYS)  # From the left to the right, 10 degrees apart.
RAY_METRES = 60.0  # The length of a ray that meets no edge.
CAMERA_PIXELS = 64
_RAY_STEP = 0.5  # metres; the verges are wider
_PIXEL_METRES = 0.75
_CAR_ROW = 56  # The car's place in the picture, in pixels from its top.
_CAR_COLOUR = (40, 80, 220)
_LUMINANCE = (0.299, 0.587, 0.114)

_RAY_ANGLES = np.radians(RAY_DEGREES)
_RAY_PLACES = np.arange(0.0, RAY_METRES + _RAY_STEP, _RAY_STEP)
# The pixels' places in the car's frame, the top row first, the leftmost column first.
_AHEAD = np.repeat((_CAR_ROW - np.arange(CAMERA_PIXELS)) * _PIXEL_METRES, CAMERA_PIXELS)
_LEFT = np.tile((CAMERA_PIXELS / 2 - 0.5 - np.arange(CAMERA_PIXELS)) * _PIXEL_METRES, CAMERA_PIXELS)
_IS_CAR = np.flatnonzero((np.abs(_AHEAD) <= LENGTH / 2) & (np.abs(_LEFT) <= CAR_WIDTH / 2))

_SIDE = 512
_VIEW_METRES, _BEHIND_METRES = 48.0, 6.0
_RAY_COLOUR, _TRAIL_COLOUR, _END_COLOUR = (40, 90, 250), (250, 210, 40), (250, 40, 40)
_MARK_METRES = 2.0  # Half the size of the car's mark on the whole track.


def motion(state: CarState) -> np.ndarray:
    """Speed forwards and sideways (m/s), yaw rate (rad/s) and the angle of the front wheels (rad), `[4]` float32."""
    return np.array((state.forward, state.sideways, state.yaw_rate, state.steer), np.float32)


def lidar(track_map: TrackMap, state: CarState) -> np.ndarray:
    """Metres from the car's centre to the edge of the road along each ray of RAY_DEGREES, `[19]` float32.

    The rays look at the raster every half metre. Where one leaves the road, the edge is interpolated. Away from the
    road all are 0.
    """
    angles = _RAY_ANGLES + state.heading
    cos, sin = np.cos(angles), np.sin(angles)
    x, y = np.multiply.outer(cos, _RAY_PLACES), np.multiply.outer(sin, _RAY_PLACES)
    x += state.x
    y += state.y
    is_road = track_map.edge.take(track_map.cells(x, y)) > 0
    first = is_road.argmin(axis=1)  # The first place that is no road; 0 if there is none, or the car is off the road.
    if not is_road[0, 0]:
        return np.zeros(RAYS, np.float32)
    behind = np.where(first > 0, first, len(_RAY_PLACES) - 1) * _RAY_STEP
    before = behind - _RAY_STEP
    inside = track_map.edge_metres(state.x + cos * before, state.y + sin * before)
    outside = track_map.edge_metres(state.x + cos * behind, state.y + sin * behind)
    share = inside / np.maximum(inside - outside, 1e-6)
    metres = before + _RAY_STEP * np.clip(share, 0.0, 1.0)
    return np.where(first > 0, metres, RAY_METRES).astype(np.float32)


class Camera:
    """Pictures from above, in which the car points upwards.

    Args:
      channels: 1, luminance, or 3, red, green and blue.
    """

    def __init__(self, channels: int) -> None:
        self._palette, self._car = PALETTE, np.array(_CAR_COLOUR, np.uint8)
        if channels == 1:
            self._palette = np.round(PALETTE @ np.array(_LUMINANCE)).astype(np.uint8)
            self._car = np.round(self._car @ np.array(_LUMINANCE)).astype(np.uint8)
        self._shape = (CAMERA_PIXELS, CAMERA_PIXELS, channels)

    def observe(self, track_map: TrackMap, state: CarState) -> np.ndarray:
        """The picture, `[64, 64, channels]` uint8: 42 m ahead, 24 m to each side."""
        cos, sin = math.cos(state.heading), math.sin(state.heading)
        x, y = cos * _AHEAD, sin * _AHEAD
        x -= sin * _LEFT
        y += cos * _LEFT
        x += state.x
        y += state.y
        picture = self._palette.take(track_map.looks.take(track_map.cells(x, y)), axis=0)
        picture[_IS_CAR] = self._car
        return picture.reshape(self._shape)


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
    metres = lidar(track_map, car).astype(np.float64)
    angles = np.radians(RAY_DEGREES)
    towards = np.stack([-np.sin(angles), -np.cos(angles)], axis=1)  # Columns and rows of the picture.
    middle = np.array((_VIEW_METRES / 2.0, _VIEW_METRES - _BEHIND_METRES)) / scale
    along = np.arange(0.0, 1.0, 0.5 * scale / RAY_METRES * 4.0)
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
