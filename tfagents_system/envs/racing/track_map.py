"""A track as a raster: how far each place is from the edge of the road, and what it looks like.

Runs under SAC_ENV_PYTHON as well: NumPy and Gymnasium are needed, Python 3.9.
"""

from __future__ import annotations

import numpy as np

# np.clip without its Python layers, which take four times as long.
from numpy.core.umath import clip  # type: ignore[attr-defined]

from tfagents_system.envs.racing.track import Track

CELL_METRES = 0.25
EDGE_UNIT_METRES = 0.05  # Of the distances to the edge, which are kept as int8.
REACH_METRES = 127 * EDGE_UNIT_METRES  # Larger distances are kept as this one.
_LINE_METRES = 0.8  # Width of the white line along the edge.
_STRIPE_METRES, _CHECKER_METRES = 4.0, 8.0

# What a place looks like, as rows of PALETTE. Stripes and checkers let a picture tell how fast the car is. The road is
# darker than all grass, in luminance, too.
GRASS, DARK_GRASS, ROAD, DARK_ROAD, LINE, FINISH = range(6)
PALETTE = np.array([(88, 156, 76), (76, 140, 66), (56, 56, 60), (40, 40, 44), (244, 244, 244), (230, 60, 50)], np.uint8)


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
            for start, stop, centre, offset, place in zip(first, last, middle, low, point)  # noqa: B905  (Python 3.9)
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
