"""Closed race tracks drawn from a number, and their rasters."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

# np.clip without its Python layers, which take four times as long.
from numpy.core.umath import clip  # type: ignore[attr-defined]

ZONE_METRES = 0.5
CLOSED = "closed"  # The beginning of their names.
TRAIN, HELD_OUT = "train", "held_out"

_SPLITS = {TRAIN: 0, HELD_OUT: 1}
_VERGE_METRES = 3.0  # Grass between two stretches of road, at least.
_SMALLEST_INNER_RADIUS = 2.0  # metres, of the inner edge of a bend
_MOST_ATTEMPTS = 1000

CELL_METRES = 0.25
EDGE_UNIT_METRES = 0.05  # Of the distances to the edge, which are kept as int8.
REACH_METRES = 127 * EDGE_UNIT_METRES  # Larger distances are kept as this one.
_LINE_METRES = 0.8  # Width of the white line along the edge.
_STRIPE_METRES, _CHECKER_METRES = 4.0, 8.0

# What a place looks like, as rows of PALETTE. Stripes and checkers let a picture tell how fast the car is. The road is
# darker than all grass, in luminance, too.
GRASS, DARK_GRASS, ROAD, DARK_ROAD, LINE, FINISH = range(6)
PALETTE = np.array([(88, 156, 76), (76, 140, 66), (56, 56, 60), (40, 40, 44), (244, 244, 244), (230, 60, 50)], np.uint8)


@dataclasses.dataclass(frozen=True)
class Track:
    """A road of constant width along a closed line of zones: the finish is the start.

    Attributes:
      name: `closed/train/3`.
      width: metres, from edge to edge.
      spacing: metres between two zones, about ZONE_METRES.
      centres: Centres of the zones in the order in which they are passed, `[n, 2]` float64, metres.
      directions: Unit vectors along the road at the centres, `[n, 2]`.
      curvatures: 1 / metres at the centres, positive to the left, `[n]`.
    """

    name: str
    width: float
    spacing: float
    centres: np.ndarray
    directions: np.ndarray
    curvatures: np.ndarray

    @property
    def finish(self) -> int:
        """The zone, counted from 0 at the start, whose line is the finish: that of zone 0 again."""
        return len(self.centres)

    @property
    def metres(self) -> float:
        """From start to finish."""
        return self.finish * self.spacing

    def index(self, zone: int) -> int:
        """The row of a zone; zones beyond the end are the first ones again."""
        return zone % len(self.centres)

    def start(self) -> tuple[float, float, float]:
        """X and y in metres and heading in radians of a car at the start."""
        (x, y), (dx, dy) = self.centres[0].tolist(), self.directions[0].tolist()
        return x, y, math.atan2(dy, dx)


def make_track(split: str, number: int, width: float) -> Track:
    """Draws a track. It never crosses itself, and its bends and verges are wide enough for its width.

    Args:
      split: TRAIN or HELD_OUT; no track of one is a track of the other.
      number: From 0; each is another track.
      width: metres.
    """
    for attempt in range(_MOST_ATTEMPTS):
        rng = np.random.default_rng([0, _SPLITS[split], number, attempt])
        line = _closed_line(rng, width)
        if _fits(line, width):
            return track_along(line, width, name=f"{CLOSED}/{split}/{number}")
    raise RuntimeError(f"no track of width {width} in {_MOST_ATTEMPTS} attempts")


def track_along(line: np.ndarray, width: float, *, name: str) -> Track:
    """The track along a line `[n, 2]` of points ZONE_METRES apart, which does not repeat its first point."""
    spacing = float(np.mean(np.linalg.norm(np.diff(line, axis=0, append=line[:1]), axis=1)))
    directions = _directions(line)
    return Track(name, width, spacing, line, directions, _curvatures(directions, spacing))


def _closed_line(rng: np.random.Generator, width: float) -> np.ndarray:
    """A loop through points at random radii around a centre, smoothed, from the middle of its straightest part."""
    corners = int(rng.integers(10, 16))
    angles = 2.0 * np.pi * (np.arange(corners) + rng.uniform(-0.3, 0.3, corners)) / corners
    radii = rng.uniform(60.0, 90.0) * rng.uniform(0.35, 1.0, corners)
    points = np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1)
    if rng.random() < 0.5:
        points = points[::-1]
    line = _resampled(np.concatenate([points, points[:1]]), ZONE_METRES)[:-1]
    line = _resampled(_smoothed_loop(line, sigma_metres=0.75 * width), ZONE_METRES)[:-1]
    turning = np.abs(_curvatures(_directions(line), ZONE_METRES))
    window = round(40.0 / ZONE_METRES)
    around = np.convolve(np.concatenate([turning, turning[: window - 1]]), np.ones(window), "valid")
    return np.roll(line, -(int(np.argmin(around)) + window // 4), axis=0)


def _smoothed_loop(line: np.ndarray, sigma_metres: float) -> np.ndarray:
    """A closed line under a Gaussian, with its first point repeated at its end."""
    reach = round(4.0 * sigma_metres / ZONE_METRES)
    offsets = np.arange(-reach, reach + 1) * ZONE_METRES
    kernel = np.exp(-0.5 * (offsets / sigma_metres) ** 2)
    kernel /= kernel.sum()
    padded = np.concatenate([line[-reach:], line, line[:reach]])
    smooth = np.stack([np.convolve(padded[:, axis], kernel, "valid") for axis in range(2)], axis=1)
    return np.concatenate([smooth, smooth[:1]])


def _fits(line: np.ndarray, width: float) -> bool:
    """Whether no bend is too tight and no two stretches of the road come too near to each other."""
    radius = width / 2.0 + _SMALLEST_INNER_RADIUS
    track = track_along(line, width, name="")
    if np.abs(track.curvatures).max() > 1.0 / radius:
        return False
    points = track.centres[::4]
    apart = np.abs(np.subtract.outer(np.arange(len(points)), np.arange(len(points)))) * 4 * ZONE_METRES
    apart = np.minimum(apart, len(track.centres) * ZONE_METRES - apart)
    distances = np.linalg.norm(points[:, None] - points[None], axis=2)
    # The ends of the tightest U-turn are further apart than a road and a verge.
    return bool(distances[apart > np.pi * radius].min(initial=np.inf) > width + _VERGE_METRES)


def _resampled(points: np.ndarray, spacing: float) -> np.ndarray:
    """Points at equal distances along a polyline, about `spacing` apart, from its first to its last point."""
    along = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(points, axis=0), axis=1))])
    places = np.linspace(0.0, along[-1], round(along[-1] / spacing) + 1)
    return np.stack([np.interp(places, along, points[:, axis]) for axis in range(points.shape[1])], axis=1)


def _directions(line: np.ndarray) -> np.ndarray:
    """Unit vectors from the point before to the point behind."""
    across = np.roll(line, -1, axis=0) - np.roll(line, 1, axis=0)
    return across / np.linalg.norm(across, axis=1, keepdims=True)


def _curvatures(directions: np.ndarray, spacing: float) -> np.ndarray:
    ahead = np.roll(directions, -1, axis=0)
    turns = directions[:, 0] * ahead[:, 1] - directions[:, 1] * ahead[:, 0]
    return np.arcsin(np.clip(turns, -1.0, 1.0)) / spacing


class TrackMap:
    """Raster of a track, in cells of CELL_METRES; about 0.5 MB.

    Attributes:
      origin: x and y of the middle of cell [0, 0], metres.
      edge: Distance to the edge of the road in EDGE_UNIT_METRES, positive on the road, `[columns, rows]` int8: the
        first index goes along x.
      looks: Rows of PALETTE, `[columns, rows]` uint8.
    """

    def __init__(self, track: Track) -> None:
        margin = track.width / 2.0 + REACH_METRES + CELL_METRES
        low = track.centres.min(axis=0) - margin
        columns, rows = np.ceil((track.centres.max(axis=0) + margin - low) / CELL_METRES).astype(int) + 1
        self.origin = (float(low[0]), float(low[1]))
        distance, nearest = _distances(track.centres, low, (columns, rows), margin)
        self.edge = np.round(np.clip(track.width / 2.0 - distance, -REACH_METRES, REACH_METRES) / EDGE_UNIT_METRES)
        self.edge = self.edge.astype(np.int8)
        self.looks = _looks(track, self.edge, nearest)
        self._highest = (columns - 1, rows - 1)
        self._centres, self._half_width = track.centres, track.width / 2.0

    def cells(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Flat indices of the cells nearest to places, for `take`; those at the border of the map for places beyond.

        Args:
          x, y: Metres, of any shape; they are overwritten.
        """
        for values, low, highest in ((x, self.origin[0], self._highest[0]), (y, self.origin[1], self._highest[1])):
            values -= low - 0.5 * CELL_METRES
            values *= 1.0 / CELL_METRES
            clip(values, 0.0, highest, values)
        cells = x.astype(np.int32)
        cells *= self.edge.shape[1]
        cells += y.astype(np.int32)
        return cells

    def edge_metres(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Metres to the edge of the road, positive on the road, between the cells by bilinear interpolation."""
        column, row = (x - self.origin[0]) / CELL_METRES, (y - self.origin[1]) / CELL_METRES
        clip(column, 0.0, self._highest[0] - 1e-6, column)
        clip(row, 0.0, self._highest[1] - 1e-6, row)
        left, low = column.astype(np.intp), row.astype(np.intp)
        column -= left
        row -= low
        # int8 times float64 is float64.
        near = self.edge[left, low] * (1.0 - row) + self.edge[left, low + 1] * row
        far = self.edge[left + 1, low] * (1.0 - row) + self.edge[left + 1, low + 1] * row
        return (near * (1.0 - column) + far * column) * EDGE_UNIT_METRES

    def edge_metres_at(self, x: float, y: float) -> float:
        """`edge_metres` of the nearest cell of one place: quick, and right to a cell."""
        column = int((x - self.origin[0]) / CELL_METRES + 0.5)
        row = int((y - self.origin[1]) / CELL_METRES + 0.5)
        if 0 <= column <= self._highest[0] and 0 <= row <= self._highest[1]:
            return self.edge.item(column, row) * EDGE_UNIT_METRES
        return -REACH_METRES

    def is_beyond(self, x: float, y: float, metres: float) -> bool:
        """Whether a place is more than so many metres beside the road: where the raster ends, by the road itself."""
        edge = self.edge_metres_at(x, y)
        if edge > -REACH_METRES or metres < REACH_METRES:
            return edge < -metres
        distance = np.sqrt(np.square(self._centres - (x, y)).sum(axis=1).min())
        return bool(distance - self._half_width > metres)


def _distances(
    road: np.ndarray, low: np.ndarray, shape: tuple[int, int], reach: float
) -> tuple[np.ndarray, np.ndarray]:
    """Metres to the nearest point of the road and that point's row, of each cell within reach of one."""
    distance = np.full(shape, np.inf, np.float32)
    nearest = np.zeros(shape, np.int16)
    cells = int(np.ceil(reach / CELL_METRES))
    around = np.arange(-cells, cells + 1)
    for row, point in enumerate(road):
        middle = np.round((point - low) / CELL_METRES).astype(int)
        first, last = np.maximum(middle - cells, 0), np.minimum(middle + cells + 1, shape)
        squares = [
            ((around[start - centre + cells : stop - centre + cells] + centre) * CELL_METRES + offset - place) ** 2
            for start, stop, centre, offset, place in zip(first, last, middle, low, point, strict=True)
        ]
        window = slice(first[0], last[0]), slice(first[1], last[1])
        found = np.sqrt(squares[0][:, None] + squares[1][None]).astype(np.float32)
        is_nearer = found < distance[window]
        np.copyto(distance[window], found, where=is_nearer)
        np.copyto(nearest[window], row, where=is_nearer)
    return distance, nearest


def _looks(track: Track, edge: np.ndarray, nearest: np.ndarray) -> np.ndarray:
    columns, rows = (np.arange(size) * CELL_METRES // _CHECKER_METRES for size in edge.shape)
    grass = GRASS + (columns[:, None] + rows[None]).astype(np.uint8) % 2
    stripes = ROAD + (nearest * track.spacing // _STRIPE_METRES).astype(np.uint8) % 2
    looks = np.where(edge > 0, stripes, grass)
    looks[np.abs(edge) * EDGE_UNIT_METRES <= _LINE_METRES / 2.0] = LINE
    is_finish = nearest * track.spacing <= 1.0
    looks[is_finish & (edge > 0)] = FINISH
    return looks.astype(np.uint8)
