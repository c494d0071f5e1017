"""Race tracks drawn from a number: closed ones and some from A to B, for training and held out for evaluations.

Runs under SAC_ENV_PYTHON as well: NumPy and Gymnasium are needed, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np

ZONE_METRES = 0.5
CLOSED, POINT_TO_POINT = "closed", "point_to_point"
TRAIN, HELD_OUT = "train", "held_out"

_KINDS = {CLOSED: 0, POINT_TO_POINT: 1}
_SPLITS = {TRAIN: 0, HELD_OUT: 1}
_VERGE_METRES = 3.0  # Grass between two stretches of road, at least.
_SMALLEST_INNER_RADIUS = 2.0  # metres, of the inner edge of a bend
_RUN_UP_METRES, _RUN_OFF_METRES = 6.0, 25.0  # Road before the start and behind the finish, from A to B.
_MOST_ATTEMPTS = 1000


@dataclasses.dataclass(frozen=True)
class Track:
    """A road of constant width along a line of zones.

    Attributes:
      name: `closed/train/3`.
      width: metres, from edge to edge.
      is_closed: The finish is the start.
      spacing: metres between two zones, about ZONE_METRES.
      centres: Centres of the zones in the order in which they are passed, `[n, 2]` float64, metres.
      directions: Unit vectors along the road at the centres, `[n, 2]`.
      curvatures: 1 / metres at the centres, positive to the left, `[n]`.
      road: The middle of the road, `[m, 2]`: the centres, with run-up and run-off where it is not closed.
    """

    name: str
    width: float
    is_closed: bool
    spacing: float
    centres: np.ndarray
    directions: np.ndarray
    curvatures: np.ndarray
    road: np.ndarray

    @property
    def finish(self) -> int:
        """The zone, counted from 0 at the start, whose line is the finish: in a closed track that of zone 0 again."""
        return len(self.centres) if self.is_closed else len(self.centres) - 1

    @property
    def metres(self) -> float:
        """From start to finish."""
        return self.finish * self.spacing

    def index(self, zone: int) -> int:
        """The row of a zone; zones beyond the end are the last, or in a closed track the first ones again."""
        return zone % len(self.centres) if self.is_closed else min(zone, len(self.centres) - 1)

    def start(self) -> tuple[float, float, float]:
        """X and y in metres and heading in radians of a car at the start."""
        (x, y), (dx, dy) = self.centres[0].tolist(), self.directions[0].tolist()
        return x, y, math.atan2(dy, dx)


def make_track(kind: str, split: str, number: int, width: float) -> Track:
    """Draws a track. It never crosses itself, and its bends and verges are wide enough for its width.

    Args:
      kind: CLOSED or POINT_TO_POINT.
      split: TRAIN or HELD_OUT; no track of one is a track of the other.
      number: From 0; each is another track.
      width: metres.
    """
    draw: Callable[[np.random.Generator, float], np.ndarray] = _closed_line if kind == CLOSED else _open_line
    for attempt in range(_MOST_ATTEMPTS):
        rng = np.random.default_rng([_KINDS[kind], _SPLITS[split], number, attempt])
        line = draw(rng, width)
        if _fits(line, width, kind == CLOSED):
            return track_along(line, width, is_closed=kind == CLOSED, name=f"{kind}/{split}/{number}")
    raise RuntimeError(f"no {kind} track of width {width} in {_MOST_ATTEMPTS} attempts")


def track_along(line: np.ndarray, width: float, *, is_closed: bool, name: str) -> Track:
    """The track along a line `[n, 2]` of points ZONE_METRES apart; a closed one does not repeat its first point."""
    spacing = float(np.mean(np.linalg.norm(_steps(line, is_closed), axis=1)))
    directions = _directions(line, is_closed)
    road = line
    if not is_closed:
        before = np.arange(_RUN_UP_METRES, 0.0, -ZONE_METRES)[:, None]
        behind = np.arange(ZONE_METRES, _RUN_OFF_METRES, ZONE_METRES)[:, None]
        road = np.concatenate([line[0] - before * directions[0], line, line[-1] + behind * directions[-1]])
    return Track(name, width, is_closed, spacing, line, directions, _curvatures(directions, spacing, is_closed), road)


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
    turning = np.abs(_curvatures(_directions(line, True), ZONE_METRES, True))
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


def _open_line(rng: np.random.Generator, width: float) -> np.ndarray:
    """Straights and bends one after the other, which turn back before they have turned too far."""
    tightest = width / 2.0 + _SMALLEST_INNER_RADIUS + 2.0
    metres, heading = rng.uniform(260.0, 400.0), 0.0
    pieces = [np.zeros(round(20.0 / ZONE_METRES))]
    while sum(map(len, pieces)) * ZONE_METRES < metres:
        length = rng.uniform(12.0, 40.0)
        curvature = 0.0
        if rng.random() < 0.75:
            sign = rng.choice([-1.0, 1.0]) if abs(heading) < 1.0 else -math.copysign(1.0, heading)
            turn = min(rng.uniform(0.5, 2.6), length / tightest)
            curvature = sign * turn / length
            heading += sign * turn
        pieces.append(np.full(round(length / ZONE_METRES), curvature))
    window = round(6.0 / ZONE_METRES)
    curvatures = np.convolve(np.concatenate(pieces), np.full(window, 1.0 / window), "same")
    headings = rng.uniform(-np.pi, np.pi) + np.cumsum(curvatures) * ZONE_METRES
    return np.cumsum(np.stack([np.cos(headings), np.sin(headings)], axis=1) * ZONE_METRES, axis=0)


def _fits(line: np.ndarray, width: float, is_closed: bool) -> bool:
    """Whether no bend is too tight and no two stretches of the road come too near to each other."""
    radius = width / 2.0 + _SMALLEST_INNER_RADIUS
    track = track_along(line, width, is_closed=is_closed, name="")
    if np.abs(track.curvatures).max() > 1.0 / radius:
        return False
    points = track.road[::4]
    apart = np.abs(np.subtract.outer(np.arange(len(points)), np.arange(len(points)))) * 4 * ZONE_METRES
    if is_closed:
        apart = np.minimum(apart, len(track.road) * ZONE_METRES - apart)
    distances = np.linalg.norm(points[:, None] - points[None], axis=2)
    # The ends of the tightest U-turn are further apart than a road and a verge.
    return bool(distances[apart > np.pi * radius].min(initial=np.inf) > width + _VERGE_METRES)


def _resampled(points: np.ndarray, spacing: float) -> np.ndarray:
    """Points at equal distances along a polyline, about `spacing` apart, from its first to its last point."""
    along = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(points, axis=0), axis=1))])
    places = np.linspace(0.0, along[-1], round(along[-1] / spacing) + 1)
    return np.stack([np.interp(places, along, points[:, axis]) for axis in range(points.shape[1])], axis=1)


def _steps(line: np.ndarray, is_closed: bool) -> np.ndarray:
    return np.diff(line, axis=0, append=line[:1]) if is_closed else np.diff(line, axis=0)


def _directions(line: np.ndarray, is_closed: bool) -> np.ndarray:
    """Unit vectors from the point before to the point behind."""
    if is_closed:
        across = np.roll(line, -1, axis=0) - np.roll(line, 1, axis=0)
    else:
        across = np.gradient(line, axis=0)
    return across / np.linalg.norm(across, axis=1, keepdims=True)


def _curvatures(directions: np.ndarray, spacing: float, is_closed: bool) -> np.ndarray:
    ahead = np.roll(directions, -1, axis=0)
    if not is_closed:
        ahead[-1] = directions[-1]
    turns = directions[:, 0] * ahead[:, 1] - directions[:, 1] * ahead[:, 0]
    return np.arcsin(np.clip(turns, -1.0, 1.0)) / spacing
